"""The way from a connection to its socket while the node has faults: frames are lost, held, changed or cut here.

Theory of operation. Output is cut into frames, each of which becomes one or several steps: bytes, a pause, a wait for
the end of a fault, or the end of the connection. Steps are carried out in order, so what comes behind a held frame
waits, as in a real stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from dcpstream.wire.frames import HEADER_BYTES
from dcpstream_node.faults import Fault, Faults

if TYPE_CHECKING:
    from dcpstream_node.engine import Session

SPLIT_AT = 12
"""Byte at which a frame is split unless the fault says it: in the middle of the header."""
SPLIT_PAUSE_S = 0.01
"""Between the pieces of a split frame: enough that they do not leave in one packet."""
ACKNOWLEDGEMENT_S = 0.01
"""Time that a small buffer stays full unless the fault says it."""
_REQUEST_MAGICS = frozenset((0x80, 0x08))


class FaultGate:
    """The gate of one connection.

    Args:
        write: sends bytes.
        close: closes the connection after what was sent.
        opened: called when everything has passed, after it was held.

    Attributes:
        is_empty: whether nothing is held.
    """

    def __init__(
        self,
        faults: Faults,
        session: Session,
        loop: asyncio.AbstractEventLoop,
        write: Callable[[bytes], None],
        close: Callable[[], None],
        opened: Callable[[], None],
    ) -> None:
        self._faults = faults
        self._session = session
        self._loop = loop
        self._write = write
        self._close = close
        self._opened = opened
        self._rest = b""
        self._in_buffer = 0
        self._steps: deque[bytes | float | int | None] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._stalled_by: int | None = None
        self._is_over = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._steps and not self._rest and self._timer is None and self._stalled_by is None

    def put(self, data: bytes) -> None:
        """Output of the session."""
        if self._is_over:
            return
        data = self._rest + data
        at = passed = 0
        while len(data) - at >= HEADER_BYTES:
            stop = at + HEADER_BYTES + int.from_bytes(data[at + 8 : at + 12], "big")
            if stop > len(data):
                break
            found = self._fault_of(data, at)
            if found is not None:
                self._steps.append(data[passed:at])
                self._disturb(data[at:stop], *found)
                passed = stop
            at = stop
        self._steps.append(data[passed:at])
        self._rest = data[at:]
        self._run()

    def _fault_of(self, data: bytes, at: int) -> tuple[int, Fault] | None:
        session = self._session
        vbid = int.from_bytes(data[at + 6 : at + 8], "big") if data[at] in _REQUEST_MAGICS else None
        bucket = session.bucket.name if session.bucket is not None else ""
        return self._faults.on_sent(data[at + 1], vbid, bucket, session.names, self._loop.time())

    def _disturb(self, frame: bytes, number: int, fault: Fault) -> None:
        if fault.kind == "delay":
            self._steps += [fault.delay_s, frame]
        elif fault.kind == "split":
            at = SPLIT_AT if fault.at_byte is None else fault.at_byte
            self._steps += [frame[:at], fault.delay_s or SPLIT_PAUSE_S, frame[at:]]
        elif fault.kind == "corrupt":
            self._steps.append(_corrupted(frame, fault))
        elif fault.kind == "stall":
            self._steps += [number, frame]
        elif fault.kind == "small_buffer":
            if self._in_buffer and self._in_buffer + len(frame) > fault.buffer_bytes:
                self._steps.append(fault.delay_s or ACKNOWLEDGEMENT_S)
                self._in_buffer = 0
            self._in_buffer += len(frame)
            self._steps.append(frame)
        elif fault.kind == "close":
            self._steps += [frame if fault.at_byte is None else frame[: fault.at_byte], None]

    def _run(self) -> None:
        while self._steps and self._timer is None and self._stalled_by is None:
            step = self._steps.popleft()
            if isinstance(step, bytes):
                if step:
                    self._write(step)
            elif step is None:
                self.stop()
                self._close()
            elif isinstance(step, float):
                self._timer = self._loop.call_later(step, self._go_on)
            else:
                self._stall(step)

    def _stall(self, number: int) -> None:
        if not self._faults.is_there(number, self._loop.time()):
            return
        self._stalled_by = number
        self._faults.changed.add(self._look)
        end = self._faults.end_of(number)
        if end != float("inf"):
            self._timer = self._loop.call_at(end, self._look)

    def _look(self) -> None:
        """Go on if the fault that stalls is over."""
        number = self._stalled_by
        if number is None or self._faults.is_there(number, self._loop.time()):
            return
        self._stalled_by = None
        self._faults.changed.discard(self._look)
        if self._timer is not None:
            self._timer.cancel()
        self._go_on()

    def _go_on(self) -> None:
        self._timer = None
        self._run()
        if self.is_empty and not self._is_over:
            self._opened()

    def stop(self) -> None:
        """Pass nothing more."""
        self._is_over = True
        self._steps.clear()
        self._rest = b""
        self._stalled_by = None
        self._faults.changed.discard(self._look)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _corrupted(frame: bytes, fault: Fault) -> bytes:
    """The frame with other bytes at one place; its length stays."""
    at = HEADER_BYTES if fault.at_byte is None else fault.at_byte
    other = bytes.fromhex(fault.data) or bytes(byte ^ 0xFF for byte in frame[at : at + 1])
    return (frame[:at] + other + frame[at + len(other) :])[: len(frame)] if at < len(frame) else frame
