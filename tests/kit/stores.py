"""Frames to store, and a simple model of a vbucket to compare stores with."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcpstream.model import FailoverLog, SnapshotRange, VbucketState
from dcpstream.wire.stored.block import (
    Version,
    encode_stored_deletion,
    encode_stored_expiration,
    encode_stored_mutation,
    frame_kinds,
)
from dcpstream_node.store import BucketStore, VBucketLog

LOG = FailoverLog.of((0xABC, 0))


def key_of(name: object, collection: bytes = b"\0") -> bytes:
    """A key with its collection prefix."""
    return collection + str(name).encode()


def frame_of(vbid: int, key: bytes, seqno: int, value: bytes | None, kind: str = "mutation") -> bytes:
    """A stored frame; `value` None makes a tombstone."""
    if value is None:
        encode = encode_stored_expiration if kind == "expiration" else encode_stored_deletion
        return encode(Version(key, b"", seqno, time=77), vbid=vbid, by_seqno=seqno, cas=seqno << 16)
    return encode_stored_mutation(
        Version(key, value, seqno, flags=5, time=9), vbid=vbid, by_seqno=seqno, cas=seqno << 16
    )


def put(vbucket: VBucketLog, key: bytes, value: bytes | None, *, seqno: int | None = None, kind: str = "") -> bytes:
    """Append the next version of a key, and return its frame."""
    seqno = vbucket.high_seqno + 1 if seqno is None else seqno
    frame = frame_of(vbucket.vbid, key, seqno, value, kind)
    kinds = frame_kinds(frame[1], frame[5], key)
    vbucket.append(frame, key, seqno, kinds=kinds)
    return frame


def fill(store: BucketStore) -> None:
    """Create every vbucket as active."""
    with store.metadata_batch():
        for vbid in range(store.vbucket_count):
            store.create_vbucket(vbid, VbucketState.ACTIVE, LOG)


def read_all(
    vbucket: VBucketLog, after: int, end: int, *, snapshot_end: int | None = None, max_bytes: int = 1 << 20
) -> list[bytes]:
    """The frames of a whole range, read block by block, each block checked for what it says about itself."""
    frames: list[bytes] = []
    view = end if snapshot_end is None else snapshot_end
    while (block := vbucket.read(after, end, snapshot_end=view, max_bytes=max_bytes)).count:
        starts = [int(start) for start in block.starts]
        data = bytes(block.data)
        assert starts[0] == 0
        assert block.count == 1 or block.size <= max_bytes
        cut = [data[start:stop] for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)]
        assert [int(seqno) for seqno in block.seqnos] == [int.from_bytes(frame[24:32], "big") for frame in cut]
        occurring = 0
        for frame in cut:
            at = 24 + frame[4]
            occurring |= frame_kinds(frame[1], frame[5], frame[at : at + int.from_bytes(frame[2:4], "big")])
        assert block.kinds == occurring
        assert after < block.first_seqno <= block.last_seqno <= end
        frames += cut
        after = block.last_seqno
    return frames


@dataclass
class ModelVbucket:
    """Rows as (seqno, key, frame, is a document); persisted is how far they survive a crash.

    A purged deletion stays in the rows and hides itself and the rows that it superseded. States before the horizon are
    forgotten.
    """

    rows: list[tuple[int, bytes, bytes, bool]] = field(default_factory=list)
    persisted: int = 0
    purged: set[int] = field(default_factory=set)
    horizon: int = 0

    @property
    def high(self) -> int:
        """The last seqno."""
        return self.rows[-1][0] if self.rows else 0

    def view(self, end: int) -> dict[bytes, tuple[int, bytes, bool]]:
        """The newest row at or below `end` of each key."""
        newest = {key: (seqno, frame, is_doc) for seqno, key, frame, is_doc in self.rows if seqno <= end}
        return {key: row for key, row in newest.items() if row[0] not in self.purged}

    def purge(self, end: int) -> int:
        """Purge the deletions up to `end`, the last row excepted, and say how many."""
        newest = self.view(self.high).values()
        going = {seqno for seqno, _, is_doc in newest if not is_doc and seqno <= end and seqno < self.high}
        self.purged |= going
        return len(going)

    def read(self, after: int, end: int, snapshot_end: int) -> list[bytes]:
        """The frames that a read of the range must return."""
        newest = self.view(max(end, snapshot_end))
        return [frame for seqno, frame, _ in sorted(newest.values()) if after < seqno <= end]

    def rollback(self, seqno: int) -> None:
        """Forget what is above; everything if that leads before the horizon."""
        reached = max((row[0] for row in self.rows if row[0] <= seqno), default=0)
        if reached < self.horizon:
            reached = seqno = self.horizon = 0
        self.purged = {row for row in self.purged if row <= seqno}
        self.rows = [row for row in self.rows if row[0] <= seqno]
        self.persisted = min(self.persisted, self.high)


def snapshot_at(vbucket: VBucketLog, seqno: int) -> SnapshotRange:
    """The remembered snapshot that covers the last row at or below `seqno`."""
    return vbucket.snapshots.at(vbucket.rows.row_after(seqno)) or SnapshotRange(seqno, seqno)
