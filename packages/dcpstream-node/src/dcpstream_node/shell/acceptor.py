"""Accepts connections on a listening socket, plain or encrypted, and hands each over to a protocol of asyncio.

The acceptor knows each socket from its accept until its protocol has it, so that `stop` leaves none of them
behind. (The server of asyncio does not: what it has just accepted may reach its protocol after `Server.close`, when the
owner has closed all connections that it knew.) Handshakes count as connections, and have a time limit.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from dcpstream_node.engine.limit_log import LimitLog
from dcpstream_node.shell.limits import Limits

ACCEPTS = 32
"""Connections that are accepted at a time, before existing ones have their turn."""
ACCEPT_PAUSE_S = 0.5
"""Pause after a failed accept, which usually lacks descriptors."""
SHUTDOWN_S = 1.0
"""Time limit of the TLS shutdown of a connection."""
TURNS_TO_CONNECT = 4
"""Turns of the loop until asyncio has made the transport of an accepted socket, called its `connection_made` and ended
the task. Before `connection_made`, closing an encrypted transport does nothing."""


class Acceptor:
    """Accepts connections on a bound socket.

    Args:
        listener: bound and non-blocking; `stop` closes it.
        make: the protocol of a connection; its `connection_made` is called after the handshake.
        limits: `tls_connections`, and `login_s` for the handshake.
        context: certificate, versions, ciphers; None for connections without TLS.
        established: gives the number of open connections after their handshakes; only those with TLS are limited here.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        limits: Limits,
        log: LimitLog,
        context: ssl.SSLContext | None = None,
        established: Callable[[], int] = lambda: 0,
    ) -> None:
        self._listener = listener
        self._make = make
        self._limits = limits
        self._log = log
        self._context = context
        self._established = established
        self._loop = asyncio.get_running_loop()
        self._connecting: dict[asyncio.Task[None], None] = {}
        self._pause: asyncio.TimerHandle | None = None

    def start(self, backlog: int) -> None:
        """Begin to accept; `backlog` connections may wait for it."""
        self._listener.listen(backlog)
        self._resume()

    async def stop(self) -> None:
        """Accept no more connections, and drop those in their handshake; the protocols have all others.

        Connections that only the system has accepted are reset.
        """
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._listener)
        self._listener.close()
        for _ in range(TURNS_TO_CONNECT):
            await asyncio.sleep(0)
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._log.reached("of the system", "a connection", f"not accepted ({error})", self._loop.time())
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
                return
            connection.setblocking(False)
            peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "client"
            if self._context is not None and not self._has_room(peer):
                connection.close()
                continue
            task = self._loop.create_task(self._connect(connection, peer), name=f"connection of {peer}")
            self._connecting[task] = None
            task.add_done_callback(partial(self._connected, connection))

    def _has_room(self, peer: str) -> bool:
        """Whether one more encrypted connection is allowed; the oldest handshake makes room for it."""
        if len(self._connecting) + self._established() < self._limits.tls_connections:
            return True
        self._log.reached("tls_connections", peer, "refused, or in place of an older one", self._loop.time())
        if not self._connecting:
            return False
        oldest = next(iter(self._connecting))  # stalled handshakes keep no new client out
        del self._connecting[oldest]
        oldest.cancel()
        return True

    def _connected(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """A protocol has its connection, or the task was cancelled, perhaps before it began."""
        self._connecting.pop(task, None)
        if task.cancelled():
            connection.close()

    async def _connect(self, connection: socket.socket, peer: str) -> None:
        is_encrypted = self._context is not None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=(self._limits.login_s or None) if is_encrypted else None,
                ssl_shutdown_timeout=SHUTDOWN_S if is_encrypted else None,
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            connection.close()
            why = str(error) or type(error).__name__
            text = f"{peer}: no TLS connection: {why}"
            self._log.say("connections without a TLS handshake", text, self._loop.time(), level=logging.INFO)
