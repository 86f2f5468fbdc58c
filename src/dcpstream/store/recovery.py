"""Reading segment files back: every block is checked, a torn last commit is cut off, the index is rebuilt.

Theory of operation: a segment is read whole. One loop goes from block header to block header and checks both
checksums; what it found is then entered in the index (`entering`). A rollback block first enters what stands before
it. Blocks of vbuckets that were deleted, or of an earlier incarnation, are checked and left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import SnapshotRange
from dcpstream.store.blocks import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CHECKSUM,
    DAMAGE_HINT,
    FORMAT_VERSION,
    SEGMENT_HEADER,
    StoredKind,
    read_block_header,
    was_committed_after,
)
from dcpstream.store.entering import Found, enter
from dcpstream.store.segments import ADDRESS_SHIFT, Segment, Segments
from dcpstream.store.vbucket import VBucketLog

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
        self._snapshots: dict[int, tuple[int, int]] = {}
        self.cut_bytes = 0
        """Bytes of a torn commit that were cut off."""

    def run(self) -> None:
        """Read everything."""
        segments = self._segments.all()
        if self._closed_at is not None and self._closed_at[0] > self._segments.end[0]:
            last = str(segments[-1].path.parent) if segments else "the store"
            raise CorruptLog(last, 0, f"segment {self._closed_at[0]}", f"{self._segments.end[0]} segments", DAMAGE_HINT)
        for segment in segments:
            self._read_segment(segment, is_last=segment is segments[-1])
        for vbid, vbucket in self._vbuckets.items():
            vbucket.rows.recount()
            vbucket.recovered(SnapshotRange(*self._snapshots.get(vbid, (0, 0))))

    def _read_segment(self, segment: Segment, *, is_last: bool) -> None:
        data = self._segments.read(segment.number << ADDRESS_SHIFT, segment.size)
        if is_last and self._closed_at is not None and len(data) < self._closed_at[1]:
            raise CorruptLog(str(segment.path), len(data), f"{self._closed_at[1]} bytes", f"{len(data)}", DAMAGE_HINT)
        view, unpack, checksum_at = memoryview(data), BLOCK_HEADER.unpack_from, CHECKSUM.unpack_from
        incarnations = {vbid: vbucket.incarnation for vbid, vbucket in self._vbuckets.items()}
        found = Found()
        offset, end = SEGMENT_HEADER.size, len(data)
        # With small commits there are hundreds of thousands of blocks: no call per block but the checksums.
        while offset < end:
            body = offset + BLOCK_HEADER.size
            if body > end:
                self._damaged(segment, data, offset, is_last=is_last)
                break
            (
                magic, version, kind, vbid, incarnation, frames, _, last_seqno, snapshot_start, snapshot_end, _, _, _,
                size, _,
            ) = unpack(data, offset)  # fmt: skip
            checked = body + size
            stop = checked + CHECKSUM.size
            if magic != BLOCK_MAGIC or stop > end or crc32(view[offset:checked]) != checksum_at(data, checked)[0]:
                self._damaged(segment, data, offset, is_last=is_last)
                break
            if version != FORMAT_VERSION or kind not in {_FRAMES, _ROLLBACK}:
                raise StoreError(
                    f"{segment.path}: the block at byte {offset} is of kind {kind} in version {version}; this version "
                    f"of dcpstream reads kinds 1 and 2 in version {FORMAT_VERSION}"
                )
            offset = stop
            if incarnations.get(vbid) != incarnation:
                continue
            self._snapshots[vbid] = (snapshot_start, snapshot_end)
            if kind == _FRAMES:
                found.vbids.append(vbid)
                found.counts.append(frames)
                found.tables.append(body)
                found.sizes.append(size - 4 * frames)
            else:
                enter(self._vbuckets, segment.number, data, found)
                found = Found()
                self._vbuckets[vbid].recovered(SnapshotRange(0, 0))
                self._vbuckets[vbid].truncate(last_seqno)
        enter(self._vbuckets, segment.number, data, found)

    def _damaged(self, segment: Segment, data: bytes, offset: int, *, is_last: bool) -> None:
        """Cut a torn last commit off, or raise."""
        if is_last and self._closed_at is None and not was_committed_after(data, offset):
            self.cut_bytes = len(data) - offset
            self._segments.cut(segment, offset)
            return
        header = read_block_header(data, offset)
        if header is None:
            found = data[offset : offset + 4]
            what = f"{found!r}" if found != BLOCK_MAGIC else "a header whose own checksum does not fit"
            raise CorruptLog(str(segment.path), offset, f"a block header ({BLOCK_MAGIC!r})", what, DAMAGE_HINT)
        checked = offset + BLOCK_HEADER.size + header.payload_bytes
        where = f"vbucket {header.vbid}, seqnos {header.first_seqno} to {header.last_seqno}"
        if checked + CHECKSUM.size > len(data):
            wanted, have = checked + CHECKSUM.size - offset, len(data) - offset
            raise CorruptLog(str(segment.path), offset, f"a block of {wanted} bytes ({where})", f"{have}", DAMAGE_HINT)
        expected = CHECKSUM.unpack_from(data, checked)[0]
        actual = crc32(memoryview(data)[offset:checked])
        raise CorruptLog(str(segment.path), offset, f"CRC-32 {expected:08x} ({where})", f"{actual:08x}", DAMAGE_HINT)
