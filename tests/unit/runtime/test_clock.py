"""The machine's clocks."""

from __future__ import annotations

import time

from dcpstream.runtime import SystemClock


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_wall_clock_counts_nanoseconds_since_1970() -> None:
    before = time.time_ns()
    assert before <= SystemClock().time_ns() <= time.time_ns()
