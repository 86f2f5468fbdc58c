"""The format of segment files: segment headers, block headers, tables, and the encoding of frames as blocks.

A segment is a header and blocks. A block is a header, tables, a checksum over both, and whole frames of one vbucket in
stored form, divided into pages. The tables hold a checksum for each page, which the index keeps in memory, so a read of
any frame verifies the page around it with one read of the file. A block without frames is a rollback: it voids the
vbucket's earlier frames above `last_seqno`. All integers are big-endian. `docs/explanation/store-format.md` specifies
the format for other readers.

Every checksum is XXH3-64. Checksums in blocks are seeded with the segment's salt, a random number in its header, so
bytes of another file, or of an earlier file in the same place of the disk, never fit.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from xxhash import xxh3_64, xxh3_64_intdigest

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.wire.buffers import Buffer

FORMAT_VERSION = 2

SEGMENT_MAGIC = b"dcpstore"
SEGMENT_HEADER = struct.Struct(">8sIIIQQ")
"""magic, version u32, segment number u32, kind u32, salt u64, XXH3-64 of the above (seed 0) u64."""
SALT_BITS = 64
_SEGMENT_NAME = re.compile(r"segment-(\d{10})\.log")

BLOCK_MAGIC = b"\xdcPb2"
BLOCK_HEADER = struct.Struct(">4sBBHIIQQHHHHIIQ")
"""magic, version u8, kind u8, vbid u16, incarnation u32, frames u32, first, last seqno u64, kinds that occur u16
(`BlockKind`), pages u16, marks u16, 0 u16, offset in the file at which the commit began u32, bytes of the frames u32,
XXH3-64 of the header up to here u64.

The header has a checksum of its own, so that its length fields can be trusted if the rest is torn.
"""

CHECKSUM = struct.Struct(">Q")
"""After the tables: XXH3-64 of header and tables."""

END_BYTES, PAGE_BYTES_IN_TABLE = 4, 12
"""In the tables: a frame's end; a page's end (4) and checksum (8)."""

MARK = struct.Struct(">QQQ")
"""A snapshot: the seqno from which on it covers frames, its start, its end."""
NO_SNAPSHOT = (1, 0)
"""Start and end of a mark from which on no received snapshot covers the frames; each row stands for itself."""

PAGE_BYTES = 32 * 1024
"""Frames of a page, unless a single one is larger: a read by key fetches and verifies one page. Measured from the
system's cache: 2.3 µs; 16 KiB take 1.7 µs, 64 KiB 5.6 µs. Each page takes 28 bytes of memory."""

MAX_BLOCK_BYTES = 1024 * 1024
"""Frames of a block, unless a single one is larger. The pages of a block are adjacent, so a read by seqno gets up to
this many bytes at once."""

_HEADER_CHECKED = BLOCK_HEADER.size - CHECKSUM.size
_pack_header = struct.Struct(BLOCK_HEADER.format.removesuffix("Q")).pack
_pack_checksum = CHECKSUM.pack
_SEGMENT_CHECKED = SEGMENT_HEADER.size - CHECKSUM.size
_FIRST_FORMAT = struct.Struct(">8sIIQI")
"""The segment header of format 1, which ended in a CRC-32."""

Mark = tuple[int, int, int]
"""See `MARK`."""
Page = tuple[int, int, int, int]
"""A page: position in the vbucket's stream of frames, address in the files, size, checksum."""

checksum = xxh3_64_intdigest
"""checksum(data, salt)."""


class SegmentKind(IntEnum):
    """The origin of a segment's blocks."""

    APPENDED = 1
    """Commits, in the order in which they were made."""
    REWRITTEN = 2
    """Copies of live frames of older segments."""


class StoredKind(IntEnum):
    """The kind of a block in a file."""

    FRAMES = 1
    ROLLBACK = 2


class BlockHeader(NamedTuple):
    """The fields of a block's header, as `BLOCK_HEADER` lists them."""

    magic: bytes
    version: int
    kind: int
    vbid: int
    incarnation: int
    frames: int
    first_seqno: int
    last_seqno: int
    occurring: int
    pages: int
    marks: int
    reserved: int
    commit_offset: int
    frames_bytes: int
    checksum: int

    @property
    def tables_bytes(self) -> int:
        """Bytes of the tables of frame ends, pages and marks."""
        return END_BYTES * self.frames + PAGE_BYTES_IN_TABLE * self.pages + MARK.size * self.marks

    @property
    def frames_at(self) -> int:
        """The offset of the frames from the block's first byte."""
        return BLOCK_HEADER.size + self.tables_bytes + CHECKSUM.size

    @property
    def size(self) -> int:
        """Bytes of the whole block."""
        return self.frames_at + self.frames_bytes


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"segment-{number:010}.log"


