"""Work that is to go on when a part of a store is damaged, cannot be written for a moment, or was rolled back."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import CorruptLog, StoreError
from dcpstream_node.store import CompactionOrder, DiskBucketStore, VBucketLog
from dcpstream_node.store.closed.check import check_store
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.store.log import blocks
from dcpstream_node.store.metadata import InDoubtError, Metadata
from tests.kit.stores import fill, key_of, put, read_all

FULL = CompactionOrder(is_full=True)
PURGE_ONLY = CompactionOrder(rewrites=False, before_time=1 << 32)


@pytest.fixture(autouse=True)
def short_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcpstream_node.store.compact.retention.MIN_ROLLBACK_BYTES", 200)


def opened(path: Path) -> DiskBucketStore:
    return DiskBucketStore(path, 2, segment_bytes=2000)


def churned(path: Path, rounds: int = 30) -> DiskBucketStore:
    """A store with several files, of each of which about half is superseded."""
    store = opened(path)
    fill(store)
    for number in range(rounds):
        for log in store.vbuckets.values():
            put(log, key_of("often"), b"%d" % number * 20)
            put(log, key_of(f"once {number}"), b"stays")
        store.commit()
    return store


def files_in(path: Path) -> set[str]:
    return {entry.name for entry in path.glob("segment-*.log")}


def damage(path: Path, sought: bytes) -> str:
    """Flip a byte where some bytes are; the name of the file."""
    for file in sorted(path.glob("segment-*.log")):
        data = file.read_bytes()
        at = data.find(sought)
        if at >= 0:
            file.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
            return file.name
    raise AssertionError(f"{sought!r} is nowhere")


def test_a_damaged_file_stays_and_the_others_are_compacted(tmp_path: Path) -> None:
    store = churned(tmp_path)
    before = store.bytes_used
    name = damage(tmp_path, b"once 3")
    with pytest.raises(CorruptLog, match=name):
        store.compact(FULL)
    assert store.bytes_used < before * 0.8
    assert name in files_in(tmp_path)
    high = store.vbuckets[0].high_seqno
    assert read_all(store.vbuckets[0], high - 1, high)
    store.close(clean=False)


def test_damaged_deletions_and_documents_hold_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PAGE_BYTES", 50)
    with opened(tmp_path) as store:
        fill(store)
        log = store.vbuckets[0]
        for number in range(6):
            put(log, key_of(f"timed {number}"), b"v")  # its time is over long ago
        for number in range(6):
            put(log, key_of(f"gone {number}"), None)
        put(log, key_of("last"), b"v")
        store.commit()
        damage(tmp_path, b"timed 1")
        damage(tmp_path, b"gone 1")
        names = [key_of(f"timed {number}") for number in (0, 2, 3)]
        assert log.expired(1_000_000, 3) == names, "a portion is filled although a document cannot be read"
        assert purge(log, 1 << 60, 1 << 32) == 5
        assert log.purge_seqno == 12
        assert store.read_failures


def test_after_a_rollback_nothing_counts_as_purged_that_comes_then(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        log = store.vbuckets[0]
        for number in range(10):
            put(log, key_of(number), b"v")
        put(log, key_of(3), None)
        put(log, key_of("last"), b"v")
        store.commit()
        store.compact(PURGE_ONLY)
        assert log.purge_seqno == 11
        assert log.rollback(5) == 5
        assert log.purge_seqno == 5
        for number in range(6, 9):
            put(log, key_of(number - 6), None)
        put(log, key_of("last"), b"v")
        store.commit()
        frames = read_all(log, 0, log.high_seqno)
    with opened(tmp_path) as store:
        log = store.vbuckets[0]
        assert log.purge_seqno == 5
        assert read_all(log, 0, log.high_seqno) == frames, "deletions of the new branch are there"


def test_copies_that_cannot_count_do_not_stay_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = churned(tmp_path)
    store._segments.roll()
    put_metadata, before = Metadata.put, files_in(tmp_path)

    def full(self: Metadata, values: dict[str, str], lines: Any = ()) -> None:
        if "segments" in values:
            raise StoreError("the disk is full")
        put_metadata(self, values, lines)

    monkeypatch.setattr(Metadata, "put", full)
    for _ in range(3):
        with pytest.raises(StoreError, match="full"):
            store.compact(CompactionOrder())
    assert files_in(tmp_path) == before
    monkeypatch.undo()
    monkeypatch.setattr("dcpstream_node.store.compact.retention.MIN_ROLLBACK_BYTES", 200)
    store.compact(FULL)
    assert files_in(tmp_path) != before
    store.close()


class _Doubtful:
    """An SQLite connection of which a COMMIT succeeds and says that it failed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.is_doubtful = True

    def execute(self, sql: str, *arguments: Any) -> Any:
        found = self._connection.execute(sql, *arguments)
        if sql == "COMMIT" and self.is_doubtful:
            self.is_doubtful = False
            raise sqlite3.OperationalError("disk I/O error")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_file_whose_listing_is_in_doubt_hides_no_later_commit(tmp_path: Path, is_clean: bool) -> None:
    store = churned(tmp_path, rounds=2)
    metadata, segments = store._metadata, store._segments
    assert metadata is not None
    assert segments is not None
    metadata._connection = _Doubtful(metadata._connection)  # type: ignore[assignment]
    with pytest.raises(InDoubtError):
        segments.roll()
    log = store.vbuckets[0]
    if not is_clean:
        put(log, key_of("after"), b"v")
        store.commit()
    high = log.high_seqno
    frames = read_all(log, 0, high)
    store.close(clean=is_clean)
    with opened(tmp_path) as store:
        assert read_all(store.vbuckets[0], 0, high) == frames
    assert check_store(tmp_path).is_sound


