"""The event loop of the blocking shell: drive a machine over sockets, keep its connections alive between batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

from dcpstream.client.blocking.sockets import Sockets
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.values import R, ReaderOutput, RollbackEvent
from dcpstream.client.transport import MAX_WAIT_S, Machine
from dcpstream.runtime import Clock

BEAT_S = 5.0
"""Seconds between two calls: a quarter of the NOOP interval, and a node waits for two intervals."""

BEATS_MAX = 720
"""Calls while the user is away, which is one hour. Then the stream counts as forgotten: the nodes close the connections
and free their memory. The stream is resumed if the user comes back after all."""


class KeepAlive:
    """A thread that calls `beat` while the user of a blocking stream has the control.

    A blocking reader runs only while its user asks for the next batch. If the user works on a batch for minutes, NOOPs
    stay unanswered and the node closes the connection. So a thread calls `beat`, which reads what has arrived (no more
    than the flow-control window, as nothing is acknowledged meanwhile) and answers probes. A lock keeps user and thread
    from working on the reader at the same time: the stream holds it, except while a batch is in the user's hands.

    Args:
        beat: serves the sockets; must not wait.
        beat_s: seconds between two calls.
    """

    def __init__(self, beat: Callable[[], None], beat_s: float | None = None) -> None:
        self._beat = beat
        self._beat_s = BEAT_S if beat_s is None else beat_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats_left = 0
        self._error: BaseException | None = None
        self._lock.acquire()

    def leave(self) -> None:
        """The user gets the control: begin to call `beat`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dcpstream-keepalive", daemon=True)
            self._thread.start()
        self._beats_left = BEATS_MAX
        self._lock.release()

    def enter(self) -> None:
        """The stream has the control again; waits for a call that is under way.

        Raises:
            BaseException: what `beat` raised, if it did.
        """
        self._lock.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """End the thread; the stream has the control."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(self._beat_s):
            if not self._lock.acquire(blocking=False):
                continue
            try:
                if self._beats_left > 0 and self._error is None:
                    self._beats_left -= 1
                    self._beat()
            except BaseException as error:  # noqa: BLE001 - it belongs to the user's thread
                self._error = error
            finally:
                self._lock.release()


def turn(machine: Machine, nodes: Nodes, sockets: Sockets, clock: Clock, limit_s: float = MAX_WAIT_S) -> None:
    """Serve sockets and clocks once; wait until something happens, but at most `limit_s`."""
    now = clock.monotonic()
    for connection, error in sockets.sync(nodes):
        machine.lost(connection, error, now)
    wait_s = min(machine.next_timeout() - now, limit_s, MAX_WAIT_S)
    for connection, lost in sockets.poll(max(0.0, wait_s), lambda: machine.gather_s(clock.monotonic())):
        if lost is None:
            machine.received(connection, clock.monotonic())
        else:
            machine.lost(connection, lost, clock.monotonic())
    machine.handle_timeout(clock.monotonic())


def drive(
    reader: StreamReader[R],
    nodes: Nodes,
    sockets: Sockets,
    clock: Clock,
    *,
    keeps_records: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Generator[ReaderOutput[R], None, None]:
    """Yield what a reader delivers, until it is done.

    While the user works on it and the reader has streams, the nodes' probes are answered.

    Args:
        reader, nodes, sockets, clock: the parts of one stream.
        keeps_records: whether delivered positions count as recorded when the user asks for the next event.
        is_over: asked at least once in `MAX_WAIT_S`; once it is true, everything that has arrived is yielded, and then
            the stream ends.
    """

    def beat() -> None:
        for _ in range(2):  # the second one sends the answers to what the first one read
            reader.resumed(clock.monotonic())
            turn(reader, nodes, sockets, clock, 0.0)

    keep_alive = KeepAlive(beat)
    reader.resumed(clock.monotonic())
    try:
        while True:
            event = reader.next_event()
            if event is not None:
                # Without a stream, a node that gives the connection up takes nothing from the reader, and short reads
                # need no thread.
                has_streams = not reader.is_read
                if has_streams:
                    keep_alive.leave()
                try:
                    yield event
                finally:
                    if has_streams:
                        keep_alive.enter()
                if keeps_records and not isinstance(event, RollbackEvent):
                    reader.record(event.offsets)
                reader.resumed(clock.monotonic())
            elif reader.is_done or (is_over is not None and is_over()):
                # Send the last acknowledgements and closings before the connections go back to their owner.
                list(sockets.poll(0.0))
                return
            else:
                reader.step(clock.monotonic())
                turn(reader, nodes, sockets, clock)
    finally:
        keep_alive.stop()
        reader.close()
