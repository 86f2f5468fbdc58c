"""The clock seam."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and a wall clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...

    def time_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)


def utc_now(clock: Clock | None = None) -> datetime:
    """The wall clock's time as a datetime in UTC."""
    return datetime.fromtimestamp((clock or SystemClock()).time_ns() / 1e9, UTC)
