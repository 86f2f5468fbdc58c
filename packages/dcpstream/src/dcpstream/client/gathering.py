"""The time that a read waits for more bytes.

A node may send a few messages at a time, each of them a piece of its own: nodes whose disks or compilers are slow, or
whose streams take turns. Each read costs about 0.3 ms of CPU time, however little it brings: scanning, columns,
positions, a batch for the user. Read one by one, such pieces keep a core busy at some ten thousand messages a second.

So while pieces follow each other closely, a read waits for more of them. The wait is a share of the time that they have
done so. So the first of them is read at once, and a short answer is hardly later than without a wait.
"""

from __future__ import annotations

GAP_S = 0.005
"""Pieces that come later than that after the read before them are read at once: 200 reads a second cost little."""

WAIT_SHARE = 1 / 8
"""Share of the time since the first of some pieces that a read waits for more: a read of ten milliseconds takes one
more."""

LEAST_WAIT_S = 0.0005
"""A shorter wait is not worth its system calls."""

BOUNDED_WAIT_S = 0.02
"""The longest wait of a reader whose streams all have an end: the user waits for all of it. 50 reads a second."""

FOLLOWING_WAIT_S = 0.002
"""The longest wait of a reader that follows a bucket: changes come that much later."""


class Gathering:
    """The pieces that follow each other, of all connections of one shell."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = 0.0

    def wait_s(self, idle_since: float, now: float, longest_s: float) -> float:
        """The time to wait for more bytes, now that some are there; 0.0 to read at once.

        Args:
            idle_since: seconds of the monotonic clock at which the shell had nothing more to do.
            now: the same clock, when the bytes came.
            longest_s: the limit of the machine that reads.
        """
        if now - idle_since >= GAP_S:
            self._began = now
        wait_s = min(longest_s, (now - self._began) * WAIT_SHARE)
        return wait_s if wait_s >= LEAST_WAIT_S else 0.0
