"""The machine's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from dcpstream.runtime import SystemClock, utc_now


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_wall_clock_counts_nanoseconds_since_1970() -> None:
    before = time.time_ns()
    assert before <= SystemClock().time_ns() <= time.time_ns()


def test_the_time_in_utc_is_that_of_the_clock() -> None:
    class Stopped:
        def monotonic(self) -> float:
            return 0.0

        def time_ns(self) -> int:
            return 1_500_000_000_250_000_000

    assert utc_now(Stopped()) == datetime(2017, 7, 14, 2, 40, 0, 250_000, tzinfo=UTC)
