"""Compaction: what goes and what stays, in every crash, with a full disk, and beside other threads."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import SnapshotRange, VbucketState
from dcpstream.runtime import File, SystemFileSystem
from dcpstream.wire import SystemEventId
from dcpstream_node.store import BucketStore, CompactionOrder, DiskBucketStore, MemoryBucketStore, base
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.store.compact.row_removal import RowRemoval
from dcpstream_node.store.compact.segment_rewriting import SegmentRewriting
from dcpstream_node.store.metadata import Metadata
from lab.tools.patience import patient
from tests.kit.stores import fill, key_of, put, read_all

FULL = CompactionOrder(is_full=True)
PURGE_ALL = CompactionOrder(is_full=True, before_time=1 << 32)


@pytest.fixture(autouse=True)
def short_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollbacks reach a few rows back, so that little has to be written for a compaction to have work."""
    monkeypatch.setattr("dcpstream_node.store.compact.retention.MIN_ROLLBACK_BYTES", 200)


def opened(path: Path, vbuckets: int = 2, segment_bytes: int = 2000, **options: Any) -> DiskBucketStore:
    return DiskBucketStore(path, vbuckets, segment_bytes=segment_bytes, **options)


def churn(store: BucketStore, rounds: int = 12, names: int = 4) -> None:
    """Overwrite a few documents of two vbuckets again and again; one more of each is written once, one is deleted."""
    for number in range(rounds):
        for vbid in (0, 1):
            log = store.vbuckets[vbid]
            for name in range(names):
                put(log, key_of(name), b"%d in round %d" % (name, number))
            put(log, key_of(f"once {number}"), b"stays")
            if number % 3 == 0:
                put(log, key_of(f"once {number}"), None)
        store.commit()


def contents(store: BucketStore) -> dict[int, tuple[int, list[bytes], int]]:
    """The high seqno, the newest frames and the number of documents of each vbucket."""
    return {
        vbid: (log.high_seqno, read_all(log, 0, log.high_seqno), log.item_count) for vbid, log in store.vbuckets.items()
    }


def files_in(path: Path) -> set[str]:
    return {item.name for item in path.iterdir() if item.name.startswith("segment")}


# ------------------------------------------------------------------------------------------------ what goes, what stays


def test_files_shrink_and_nothing_that_lives_is_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        churn(store, rounds=40)
        before, used, files = contents(store), store.bytes_used, len(files_in(tmp_path))
        report = store.compact(FULL)
        assert contents(store) == before
        assert store.bytes_used < used / 2
        assert report.rows_dropped > 200
        assert report.bytes_freed == used - store.bytes_used
        assert len(files_in(tmp_path)) < files
        assert store.fragmentation < 0.3
        assert {segment.path.name for segment in store._segments.all()} == files_in(tmp_path)
    with opened(tmp_path) as store:
        assert contents(store) == before


def test_the_check_tool_finds_a_compacted_store_sound(tmp_path: Path) -> None:
    from dcpstream_node.store.closed.check import check_store

    with opened(tmp_path) as store:
        fill(store)
        churn(store, rounds=10)
        store.vbuckets[0].rollback(store.vbuckets[0].high_seqno - 2)
        churn(store, rounds=10)
        for _ in range(3):
            churn(store, rounds=5)
            store.compact(PURGE_ALL)
        assert len(store._segments._retired) <= 1, "what was removed is forgotten"
    report = check_store(tmp_path)
    assert report.is_sound, report


def test_a_second_compaction_has_nothing_to_do(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1_000_000) as store:
        fill(store)
        churn(store, rounds=30)
        store.compact(FULL)
        files = files_in(tmp_path)
        report = store.compact(FULL)
        assert report.rows_dropped == 0
        assert files_in(tmp_path) == files


