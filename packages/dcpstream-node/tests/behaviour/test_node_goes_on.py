"""A node whose parts fail in ways that nobody foresaw: what they do is done again, and others are not held up."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import BucketSettings, Persist
from dcpstream.model.settings import MIN_RAM_QUOTA_BYTES
from dcpstream.wire import Feature, Opcode, Status, StreamEndReason, encode_request
from dcpstream_node import Node
from dcpstream_node.bucket_host import RunningBuckets
from dcpstream_node.store import BucketStore, CompactionOrder, DiskBucketStore, MemoryBucketStore, VBucketLog
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.store.index.rows import LIVE
from dcpstream_node.store.metadata import Metadata
from dcpstream_node.tasks import maintenance
from tests.kit.engine import Talker, engine_of
from tests.kit.peer import SocketPeer
from tests.kit.waiting import wait_until

COMPACT = struct.pack(">QQBBHI", 0, 0, 1, 0, 0, 0)


class FaultError(Exception):
    """An error that nobody foresaw."""


def host_of(node: Node) -> RunningBuckets:
    assert node.engine is not None
    host = node.engine.bucket_host
    assert isinstance(host, RunningBuckets)
    return host


def test_upkeep_goes_on_after_a_fault_and_does_not_flood_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "QUOTA_INTERVAL_S", 0.01)
    calls = 0

    def fault(_: object) -> None:
        nonlocal calls
        calls += 1
        raise FaultError("what nobody foresaw")

    monkeypatch.setattr(maintenance.Maintenance, "check_quota", fault)
    with Node(vbuckets=1, system_scope=False):
        wait_until(lambda: calls >= 5)
    assert caplog.text.count("upkeep: what nobody foresaw") == 1


def test_the_pager_that_fails_waits_for_its_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "QUOTA_INTERVAL_S", 0.01)
    looks = pages = 0

    def look(_: object) -> None:
        nonlocal looks
        looks += 1

    async def page(_: object) -> int:
        nonlocal pages
        pages += 1
        raise StoreError("a page is damaged")

    monkeypatch.setattr(maintenance.Maintenance, "check_quota", look)
    monkeypatch.setattr(maintenance.Maintenance, "page", page)
    with Node(vbuckets=1, settings=BucketSettings(expiry_pager_s=1), system_scope=False):
        wait_until(lambda: pages == 1)
        looked = looks
        wait_until(lambda: looks >= looked + 10)
        assert pages == 1


def test_a_fault_in_a_compaction_is_reported_and_the_next_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_: object, order: CompactionOrder) -> None:
        raise FaultError

    with Node(vbuckets=1, system_scope=False) as node, monkeypatch.context() as patch:
        peer = SocketPeer(node.port).open()
        patch.setattr(BucketStore, "compact", fault)
        assert peer.call(Opcode.COMPACT_DB, extras=COMPACT).status == Status.EINTERNAL
        patch.undo()
        assert peer.call(Opcode.COMPACT_DB, extras=COMPACT).status == 0
        peer.close()


def test_commits_go_on_after_a_fault_in_a_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Node(vbuckets=1, path=tmp_path, flush_interval_s=0.01, system_scope=False) as node:
        engine, has_failed = node.engine, False
        assert engine is not None
        tell = engine.persisted

        def fault(*arguments: Any) -> None:
            nonlocal has_failed
            if not has_failed:
                has_failed = True
                raise FaultError
            tell(*arguments)

        monkeypatch.setattr(engine, "persisted", fault)
        peer, log = SocketPeer(node.port).open(), engine.buckets["default"].store.vbuckets[0]
        for number in range(1, 4):
            peer.set(f"k{number}", b"v")
            wait_until(lambda number=number: log.persisted_seqno == number)  # type: ignore[misc]
        assert has_failed
        peer.close()


def test_every_bucket_is_closed_although_one_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = DiskBucketStore.close

    def close_or_fail(self: DiskBucketStore, clean: bool = True) -> None:
        close(self, clean and self.path.name != "a")
        if self.path.name == "a":
            raise StoreError("a is full")

    node = Node(buckets=("a", "b"), vbuckets=1, path=tmp_path, system_scope=False).start()
    monkeypatch.setattr(DiskBucketStore, "close", close_or_fail)
    with pytest.raises(StoreError, match="a is full"):
        node.stop()
    monkeypatch.undo()
    with DiskBucketStore(tmp_path / "b", 1) as store:
        assert store.was_clean


def test_the_cache_gives_way_before_writes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = MIN_RAM_QUOTA_BYTES
    settings = BucketSettings(ram_quota_bytes=quota, cache_bytes=quota)
    monkeypatch.setattr(maintenance, "QUOTA_INTERVAL_S", 0.01)
    with Node(vbuckets=1, path=tmp_path, settings=settings, system_scope=False) as node:
        assert node.engine is not None
        store = node.engine.buckets["default"].store
        assert isinstance(store, DiskBucketStore)
        assert store._segments is not None
        index = quota * 9 // 10
        monkeypatch.setattr(VBucketLog, "memory_bytes", property(lambda _: index))
        cache = store._segments.cache
        for number in range(20):
            cache.put((9, number), bytes(quota // 200))
        wait_until(lambda: 0 < cache.stats.capacity <= quota - index)
        wait_until(lambda: store.has_room)
        assert 0 < store.cached_bytes <= quota // 20
        index = 0
        wait_until(lambda: cache.stats.capacity > quota // 2)


def test_history_that_was_switched_off_is_not_kept_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "QUOTA_INTERVAL_S", 0.01)
    with Node(vbuckets=1, settings=BucketSettings(history_retention_s=3600), system_scope=False) as node:
        assert node.engine is not None
        bucket = node.engine.buckets["default"]
        log = bucket.store.vbuckets[0]
        assert log.kept_from_seqno != LIVE
        (task,) = (task for task in host_of(node).tasks["default"] if isinstance(task, maintenance.Maintenance))
        wait_until(lambda: task._keeps_history)
        bucket.store.settings = BucketSettings()
        wait_until(lambda: log.kept_from_seqno == LIVE)


def test_a_purge_does_not_reach_durable_writes_that_begin_meanwhile() -> None:
    with Node(vbuckets=2, system_scope=False) as node:
        peer = SocketPeer(node.port).open()
        for number in range(3):
            peer.set(f"k{number}", b"v")
        assert host_of(node).compactors["default"]._purge_limits() == {0: 3, 1: 0}
        peer.close()


def test_a_flush_empties_all_vbuckets_in_one_step_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskBucketStore(tmp_path, 4)
    engine = engine_of(store, vbuckets=4)
    client = Talker(engine)
    assert client.set("k", b"v").status == 0
    store.commit()
    steps = 0

    def crash(*_: object, **__: object) -> None:
        nonlocal steps
        steps += 1
        raise StoreError("the power is gone")

    monkeypatch.setattr(Metadata, "put", crash)
    with pytest.raises(StoreError, match="power"):
        engine.flush_bucket(engine.buckets["default"])
    monkeypatch.undo()
    assert steps == 1
    store.close(clean=False)
    with DiskBucketStore(tmp_path, 4) as store:
        assert sorted(store.vbuckets) == [0, 1, 2, 3]
        assert sum(log.item_count for log in store.vbuckets.values()) == 1
        engine = engine_of(store, vbuckets=4)
        put, steps = Metadata.put, 0

        def count(*arguments: Any) -> None:
            nonlocal steps
            steps += 1
            put(*arguments)

        monkeypatch.setattr(Metadata, "put", count)
        engine.flush_bucket(engine.buckets["default"])
        monkeypatch.undo()
        assert steps == 1, "a crash between two steps would leave vbuckets missing"
    with DiskBucketStore(tmp_path, 4) as store:
        assert sorted(store.vbuckets) == [0, 1, 2, 3]
        assert sum(log.item_count for log in store.vbuckets.values()) == 0


def test_a_purge_while_a_stream_reads_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(vbuckets=1)
    client = Talker(engine)
    for key in ("a", "b", "c"):
        assert client.set(key, b"v").status == 0
    assert client.call(Opcode.DELETE, key=client.key("b")).status == 0
    assert client.set("last", b"v").status == 0
    log = engine.buckets["default"].store.vbuckets[0]
    read = log.read

    def purge_and_read(self: VBucketLog, after: int, end: int, **options: Any) -> Any:
        purge(self, 1 << 60, 1 << 32)  # as a compaction does in its thread, at the worst moment
        return read(after, end, **options)

    reader = Talker(engine, features=[Feature.XERROR, Feature.SELECT_BUCKET])
    reader.call(Opcode.DCP_OPEN, key=b"reader", extras=struct.pack(">II", 0, 1))
    monkeypatch.setattr(VBucketLog, "read", purge_and_read)
    vbuuid = log.failover_log.newest.vbuuid
    request = struct.pack(">IIQQQQQ", 0, 0, 3, 2**64 - 1, vbuuid, 3, 3)
    frames = reader.send(encode_request(Opcode.DCP_STREAM_REQ, opaque=7, extras=request)) + reader.collect()
    assert log.purge_seqno == 4
    assert frames[-1].opcode == Opcode.DCP_STREAM_END
    assert struct.unpack(">I", frames[-1].extras)[0] == StreamEndReason.STATE_CHANGED


@pytest.mark.parametrize("other", ["other", "@no bucket@"])
def test_what_was_written_to_a_bucket_that_is_left_is_answered_when_it_is_durable(tmp_path: Path, other: str) -> None:
    store = DiskBucketStore(tmp_path, 4, BucketSettings(persist=Persist.EVERY))
    engine = engine_of(store, vbuckets=4)
    engine.add_bucket("other", MemoryBucketStore(4))
    bucket, client = engine.buckets["default"], Talker(engine)
    write = encode_request(Opcode.SET, key=client.key("k"), value=b"v", extras=bytes(8))
    leave = encode_request(Opcode.SELECT_BUCKET, key=other.encode())
    assert client.send(write + leave) == []
    assert client.send(encode_request(Opcode.NOOP)) == []
    number = bucket.begin_commit()
    store.commit()
    bucket.end_commit(number)
    assert [frame.opcode for frame in client.collect()] == [Opcode.SET, Opcode.SELECT_BUCKET, Opcode.NOOP]
    assert client.call(Opcode.NOOP).status == 0
    store.close()


def test_a_bucket_that_goes_closes_those_who_wait_for_it_from_elsewhere(tmp_path: Path) -> None:
    store = DiskBucketStore(tmp_path, 4, BucketSettings(persist=Persist.EVERY))
    engine = engine_of(store, vbuckets=4)
    engine.add_bucket("other", MemoryBucketStore(4))
    client = Talker(engine)
    write = encode_request(Opcode.SET, key=client.key("k"), value=b"v", extras=bytes(8))
    client.send(write + encode_request(Opcode.SELECT_BUCKET, key=b"other"))
    engine.remove_bucket("default")
    assert client.session.is_closing
    store.close()
