"""A clock whose time of day is set forward and back, as an operator or a time server does."""

from __future__ import annotations

from dcpstream_node.testing.simulation.clock import VirtualClock


class JumpingClock(VirtualClock):
    """A virtual clock. A jump does not move its monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self._jumped_ns = 0

    def jump(self, seconds: int) -> None:
        """Set the time of day forward, or back."""
        self._jumped_ns += seconds * 1_000_000_000

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return super().time_ns() + self._jumped_ns
