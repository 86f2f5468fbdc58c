"""Bytes in memory: the types that a frame can be read from, and a pool of buffers for sending.

A fresh buffer of a block's size costs page faults; one that was just sent is still in the CPU's cache. A shell returns
a piece once nothing refers to it any more. Without returned pieces the pool allocates fresh buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Memory that frames are read from."""

BUFFER_BYTES = 1024 * 1024 + 64 * 1024
"""Size of a kept buffer: the block of one turn of a stream, and a message that overshoots it."""

POOLED_BYTES_MIN = 32 * 1024
"""Smallest piece that gets a kept buffer: allocating less costs no page fault."""

FREE_BUFFERS_MAX = 2
"""Most unused buffers. One thread sends one block at a time; the second buffer is for a connection whose socket did not
take all of its block."""


class _Kept(bytearray):
    """A buffer that a pool made."""

    __slots__ = ()


class BufferPool:
    """The buffers of one thread: no locks.

    Attributes:
        free: the unused buffers.
    """

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free: list[_Kept] = []

    def allocate(self, size: int) -> memoryview | None:
        """The first bytes of a kept buffer, with any content; None for a size that gets fresh memory."""
        if not POOLED_BYTES_MIN <= size <= BUFFER_BYTES:
            return None
        return memoryview(self.free.pop() if self.free else _Kept(BUFFER_BYTES))[:size]

    def copy_of(self, data: memoryview) -> bytearray | memoryview:
        """A writable copy of some bytes."""
        copy = self.allocate(len(data))
        if copy is None:
            return bytearray(data)
        copy[:] = data
        return copy

    def give_back(self, pieces: Iterable[memoryview]) -> None:
        """Take back those pieces that are kept buffers.

        The caller must not use them afterwards, and must not give one twice.
        """
        for piece in pieces:
            if len(self.free) >= FREE_BUFFERS_MAX:
                break
            if isinstance(piece.obj, _Kept):
                self.free.append(piece.obj)
