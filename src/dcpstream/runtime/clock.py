"""What time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that never goes back, one that people read."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def time_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def time_ns(self) -> int:
        """Nanoseconds of the wall clock."""
        return time.time_ns()
