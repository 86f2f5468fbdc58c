"""Reading segment files back: every block is checked, a torn last commit is cut off, the index is rebuilt.

Theory of operation: a segment is read whole. One loop goes from block to block and checks its checksums, that of header
and tables and those of the pages; what it found is then entered in the index (`entering`). A rollback block first
enters what stands before it. Blocks of vbuckets that were deleted, or of an earlier incarnation, are checked and left
out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.store.index.snapshots import MAX_SNAPSHOTS
from dcpstream.store.log.blocks import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CHECKSUM,
    DAMAGE_HINT,
    END_BYTES,
    FORMAT_VERSION,
    MARK,
    NO_SNAPSHOT,
    PAGE_BYTES_IN_TABLE,
    SEGMENT_HEADER,
    BlockHeader,
    Mark,
    StoredKind,
    checksum,
    first_seqno_at,
    last_seqno_at,
    page_table,
    read_block_header,
    was_committed_after,
)
from dcpstream.store.log.entering import enter
from dcpstream.store.log.segmentfile import Segment
from dcpstream.store.log.segments import Segments
from dcpstream.store.vbucket import VBucketLog

_FRAMES, _KINDS = int(StoredKind.FRAMES), frozenset(int(kind) for kind in StoredKind)
_SHAPE = struct.Struct(">4sBBHII18xHH6xI8x")
"""Of `BLOCK_HEADER`: magic, version, kind, vbid, incarnation, frames, pages, marks, bytes of the frames."""
_SUMS = struct.Struct(">QQ")
"""In a block of one page without marks: the checksum of the page, and that of header and tables."""
assert _SHAPE.size == BLOCK_HEADER.size


class Recovery:
    """Fills the vbuckets of a store from its segments.

    Args:
        vbuckets: those that exist, empty, with their incarnations.
        segments: the files.
        closed_at: (number, bytes) of the last segment when the store was closed cleanly, or None.

    Raises:
        CorruptLog: damage that is no torn commit.
        StoreError: a file cannot be read, or a torn commit not cut off.
    """

    def __init__(
        self, vbuckets: Mapping[int, VBucketLog], segments: Segments, closed_at: tuple[int, int] | None
    ) -> None:
        self._vbuckets = vbuckets
        self._segments = segments
        self._closed_at = closed_at
        self._marks: dict[int, list[Mark]] = {}
        self.cut_bytes = 0
        """Bytes of a torn commit that were cut off."""

    def run(self) -> None:
        """Read everything."""
        segments = self._segments.all()
        if self._closed_at is not None and self._closed_at != self._segments.end:
            last = segments[-1].path if segments else "the store"
            raise CorruptLog(
                str(last), self._segments.end[1], "segment {} of {} bytes".format(*self._closed_at),
                "segment {} of {}".format(*self._segments.end), DAMAGE_HINT,
            )  # fmt: skip
        for segment in segments:
            self._read_segment(segment, is_last=segment is segments[-1])
        for vbid, vbucket in self._vbuckets.items():
            vbucket.rows.recount()
            vbucket.recovered(self._marks.get(vbid, ()))

    def _read_segment(self, segment: Segment, *, is_last: bool) -> None:
        data, salt = self._segments.read_whole(segment), segment.salt
        view, unpack, checksum_at, sums_at = (
            memoryview(data),
            _SHAPE.unpack_from,
            CHECKSUM.unpack_from,
            _SUMS.unpack_from,
        )
        incarnations = {vbid: vbucket.incarnation for vbid, vbucket in self._vbuckets.items()}
        noted = self._marks
        found: list[int] = []
        offset, end = SEGMENT_HEADER.size, len(data)
        # With small commits there are hundreds of thousands of blocks: few calls per block but the checksums.
        while offset < end:
            if offset + BLOCK_HEADER.size > end:
                self._damaged(segment, data, offset, is_last=is_last)
                break
            magic, version, kind, vbid, incarnation, frames, pages, marks, size = unpack(data, offset)
            marks_at = offset + BLOCK_HEADER.size + END_BYTES * frames + PAGE_BYTES_IN_TABLE * pages
            checked = marks_at + MARK.size * marks
            base = checked + CHECKSUM.size
            stop = base + size
            if magic != BLOCK_MAGIC or stop > end:
                is_whole = False
            elif pages == 1 and not marks:
                of_page, of_head = sums_at(data, checked - CHECKSUM.size)
                is_whole = (
                    checksum(view[offset:checked], salt) == of_head and checksum(view[base:stop], salt) == of_page
                )
            elif pages == 1:
                is_whole = (
                    checksum(view[offset:checked], salt) == checksum_at(data, checked)[0]
                    and checksum(view[base:stop], salt) == checksum_at(data, marks_at - CHECKSUM.size)[0]
                )
            else:
                is_whole = checksum(view[offset:checked], salt) == checksum_at(data, checked)[0] and all(
                    checksum(view[base + begin : base + finish], salt) == expected
                    for begin, finish, expected in page_table(data, marks_at - PAGE_BYTES_IN_TABLE * pages, pages)
                )
            if not is_whole:
                self._damaged(segment, data, offset, is_last=is_last)
                break
            if version != FORMAT_VERSION or kind not in _KINDS:
                raise StoreError(
                    f"{segment.path}: the block at byte {offset} is of kind {kind} in version {version}; this version "
                    f"of dcpstream reads kinds 1 and 2 in version {FORMAT_VERSION}"
                )
            if incarnations.get(vbid) == incarnation:
                if kind == _FRAMES:
                    found.append(offset)
                    if marks == 1 and vbid in noted and len(noted[vbid]) < MAX_SNAPSHOTS:
                        mark = MARK.unpack_from(data, marks_at)
                        if noted[vbid][-1][1:] != mark[1:]:
                            noted[vbid].append(mark)
                    elif marks:
                        self._note(vbid, [*MARK.iter_unpack(view[marks_at:checked])])
                    elif vbid in noted:
                        self._note(vbid, [(first_seqno_at(data, offset), *NO_SNAPSHOT)])
                else:
                    enter(self._vbuckets, segment, data, found)
                    found = []
                    segment.rollbacks.add((vbid, incarnation))
                    seqno = last_seqno_at(data, offset)
                    if vbid in noted:
                        noted[vbid] = [mark for mark in noted[vbid] if mark[0] <= seqno]
                    self._vbuckets[vbid].recovered(())
                    self._vbuckets[vbid].truncate(seqno)
            offset = stop
        enter(self._vbuckets, segment, data, found)

    def _note(self, vbid: int, marks: list[Mark]) -> None:
        """Remember which snapshots cover frames of a vbucket, but of each only where it begins, and not too many."""
        noted = self._marks.setdefault(vbid, [])
        if noted and noted[-1][1:] == marks[0][1:]:
            del marks[0]
        noted += marks
        if len(noted) > 2 * MAX_SNAPSHOTS:
            del noted[:-MAX_SNAPSHOTS]

    def _damaged(self, segment: Segment, data: bytes, offset: int, *, is_last: bool) -> None:
        """Cut a torn last commit off, or raise."""
        if is_last and self._closed_at is None and not was_committed_after(data, offset, segment.salt):
            self.cut_bytes = len(data) - offset
            self._segments.cut(segment, offset)
            return
        raise describe_damage(str(segment.path), data, offset, segment.salt)


def describe_damage(file: str, data: bytes, offset: int, salt: int) -> CorruptLog:
    """What is wrong with the block at `offset`, as far as its header can be believed."""
    header = read_block_header(data, offset, salt)
    if header is None:
        found = data[offset : offset + 4]
        what = f"{found!r}" if found != BLOCK_MAGIC else "a header whose own checksum does not fit"
        return CorruptLog(file, offset, f"a block header ({BLOCK_MAGIC!r})", what, DAMAGE_HINT)
    where = f"vbucket {header.vbid}, seqnos {header.first_seqno} to {header.last_seqno}"
    if offset + header.size > len(data):
        return CorruptLog(
            file, offset, f"a block of {header.size} bytes ({where})", f"{len(data) - offset}", DAMAGE_HINT
        )
    view = memoryview(data)
    checked = offset + BLOCK_HEADER.size + header.tables_bytes
    expected, actual = CHECKSUM.unpack_from(data, checked)[0], checksum(view[offset:checked], salt)
    if actual == expected:
        for page in damaged_pages(data, offset, header, salt):
            begin, finish, expected = page
            actual = checksum(view[begin:finish], salt)
            return CorruptLog(file, begin, f"XXH3 {expected:016x} of a page ({where})", f"{actual:016x}", DAMAGE_HINT)
    return CorruptLog(
        file, offset, f"XXH3 {expected:016x} of a block's tables ({where})", f"{actual:016x}", DAMAGE_HINT
    )


def damaged_pages(data: bytes, offset: int, header: BlockHeader, salt: int) -> list[tuple[int, int, int]]:
    """(from, to, expected checksum) of each page of the block at `offset` whose bytes are not what was written."""
    view, base = memoryview(data), offset + header.frames_at
    table = page_table(data, offset + BLOCK_HEADER.size + END_BYTES * header.frames, header.pages)
    return [
        (base + begin, base + finish, expected)
        for begin, finish, expected in table
        if checksum(view[base + begin : base + finish], salt) != expected
    ]