def segment_number(name: str) -> int | None:
    """The number in the name of a segment file, None if it is no such name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode_segment_header(number: int, kind: SegmentKind, salt: int) -> bytes:
    """The first bytes of a segment file."""
    fields = struct.pack(">8sIIIQ", SEGMENT_MAGIC, FORMAT_VERSION, number, int(kind), salt)
    return fields + _pack_checksum(checksum(fields, 0))


def decode_segment_header(data: bytes, file: str, number: int) -> tuple[int, SegmentKind]:
    """Salt and kind of a segment.

    Raises:
        CorruptLog: not the header of this segment.
        StoreError: a version we do not know.
    """
    if len(data) >= _FIRST_FORMAT.size and crc32(data[: _FIRST_FORMAT.size - 4]) == _FIRST_FORMAT.unpack_from(data)[-1]:
        raise StoreError(other_format(file, "1"))
    if len(data) < SEGMENT_HEADER.size or not data.startswith(SEGMENT_MAGIC):
        raise CorruptLog(file, 0, f"a segment header ({SEGMENT_MAGIC!r})", repr(data[:8]), DAMAGE_HINT)
    _, version, found, kind, salt, expected = SEGMENT_HEADER.unpack_from(data)
    actual = checksum(data[:_SEGMENT_CHECKED], 0)
    if actual != expected:
        raise CorruptLog(file, 0, f"XXH3 {expected:016x} of the segment header", f"{actual:016x}", DAMAGE_HINT)
    if version != FORMAT_VERSION:
        raise StoreError(other_format(file, str(version)))
    if found != number:
        raise CorruptLog(file, 0, f"segment {number}", f"segment {found}", "Was the file renamed?")
    return int(salt), SegmentKind(kind)


def other_format(file: str, found: str) -> str:
    """The error message for a store of another format."""
    return (
        f"{file} is in store format {found}; this version of dcpstream reads format {FORMAT_VERSION} and converts no "
        "other. Open it with the version that wrote it and stream it to a new node; or move it away, and let "
        "the node start empty."
    )


RESTORE_HINT = (
    "Stop the node and restore the whole directory from a copy; or move it away, let the node start empty, and load "
    "the bucket again or let replication fill it."
)
DAMAGE_HINT = (
    "The store is not opened, so that nothing wrong is served. `dcpstream store check DIR` reports the damage. "
    f"{RESTORE_HINT}"
)


def encode_rollback(salt: int, vbid: int, incarnation: int, *, commit_offset: int, seqno: int) -> bytes:
    """The block that voids a vbucket's earlier frames above `seqno`."""
    header = _pack_header(
        BLOCK_MAGIC, FORMAT_VERSION, int(StoredKind.ROLLBACK), vbid, incarnation, 0, 0, seqno, 0, 0, 0, 0,
        commit_offset, 0,
    )  # fmt: skip
    header += _pack_checksum(checksum(header, salt))
    return header + _pack_checksum(checksum(header, salt))


class BlockPlace(NamedTuple):
    """The place of a block of frames in its file and in its vbucket's history.

    Attributes:
        salt: of the file.
        commit_offset: offset in the file at which the commit began.
        seqnos: of the first and the last frame.
        occurring: `BlockKind` bits of all frames.
        marks: the received snapshots that cover the frames; none if each row stands for itself.
    """

    salt: int
    vbid: int
    incarnation: int
    commit_offset: int
    seqnos: tuple[int, int]
    occurring: int = 0
    marks: Sequence[Mark] = ()


def encode_block_head(
    block: BlockPlace, ends: Sequence[int], page_ends: Sequence[int], page_checksums: Sequence[int]
) -> bytes:
    """Header, tables and their checksum: everything of a block before its frames.

    Args:
        ends: where each frame ends, counted from the first frame's first byte.
        page_ends, page_checksums: where each page ends, counted alike, and its `checksum`.
    """
    salt, marks = block.salt, block.marks
    count, pages = len(ends), len(page_ends)
    header = _pack_header(
        BLOCK_MAGIC, FORMAT_VERSION, 1, block.vbid, block.incarnation, count, *block.seqnos, block.occurring, pages,
        len(marks), 0, block.commit_offset, ends[-1],
    )  # fmt: skip
    head = header + _tables(count, pages).pack(checksum(header, salt), *ends, *page_ends, *page_checksums)
    for mark in marks:
        head += MARK.pack(*mark)
    return head + _pack_checksum(checksum(head, salt))


