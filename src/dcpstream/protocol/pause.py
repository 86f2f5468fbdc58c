"""How long a connection has had nothing to say, for its statistics."""

from __future__ import annotations

__all__ = ["Pause", "milliseconds"]


class Pause:
    """Counts the times at which there was nothing to send.

    Attributes:
        count: how often there was something again.
        previous_s: for how long there was nothing, these times together.
        first_s: how long the first of them was, before anything was sent; None while it lasts.
    """

    def __init__(self, now: float) -> None:
        self.count = 0
        self.previous_s = 0.0
        self.first_s: float | None = None
        self._since = self._now = now

    def passed(self, now: float, *, is_over: bool) -> None:
        """Time has passed; `is_over`: there is something to send."""
        self._now = now
        if is_over:
            self.count += 1
            self.previous_s += self.current_s
            if self.first_s is None:
                self.first_s = self.current_s
            self._since = now

    @property
    def current_s(self) -> float:
        """How long there has been nothing now, as of the last time it was looked at."""
        return self._now - self._since


def milliseconds(seconds: float) -> str:
    """A duration as statistics write it."""
    return f"{int(seconds * 1000)} ms"
