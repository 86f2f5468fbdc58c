"""Transports of the asyncio shell: one per connection, in the event loop; no decisions."""

from __future__ import annotations

import asyncio
import ssl

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.transport import (
    MAX_WAIT_S,
    Machine,
    cannot_connect,
    lost_by,
    make_context,
    server_name,
    tls_failure,
)
from dcpstream.errors import ConnectionLost
from dcpstream.runtime import Clock


class _Link(asyncio.BufferedProtocol):
    """One connection's transport.

    Bytes that come in drops are gathered for as long as the machine wants. With TLS the event loop also reads and
    decrypts in small portions. They are collected for as long as each turn of the loop brings another one.
    """

    def __init__(self, sockets: AsyncSockets, connection: NodeConnection) -> None:
        self.sockets = sockets
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self._waiting: asyncio.Handle | None = None
        self._has_more = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.connection.buffer_updated(nbytes)
        if not self.connection.is_ready or self.connection.has_plenty:
            self._process()
            return
        self._has_more = True
        if self._waiting is not None:
            return
        wait_s = self.sockets.machine.gather_s(self.sockets.clock.monotonic())
        if wait_s:
            self._waiting = asyncio.get_running_loop().call_later(wait_s, self._process)
        elif self.sockets.is_secured:
            self._waiting = asyncio.get_running_loop().call_soon(self._process_if_quiet)
        else:
            self._process()

    def _process_if_quiet(self) -> None:
        if self._has_more:
            self._has_more = False
            self._waiting = asyncio.get_running_loop().call_soon(self._process_if_quiet)
        else:
            self._process()

    def _process(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if not self.sockets.has(self.connection):
            return  # given up meanwhile: its streams go on elsewhere
        self.sockets.machine.received(self.connection, self.sockets.clock.monotonic())
        self.flush()
        self.sockets.wake.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._process()  # what came before the end counts
        self.transport = None
        address = self.connection.address
        error = ConnectionLost(f"{address} closed the connection" if exc is None else f"{address}: {exc}", cause=exc)
        self.sockets.lost(self.connection, lost_by(address, exc) if isinstance(exc, OSError) else error)

    def flush(self) -> None:
        if self.transport is not None:
            data = self.connection.data_to_send()
            if data:
                self.transport.write(data)


class AsyncSockets:
    """Transports of all connections of some `Nodes`, secured as these want it.

    Raises:
        ConfigError: a certificate or key cannot be read.
    """

    def __init__(self, machine: Machine, nodes: Nodes, clock: Clock) -> None:
        self.machine = machine
        self.nodes = nodes
        self.clock = clock
        self.wake = asyncio.Event()
        self._links: dict[NodeConnection, _Link] = {}
        self._tasks: dict[NodeConnection, asyncio.Task[None]] = {}
        tls = nodes.options.tls
        self._context = make_context(tls) if tls is not None else None
        self.is_secured = tls is not None

    async def turn(self, limit_s: float = MAX_WAIT_S) -> None:
        """Open, close and send as the machine asks; wait until something happens, but at most `limit_s`."""
        for connection in self.nodes.to_disconnect():
            self._close(connection)
        for connection in self.nodes.to_connect():
            self._tasks[connection] = asyncio.create_task(self._connect(connection))
        for link in self._links.values():
            link.flush()
        wait_s = min(self.machine.next_timeout() - self.clock.monotonic(), limit_s, MAX_WAIT_S)
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self.wake.wait()
        except TimeoutError:
            pass
        self.wake.clear()
        self.machine.handle_timeout(self.clock.monotonic())

    def has(self, connection: NodeConnection) -> bool:
        """Whether the connection is being made or used."""
        return connection in self._links or connection in self._tasks

    def lost(self, connection: NodeConnection, error: BaseException) -> None:
        """A connection is gone."""
        if self._links.pop(connection, None) is not None or connection in self._tasks:
            self.machine.lost(connection, error, self.clock.monotonic())
            self.wake.set()

    async def close(self) -> None:
        """Close everything."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for connection in list(self._links):
            self._close(connection)
        await asyncio.sleep(0)

    def _close(self, connection: NodeConnection) -> None:
        task = self._tasks.pop(connection, None)
        if task is not None:
            task.cancel()
        link = self._links.pop(connection, None)
        if link is not None and link.transport is not None:
            link.transport.abort()
        connection.close()

    async def _connect(self, connection: NodeConnection) -> None:
        address = connection.address
        tls = self.nodes.options.tls
        try:
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: _Link(self, connection),
                address.host,
                address.kv_port,
                ssl=self._context,
                server_hostname=server_name(tls, address) if tls is not None else None,
            )
        except (ssl.SSLError, ConnectionResetError) as error:
            is_secured = self._context is not None
            self.lost(connection, tls_failure(address, error) if is_secured else cannot_connect(address, error))
        except (OSError, ValueError) as error:
            self.lost(connection, cannot_connect(address, error))
        else:
            self._links[connection] = link
            link.flush()
        finally:
            self._tasks.pop(connection, None)
