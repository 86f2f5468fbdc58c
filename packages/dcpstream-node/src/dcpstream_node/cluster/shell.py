"""The orchestrator's sockets, in a thread with an event loop of its own; no decisions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from dcpstream.errors import ConnectionLost, DcpstreamError
from dcpstream.runtime import Clock
from dcpstream_node.cluster.machine.link import Link
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0
"""Longest wait for the thread's end: closing sockets takes milliseconds."""


class _Socket(asyncio.Protocol):
    """The socket of one link."""

    def __init__(self, shell: Shell, link: Link) -> None:
        self._shell = shell
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream"
        self._shell.connected(self._link, transport)

    def data_received(self, data: bytes) -> None:
        self._shell.received(self._link, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shell.lost(self._link, exc)


class Shell:
    """Runs an orchestrator.

    Args:
        orchestrator: used by this thread alone from `start` on.
        clock: its monotonic clock must be the loop's.
    """

    def __init__(self, orchestrator: Orchestrator, clock: Clock) -> None:
        self._orchestrator = orchestrator
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dcpstream-cluster", daemon=True)
        self._transports: dict[Link, asyncio.Transport] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._has_turn = False
        self._is_stopped = False
        self._awaited: set[concurrent.futures.Future[Any]] = set()

    def start(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close every connection and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_S)

    # ------------------------------------------------------------------------------------------- from any other thread

    def begin(self, make: Callable[[], Procedure[T]]) -> concurrent.futures.Future[T]:
        """Begin a procedure of the orchestrator.

        Args:
            make: called in the orchestrator's thread.

        Returns: its value or error, to wait for.
        """
        found: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._awaited.add(found)
        found.add_done_callback(self._awaited.discard)

        def start() -> None:
            self._set_time()
            try:
                outcome = self._orchestrator.tasks.start(make())
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                found.set_exception(error)
                return
            outcome.then(lambda: self._finish(outcome, found))
            self._schedule_turn()

        self._loop.call_soon_threadsafe(start)
        return found

    @staticmethod
    def _finish(outcome: Outcome[T], found: concurrent.futures.Future[T]) -> None:
        if outcome.error is not None:
            found.set_exception(outcome.error)
        else:
            found.set_result(outcome.value)

    def call(self, what: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Call a function in the orchestrator's thread."""

        def procedure() -> Procedure[T]:
            yield []
            return what()

        return self.begin(procedure)

    # --------------------------------------------------------------------------------------------------- in its thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._is_stopped = True  # a turn that is due already begins no connection
            for task in self._connecting:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._connecting, return_exceptions=True))
            for transport in self._transports.values():  # also of those that were just made
                transport.abort()
            self._loop.run_until_complete(asyncio.sleep(0))  # the transports close their sockets
            self._loop.close()
            for found in list(self._awaited):  # nobody carries it out any more, and a node's page may wait for it
                found.set_exception(DcpstreamError("the cluster was stopped"))

    def _set_time(self) -> None:
        self._orchestrator.tasks.now = self._clock.monotonic()

    def _schedule_turn(self) -> None:
        if not self._has_turn and not self._is_stopped:
            self._has_turn = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        if self._is_stopped:
            return
        orchestrator = self._orchestrator
        self._set_time()
        orchestrator.tasks.run()
        while orchestrator.to_connect:
            task = self._loop.create_task(self._connect(orchestrator.to_connect.pop()))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        while orchestrator.with_output:
            link, _ = orchestrator.with_output.popitem()
            self._flush(link)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = orchestrator.next_timeout()
        if due is not None:
            self._timer = self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._orchestrator.handle_timeout(self._clock.monotonic())
        self._schedule_turn()

    async def _connect(self, link: Link) -> None:
        if link.is_closed:
            return
        try:
            await self._loop.create_connection(lambda: _Socket(self, link), link.address.host, link.address.kv_port)
        except OSError as error:
            self.lost(link, error)

    def connected(self, link: Link, transport: asyncio.Transport) -> None:
        """A link has its socket."""
        self._transports[link] = transport
        self._flush(link)

    def _flush(self, link: Link) -> None:
        transport = self._transports.get(link)
        if transport is None:
            return
        if link.is_closed:
            transport.abort()
        elif data := link.data_to_send():
            transport.write(data)

    def received(self, link: Link, data: bytes) -> None:
        """Bytes came."""
        self._set_time()
        self._orchestrator.received(link, data)
        self._schedule_turn()

    def lost(self, link: Link, error: Exception | None) -> None:
        """A socket is closed, or could not be opened."""
        if self._is_stopped:
            return
        self._transports.pop(link, None)
        self._set_time()
        why = f"node {link.node} at {link.address}: {error or 'closed the connection'}"
        self._orchestrator.lost(link, ConnectionLost(why, cause=error))
        self._schedule_turn()