@lru_cache(maxsize=4096)
def _tables(count: int, pages: int) -> struct.Struct:
    """The header's checksum and the tables of this many frames and pages."""
    return struct.Struct(f">Q{count + pages}I{pages}Q")


class EncodedBlock(NamedTuple):
    """A block of frames that is ready to be written.

    Attributes:
        head: header, tables and their checksum.
        frames: the bytes after it.
        page_ends, page_checksums: see `encode_block_head`.
    """

    head: bytes
    frames: list[Buffer]
    page_ends: list[int]
    page_checksums: list[int]

    def pages(self, position: int, address: int) -> Iterator[Page]:
        """The block's pages, if its first frame has this position, and its first byte this address."""
        begin = 0
        address += len(self.head)
        for end, page_checksum in zip(self.page_ends, self.page_checksums, strict=True):
            yield position + begin, address + begin, end - begin, page_checksum
            begin = end


def encode_frames(block: BlockPlace, places: Sequence[int], read: Callable[[int, int], list[Buffer]]) -> EncodedBlock:
    """One block of frames.

    Args:
        places: the position of each frame, and of the end.
        read: the bytes of positions [from, to).
    """
    base = places[0]
    page_ends: list[int] = []
    checksums: list[int] = []
    frames: list[Buffer] = []
    for first, stop in split_rows(places, PAGE_BYTES):
        page = read(places[first], places[stop])
        page_ends.append(places[stop] - base)
        checksums.append(checksum_of(page, block.salt))
        frames += page
    head = encode_block_head(block, [place - base for place in places[1:]], page_ends, checksums)
    return EncodedBlock(head, frames, page_ends, checksums)


def page_table(data: Buffer, at: int, pages: int) -> list[tuple[int, int, int]]:
    """Begin, end (counted from the first frame's first byte) and checksum of each page in the table at `at`."""
    ends: tuple[int, ...] = struct.unpack_from(f">{pages}I", data, at)
    checksums = struct.unpack_from(f">{pages}Q", data, at + END_BYTES * pages)
    return [*zip((0, *ends), ends, checksums, strict=False)]


def checksum_of(buffers: Sequence[Buffer], salt: int) -> int:
    """The checksum of the bytes of several buffers."""
    if len(buffers) == 1:
        return checksum(buffers[0], salt)
    state = xxh3_64(seed=salt)
    for buffer in buffers:
        state.update(buffer)
    return state.intdigest()


def split_rows(places: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Rows [from, to) of each part of up to `limit` bytes; `places` are the rows' positions and the end."""
    parts = []
    first, last = 0, len(places) - 1
    if last > 0 and places[last] - places[0] <= limit:
        return [(0, last)]
    while first < last:
        stop = bisect_right(places, places[first] + limit, lo=first + 1) - 1
        stop = max(min(stop, last), first + 1)
        parts.append((first, stop))
        first = stop
    return parts


def read_block_header(data: Buffer, offset: int, salt: int) -> BlockHeader | None:
    """The block header at `offset`, or None if there is no whole and undamaged one."""
    if offset + BLOCK_HEADER.size > len(data):
        return None
    fields: tuple[Any, ...] = BLOCK_HEADER.unpack_from(data, offset)
    if fields[0] != BLOCK_MAGIC:
        return None
    if checksum(memoryview(data)[offset : offset + _HEADER_CHECKED], salt) != fields[-1]:
        return None
    return BlockHeader(*fields)


def first_seqno_at(data: Buffer, offset: int) -> int:
    """The first seqno of the block at `offset`."""
    return int.from_bytes(data[offset + 16 : offset + 24], "big")


def last_seqno_at(data: Buffer, offset: int) -> int:
    """The last seqno of the block at `offset`."""
    return int.from_bytes(data[offset + 24 : offset + 32], "big")


def was_committed_after(data: bytes, offset: int, salt: int) -> bool:
    """Whether a commit that began after `offset` is in the segment.

    A commit is one write and one sync, so a crash can tear only the last commit of a file, at any place in it. If the
    bytes at `offset` are damaged and a later commit exists, then they were whole once: that is no torn write.
    """
    at = data.find(BLOCK_MAGIC, offset + 1)
    while at >= 0:
        header = read_block_header(data, at, salt)
        if header is not None and offset < header.commit_offset <= at:
            return True
        at = data.find(BLOCK_MAGIC, at + 1)
    return False
