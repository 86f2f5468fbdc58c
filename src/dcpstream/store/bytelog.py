"""Where the bytes of one vbucket's stream of frames are.

Positions count bytes from the vbucket's first frame on. The stream has up to three parts, oldest first: blocks in
files (position → address, two u64 each), sealed buffers (never changed any more, so readers may keep views of them),
and the tail, to which `append` adds. In a memory store there are no blocks and sealed buffers stay for ever; in a disk
store a commit turns the sealed buffers into blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any

Buffer = bytes | bytearray | memoryview
Piece = Buffer | tuple[int, int]
"""Bytes, or (address, length) of bytes in a file."""

CHUNK_BYTES = 1024 * 1024
"""A tail that would grow beyond this is sealed before. Bounds what growing a bytearray copies; and a backfill block of
this size is a whole sealed buffer, which is read without a copy."""

WHOLE_PART = 4
"""A read that gets at least a 4th of what it wants from one place is content; the rest comes with the next one."""

SEAL_FOR_READER_BYTES = 32 * 1024
"""A reader that wants at least this much of the tail gets a view instead of a copy. Smaller would make many buffers."""


class ByteLog:
    """The stream of frames of one vbucket.

    Attributes:
        tail: the bytes after the last sealed buffer.
        tail_start: position of its first byte.
        sealed: (position, buffer), rising and without gaps up to `tail_start`.
        block_starts, block_addresses: position of each block's first frame, and its address in the files.
    """

    __slots__ = ("block_addresses", "block_starts", "sealed", "tail", "tail_start")

    def __init__(self) -> None:
        self.tail = bytearray()
        self.tail_start = 0
        self.sealed: list[tuple[int, bytearray | memoryview]] = []
        self.block_starts = array("Q")
        self.block_addresses = array("Q")

    def append(self, data: Buffer) -> None:
        """Add bytes at the end."""
        if len(self.tail) + len(data) > CHUNK_BYTES:
            self.seal()
        self.tail += data

    def append_frames(self, data: Buffer, sizes: Iterable[int]) -> None:
        """Add frames of these sizes at the end, as many to a buffer as it takes."""
        if len(self.tail) + len(data) <= CHUNK_BYTES:
            self.tail += data
            return
        view, begin = memoryview(data), 0
        ends = list(accumulate(sizes))
        while begin < len(data):
            fitting = bisect_right(ends, begin + CHUNK_BYTES - len(self.tail))
            if not fitting or ends[fitting - 1] <= begin:  # not a single one
                self.seal()
                fitting = max(fitting + 1, bisect_right(ends, begin + CHUNK_BYTES))
            self.tail += view[begin : ends[fitting - 1]]
            begin = ends[fitting - 1]

    def seal(self) -> None:
        """Make the tail a sealed buffer, and begin a new one."""
        if self.tail:
            self.sealed.append((self.tail_start, self.tail))
            self.tail_start += len(self.tail)
            self.tail = bytearray()

    @property
    def held_start(self) -> int:
        """The first position that is in memory; what lies below is in files."""
        return self.sealed[0][0] if self.sealed else self.tail_start

    def add_blocks(self, blocks: list[tuple[int, int]]) -> None:
        """The bytes from the first held position on are now in files, as (position, address) of each block.

        Buffers stay until `release` says up to where.
        """
        for start, address in blocks:
            self.block_starts.append(start)
            self.block_addresses.append(address)

    def release(self, position: int) -> None:
        """Drop the sealed buffers below `position`; they are in files now."""
        kept = 0
        for start, _ in self.sealed:
            if start >= position:
                break
            kept += 1
        del self.sealed[:kept]

    def locate(self, position: int) -> tuple[Buffer, int] | None:
        """The buffer in memory that holds `position`, and the offset in it; None if it is in a file.

        Only for the moment: the tail may grow and must not be kept.
        """
        if position >= self.tail_start:
            return self.tail, position - self.tail_start
        if not self.sealed or position < self.sealed[0][0]:
            return None
        start, buffer = self.sealed[bisect_right(self.sealed, position, key=_start_of) - 1]
        return buffer, position - start

    def held(self, start: int, stop: int) -> list[Buffer]:
        """The bytes of positions [start, stop), all of them in sealed buffers."""
        first, buffer = self.sealed[0]
        if first == start and first + len(buffer) == stop:
            return [buffer]
        found: list[Buffer] = []
        self._sealed_pieces(start, stop, found)
        return found

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """The bytes of positions [start, stop), in pieces; those of a short tail are copied, a long one is sealed."""
        found: list[Piece] = []
        if stop - max(start, self.tail_start) >= SEAL_FOR_READER_BYTES:
            self.seal()
        held = self.held_start
        if start < held:
            start = self._block_pieces(start, min(stop, held), found)
        if start < min(stop, self.tail_start):
            start = self._sealed_pieces(start, min(stop, self.tail_start), found)
        if start < stop:
            found.append(bytes(memoryview(self.tail)[start - self.tail_start : stop - self.tail_start]))
        return found

    def contiguous(self, start: int, wanted: int) -> int:
        """How many bytes to read from `start` on: `wanted`, or less if so many lie in one piece that it is worth it.

        Pieces are joined, which is a copy; whoever can do with less is better off without.
        """
        if start >= self.tail_start:
            return wanted
        if start >= self.held_start:
            begin, buffer = self.sealed[bisect_right(self.sealed, start, key=_start_of) - 1]
            room = begin + len(buffer) - start
        else:
            following = bisect_right(self.block_starts, start)
            room = (self.block_starts[following] if following < len(self.block_starts) else self.held_start) - start
        return room if wanted // WHOLE_PART <= room < wanted else wanted

    def _block_pieces(self, start: int, stop: int, found: list[Piece]) -> int:
        first = bisect_right(self.block_starts, start) - 1
        last = bisect_left(self.block_starts, stop, lo=first + 1)
        addresses = self.block_addresses[first:last]
        addresses[0] += start - self.block_starts[first]
        bounds = [start, *self.block_starts[first + 1 : last], stop]
        found += zip(addresses, [end - begin for begin, end in pairwise(bounds)], strict=True)
        return stop

    def _sealed_pieces(self, start: int, stop: int, found: list[Any]) -> int:
        index = bisect_right(self.sealed, start, key=_start_of) - 1
        while start < stop:
            begin, buffer = self.sealed[index]
            end = min(stop, begin + len(buffer))
            found.append(memoryview(buffer)[start - begin : end - begin])
            start = end
            index += 1
        return start

    def truncate(self, position: int) -> None:
        """Forget everything from `position` on."""
        while self.block_starts and self.block_starts[-1] >= position:
            self.block_starts.pop()
            self.block_addresses.pop()
        if position >= self.tail_start:
            del self.tail[position - self.tail_start :]
            return
        self.tail = bytearray()
        while self.sealed and self.sealed[-1][0] >= position:
            self.sealed.pop()
        if self.sealed:
            start, buffer = self.sealed[-1]
            # Cut by a view: the buffer itself may be on loan to a reader and could not be resized.
            self.sealed[-1] = (start, memoryview(buffer)[: position - start])
        self.tail_start = position


def _start_of(item: tuple[int, object]) -> int:
    return item[0]
