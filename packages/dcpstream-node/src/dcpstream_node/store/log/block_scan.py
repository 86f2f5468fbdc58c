"""Scanning a segment that may be damaged: its whole blocks, its damaged stretches, and whose frames those were.

The functions work on the segment's bytes and read no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dcpstream.errors import CorruptLog
from dcpstream.wire.frames import HEADER_BYTES
from dcpstream_node.store.items import seqno_of
from dcpstream_node.store.log.blocks import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CHECKSUM,
    DAMAGE_HINT,
    END_BYTES,
    SEGMENT_HEADER,
    BlockHeader,
    StoredKind,
    checksum,
    page_table,
    read_block_header,
)

MAX_KEYS = 20
"""Keys that are named for one damaged page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A stretch of a file that does not hold the bytes that were written.

    Attributes:
        file, offset, size: the stretch; size 0 if the damage concerns the file as a whole.
        what: a description.
        vbid, first_seqno, last_seqno: the frames that were there; None if unknown.
        keys: the keys in it as they read now, which may be wrong; at most `MAX_KEYS`.
        is_rollback: whether it was, or can only have been, a rollback block.
    """

    file: str
    offset: int
    size: int
    what: str
    vbid: int | None = None
    first_seqno: int | None = None
    last_seqno: int | None = None
    keys: tuple[str, ...] = ()
    is_rollback: bool = False


@dataclass(frozen=True, slots=True)
class Stretch:
    """A block, or bytes between blocks that are none.

    Attributes:
        offset, size: the place in the file.
        header: None if there is none with a matching checksum.
        are_tables_whole: whether the checksum of header and tables matches.
        damaged_pages: (from, to) in the file of each page whose checksum does not match.
    """

    offset: int
    size: int
    header: BlockHeader | None
    are_tables_whole: bool = False
    damaged_pages: tuple[tuple[int, int], ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all checksums match."""
        return self.header is not None and self.are_tables_whole and not self.damaged_pages


def walk_blocks(data: bytes, salt: int, offset: int = SEGMENT_HEADER.size) -> Iterator[Stretch]:
    """The blocks of a segment from `offset` on, in order, and the bytes between them that are no block."""
    end = len(data)
    view = memoryview(data)
    while offset < end:
        header = read_block_header(data, offset, salt)
        if header is None or offset + header.size > end:
            following = _next_block(data, offset + 1, salt)
            yield Stretch(offset, following - offset, header)
            offset = following
            continue
        checked = offset + BLOCK_HEADER.size + header.tables_bytes
        are_whole = checksum(view[offset:checked], salt) == CHECKSUM.unpack_from(data, checked)[0]
        bad: list[tuple[int, int]] = []
        if are_whole:
            base = offset + header.frames_at
            for begin, finish, expected in pages_of(data, offset, header):
                if checksum(view[base + begin : base + finish], salt) != expected:
                    bad.append((base + begin, base + finish))
        yield Stretch(offset, header.size, header, are_whole, tuple(bad))
        offset += header.size


def pages_of(data: bytes, offset: int, header: BlockHeader) -> list[tuple[int, int, int]]:
    """Begin, end and checksum of each page of the block at `offset`."""
    return page_table(data, offset + BLOCK_HEADER.size + END_BYTES * header.frames, header.pages)


def ends_of(data: bytes, offset: int, header: BlockHeader) -> list[int]:
    """The end of each frame of the block at `offset`."""
    at = offset + BLOCK_HEADER.size
    return [int.from_bytes(data[place : place + 4], "big") for place in range(at, at + 4 * header.frames, 4)]


def _next_block(data: bytes, offset: int, salt: int) -> int:
    at = data.find(BLOCK_MAGIC, offset)
    while at >= 0:
        if read_block_header(data, at, salt) is not None:
            return at
        at = data.find(BLOCK_MAGIC, at + 1)
    return len(data)


