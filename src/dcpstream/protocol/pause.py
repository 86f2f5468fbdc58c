"""How long a connection has sent nothing, and why, for its statistics."""

from __future__ import annotations

__all__ = ["BUFFER_FULL", "INITIALIZING", "NOTHING_TO_SAY", "Pause", "milliseconds"]

BUFFER_FULL, INITIALIZING, NOTHING_TO_SAY = "BufferLogFull", "Initializing", "ReadyListEmpty"
"""Reasons, under the server's names, in its order."""


class Pause:
    """Counts the times at which nothing was sent.

    Args:
        now: seconds of a monotonic clock.
        reason: why nothing is sent at first.

    Attributes:
        counts: reason → how often something was sent again after it.
        durations_s: reason → for how long nothing was sent, these times together.
        reason: why nothing is sent now.
    """

    def __init__(self, now: float, reason: str = NOTHING_TO_SAY) -> None:
        self.counts = dict.fromkeys((BUFFER_FULL, INITIALIZING, NOTHING_TO_SAY), 0)
        self.durations_s = dict.fromkeys(self.counts, 0.0)
        self.reason = reason
        self._since = self._now = now

    def passed(self, now: float, *, is_over: bool, reason: str = NOTHING_TO_SAY) -> None:
        """Time has passed.

        Args:
            now: seconds of a monotonic clock.
            is_over: something was sent.
            reason: why nothing more is sent now.
        """
        self._now = now
        if is_over or reason != self.reason:
            self.counts[self.reason] += 1
            self.durations_s[self.reason] += self.current_s
            self.reason, self._since = reason, now

    @property
    def current_s(self) -> float:
        """For how long nothing was sent now, as of the last time it was looked at."""
        return self._now - self._since


def milliseconds(seconds: float) -> str:
    """A duration as statistics write it."""
    return f"{int(seconds * 1000)} ms"