def test_a_fault_in_a_commit_leaves_all_of_it_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        fill(store)
        for log in store.vbuckets.values():
            put(log, key_of("k"), b"v")

        def fault(*_: object, **__: object) -> bytes:
            raise MemoryError

        monkeypatch.setattr(blocks, "encode_block_head", fault)
        with pytest.raises(MemoryError):
            store.commit()
        monkeypatch.undo()
        assert sorted(store.commit()) == [(0, 1), (1, 1)]
        assert store.pending_bytes == 0


def test_a_vbucket_that_could_not_be_deleted_keeps_its_horizon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = churned(tmp_path)

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(store._metadata, "put", full)
    with pytest.raises(StoreError, match="full"):
        store.delete_vbucket(0)
    monkeypatch.undo()
    monkeypatch.setattr("dcpstream_node.store.compact.retention.MIN_ROLLBACK_BYTES", 200)
    store.compact(FULL)
    horizon = store.vbuckets[0].horizon_seqno
    assert horizon
    store.close(clean=False)
    with opened(tmp_path) as store:
        assert store.vbuckets[0].horizon_seqno == horizon
        assert store.vbuckets[0].rollback(horizon - 1) == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_purge_leaves_alone_what_a_rollback_put_in_the_place_of_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with opened(tmp_path) as store:
        fill(store)
        log = store.vbuckets[0]
        put(log, key_of("k"), b"old")
        put(log, key_of("k"), None)
        put(log, key_of("last"), b"v")
        store.commit()

        def write_anew() -> None:
            assert log.rollback(1) == 1
            put(log, key_of("k"), b"new")
            put(log, key_of("last"), b"v")
            store.commit()

        keys_of, metadata_changed = VBucketLog.keys_of, store.metadata_changed

        def keys_and_rollback(*arguments: Any) -> Any:
            found = keys_of(*arguments)
            write_anew()
            return found

        def put_and_rollback(vbucket: VBucketLog) -> None:
            monkeypatch.setattr(store, "metadata_changed", metadata_changed)
            metadata_changed(vbucket)
            write_anew()

        if moment == "before":
            monkeypatch.setattr(VBucketLog, "keys_of", keys_and_rollback)
        else:
            monkeypatch.setattr(store, "metadata_changed", put_and_rollback)
        assert purge(log, 1 << 60, 1 << 32) == 0
        assert log.purge_seqno == 0
        item = log.get(key_of("k"))
        assert item is not None
        assert item.value == b"new"