def first_damage(file: str, data: bytes, offset: int, salt: int) -> CorruptLog:
    """The error for the damaged block at `offset`."""
    stretch = next(walk_blocks(data, salt, offset))
    header = stretch.header
    if header is None:
        found = data[offset : offset + 4]
        what = f"{found!r}" if found != BLOCK_MAGIC else "a header whose own checksum does not fit"
        return CorruptLog(file, offset, f"a block header ({BLOCK_MAGIC!r})", what, DAMAGE_HINT)
    where = f"vbucket {header.vbid}, seqnos {header.first_seqno} to {header.last_seqno}"
    if offset + header.size > len(data):
        expected = f"a block of {header.size} bytes ({where})"
        return CorruptLog(file, offset, expected, f"{len(data) - offset}", DAMAGE_HINT)
    if stretch.damaged_pages:
        begin, finish = stretch.damaged_pages[0]
        wanted = next(
            page_checksum
            for start, _, page_checksum in pages_of(data, offset, header)
            if offset + header.frames_at + start == begin
        )
        what, at = "a page", begin
    else:
        begin, finish = offset, offset + BLOCK_HEADER.size + header.tables_bytes
        wanted = CHECKSUM.unpack_from(data, finish)[0]
        what, at = "a block's tables", offset
    actual = checksum(memoryview(data)[begin:finish], salt)
    return CorruptLog(file, at, f"XXH3 {wanted:016x} of {what} ({where})", f"{actual:016x}", DAMAGE_HINT)


def damage_of(file: str, data: bytes, stretch: Stretch) -> Iterator[Damage]:
    """The damage in a stretch that is not whole."""
    header = stretch.header
    if header is None:
        size_of_rollback = BLOCK_HEADER.size + CHECKSUM.size
        yield Damage(
            file=file, offset=stretch.offset, size=stretch.size, is_rollback=stretch.size == size_of_rollback,
            what="no block that can be read: whose frames these were is unknown",
        )  # fmt: skip
        return
    is_rollback = header.kind == StoredKind.ROLLBACK
    if not stretch.are_tables_whole:
        what = "the rest of a rollback block" if is_rollback else "the tables of a block"
        yield Damage(
            file=file, offset=stretch.offset, size=stretch.size, what=what, is_rollback=is_rollback, vbid=header.vbid,
            first_seqno=header.first_seqno, last_seqno=header.last_seqno,
        )  # fmt: skip
        return
    base = stretch.offset + header.frames_at
    ends = ends_of(data, stretch.offset, header)
    starts = [0, *ends]

    def is_readable(row: int) -> bool:
        at = base + ends[row] - 1
        return not any(begin <= at < finish for begin, finish in stretch.damaged_pages)

    for begin, finish in stretch.damaged_pages:
        rows = [row for row, end in enumerate(ends) if begin - base < end <= finish - base]
        frames = [data[base + starts[row] : base + ends[row]] for row in rows]
        first, last = header.first_seqno, header.last_seqno
        if rows[0] and is_readable(rows[0] - 1):
            first = seqno_of(data, base + starts[rows[0] - 1]) + 1
        if rows[-1] + 1 < header.frames and is_readable(rows[-1] + 1):
            last = seqno_of(data, base + starts[rows[-1] + 1]) - 1
        yield Damage(
            file=file,
            offset=begin,
            size=finish - begin,
            what=f"a page of {len(rows)} frames",
            vbid=header.vbid,
            first_seqno=first,
            last_seqno=last,
            keys=tuple(_key_of(frame) for frame in frames[:MAX_KEYS]),
        )


def _key_of(frame: bytes) -> str:
    """The key as it reads now, with its collection prefix unless that is the default collection's."""
    at = HEADER_BYTES + frame[4]
    key = frame[at : at + int.from_bytes(frame[2:4], "big")]
    return key[1:].decode(errors="backslashreplace") if key[:1] == b"\0" else key.decode(errors="backslashreplace")
