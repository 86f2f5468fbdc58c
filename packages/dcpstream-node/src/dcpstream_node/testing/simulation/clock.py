"""Time and randomness under the control of a test."""

from __future__ import annotations

import random  # noqa: TID251 - seeded on purpose

START_S = 100.0
"""The first reading of a simulated node's monotonic clock."""
START_UNIX_S = 1_700_000_000
"""The same moment in seconds since 1970."""


class VirtualClock:
    """A `dcpstream.runtime.Clock` that only the test moves.

    Attributes:
        now: seconds of the monotonic clock; a test may set it.
    """

    def __init__(self, now: float = START_S) -> None:
        self._start = now
        self.now = now

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return self.now

    def time_ns(self) -> int:
        """Nanoseconds since 1970; the first reading is `START_UNIX_S`."""
        return START_UNIX_S * 1_000_000_000 + int((self.now - self._start) * 1e9)


class SeededRandom:
    """A `dcpstream.runtime.Random` that gives the same bits for the same seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def getrandbits(self, count: int) -> int:
        """An integer of `count` random bits."""
        return self._random.getrandbits(count)
