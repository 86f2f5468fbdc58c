"""Opening a store's segment files: verify every block, cut off a torn last commit, rebuild the indexes.

Theory of operation: each segment is read whole. One loop goes from block to block and verifies the checksums of header
and tables and of the pages. The verified blocks are then entered into the indexes in bulk (`index.bulk_load`), before
each rollback block and at the end of the segment. Blocks of deleted vbuckets and of earlier incarnations are verified
and left out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from dcpstream.errors import CorruptLog, StoreError
from dcpstream_node.store.compact.purge import highest_deleted_rev, purge_again
from dcpstream_node.store.index.bulk_load import History, load_blocks
from dcpstream_node.store.index.snapshots import MAX_SNAPSHOTS
from dcpstream_node.store.log.block_scan import first_damage
from dcpstream_node.store.log.blocks import (
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
    Mark,
    StoredKind,
    checksum,
    first_seqno_at,
    last_seqno_at,
    page_table,
    was_committed_after,
)
from dcpstream_node.store.log.segment_file import Segment, read_from
from dcpstream_node.store.log.segments import Segments
from dcpstream_node.store.vbucket import VBucketLog

_FRAMES, _KINDS = int(StoredKind.FRAMES), frozenset(int(kind) for kind in StoredKind)
_SHAPE = struct.Struct(">4sBBHII18xHH6xI8x")
"""A part of `BLOCK_HEADER`: magic, version, kind, vbid, incarnation, frames, pages, marks, bytes of the frames."""
_SUMS = struct.Struct(">QQ")
"""In a block of one page without marks: the checksums of the page, and of header and tables."""
assert _SHAPE.size == BLOCK_HEADER.size


class Recovery:
    """Fills the vbuckets of a store from its segments.

    Args:
        vbuckets: the existing vbuckets, empty, with their incarnations.
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
        self._histories = {vbid: History(vbucket.rows, vbucket.log) for vbid, vbucket in vbuckets.items()}
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
            self._recovered(vbucket, self._marks.get(vbid, ()))

    def _read_segment(self, segment: Segment, *, is_last: bool) -> None:
        data, salt = read_from(segment, 0, segment.size), segment.salt
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
        # Small commits make hundreds of thousands of blocks, so this loop calls little but the checksums.
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
                    # A rollback may have left no mark of the vbucket.
                    if marks == 1 and (known := noted.get(vbid)) and len(known) < MAX_SNAPSHOTS:
                        mark = MARK.unpack_from(data, marks_at)
                        if known[-1][1:] != mark[1:]:
                            known.append(mark)
                    elif marks:
                        self._note(vbid, [*MARK.iter_unpack(view[marks_at:checked])])
                    elif vbid in noted:
                        self._note(vbid, [(first_seqno_at(data, offset), *NO_SNAPSHOT)])
                else:
                    load_blocks(self._histories, segment, data, found)
                    found = []
                    segment.rollbacks.add((vbid, incarnation))
                    seqno = last_seqno_at(data, offset)
                    if vbid in noted:
                        noted[vbid] = [mark for mark in noted[vbid] if mark[0] <= seqno]
                    self._recovered(self._vbuckets[vbid], ())
                    self._vbuckets[vbid].truncate(seqno)
            offset = stop
        load_blocks(self._histories, segment, data, found)

    @staticmethod
    def _recovered(vbucket: VBucketLog, marks: Sequence[Mark]) -> None:
        """Take all rows for durable, and purge again the rows that were purged before."""
        vbucket.recovered(marks)
        purge_again(vbucket)
        vbucket.max_deleted_rev = max(vbucket.max_deleted_rev, highest_deleted_rev(vbucket))

    def _note(self, vbid: int, marks: list[Mark]) -> None:
        """Remember the snapshots that cover frames of a vbucket: the beginning of each, and not too many of them."""
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
        raise first_damage(str(segment.path), data, offset, segment.salt)