@pytest.mark.slow
def test_overwriting_for_ever_takes_no_more_than_twice_what_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MIN_GARBAGE_BYTES", 1000)
    most = 0.0
    with opened(tmp_path, segment_bytes=20_000) as store:
        fill(store)
        for number in range(200):
            for name in range(100):
                put(store.vbuckets[name % 2], key_of(name), b"%8d" % number * 50)
            store.commit()
            if store.compaction_due:
                store.compact(CompactionOrder())
            if number:
                most = max(most, sum((tmp_path / name).stat().st_size for name in files_in(tmp_path)))
        assert most <= 2 * store.live_bytes + 20_000
        assert store.vbuckets[0].high_seqno == 200 * 50


@pytest.mark.slow
def test_the_memory_store_does_not_grow_for_ever_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MIN_GARBAGE_BYTES", 1000)
    store = MemoryBucketStore(1)
    fill(store)
    log = store.vbuckets[0]
    most = 0
    for number in range(200):
        for name in range(50):
            put(log, key_of(name), b"%8d" % number * 50)
        if store.compaction_due:
            store.compact(CompactionOrder())
        most = max(most, store.bytes_used)
    assert most <= 2 * store.live_bytes + 20_000
    assert sum(len(buffer) for _, buffer in log.log.sealed) + len(log.log.tail) == log.rows.end
    assert len(log.rows.seqnos) < 200


def test_with_the_threshold_at_one_nothing_is_due() -> None:
    from dcpstream.model import BucketSettings

    store = MemoryBucketStore(1, BucketSettings(compact_at=1))
    fill(store)
    for _ in range(10):
        put(store.vbuckets[0], key_of("a"), b"v" * 2_000_000)
    assert not store.compaction_due


