"""Streams of changes: every version of a document instead of the newest one (control `change_streams`).

A bucket may keep superseded versions for a time. A stream of changes gets two snapshots from disk: first everything
that is older than the kept history, deduplicated as usual; then all versions, with the marker flags for history and for
repeated keys. Its snapshots from memory end before a key comes a second time, so none of them repeats a key; their
markers carry the flag for history. Collections that keep no history are deduplicated throughout.

Source: kv_engine engines/ep/src/dcp/active_stream.cc (markDiskSnapshot), docs/dcp snapshot-marker.md.
"""

from __future__ import annotations

from dcpstream.dcp.bucket import VBucketView
from dcpstream.wire import MarkerFlag, Opcode
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.stored.block import FrameBlock

__all__ = ["ChangeHistory"]

_HEADER_BYTES = 24
_FROM_DISK = int(MarkerFlag.HISTORY | MarkerFlag.MAY_DUPLICATE)
_FROM_MEMORY = int(MarkerFlag.HISTORY)


class ChangeHistory:
    """The history of one stream of changes.

    Attributes:
        is_under_way: whether the present snapshot has all versions.
        is_prologue: whether the present snapshot, from disk, is older than the kept history, which follows from disk.
    """

    __slots__ = ("_start", "_view", "is_prologue", "is_under_way")

    def __init__(self, view: VBucketView) -> None:
        self._view = view
        self._start = 0
        self.is_under_way = False
        self.is_prologue = False

    def reach(self, position: int, limit: int, *, is_disk: bool) -> int:
        """Begin a snapshot after `position`; returns its end, at most `limit`, where the history ends."""
        start = self._view.history_start_seqno
        self.is_under_way = self.is_prologue = False
        if start is None:
            return limit
        if start > position + 1:
            older = min(limit, start - 1)
            block = None if older == limit else self._view.read(position, older, snapshot_end=older, max_bytes=1)
            if block is None or block.count:
                self.is_prologue = is_disk and older < limit
                return older  # a snapshot of its own
        self.is_under_way, self._start = True, start
        if not is_disk:
            repeated = self._view.first_repeated_seqno(position, limit)
            return limit if repeated is None else repeated - 1
        return limit

    def flags(self, *, is_disk: bool) -> int:
        """Additional flags of the snapshot's marker."""
        if not self.is_under_way:
            return 0
        return _FROM_DISK if is_disk else _FROM_MEMORY

    def read(
        self, after_seqno: int, end_seqno: int, snapshot_end: int, max_bytes: int, without: frozenset[int]
    ) -> FrameBlock | None:
        """The next messages of the snapshot.

        Args:
            without: the collections that keep no history.
        """
        view = self._view
        if not self.is_under_way:
            return view.read(after_seqno, end_seqno, snapshot_end=snapshot_end, max_bytes=max_bytes)
        after_seqno = max(after_seqno, self._start - 1)
        while (block := view.read_history(after_seqno, end_seqno, max_bytes=max_bytes)).count and without:
            # Of these collections send only the versions that a deduplicated read of the same range returns.
            newest = view.read(after_seqno, block.last_seqno, snapshot_end=snapshot_end, max_bytes=block.size)
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
