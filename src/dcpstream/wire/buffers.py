"""Buffers for what is sent, used again and again.

A fresh buffer of a block's size costs page faults; one that was just sent is still in the CPU's cache. Whoever sends
gives a piece back when nothing refers to it any more; who never does gets fresh buffers, and no harm is done.
"""

from __future__ import annotations

from collections.abc import Iterable

BUFFER_BYTES = 1024 * 1024 + 64 * 1024
"""Size of a buffer that is kept: the block of one turn of a stream, and a message that overshoots it."""

LENT_BYTES_MIN = 32 * 1024
"""What is smaller is not worth one: allocating it costs no page fault."""

FREE_BUFFERS_MAX = 2
"""Buffers that wait for their next use. What one thread sends at a time is one; the second is for a connection whose
socket did not take all of its block."""


class BufferPool:
    """The buffers of one thread: no locks.

    Attributes:
        free: those nobody uses.
    """

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free: list[bytearray] = []

    def copy_of(self, data: memoryview) -> bytearray | memoryview:
        """A copy of some bytes, which may be changed."""
        size = len(data)
        if not LENT_BYTES_MIN <= size <= BUFFER_BYTES:
            return bytearray(data)
        lent = memoryview(self.free.pop() if self.free else bytearray(BUFFER_BYTES))[:size]
        lent[:] = data
        return lent

    def give_back(self, pieces: Iterable[memoryview]) -> None:
        """Take back those of these pieces that are lent buffers.

        Nobody may use them afterwards, and none may be given twice.
        """
        for piece in pieces:
            if len(self.free) >= FREE_BUFFERS_MAX:
                break
            if isinstance(piece.obj, bytearray) and len(piece.obj) == BUFFER_BYTES:
                self.free.append(piece.obj)
