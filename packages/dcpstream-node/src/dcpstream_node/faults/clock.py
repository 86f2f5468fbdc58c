"""The clocks of a node, which can be moved."""

from __future__ import annotations

from collections.abc import Callable

from dcpstream.runtime import SystemClock


class MovableClock:
    """The system's clocks, moved.

    The time of day moves both ways. The monotonic clock only moves forward, as its name says.

    Attributes:
        monotonic: seconds of the monotonic clock. As long as nothing is moved, it is the system's own function.
        time_ns: nanoseconds of the wall clock.
    """

    def __init__(self) -> None:
        self._system = SystemClock()
        self._monotonic_s = 0.0
        self._unix_ns = 0
        self.monotonic: Callable[[], float] = self._system.monotonic
        self.time_ns: Callable[[], int] = self._system.time_ns

    def _moved_monotonic(self) -> float:
        return self._system.monotonic() + self._monotonic_s

    def _moved_time_ns(self) -> int:
        return self._system.time_ns() + self._unix_ns

    def move(self, seconds: float) -> None:
        """Move both by this much from where they are; back, only the time of day."""
        self._unix_ns += int(seconds * 1e9)
        self._monotonic_s += max(0.0, seconds)
        self.monotonic, self.time_ns = self._moved_monotonic, self._moved_time_ns
