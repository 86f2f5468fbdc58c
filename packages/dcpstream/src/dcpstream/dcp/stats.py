"""The parts of the `dcp` stats group that both ends share: pauses, and the text of values.

Source: kv_engine engines/ep/src/dcp/connhandler.cc (addStats), recorded names.
"""

from __future__ import annotations

__all__ = ["BUFFER_FULL", "INITIALIZING", "NOTHING_TO_SAY", "Pause", "milliseconds", "stat_text"]

BUFFER_FULL, INITIALIZING, NOTHING_TO_SAY = "BufferLogFull", "Initializing", "ReadyListEmpty"
"""Reasons of a pause, with the server's names, in its order."""


class Pause:
    """The times in which a connection sent nothing.

    Args:
        now: seconds of a monotonic clock.
        reason: the reason of the first pause.

    Attributes:
        counts: reason → pauses that have ended.
        durations_s: reason → their duration, summed up.
        reason: the reason of the present pause.
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
            reason: the reason of the pause that begins or goes on now.
        """
        self._now = now
        if is_over or reason != self.reason:
            self.counts[self.reason] += 1
            self.durations_s[self.reason] += self.current_s
            self.reason, self._since = reason, now

    @property
    def current_s(self) -> float:
        """Duration of the present pause, as of the last call of `passed`."""
        return self._now - self._since


def milliseconds(seconds: float) -> str:
    """A duration as the server writes it."""
    return f"{int(seconds * 1000)} ms"


def stat_text(value: object) -> str:
    """A value as the server writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
