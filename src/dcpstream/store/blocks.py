"""The bytes of segment files: headers of segments and blocks, and how a run of frames becomes blocks.

A segment is a header and blocks. A block is a header, a payload and a checksum over both. The payload is a table of
frame ends (u32 each, counted from the first frame), then whole frames of one vbucket in stored form. A block without
frames is a rollback: what the vbucket had above `last_seqno` is void from there on. All integers are big-endian.
`docs/explanation/store-format.md` is the same for readers who write their own.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from dcpstream.errors import CorruptLog, StoreError

FORMAT_VERSION = 1

SEGMENT_MAGIC = b"dcpstore"
SEGMENT_HEADER = struct.Struct(">8sIIQI")
"""magic, version u32, segment number u32, committed bytes of the segment before it u64, CRC-32 of the above u32."""

BLOCK_MAGIC = b"\xdcPb1"
BLOCK_HEADER = struct.Struct(">4sBBHIIQQQQHHIII")
"""magic, version u8, kind u8, vbid u16, incarnation u32, frames u32, first, last seqno u64, snapshot start, end u64,
what occurs u16 (`BlockKind`), 0 u16, where the commit began in the file u32, payload bytes u32, CRC-32 of the header
up to here u32.

The header has a checksum of its own, so that its length field can be believed where the payload is torn.
"""

CHECKSUM = struct.Struct(">I")
"""Behind the payload: CRC-32 of header and payload."""

MAX_BLOCK_BYTES = 1024 * 1024
"""Frames of a block, unless a single one is larger: what a damaged byte can cost, and what one checksum spans."""

_HEADER_CHECKED = BLOCK_HEADER.size - 4
_pack_header = struct.Struct(BLOCK_HEADER.format.removesuffix("I")).pack
_pack_crc = CHECKSUM.pack
_SEGMENT_CHECKED = SEGMENT_HEADER.size - 4

Buffer = bytes | bytearray | memoryview


class StoredKind(IntEnum):
    """What a block in a file is."""

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
    snapshot_start: int
    snapshot_end: int
    occurring: int
    reserved: int
    commit_offset: int
    payload_bytes: int
    header_crc: int


def encode_segment_header(number: int, previous_bytes: int) -> bytes:
    """The first bytes of a segment file."""
    fields = struct.pack(">8sIIQ", SEGMENT_MAGIC, FORMAT_VERSION, number, previous_bytes)
    return fields + struct.pack(">I", crc32(fields))


def decode_segment_header(data: bytes, file: str, number: int) -> int:
    """The committed bytes of the segment before.

    Raises:
        CorruptLog: not the header of this segment.
        StoreError: a version we do not know.
    """
    if len(data) < SEGMENT_HEADER.size or not data.startswith(SEGMENT_MAGIC):
        raise CorruptLog(file, 0, f"a segment header ({SEGMENT_MAGIC!r})", repr(data[:8]), DAMAGE_HINT)
    _, version, found, previous_bytes, crc = SEGMENT_HEADER.unpack_from(data)
    actual = crc32(data[:_SEGMENT_CHECKED])
    if actual != crc:
        raise CorruptLog(file, 0, f"CRC-32 {crc:08x} of the segment header", f"{actual:08x}", DAMAGE_HINT)
    if version != FORMAT_VERSION:
        raise StoreError(f"{file} is in store format {version}; this version of dcpstream reads {FORMAT_VERSION}.")
    if found != number:
        raise CorruptLog(file, 0, f"segment {number}", f"segment {found}", "Was the file renamed?")
    return int(previous_bytes)


DAMAGE_HINT = (
    "The store is not opened, so that nothing wrong is served. Restore the directory from a copy; or move it away and "
    "let the node start empty, then load it again or let it be filled by replication."
)


def encode_block(
    kind: StoredKind,
    vbid: int,
    incarnation: int,
    *,
    commit_offset: int,
    seqnos: tuple[int, int],
    snapshot: tuple[int, int],
    count: int = 0,
    occurring: int = 0,
    payload: Sequence[Buffer] = (),
) -> list[Buffer]:
    """The buffers of one block: header, the payload as given, checksum."""
    size = 0
    for buffer in payload:
        size += len(buffer)
    header = _pack_header(
        BLOCK_MAGIC, FORMAT_VERSION, int(kind), vbid, incarnation, count, *seqnos, *snapshot, occurring, 0,
        commit_offset, size,
    )  # fmt: skip
    header += _pack_crc(crc32(header))
    crc = crc32(header)
    for buffer in payload:
        crc = crc32(buffer, crc)
    return [header, *payload, _pack_crc(crc)]


@lru_cache(maxsize=1024)
def _table(count: int) -> struct.Struct:
    """The table of so many frame ends."""
    return struct.Struct(f">{count}I")


def encode_ends(ends: Sequence[int], base: int) -> bytes:
    """The table of frame ends, relative to `base`."""
    return _table(len(ends)).pack(*[end - base for end in ends])


def split_rows(places: Sequence[int]) -> list[tuple[int, int]]:
    """Rows [from, to) of each block, given the rows' positions and, last, the end."""
    blocks = []
    first, last = 0, len(places) - 1
    if last > 0 and places[last] - places[0] <= MAX_BLOCK_BYTES:
        return [(0, last)]
    while first < last:
        stop = bisect_right(places, places[first] + MAX_BLOCK_BYTES, lo=first + 1) - 1
        stop = max(min(stop, last), first + 1)
        blocks.append((first, stop))
        first = stop
    return blocks


def read_block_header(data: Buffer, offset: int) -> BlockHeader | None:
    """The block header at `offset`, or None if there is no whole and undamaged one."""
    if offset + BLOCK_HEADER.size > len(data):
        return None
    fields: tuple[Any, ...] = BLOCK_HEADER.unpack_from(data, offset)
    if fields[0] != BLOCK_MAGIC or crc32(memoryview(data)[offset : offset + _HEADER_CHECKED]) != fields[-1]:
        return None
    return BlockHeader(*fields)


def was_committed_after(data: bytes, offset: int) -> bool:
    """Whether a commit that began after `offset` is in the segment.

    A commit is one write and one sync, so a crash can tear only the last commit in a file, though at any place in it.
    If what is at `offset` is damaged and a later commit exists, then it was whole once: that is no torn write.
    """
    at = data.find(BLOCK_MAGIC, offset + 1)
    while at >= 0:
        header = read_block_header(data, at)
        if header is not None and offset < header.commit_offset <= at:
            return True
        at = data.find(BLOCK_MAGIC, at + 1)
    return False
