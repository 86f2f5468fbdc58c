"""Promises of both versions of the store, case by case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import Collection, FailoverLog, Manifest, Scope, SnapshotRange, VbucketState
from dcpstream.wire import SystemEventId
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.stored.block import BlockKind
from dcpstream_node.store import MAX_PENDING_BYTES, BucketStore, DiskBucketStore, MemoryBucketStore
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.store.index import snapshots as snapshots_module
from tests.kit.stores import LOG, fill, frame_of, key_of, put, read_all


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BucketStore]:
    made = MemoryBucketStore(4) if request.param == "memory" else DiskBucketStore(tmp_path / "bucket", 4)
    fill(made)
    yield made
    made.close()


def test_a_new_vbucket_is_empty(store: BucketStore) -> None:
    vbucket = store.vbuckets[3]
    assert (vbucket.vbid, vbucket.high_seqno, vbucket.persisted_seqno, vbucket.item_count) == (3, 0, 0, 0)
    assert (vbucket.snapshot, vbucket.persisted_snapshot, vbucket.branch_seqno) == (
        SnapshotRange(0, 0),
        SnapshotRange(0, 0),
        0,
    )
    assert vbucket.read(0, 2**64 - 1).count == 0
    assert vbucket.rollback(0) == 0


def test_a_document_comes_back_with_every_field(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    put(vbucket, key_of("a"), b"body")
    item = vbucket.get(key_of("a"))
    assert item is not None
    assert (item.key, item.value, item.cas, item.rev_seqno, item.seqno) == (b"\0a", b"body", 1 << 16, 1, 1)
    assert (item.flags, item.expiration, item.is_deleted, item.delete_time) == (5, 9, False, 0)
    meta = vbucket.meta(key_of("a"))
    assert meta is not None
    assert (meta.cas, meta.rev_seqno, meta.flags, meta.expiration, meta.is_deleted) == (1 << 16, 1, 5, 9, False)
    assert vbucket.meta(b"\0b") is None


@pytest.mark.parametrize("kind", ["deletion", "expiration"])
def test_a_tombstone_is_kept_and_found(store: BucketStore, kind: str) -> None:
    vbucket = store.vbuckets[0]
    put(vbucket, key_of("a"), b"body")
    put(vbucket, key_of("a"), None, kind=kind)
    store.commit()
    item = vbucket.get(key_of("a"))
    assert item is not None
    assert (item.is_deleted, item.delete_time, item.value, item.seqno) == (True, 77, b"", 2)
    assert vbucket.item_count == 0
    assert key_of("a") not in vbucket
    assert vbucket.read(0, 2).kinds == (BlockKind.DELETION if kind == "deletion" else BlockKind.EXPIRATION)


def test_a_snapshot_is_consistent_at_its_own_end(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    first = put(vbucket, key_of("a"), b"1")
    second = put(vbucket, key_of("b"), b"2")
    store.commit()
    third = put(vbucket, key_of("a"), b"3")
    assert read_all(vbucket, 0, 2) == [first, second]
    assert read_all(vbucket, 0, 3) == [second, third]
    assert read_all(vbucket, 0, 2, snapshot_end=3) == [second]
    assert read_all(vbucket, 2, 3) == [third]


def test_seqnos_do_not_go_back(store: BucketStore) -> None:
    put(store.vbuckets[0], key_of("a"), b"1", seqno=5)
    with pytest.raises(AssertionError, match="seqno 5 does not follow 5"):
        put(store.vbuckets[0], key_of("a"), b"1", seqno=5)
    keys = [key_of(number) for number in range(20)]
    frames = [frame_of(0, key, seqno, b"") for seqno, key in enumerate(keys, 5)]
    with pytest.raises(AssertionError, match="does not follow"):
        store.vbuckets[0].append_many(frames, keys, range(5, 25))


def test_a_block_may_be_one_large_row(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    large = put(vbucket, key_of("a"), b"x" * 3_000_000)
    small = put(vbucket, key_of("b"), b"y")
    for _ in range(2):
        assert read_all(vbucket, 0, 2) == [large, small]
        assert vbucket.read(0, 2).count == 1
        store.commit()


def test_a_block_outlives_later_writes(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    frames = [put(vbucket, key_of(number), b"x" * 1000) for number in range(2000)]
    block = vbucket.read(0, 10)
    kept = bytes(block.data)
    vbucket.rollback(5)
    for number in range(2000):
        put(vbucket, key_of(number), b"z" * 1000)
    store.commit()
    assert bytes(block.data) == kept == b"".join(frames[:10])


def test_metadata_is_set(store: BucketStore) -> None:
    vbucket = store.vbuckets[1]
    log = FailoverLog.of((7, 3), (0xABC, 0))
    vbucket.set_state(VbucketState.REPLICA, log)
    vbucket.set_purge_seqno(2**63 + 1)
    store.manifest = Manifest(3, (Scope(0, "_default", (Collection(8, "things"),)),))
    assert (vbucket.state, vbucket.failover_log, vbucket.purge_seqno) == (VbucketState.REPLICA, log, 2**63 + 1)
    assert store.manifest.uid == 3


def test_vbucket_numbers_have_a_range(store: BucketStore) -> None:
    with pytest.raises(ConfigError, match="a number below 4"):
        store.create_vbucket(4, VbucketState.ACTIVE, LOG)
    store.delete_vbucket(2)
    store.delete_vbucket(2)
    assert sorted(store.vbuckets) == [0, 1, 3]
    with pytest.raises(ConfigError, match="from 1 to 1024"):
        MemoryBucketStore(0)


def test_a_received_snapshot_counts_from_its_first_row_on(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    vbucket.set_snapshot(SnapshotRange(0, 4))
    put(vbucket, key_of("a"), b"1", seqno=2)
    store.commit()
    assert vbucket.snapshot == vbucket.persisted_snapshot == SnapshotRange(0, 4)
    assert vbucket.branch_seqno == 0
    put(vbucket, key_of("b"), b"1", seqno=4)
    store.commit()
    vbucket.set_snapshot(SnapshotRange(5, 9))
    vbucket.set_snapshot(SnapshotRange(5, 10))
    store.commit()
    assert vbucket.persisted_snapshot == SnapshotRange(0, 4)
    assert vbucket.branch_seqno == 4
    put(vbucket, key_of("c"), b"1", seqno=7)
    store.commit()
    assert vbucket.persisted_snapshot == SnapshotRange(5, 10)
    assert vbucket.branch_seqno == 5
    vbucket.set_snapshot(None)
    put(vbucket, key_of("d"), b"1", seqno=12)
    store.commit()
    assert (vbucket.persisted_snapshot, vbucket.branch_seqno) == (SnapshotRange(12, 12), 12)


def test_a_rollback_into_a_received_snapshot_goes_to_its_start(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    vbucket.set_snapshot(SnapshotRange(0, 3))
    for seqno in (1, 3):
        put(vbucket, key_of(seqno), b"", seqno=seqno)
    vbucket.set_snapshot(SnapshotRange(4, 9))
    for seqno in (4, 6, 9):
        put(vbucket, key_of(seqno), b"", seqno=seqno)
    assert vbucket.rollback(9) == 9
    assert vbucket.rollback(7) == 4
    assert vbucket.rollback(3) == 3
    assert vbucket.snapshot == SnapshotRange(0, 3)
    assert vbucket.rollback(1) == 0


def test_what_was_committed_meanwhile_is_still_rolled_back_by_whole_snapshots(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    for start, seqnos in ((0, (1, 2, 4)), (4, (5, 6)), (6, (7,))):
        vbucket.set_snapshot(SnapshotRange(start, seqnos[-1]))
        for seqno in seqnos:
            put(vbucket, key_of(seqno), b"", seqno=seqno)
            store.commit()
    assert vbucket.rollback(5) == 4
    assert vbucket.rollback(3) == 0


def test_snapshots_that_are_too_old_to_be_remembered_start_over(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "MAX_SNAPSHOTS", 8)
    vbucket = store.vbuckets[0]
    for seqno in range(2, 60, 2):
        vbucket.set_snapshot(SnapshotRange(seqno - 2, seqno))
        put(vbucket, key_of(seqno), b"", seqno=seqno)
        store.commit()
    assert vbucket.rollback(54) == 54
    assert vbucket.rollback(10) == 0


def _event(vbucket_seqno: int, event: SystemEventId, identity: bytes, name: bytes) -> bytes:
    value = (5).to_bytes(8, "big") + identity
    return SystemEvent(vbid=0, opaque=0, by_seqno=vbucket_seqno, event=event, version=0, key=name, value=value).encode()


def test_the_newest_event_of_a_collection_supersedes_the_older(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    kinds = BlockKind.SYSTEM_EVENT
    scope, collection = (9).to_bytes(4, "big"), (8).to_bytes(4, "big")
    events = [
        _event(1, SystemEventId.CREATE_SCOPE, scope, b"s"),
        _event(2, SystemEventId.CREATE_COLLECTION, scope + collection, b"c"),
        _event(3, SystemEventId.CREATE_COLLECTION, scope + (9).to_bytes(4, "big"), b"d"),
    ]
    for seqno, event in enumerate(events, 1):
        vbucket.append(event, b"", seqno, kinds=kinds)
    put(vbucket, key_of("a", b"\x08"), b"1")
    dropped = _event(5, SystemEventId.DROP_COLLECTION, scope + collection, b"")
    vbucket.append(dropped, b"", 5, kinds=kinds)
    assert read_all(vbucket, 0, 3) == events
    assert [frame[24:32][-1] for frame in read_all(vbucket, 0, 5)] == [1, 3, 5]  # its documents are gone with it
    assert [frame[24:32][-1] for frame in read_all(vbucket, 0, 4)] == [1, 2, 3, 4]
    assert vbucket.item_count == 0
    assert vbucket.get(key_of("a", b"\x08")) is None
    assert (vbucket.high_seqno_of([8]), vbucket.high_seqno_of([9]), vbucket.high_seqno_of([8, 9])) == (5, 3, 5)
    vbucket.rollback(4)
    assert vbucket.item_count == 1
    assert vbucket.get(key_of("a", b"\x08")) is not None
    assert (vbucket.high_seqno_of([8]), vbucket.high_seqno_of([9]), vbucket.high_seqno_of([])) == (4, 3, 0)
    assert read_all(vbucket, 0, 3) == events


def test_it_says_when_writers_should_wait(store: BucketStore) -> None:
    for pending, has_room in ((0, True), (MAX_PENDING_BYTES - 1, True), (MAX_PENDING_BYTES, False), (0, True)):
        store.pending_bytes = pending
        assert store.has_room is has_room


def test_a_thousand_vbuckets_cost_little_to_make() -> None:
    store = MemoryBucketStore(1024)
    fill(store)
    assert len(store.vbuckets) == 1024
    assert all(not vbucket.log.tail and not vbucket.rows.seqnos for vbucket in store.vbuckets.values())


def test_purged_deletions_are_gone_and_come_back_with_a_rollback(store: BucketStore) -> None:
    vbucket = store.vbuckets[0]
    for name in "abc":
        put(vbucket, key_of(name), b"body")
    for name in "abc":
        put(vbucket, key_of(name), None)
    store.commit()
    assert purge(vbucket, 2**64 - 1, 77) == 0  # all were deleted at 77
    assert purge(vbucket, 4, 78) == 1
    assert vbucket.purge_seqno == 4
    assert [frame[24:32][-1] for frame in read_all(vbucket, 0, 6)] == [5, 6]
    assert vbucket.get(key_of("a")) is None
    assert purge(vbucket, 2**64 - 1, 78) == 1, "the last row stays"
    assert vbucket.purge_seqno == 5
    put(vbucket, key_of("a"), b"again")
    assert [frame[24:32][-1] for frame in read_all(vbucket, 0, 7)] == [6, 7]
    vbucket.rollback(2)
    assert [frame[24:32][-1] for frame in read_all(vbucket, 0, 6)] == [1, 2]
    assert vbucket.item_count == 2
