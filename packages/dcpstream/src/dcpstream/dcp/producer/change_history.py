"""Streams of changes: every version of a document instead of the newest one (control `change_streams`).

A bucket may keep superseded versions for a time. A stream of changes gets two snapshots from disk: first everything
that is older than the kept history, deduplicated as usual; then all versions, with the marker flags for history and for
repeated keys. Its snapshots from memory end before a key comes a second time, so none of them repeats a key; their
markers carry the flag for history. Collections that keep no history are deduplicated throughout.

Source: kv_engine engines/ep/src/dcp/active_stream.cc (markDiskSnapshot), docs/dcp snapshot-marker.md.
"""

from __future__ import annotations

from typing import NamedTuple

from dcpstream.dcp.bucket import VBucketView
from dcpstream.wire import MarkerFlag, Opcode
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.stored.block import FrameBlock

_HEADER_BYTES = 24
_FROM_DISK = int(MarkerFlag.HISTORY | MarkerFlag.MAY_DUPLICATE)
_FROM_MEMORY = int(MarkerFlag.HISTORY)


class Reach(NamedTuple):
    """The extent of a snapshot; the fields are those of `states.Snapshot`."""

    limit: int
    versions_from: int | None = None
    is_prologue: bool = False

    def flags(self, *, is_disk: bool) -> int:
        """Additional flags of the snapshot's marker."""
        return 0 if self.versions_from is None else _FROM_DISK if is_disk else _FROM_MEMORY


def reach(view: VBucketView, position: int, limit: int, *, is_disk: bool) -> Reach:
    """The snapshot after `position`, which ends at `limit`, where the history ends, or before."""
    start = view.history_start_seqno
    if start is None:
        return Reach(limit)
    if start > position + 1:
        older = min(limit, start - 1)
        block = None if older == limit else view.read(position, older, snapshot_end=older, max_bytes=1)
        if block is None or block.count:
            return Reach(older, is_prologue=is_disk and older < limit)  # a snapshot of its own
    repeated = None if is_disk else view.first_repeated_seqno(position, limit)
    return Reach(limit if repeated is None else repeated - 1, start)


def read_versions(
    view: VBucketView, after_seqno: int, end_seqno: int, max_bytes: int, without: frozenset[int]
) -> FrameBlock | None:
    """The next versions of a snapshot.

    Args:
        view: the vbucket.
        after_seqno: not below the kept history.
        end_seqno: the end of the snapshot.
        max_bytes: as of `VBucketView.read`.
        without: the collections that keep no history.
    """
    while (block := view.read_history(after_seqno, end_seqno, max_bytes=max_bytes)).count and without:
        # Of these collections send only the versions that a deduplicated read of the same range returns.
        newest = view.read(after_seqno, block.last_seqno, snapshot_end=end_seqno, max_bytes=block.size)
        if newest is None:
            return None
        known = {int(seqno) for seqno in newest.seqnos}
        is_hidden = [
            int(seqno) not in known and _collection_of(block, int(start)) in without
            for start, seqno in zip(block.starts, block.seqnos, strict=True)
        ]
        if not all(is_hidden):
            return block.without(is_hidden)
        after_seqno = block.last_seqno
    return block


def _collection_of(block: FrameBlock, start: int) -> int | None:
    """The collection of a stored document; None for a system event."""
    data = block.data
    if data[start + 1] == Opcode.DCP_SYSTEM_EVENT:
        return None
    return leb128_decode(data[start + _HEADER_BYTES + data[start + 4] : start + _HEADER_BYTES + data[start + 4] + 5])[0]