@pytest.mark.slow
def test_a_view_stays_through_compactions_until_it_is_let_go(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        churn(store, rounds=5)
        log = store.vbuckets[0]
        seqno = log.high_seqno
        expected = read_all(log, 0, seqno)
        view = log.hold(seqno)
        for _ in range(3):
            churn(store, rounds=10)
            store.compact(FULL)
            assert read_all(log, 0, seqno) == expected
        rows = len(log.rows.seqnos)
        assert log.held_seqnos() == (seqno,)
        del view
        assert log.held_seqnos() == ()
        churn(store, rounds=3)
        store.compact(FULL)
        assert len(log.rows.seqnos) < rows


def test_versions_that_a_history_needs_stay(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        churn(store, rounds=10)
        log = store.vbuckets[0]
        log.kept_from_seqno = log.high_seqno + 1
        churn(store, rounds=10)
        kept = [seqno for seqno in log.rows.seqnos if seqno >= log.kept_from_seqno]
        store.compact(FULL)
        assert [seqno for seqno in log.rows.seqnos if seqno >= log.kept_from_seqno] == kept
        assert len(log.rows.seqnos) < log.high_seqno


def test_a_rollback_lands_where_it_was_asked_to_or_starts_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        churn(store, rounds=20)
        log = store.vbuckets[0]
        states = {seqno: read_all(log, 0, seqno) for seqno in range(1, log.high_seqno + 1)}
        store.compact(FULL)
        horizon = log.horizon_seqno
        assert 0 < horizon < log.high_seqno
        for seqno in range(log.high_seqno - 1, horizon - 1, -1):
            assert log.rollback(seqno) == seqno
            assert read_all(log, 0, seqno) == states[seqno]
        store.close(clean=False)
    with opened(tmp_path) as store:
        log = store.vbuckets[0]
        assert log.horizon_seqno == horizon
        assert log.rollback(horizon - 1) == 0
        assert log.high_seqno == 0
        assert not len(log.rows.keys)
        put(log, key_of("new"), b"begin")
    with opened(tmp_path) as store:
        assert read_all(store.vbuckets[0], 0, 9)
        assert store.vbuckets[0].horizon_seqno == 0


def test_a_rollback_in_a_file_that_goes_still_voids_what_the_files_before_hold(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1500) as store:
        fill(store)
        log = store.vbuckets[0]
        for number in range(30):
            put(log, key_of(f"void {number}"), b"v" * 20)
        store.commit()
        log.rollback(10)
        churn(store, rounds=30)
        before = contents(store)
        segments = store._segments
        assert segments is not None
        first = segments.all()[0]
        # The file with what is void is left alone, and those with the rollback are rewritten.
        first.rollbacks.clear()
        numbers = [segment.number for segment in segments.all() if segment.rollbacks]
        assert numbers
        assert first.number not in numbers
        store.compact(CompactionOrder())
        assert first in segments.all()
        assert not {segment.number for segment in segments.all()}.intersection(numbers)
        assert contents(store) == before
        store.close(clean=False)
    with opened(tmp_path, segment_bytes=1500) as store:
        assert contents(store) == before


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_copy_that_received_snapshots_lands_where_one_ended(tmp_path: Path, is_reopened: bool) -> None:
    store = opened(tmp_path, segment_bytes=3000)
    fill(store)
    log = store.vbuckets[0]
    log.set_state(VbucketState.REPLICA, log.failover_log)
    states: dict[int, list[bytes]] = {0: []}
    for start in range(1, 200, 4):
        log.set_snapshot(SnapshotRange(start - 1, start + 3))
        for seqno in range(start, start + 4):
            put(log, key_of(seqno % 7), b"%d" % seqno)
        states[start + 3] = read_all(log, 0, start + 3)
        store.commit()
    store.compact(FULL)
    assert len(log.rows.seqnos) < 40
    horizon = log.horizon_seqno
    assert horizon in states, "it lies where a snapshot ended"
    if is_reopened:
        store.close(clean=False)
        store = opened(tmp_path, segment_bytes=3000)
        log = store.vbuckets[0]
    for asked in range(log.high_seqno - 1, horizon - 1, -1):
        reached = log.rollback(asked)
        assert reached == asked // 4 * 4
        assert read_all(log, 0, reached) == states[reached]
    assert log.rollback(horizon - 1) == 0
    store.close()


def test_purged_deletions_leave_the_files_and_their_revision_stays_known(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        churn(store, rounds=30)
        log = store.vbuckets[0]
        highest = log.max_deleted_rev
        report = store.compact(PURGE_ALL)
        assert report.rows_purged == 20
        tombstones = [seqno for seqno in log.rows.seqnos if log.rows.positions[log.rows.row_of(seqno)] >> 56 & 3]
        assert tombstones == []
        assert log.purge_seqno > 0
        state = contents(store)
    with opened(tmp_path) as store:
        assert contents(store) == state
        assert store.vbuckets[0].max_deleted_rev == highest


def test_a_purged_deletion_stays_in_its_file_while_another_file_holds_what_it_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewrite(store: DiskBucketStore, place: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SegmentRewriting, "_runs", lambda self, _: [self._segments.all()[place : place + 1]])
            store.compact(FULL)

    with opened(tmp_path, segment_bytes=1) as store:  # each commit gets a segment of its own
        fill(store)
        log = store.vbuckets[0]
        for value in (b"first", b"second", None):
            put(log, key_of("deleted"), value)
            for number in range(5):
                put(log, key_of(number), b"v")
            put(log, key_of(f"keeps the file with {value!r}"), b"v")
            store.commit()
        churn(store, rounds=5)
        assert purge(log, 2**63, 1 << 32) > 0
        rows = len(log.rows.seqnos)
        rewrite(store, 1)  # the second version goes
        rewrite(store, 2)  # the deletion has to stay, now for the first version's sake
        assert len(log.rows.seqnos) < rows
        assert log.get(key_of("deleted")) is None
        store.close(clean=False)
    with opened(tmp_path, segment_bytes=1) as store:
        log = store.vbuckets[0]
        assert log.get(key_of("deleted")) is None
        seqnos = [seqno for seqno in log.rows.seqnos if seqno in (1, 8, 15)]
        assert seqnos == [1, 15]
        store.compact(FULL)  # with both files
        assert not {1, 15}.intersection(log.rows.seqnos)
        state = contents(store)
    with opened(tmp_path, segment_bytes=1) as store:
        assert contents(store) == state
        assert store.vbuckets[0].get(key_of("deleted")) is None


def test_only_old_ends_of_collections_go(tmp_path: Path) -> None:
    from dcpstream.wire.messages.dcp import SystemEvent
    from dcpstream.wire.stored.block import BlockKind

    def event(store: BucketStore, kind: SystemEventId, collection_id: int) -> None:
        log = store.vbuckets[0]
        value = (5).to_bytes(8, "big") + (0).to_bytes(4, "big") + collection_id.to_bytes(4, "big")
        frame = SystemEvent(
            vbid=0, opaque=0, by_seqno=log.high_seqno + 1, event=kind, version=0, key=b"name", value=value
        ).encode()
        log.append(frame, b"", log.high_seqno + 1, kinds=BlockKind.SYSTEM_EVENT)

    with opened(tmp_path) as store:
        fill(store)
        log = store.vbuckets[0]
        for collection_id in (8, 9):
            event(store, SystemEventId.CREATE_COLLECTION, collection_id)
            put(log, key_of("a", bytes((collection_id,))), b"v")
        event(store, SystemEventId.DROP_COLLECTION, 8)
        put(log, key_of("b"), b"v")  # its CAS says that it was made in the first second of 1970
        event(store, SystemEventId.DROP_COLLECTION, 9)
        event(store, SystemEventId.CREATE_COLLECTION, 10)
        churn(store, rounds=10)
        assert len(log.collection_events()) == 3
        assert store.compact(CompactionOrder(is_full=True, before_time=0)).rows_purged == 0
        store.compact(CompactionOrder(is_full=True, before_time=1))
        assert len(log.collection_events()) == 1, "the newest event stays"
        assert log.purge_seqno >= 5
        state = contents(store)
    with opened(tmp_path) as store:
        assert contents(store) == state
        assert len(store.vbuckets[0].collection_events()) == 1


# --------------------------------------------------------------------------------------------------- crashes, full disk


class CrashError(BaseException):
    """The process ends here."""


class FaultyFile:
    """A file that counts what is done with it."""

    def __init__(self, file: File, step: Callable[[], None]) -> None:
        self._file = file
        self._step = step

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        self._step()
        data = b"".join(buffers)
        try:
            return self._file.append([data])
        finally:
            self._step()

    def sync(self) -> None:
        self._step()
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FaultyFileSystem(SystemFileSystem):
    """Raises at the nth step of what changes files, and at all later ones."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error
        self.left: int | None = None
        self.is_lasting = True

    def step(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left == -1 or (self.left < 0 and self.is_lasting):
            raise self.error()

    def open(self, path: Path) -> File:
        self.step()
        return FaultyFile(super().open(path), self.step)

    def sync_directory(self, path: Path) -> None:
        self.step()
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)
        self.step()


def prepared(path: Path) -> dict[int, tuple[int, list[bytes], int]]:
    """A store with much to compact, and what it holds without what a purge takes."""
    with opened(path) as store:
        fill(store)
        churn(store, rounds=15)
        store.vbuckets[1].rollback(store.vbuckets[1].high_seqno - 3)
        churn(store, rounds=2)
        return contents(store)


def without_deletions(state: dict[int, tuple[int, list[bytes], int]]) -> dict[int, tuple[int, list[bytes], int]]:
    return {
        vbid: (high, [frame for frame in frames if frame[1] != 0x58], count)
        for vbid, (high, frames, count) in state.items()
    }


# Every step takes half a minute together: the fast tests try each third one.
STRIDES = pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])


@STRIDES
def test_a_crash_at_any_step_leaves_the_old_state_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    state = prepared(tmp_path / "made")
    file_system = FaultyFileSystem(CrashError)
    put_metadata = Metadata.put

    def put_with_steps(self: Metadata, *arguments: Any, **named: Any) -> None:
        file_system.step()
        put_metadata(self, *arguments, **named)
        file_system.step()

    monkeypatch.setattr(Metadata, "put", put_with_steps)
    step, has_crashed = 0, True
    old, new = 0, 0
    while has_crashed:
        path = tmp_path / "crashed"
        shutil.copytree(tmp_path / "made", path)
        file_system.left = None
        store = opened(path, file_system=file_system)
        size = store.bytes_used
        file_system.left = step
        try:
            store.compact(PURGE_ALL)
            has_crashed = False
        except CrashError:
            pass
        file_system.left = None
        store.close(clean=False)
        with opened(path) as store:
            found = contents(store)
            assert without_deletions(found) == without_deletions(state), f"step {step}"
            listed = {segment.path.name for segment in store._segments.all()}
            assert files_in(path) == listed, f"step {step}"
            old += store.bytes_used == size
            new += store.bytes_used < size
            for log in store.vbuckets.values():
                put(log, key_of("after"), b"the crash")
            store.compact(PURGE_ALL)
            assert store.fragmentation < 0.3
        shutil.rmtree(path)
        step += stride
    assert step > 20
    assert old * stride > 5
    assert new * stride > 5


@STRIDES
@pytest.mark.parametrize("is_lasting", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_full_disk_at_any_step_changes_nothing_and_the_next_compaction_goes_on(
    tmp_path: Path, is_lasting: bool, stride: int
) -> None:
    state = without_deletions(prepared(tmp_path / "made"))
    file_system = FaultyFileSystem(lambda: OSError(errno.ENOSPC, "No space left on device"))
    file_system.is_lasting = is_lasting
    step, has_failed = 0, True
    while has_failed:
        path = tmp_path / "full"
        shutil.copytree(tmp_path / "made", path)
        file_system.left = None
        store = opened(path, file_system=file_system)
        file_system.left = step
        with suppress(StoreError):
            store.compact(PURGE_ALL)
        has_failed = file_system.left < 0
        file_system.left = None
        assert without_deletions(contents(store)) == state, f"step {step}"
        store.compact(PURGE_ALL)
        assert without_deletions(contents(store)) == state, f"step {step}"
        assert store.fragmentation < 0.3
        store.close()
        with opened(path) as store:
            assert without_deletions(contents(store)) == state, f"step {step}"
        shutil.rmtree(path)
        step += stride
    assert step > 10


# ----------------------------------------------------------------------------------------------------- in the middle


class Interference:
    """Rolls a vbucket back at the nth step of a compaction, and writes on."""

    def __init__(self, store: DiskBucketStore, back: int, step: int) -> None:
        self.store = store
        self.log = store.vbuckets[1]
        self.states = {seqno: read_all(self.log, 0, seqno) for seqno in range(self.log.high_seqno + 1)}
        self.back = back
        self.left = step
        self.expected: list[bytes] = []

    def __call__(self) -> None:
        self.left -= 1
        if self.left != -1:
            return
        log = self.log
        asked = max(log.high_seqno - self.back, 0)
        reached = log.rollback(asked)
        assert reached in {0, asked}
        assert read_all(log, 0, reached) == self.states[reached]
        for name in (1, "new"):
            put(log, key_of(name), b"after the rollback")
        self.store.commit()
        put(log, key_of(2), b"not committed yet")
        self.expected = read_all(log, 0, log.high_seqno)


@STRIDES
@pytest.mark.parametrize("back", [2, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", ["_catch_up", "_slice"])
def test_a_rollback_at_any_step_of_a_compaction_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, back: int, stride: int
) -> None:
    """Before new columns catch up with the present ones, and before each slice of them is copied."""
    prepared(tmp_path / "made")
    path, step_of = tmp_path / "rolled back", getattr(RowRemoval, place)
    step, was_reached = 0, True
    while was_reached:
        shutil.copytree(tmp_path / "made", path)
        with opened(path) as store:
            interfere = Interference(store, back, step)

            def interfered(
                removal: RowRemoval, *bounds: int, store: DiskBucketStore = store, act: Interference = interfere
            ) -> object:
                if not store._commit_lock.locked():  # else a rollback would wait
                    act()
                return step_of(removal, *bounds)

            monkeypatch.setattr(RowRemoval, place, interfered)
            store.compact(CompactionOrder(is_full=True, breathe=interfere))
            was_reached = interfere.left < 0
            if was_reached:
                log = store.vbuckets[1]
                assert read_all(log, 0, log.high_seqno) == interfere.expected, f"step {step}"
                store.compact(FULL)
                assert read_all(log, 0, log.high_seqno) == interfere.expected, f"step {step}"
        if was_reached:
            with opened(path) as store:
                assert read_all(store.vbuckets[1], 0, 10_000) == interfere.expected, f"step {step}"
        shutil.rmtree(path)
        step += stride
    assert step > 10


# ------------------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("kind", ["disk", pytest.param("memory", marks=pytest.mark.slow)])
def test_writes_reads_commits_and_rollbacks_go_on_during_compactions(tmp_path: Path, kind: str) -> None:
    store: BucketStore
    store = opened(tmp_path, segment_bytes=30_000) if kind == "disk" else MemoryBucketStore(2)
    fill(store)
    stop = threading.Event()
    failures: list[Exception] = []
    compactions = 0

    def guarded(work: Callable[[], Iterator[None]]) -> Callable[[], None]:
        def run() -> None:
            try:
                for _ in work():
                    if stop.is_set():
                        return
            except Exception as error:  # noqa: BLE001 - told below
                failures.append(error)
                stop.set()

        return run

    def compacting() -> Iterator[None]:
        nonlocal compactions
        while True:
            store.compact(FULL)
            compactions += 1
            yield

    def committing() -> Iterator[None]:
        while True:
            store.commit()
            yield

    def reading() -> Iterator[None]:
        while True:
            for log in store.vbuckets.values():
                seqno = log.high_seqno
                truncations = log.rows.truncations
                view = log.hold(seqno)
                frames = read_all(log, 0, seqno, max_bytes=2000)
                if truncations == log.rows.truncations:
                    seqnos = [int.from_bytes(frame[24:32], "big") for frame in frames]
                    keys = {frame[55:].split(b"|")[0] for frame in frames}
                    assert seqnos == sorted(set(seqnos))
                    assert len(keys) == len(frames), "a key twice in a snapshot"
                del view
            yield

    threads = [threading.Thread(target=guarded(work)) for work in (compacting, committing, reading)]
    for thread in threads:
        thread.start()
    histories: list[list[tuple[int, int, bytes]]] = [[], []]
    for number in range(4000):
        vbid, name = number % 2, number % 37
        value = b"|%d" % number
        put(store.vbuckets[vbid], key_of(f"k{name}"), value)
        log = store.vbuckets[vbid]
        histories[vbid].append((log.high_seqno, name, value))
        if number % 250 > 247:
            reached = log.rollback(log.high_seqno - 2)
            histories[vbid] = [row for row in histories[vbid] if row[0] <= reached]
        if stop.is_set():
            break
    stop.set()
    for thread in threads:
        thread.join(patient(30))
        assert not thread.is_alive()
    assert not failures, failures
    assert compactions > 0
    for vbid, history in enumerate(histories):
        for name, value in {name: value for _, name, value in history}.items():
            item = store.vbuckets[vbid].get(key_of(f"k{name}"))
            assert item is not None
            assert item.value == value
    before = contents(store)
    store.close()
    if kind == "disk":
        with opened(tmp_path, segment_bytes=30_000) as store:
            assert contents(store) == before
