"""The heap of a process that keeps many documents in memory.

A vbucket's frames lie in a buffer that grows. In glibc's heap a growing buffer moves again and again, and the gaps that
it leaves are too small for the next one: with 1,024 vbuckets the gaps take two thirds as much memory as the frames. A
buffer with pages of its own grows without a copy and leaves no gap.
"""

from __future__ import annotations

LARGE_BYTES = 64 * 1024
"""Buffers of this size get pages of their own. Smaller ones would waste a part of their last page."""

_M_MMAP_THRESHOLD = -3
"""Number of the setting in malloc.h. Without it glibc raises the threshold, up to 32 MiB, when a buffer is freed."""


def keep_large_buffers_apart() -> bool:
    """Give all large buffers of this process pages of their own; returns whether the allocator has that setting.

    It is for the process of a node in memory alone. Reading from disk takes large buffers for a moment, and new pages
    for each of them cost twice the processor time of a backfill.
    """
    import ctypes  # loading it takes a while, and commands other than `node` need none of it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))
