"""The time that a read waits for more bytes.

A node may send a few messages at a time, each of them a piece of its own: nodes whose disks or compilers are slow, or
whose streams take turns. Each read costs about 0.3 ms of CPU time, however little it brings: scanning, columns,
positions, a batch for the user. Read one by one, such pieces keep a core busy at some ten thousand messages a second.

So while pieces with rows follow each other closely, a read waits for more of them. The wait is a share of the time that
they have done so. So the first of them is read at once, and a short read takes hardly longer than without a wait.
"""

from __future__ import annotations

GAP_S = 0.005
"""A piece for which the client waited that long is read at once: 200 reads a second cost little."""

WAIT_SHARE = 1 / 8
"""Share of the time since the first of some pieces that a read waits for more: the last piece of ten milliseconds is at
most one millisecond late."""

LEAST_WAIT_S = 0.0005
"""A shorter wait is not worth its system calls."""

BOUNDED_WAIT_S = 0.02
"""The longest wait of a reader whose streams all have an end: the user waits for all of it. 50 reads a second."""

FOLLOWING_WAIT_S = 0.002
"""The longest wait of a reader that follows a bucket: changes come that much later."""


class Gathering:
    """The rows of one read that follow each other closely.

    Args:
        longest_s: the limit of its waits.
    """

    __slots__ = ("_began", "_idle_since", "_longest_s")

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._began: float | None = None
        self._idle_since = float("-inf")

    def idle(self, now: float) -> None:
        """Note that there is nothing to do any more, or soon, but to wait for bytes."""
        self._idle_since = now

    def rows_came(self, now: float) -> None:
        """Note that rows came: before them, each read is an answer that the next step needs."""
        if self._began is None:
            self._began = now

    def wait_s(self, now: float) -> float:
        """The time to wait for more bytes, now that some are there; 0.0 to read at once."""
        if now - self._idle_since >= GAP_S:
            self._began = None
        if self._began is None:
            return 0.0
        wait_s = min(self._longest_s, (now - self._began) * WAIT_SHARE)
        return wait_s if wait_s >= LEAST_WAIT_S else 0.0
