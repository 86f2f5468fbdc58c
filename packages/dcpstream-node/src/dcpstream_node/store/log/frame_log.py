"""The frames of one vbucket as one stream of bytes, in memory and in files.

A position counts bytes from the vbucket's first frame on. The stream has up to three parts, oldest first: pages in
files (position, address, size and checksum of each, 28 bytes), sealed buffers (never changed again, so readers may keep
views of them), and the tail, to which `append` adds. A memory store has no pages, and its sealed buffers stay; in a
disk store a commit turns the sealed buffers into pages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.log.blocks import Page
from dcpstream_node.store.log.segment_file import ADDRESS_SHIFT, OFFSET_MASK, Piece, Segment

CHUNK_BYTES = 1024 * 1024
"""A tail that would grow beyond this is sealed first. This bounds the copies of a growing bytearray. A backfill block
of this size is a whole sealed buffer, which is read without a copy."""

WHOLE_PART = 4
"""A read takes less than it wants if at least a 4th of it lies in one place; the next read takes the rest."""

SEAL_FOR_READER_BYTES = 32 * 1024
"""A read of at least this much of the tail seals it and gets a view instead of a copy. A smaller limit would make many
buffers."""


class FrameLog:
    """The stream of frames of one vbucket.

    Attributes:
        tail: the bytes after the last sealed buffer.
        tail_start: position of its first byte.
        sealed: (position, buffer), rising and without gaps up to `tail_start`.
        page_starts, page_addresses, page_sizes, page_checksums: of each page in files. After a rollback, only the first
            part of the last page counts: the position of the next one is before its end.

    Args:
        files: the segment files by number; the store's own dict, which changes.
    """

    __slots__ = (
        "files",
        "page_addresses",
        "page_checksums",
        "page_sizes",
        "page_starts",
        "sealed",
        "tail",
        "tail_start",
    )

    def __init__(self, files: Mapping[int, Segment] | None = None) -> None:
        self.files: Mapping[int, Segment] = {} if files is None else files
        self.tail = bytearray()
        self.tail_start = 0
        self.sealed: list[tuple[int, bytearray | memoryview]] = []
        self.page_starts = array("Q")
        self.page_addresses = array("Q")
        self.page_sizes = array("I")
        self.page_checksums = array("Q")

    def append(self, data: Buffer) -> None:
        """Add bytes at the end."""
        tail = self.tail
        if len(tail) + len(data) > CHUNK_BYTES:
            self.seal()
            tail = self.tail
        tail += data

    def append_frames(self, data: Buffer, sizes: Iterable[int]) -> None:
        """Add frames of these sizes at the end, as many per buffer as fit."""
        if len(self.tail) + len(data) <= CHUNK_BYTES:
            self.tail += data
            return
        view, begin = memoryview(data), 0
        ends = list(accumulate(sizes))
        while begin < len(data):
            fitting = bisect_right(ends, begin + CHUNK_BYTES - len(self.tail))
            if not fitting or ends[fitting - 1] <= begin:  # no frame fits
                self.seal()
                fitting = max(fitting + 1, bisect_right(ends, begin + CHUNK_BYTES))
            self.tail += view[begin : ends[fitting - 1]]
            begin = ends[fitting - 1]

    def seal(self) -> None:
        """Turn the tail into a sealed buffer, and begin a new tail."""
        if self.tail:
            self.sealed.append((self.tail_start, self.tail))
            self.tail_start += len(self.tail)
            self.tail = bytearray()

    @property
    def held_start(self) -> int:
        """The first position that is in memory; lower ones are in files."""
        return self.sealed[0][0] if self.sealed else self.tail_start

    def sealed_end(self, start: int, size: int) -> int:
        """The end of the sealed buffers from `start` on that together take up to `size` bytes, at least one buffer."""
        end = start
        for begin, buffer in self.sealed[bisect_left(self.sealed, start, key=_start_of) :]:
            if end > start and begin + len(buffer) - start > size:
                break
            end = begin + len(buffer)
        return end

    def add_pages(self, pages: Iterable[Page]) -> None:
        """The bytes from the first held position on are now also in these pages. `release` drops the buffers."""
        for start, address, size, page_checksum in pages:
            self.page_starts.append(start)
            self.page_addresses.append(address)
            self.page_sizes.append(size)
            self.page_checksums.append(page_checksum)

    def release(self, position: int) -> None:
        """Drop the sealed buffers below `position`, which are in files now."""
        kept = 0
        for start, _ in self.sealed:
            if start >= position:
                break
            kept += 1
        del self.sealed[:kept]

    def locate(self, position: int) -> tuple[Buffer, int] | None:
        """The buffer in memory that holds `position`, and the offset in it; None if it is in a file.

        The caller must not keep the buffer, because the tail may grow.
        """
        if position >= self.tail_start:
            return self.tail, position - self.tail_start
        if not self.sealed or position < self.sealed[0][0]:
            return None
        start, buffer = self.sealed[bisect_right(self.sealed, position, key=_start_of) - 1]
        return buffer, position - start

    def held(self, start: int, stop: int) -> list[Buffer]:
        """The bytes of positions [start, stop), which all are in sealed buffers."""
        first, buffer = self.sealed[0]
        if first == start and first + len(buffer) == stop:
            return [buffer]
        return self._sealed_pieces(start, stop)

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """The bytes of positions [start, stop) in pieces. A short part of the tail is copied; a long one seals it."""
        found: list[Piece] = []
        if stop - max(start, self.tail_start) >= SEAL_FOR_READER_BYTES:
            self.seal()
        held = self.held_start
        if start < held:
            self._page_pieces(start, min(stop, held), found)
            start = min(stop, held)
        if start < min(stop, self.tail_start):
            found += self._sealed_pieces(start, min(stop, self.tail_start))
            start = min(stop, self.tail_start)
        if start < stop:
            found.append(bytes(memoryview(self.tail)[start - self.tail_start : stop - self.tail_start]))
        return found

    def contiguous(self, start: int, wanted: int) -> int:
        """The number of bytes to read from `start` on: `wanted`, or fewer if enough of them lie in one piece.

        Several pieces are joined, which is a copy, and pages are read whole; a read within one piece avoids both.
        """
        if start >= self.tail_start:
            return wanted
        if start >= self.held_start:
            begin, buffer = self.sealed[bisect_right(self.sealed, start, key=_start_of) - 1]
            room = begin + len(buffer) - start
            return room if wanted // WHOLE_PART <= room < wanted else wanted
        starts, addresses, sizes = self.page_starts, self.page_addresses, self.page_sizes
        page = bisect_right(starts, start) - 1
        distance, stop = addresses[page] - starts[page], start + wanted
        last = bisect_right(starts, stop, lo=page) - 1
        if starts[last] + sizes[last] > stop:
            last -= 1
        if last < page:
            return wanted
        if addresses[last] - starts[last] != distance:
            last = page
            while addresses[last + 1] - starts[last + 1] == distance:
                last += 1
        room = starts[last] + sizes[last] - start
        return room if wanted // WHOLE_PART <= room else wanted

    def _page_pieces(self, start: int, stop: int, found: list[Piece]) -> None:
        """Add the pages of positions [start, stop); adjacent pages of a file become one piece.

        In one file the distance between address and position never falls from page to page, so pages of the same
        distance are adjacent.
        """
        starts, addresses, sizes, checksums = (
            self.page_starts,
            self.page_addresses,
            self.page_sizes,
            self.page_checksums,
        )
        first = bisect_right(starts, start) - 1
        last = bisect_left(starts, stop, lo=first + 1) - 1
        while True:
            address, begin = addresses[first], starts[first]
            file, offset = self.files[address >> ADDRESS_SHIFT], address & OFFSET_MASK
            upto = first
            distance = address - begin
            if first < last and addresses[first + 1] - starts[first + 1] == distance:
                upto = last
                if addresses[last] - starts[last] != distance:
                    upto = first + 1
                    while addresses[upto + 1] - starts[upto + 1] == distance:
                        upto += 1
            end = stop if upto == last else starts[upto + 1]
            if upto == first:
                found.append((file, offset, sizes[first], start - begin, end - begin, checksums[first]))
            else:
                whole = addresses[upto] + sizes[upto] - address
                expected = (sizes[first : upto + 1], checksums[first : upto + 1])
                found.append((file, offset, whole, start - begin, end - begin, expected))
            if upto == last:
                return
            start, first = end, upto + 1

    def extent_of(self, file: str, offset: int) -> tuple[int, int] | None:
        """Positions [from, to) of the page at an offset of a file, or None. Looks at every page."""
        for page, address in enumerate(self.page_addresses):
            if address & OFFSET_MASK == offset:
                of_page = self.files.get(address >> ADDRESS_SHIFT)
                if of_page is not None and str(of_page.path) == file:
                    return self.page_starts[page], self.page_starts[page] + self.page_sizes[page]
        return None

    def _sealed_pieces(self, start: int, stop: int) -> list[Buffer]:
        found: list[Buffer] = []
        index = bisect_right(self.sealed, start, key=_start_of) - 1
        while start < stop:
            begin, buffer = self.sealed[index]
            end = min(stop, begin + len(buffer))
            found.append(memoryview(buffer)[start - begin : end - begin])
            start = end
            index += 1
        return found

    def replace(
        self,
        begin: int,
        end: int,
        size: int,
        pages: Sequence[Page],
        buffers: Sequence[tuple[int, bytearray | memoryview]],
    ) -> None:
        """Replace the bytes of [begin, end), whole pages or buffers, by `size` bytes; later positions move down.

        Args:
            pages, buffers: the replacement; positions count from `begin`.
        """
        delta = end - begin - size
        self._replace_pages(begin, end, delta, pages)
        first, stop = (bisect_left(self.sealed, position, key=_start_of) for position in (begin, end))
        new: list[tuple[int, bytearray | memoryview]] = [(begin + place, buffer) for place, buffer in buffers]
        self.sealed[first:] = new + [(start - delta, buffer) for start, buffer in self.sealed[stop:]]
        self.tail_start -= delta

    def _replace_pages(self, begin: int, end: int, delta: int, pages: Sequence[Page]) -> None:
        starts = self.page_starts
        first, stop = (bisect_left(starts, position) for position in (begin, end))
        if stop < len(starts) and delta:
            following = np.frombuffer(starts, dtype=np.uint64)[stop:]
            following -= np.uint64(delta)
            del following  # while there is a view of it, the array cannot change its size
        starts[first:stop] = array("Q", [begin + page[0] for page in pages])
        for column, field in ((self.page_addresses, 1), (self.page_sizes, 2), (self.page_checksums, 3)):
            column[first:stop] = array(column.typecode, [page[field] for page in pages])

    def parts(self) -> list[tuple[int, int]]:
        """The stretches of pages in one file each: (first position, number of the file), in order of position."""
        found: list[tuple[int, int]] = []
        starts, addresses = self.page_starts, self.page_addresses
        page, count = 0, len(addresses)
        while page < count:
            number = addresses[page] >> ADDRESS_SHIFT
            found.append((starts[page], number))
            # A file's pages follow each other; doubling steps find their end.
            step = 1
            while page + step < count and addresses[page + step] >> ADDRESS_SHIFT == number:
                page += step
                step *= 2
            while step:
                if page + step < count and addresses[page + step] >> ADDRESS_SHIFT == number:
                    page += step
                step //= 2
            page += 1
        return found

    def truncate(self, position: int) -> None:
        """Forget everything from `position` on."""
        pages = bisect_left(self.page_starts, position)
        for column in (self.page_starts, self.page_addresses, self.page_sizes, self.page_checksums):
            del column[pages:]
        if position >= self.tail_start:
            del self.tail[position - self.tail_start :]
            return
        self.tail = bytearray()
        while self.sealed and self.sealed[-1][0] >= position:
            self.sealed.pop()
        if self.sealed:
            start, buffer = self.sealed[-1]
            # Cut by a view: a reader may have views of the buffer, which then cannot be resized.
            self.sealed[-1] = (start, memoryview(buffer)[: position - start])
        self.tail_start = position


def _start_of(item: tuple[int, object]) -> int:
    return item[0]
