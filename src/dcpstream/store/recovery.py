"""Reading segment files back: every block is checked, a torn last commit is cut off, the index is rebuilt.

Theory of operation: a segment is read whole. One loop goes from block to block and checks its checksums, that of header
and tables and those of the pages; what it found is then entered in the index (`entering`). A rollback block first
enters what stands before it. Blocks of vbuckets that were deleted, or of an earlier incarnation, are checked and left
out.
"""

from __future__ import annotations

from collections.abc import Mapping

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.store.blocks import (
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
    page_table,
    read_block_header,
    was_committed_after,
)
from dcpstream.store.entering import Found, enter
from dcpstream.store.segments import Segment, Segments
from dcpstream.store.vbucket import MAX_SNAPSHOTS, VBucketLog

_FRAMES, _ROLLBACK = int(StoredKind.FRAMES), int(StoredKind.ROLLBACK)


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
        self._last: dict[int, int] = {}
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
        view, unpack, checksum_at = memoryview(data), BLOCK_HEADER.unpack_from, CHECKSUM.unpack_from
        incarnations = {vbid: vbucket.incarnation for vbid, vbucket in self._vbuckets.items()}
        last_seqnos, noted = self._last, self._marks
        found = Found()
        offset, end = SEGMENT_HEADER.size, len(data)
        # With small commits there are hundreds of thousands of blocks: few calls per block but the checksums.
        while offset < end:
            body = offset + BLOCK_HEADER.size
            if body > end:
                self._damaged(segment, data, offset, is_last=is_last)
                break
            (
                magic, version, kind, vbid, incarnation, frames, first_seqno, last_seqno, _, pages, marks, _, _,
                size, _,
            ) = unpack(data, offset)  # fmt: skip
            page_table_at = body + END_BYTES * frames
            marks_at = page_table_at + PAGE_BYTES_IN_TABLE * pages
            checked = marks_at + MARK.size * marks
            base = checked + CHECKSUM.size
            stop = base + size
            if (
                magic != BLOCK_MAGIC
                or stop > end
                or checksum(view[offset:checked], salt) != checksum_at(data, checked)[0]
            ):
                self._damaged(segment, data, offset, is_last=is_last)
                break
            if version != FORMAT_VERSION or kind not in {_FRAMES, _ROLLBACK}:
                raise StoreError(
                    f"{segment.path}: the block at byte {offset} is of kind {kind} in version {version}; this version "
                    f"of dcpstream reads kinds 1 and 2 in version {FORMAT_VERSION}"
                )
            if pages == 1:
                is_whole = checksum(view[base:stop], salt) == checksum_at(data, page_table_at + END_BYTES)[0]
            else:
                is_whole = all(
                    checksum(view[base + begin : base + finish], salt) == expected
                    for begin, finish, expected in page_table(data, page_table_at, pages)
                )
            if not is_whole:
                self._damaged(segment, data, offset, is_last=is_last)
                break
            if incarnations.get(vbid) != incarnation:
                offset = stop
                continue
            if kind == _FRAMES:
                if first_seqno <= last_seqnos.get(vbid, 0):
                    raise CorruptLog(
                        str(segment.path), offset, f"a seqno above {last_seqnos[vbid]} of vbucket {vbid}",
                        str(first_seqno), DAMAGE_HINT,
                    )  # fmt: skip
                last_seqnos[vbid] = last_seqno
                found.vbids.append(vbid)
                found.counts.append(frames)
                found.pages.append(pages)
                found.tables.append(body)
                found.bases.append(base)
                found.sizes.append(size)
                if marks:
                    self._note(vbid, [*MARK.iter_unpack(view[marks_at:checked])])
                elif vbid in noted:
                    self._note(vbid, [(first_seqno, *NO_SNAPSHOT)])
            else:
                enter(self._vbuckets, segment.number, data, found)
                found = Found()
                segment.rollbacks.add((vbid, incarnation))
                last_seqnos[vbid] = last_seqno
                if vbid in noted:
                    noted[vbid] = [mark for mark in noted[vbid] if mark[0] <= last_seqno]
                self._vbuckets[vbid].recovered(())
                self._vbuckets[vbid].truncate(last_seqno)
            offset = stop
        enter(self._vbuckets, segment.number, data, found)

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
