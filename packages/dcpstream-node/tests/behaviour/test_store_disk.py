"""Promises of the disk store alone: restarts, crashes, torn writes, damage, a full disk, threads."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import Collection, FailoverLog, Manifest, Scope, SnapshotRange, VbucketState
from dcpstream.runtime import File, SystemFileSystem
from dcpstream.wire import SystemEventId
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.stored.block import BlockKind
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store import disk as disk_module
from dcpstream_node.store import recovery as recovery_module
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.store.index import snapshots as snapshots_module
from dcpstream_node.store.log.blocks import BLOCK_HEADER, SEGMENT_HEADER
from dcpstream_node.store.metadata import Metadata
from lab.layout import python_path
from lab.tools.patience import patient
from tests.kit.disks import ReadableFile
from tests.kit.stores import LOG, fill, frame_of, key_of, put, read_all, snapshot_at

FIRST = "segment-0000000001.log"


def opened(path: Path, vbuckets: int = 2, **options: object) -> DiskBucketStore:
    return DiskBucketStore(path, vbuckets, **options)  # type: ignore[arg-type]


def written(path: Path, commits: int = 3, rows: int = 4) -> dict[int, int]:
    """A store with some commits, crashed; of each commit's end (bytes of the segment) the high seqno of a vbucket."""
    ends = {}
    store = opened(path)
    fill(store)
    for _ in range(commits):
        for vbid in (0, 1):
            for _ in range(rows):
                vbucket = store.vbuckets[vbid]
                put(vbucket, key_of(vbucket.high_seqno % 5), b"v" * 20)
        store.commit()
        ends[(path / FIRST).stat().st_size] = store.vbuckets[0].high_seqno
    store.close(clean=False)
    return ends


def test_everything_survives_a_clean_restart(tmp_path: Path) -> None:
    log = FailoverLog.of((2**64 - 1, 2**63), (0xABC, 0))
    with opened(tmp_path / "a" / "b") as store:
        assert store.was_clean
        fill(store)
        put(store.vbuckets[0], key_of("a"), b"not committed by hand")
        store.vbuckets[0].failover_log = log
        store.vbuckets[1].set_state(VbucketState.REPLICA, store.vbuckets[1].failover_log)
        store.vbuckets[1].set_purge_seqno(2**64 - 1)
        store.manifest = Manifest(3, (Scope(0, "_default", (Collection(8, "things"),)),))
    store.close()
    with opened(tmp_path / "a" / "b") as store:
        assert store.was_clean
        assert store.vbuckets[0].get(key_of("a")) is not None
        assert store.vbuckets[0].persisted_seqno == 1
        assert store.vbuckets[0].failover_log == log
        assert (store.vbuckets[1].state, store.vbuckets[1].purge_seqno) == (VbucketState.REPLICA, 2**64 - 1)
        assert store.manifest.collection_names()[8] == ("_default", "things")


def test_what_was_set_survives_a_crash_at_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    log = FailoverLog.of((5, 0), (0xABC, 0))
    store.vbuckets[1].set_state(VbucketState.REPLICA, log)
    store.delete_vbucket(0)
    store.close(clean=False)
    with opened(tmp_path) as store:
        assert not store.was_clean
        assert list(store.vbuckets) == [1]
        assert (store.vbuckets[1].state, store.vbuckets[1].failover_log) == (VbucketState.REPLICA, log)


def test_a_recreated_vbucket_does_not_read_its_old_blocks(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    put(store.vbuckets[0], key_of("old"), b"")
    store.commit()
    store.delete_vbucket(0)
    store.close()
    store = opened(tmp_path)
    assert 0 not in store.vbuckets
    vbucket = store.create_vbucket(0, VbucketState.ACTIVE, LOG)
    new = put(vbucket, key_of("new"), b"")
    store.commit()
    store.close(clean=False)
    with opened(tmp_path) as store:
        assert read_all(store.vbuckets[0], 0, 9) == [new]
        assert store.vbuckets[0].get(key_of("old")) is None


def test_a_vbucket_is_never_missing_while_it_is_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    fill(store)
    old = put(store.vbuckets[0], key_of("old"), b"")
    store.commit()
    with monkeypatch.context() as patch:
        patch.setattr(Metadata, "put", _refuse)
        with pytest.raises(StoreError, match="refused"):
            store.create_vbucket(0, VbucketState.ACTIVE, LOG)
    assert read_all(store.vbuckets[0], 0, 9) == [old]
    monkeypatch.setattr(DiskBucketStore, "_drop", _refuse)
    with pytest.raises(StoreError, match="refused"):
        store.create_vbucket(0, VbucketState.REPLICA, LOG)
    store.close(clean=False)
    with opened(tmp_path) as store:
        assert (store.vbuckets[0].state, store.vbuckets[0].high_seqno) == (VbucketState.REPLICA, 0)


def _refuse(*arguments: object) -> None:
    raise StoreError("refused")


def test_a_torn_commit_is_cut_off_wherever_it_tore(tmp_path: Path) -> None:
    ends = written(tmp_path)
    path = tmp_path / FIRST
    whole = path.read_bytes()
    *_, before, last = sorted(ends)
    for size in [*range(before, last, 9), last - 1, last]:
        path.write_bytes(whole[:size])
        with opened(tmp_path) as store:
            high = store.vbuckets[0].high_seqno
            assert high in {ends[before], ends[last]}
            assert (store.vbuckets[1].high_seqno == ends[last]) is (size == last)
            assert store.cut_bytes == size - path.stat().st_size
            put(store.vbuckets[1], key_of("after"), b"")
        store = opened(tmp_path)
        assert store.vbuckets[1].get(key_of("after")) is not None
        store.close(clean=False)


def test_a_commit_may_tear_in_its_middle(tmp_path: Path) -> None:
    """The system writes pages in any order: a hole in the last commit although its end is there."""
    ends = written(tmp_path)
    path = tmp_path / FIRST
    before = sorted(ends)[-2]
    data = bytearray(path.read_bytes())
    data[before : before + 50] = bytes(50)
    path.write_bytes(data)
    with opened(tmp_path) as store:
        assert store.vbuckets[0].high_seqno == store.vbuckets[1].high_seqno == ends[before]
        assert path.stat().st_size == before


def test_zeros_behind_the_end_are_cut_off(tmp_path: Path) -> None:
    ends = written(tmp_path)
    with (tmp_path / FIRST).open("ab") as file:
        file.write(bytes(5000))
    with opened(tmp_path) as store:
        assert store.vbuckets[0].high_seqno == max(ends.values())
        assert store.cut_bytes == 5000


def test_a_flipped_bit_before_the_last_commit_is_reported(tmp_path: Path) -> None:
    ends = written(tmp_path)
    path = tmp_path / FIRST
    whole = path.read_bytes()
    before = sorted(ends)[-2]
    for at in range(0, before, 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptLog, match="dcpstream store check DIR") as caught:
            opened(tmp_path)
        assert caught.value.file == str(path)
        assert caught.value.offset <= at < caught.value.offset + 2 * BLOCK_HEADER.size + 600
        assert caught.value.expected != caught.value.actual
    path.write_bytes(whole)
    opened(tmp_path).close()


def test_after_a_clean_close_nothing_counts_as_torn(tmp_path: Path) -> None:
    written(tmp_path)
    opened(tmp_path).close()
    path = tmp_path / FIRST
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + b"xyz")
    with pytest.raises(CorruptLog, match="XXH3"):
        opened(tmp_path)
    path.write_bytes(whole[:-70])
    with pytest.raises(CorruptLog, match=f"expected segment 1 of {len(whole)} bytes"):
        opened(tmp_path)
    path.unlink()
    with pytest.raises(CorruptLog, match="a segment file, found no file"):
        opened(tmp_path)
    path.write_bytes(whole)
    opened(tmp_path).close()


def test_segments_roll_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=200)
    fill(store)
    frames = []
    for number in range(6):
        frames.append(put(store.vbuckets[0], key_of(number), b"v" * 100))
        store.commit()
    store.close(clean=False)
    files = sorted(tmp_path.glob("segment-*.log"))
    assert len(files) > 3
    with opened(tmp_path, segment_bytes=200) as store:
        assert read_all(store.vbuckets[0], 0, 6) == frames
    data = files[1].read_bytes()
    files[1].write_bytes(data[:-1])
    with pytest.raises(CorruptLog, match="damaged at byte"):
        opened(tmp_path)
    files[1].unlink()
    with pytest.raises(CorruptLog, match="a segment file, found no file"):
        opened(tmp_path)


def test_a_segment_that_was_being_made_at_the_crash_is_dropped(tmp_path: Path) -> None:
    ends = written(tmp_path)
    (tmp_path / "segment-0000000002.log").write_bytes(b"dcps")
    with opened(tmp_path) as store:
        assert store.vbuckets[0].high_seqno == max(ends.values())
    assert not (tmp_path / "segment-0000000002.log").exists()


def test_a_rollback_survives_a_crash(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    vbucket = store.vbuckets[0]
    frames = [put(vbucket, key_of(number % 3), b"%d" % number) for number in range(10)]
    store.commit()
    assert vbucket.rollback(4) == 4
    store.close(clean=False)
    store = opened(tmp_path)
    vbucket = store.vbuckets[0]
    assert (vbucket.high_seqno, vbucket.persisted_seqno, vbucket.item_count) == (4, 4, 3)
    assert read_all(vbucket, 0, 4) == frames[1:4]
    newer = put(vbucket, key_of(1), b"new branch")
    store.commit()
    store.close(clean=False)
    with opened(tmp_path) as store:
        assert read_all(store.vbuckets[0], 0, 9) == [frames[2], frames[3], newer]


def test_an_unfinished_snapshot_survives_a_crash_as_such(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    vbucket = store.vbuckets[0]
    vbucket.set_snapshot(SnapshotRange(0, 2))
    put(vbucket, key_of(1), b"", seqno=2)
    vbucket.set_snapshot(SnapshotRange(3, 8))
    put(vbucket, key_of(2), b"", seqno=5)
    store.commit()
    put(vbucket, key_of(3), b"", seqno=8)
    store.close(clean=False)
    with opened(tmp_path) as store:
        vbucket = store.vbuckets[0]
        assert (vbucket.persisted_snapshot, vbucket.snapshot) == (SnapshotRange(3, 8), SnapshotRange(3, 8))
        assert vbucket.branch_seqno == 3


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_copy_remembers_its_snapshots_after_a_restart(tmp_path: Path, is_clean: bool) -> None:
    store = opened(tmp_path)
    fill(store)
    vbucket = store.vbuckets[0]
    vbucket.set_state(VbucketState.REPLICA, vbucket.failover_log)
    for first in (1, 5, 9):
        vbucket.set_snapshot(SnapshotRange(first - 1, first + 3))
        for seqno in range(first, first + 4):
            put(vbucket, key_of(seqno), b"", seqno=seqno)
            if seqno % 2:
                store.commit()
    vbucket.set_snapshot(SnapshotRange(12, 20))
    put(vbucket, key_of(13), b"", seqno=13)
    vbucket.set_snapshot(None)
    for seqno in (21, 22, 23):
        put(vbucket, key_of(seqno), b"", seqno=seqno)
    store.commit()
    put(store.vbuckets[1], key_of("active"), b"")
    marks = vbucket.snapshots.marks
    store.close(clean=is_clean)

    for seqno, reached in ((23, 23), (22, 22), (13, 12), (12, 12), (11, 8), (8, 8), (7, 4), (4, 4), (3, 0)):
        store = opened(tmp_path)
        vbucket = store.vbuckets[0]
        if seqno == 23:
            assert vbucket.snapshots.marks == marks
            assert store.vbuckets[1].snapshots.marks == [(0, None)]
            assert vbucket.persisted_snapshot == SnapshotRange(23, 23)
        assert snapshot_at(vbucket, 10) in {SnapshotRange(8, 12), vbucket.snapshot}
        assert vbucket.rollback(seqno) == reached
        store.close(clean=is_clean)


def test_only_so_many_snapshots_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (snapshots_module, recovery_module):
        monkeypatch.setattr(module, "MAX_SNAPSHOTS", 8)
    store = opened(tmp_path)
    fill(store)
    vbucket = store.vbuckets[0]
    for first in range(1, 81, 2):
        vbucket.set_snapshot(SnapshotRange(first - 1, first + 1))
        for seqno in (first, first + 1):
            put(vbucket, key_of(seqno), b"", seqno=seqno)
        store.commit()
    store.close()
    with opened(tmp_path) as store:
        vbucket = store.vbuckets[0]
        assert len(vbucket.snapshots.marks) <= 9
        assert vbucket.rollback(75) == 74
        assert vbucket.rollback(10) == 0


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StoreError, match="in use by another process"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_the_number_of_vbuckets_is_fixed(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(StoreError, match="was made for 2 vbuckets and cannot be opened with 4"):
        opened(tmp_path, 4)


def test_unusable_metadata_is_reported(tmp_path: Path) -> None:
    written(tmp_path)
    for name in ("meta.sqlite-wal", "meta.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "meta.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="move the directory away"):
        opened(tmp_path)


def test_a_path_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(tmp_path / "file")


class FullFile(ReadableFile):
    """A file of which only some more bytes can be written."""

    def __init__(self, path: Path, file: File, system: FullFileSystem) -> None:
        super().__init__(path, file)
        self._system = system

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        data = b"".join(buffers)
        if self._system.room is not None and len(data) > self._system.room:
            self._file.append([data[: self._system.room]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.append([data])

    def sync(self) -> None:
        if self._system.sync_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file.sync()

    def truncate(self, size: int) -> None:
        if self._system.truncate_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file.truncate(size)

    def read(self, offset: int, length: int) -> bytes:
        if self._system.read_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(offset, length)


class FullFileSystem(SystemFileSystem):
    """The system's files, on a disk that is full or failing when told."""

    room: int | None = None
    sync_fails = truncate_fails = read_fails = False

    def open(self, path: Path) -> File:
        return FullFile(path, super().open(path), self)


@pytest.mark.parametrize("fault", ["room", "sync", "room and truncate"])
def test_a_failed_commit_loses_nothing_and_promises_nothing(tmp_path: Path, fault: str) -> None:
    disk = FullFileSystem()
    store = opened(tmp_path, file_system=disk)
    fill(store)
    frames = [put(store.vbuckets[0], key_of(number), b"v" * 50) for number in range(3)]
    store.commit()
    frames += [put(store.vbuckets[0], key_of(number), b"v" * 50) for number in range(3, 6)]
    disk.room = 100 if "room" in fault else None
    disk.sync_fails = fault == "sync"
    disk.truncate_fails = "truncate" in fault
    why = {"room": "No space left", "sync": "Input/output error", "room and truncate": "No space|Input/output"}[fault]
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{why}.*kept in memory"):
            store.commit()
        assert store.vbuckets[0].persisted_seqno == 3
        assert read_all(store.vbuckets[0], 0, 9) == frames
        frames.append(put(store.vbuckets[0], key_of("more"), b"v%d" % len(frames)))
    disk.room, disk.sync_fails, disk.truncate_fails = None, False, False
    assert store.commit() == [(0, 8)]
    assert store.pending_bytes == 0
    store.close(clean=False)
    with opened(tmp_path) as store:
        assert store.vbuckets[0].high_seqno == 8
        assert read_all(store.vbuckets[0], 0, 9) == [*frames[:6], frames[7]]


def test_a_large_commit_is_done_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "MAX_COMMIT_BYTES", 200)
    disk = FullFileSystem()
    with opened(tmp_path, 4, file_system=disk) as store:
        fill(store)
        for vbid in range(4):
            put(store.vbuckets[vbid], key_of(vbid), b"v" * 150)
        disk.room = 0
        with pytest.raises(StoreError, match="of 1 vbuckets are not persisted"):
            store.commit()
        assert sorted(store.dirty) == [0, 1, 2, 3]
        disk.room = None
        assert sorted(store.commit()) == [(0, 1), (1, 1), (2, 1), (3, 1)]
        assert (store.dirty, store.pending_bytes, store.commit()) == ({}, 0, [])


def test_closing_on_a_full_disk_says_what_is_lost(tmp_path: Path) -> None:
    disk = FullFileSystem()
    store = opened(tmp_path, file_system=disk)
    fill(store)
    put(store.vbuckets[0], key_of("kept"), b"")
    store.commit()
    frame = put(store.vbuckets[0], key_of("lost"), b"")
    disk.room = 0
    with pytest.raises(StoreError, match=f"No space left.*closed without the last {len(frame)} bytes"):
        store.close()
    store.close()
    with opened(tmp_path) as store:
        assert not store.was_clean
        assert store.vbuckets[0].high_seqno == 1


def test_a_failed_rollback_changes_nothing(tmp_path: Path) -> None:
    disk = FullFileSystem()
    with opened(tmp_path, file_system=disk) as store:
        fill(store)
        for number in range(3):
            put(store.vbuckets[0], key_of(number), b"")
        store.commit()
        disk.room = 10
        with pytest.raises(StoreError, match="No space left"):
            store.vbuckets[0].rollback(1)
        disk.room = None
        assert store.vbuckets[0].high_seqno == 3
        assert store.vbuckets[0].rollback(1) == 1


def test_reading_failures_are_reported(tmp_path: Path) -> None:
    disk = FullFileSystem()
    with opened(tmp_path, file_system=disk) as store:
        fill(store)
        put(store.vbuckets[0], key_of(1), b"v" * 100)
        store.commit()
        disk.read_fails = True
        with pytest.raises(StoreError, match="cannot be read at byte"):
            store.vbuckets[0].read(0, 1)
        disk.read_fails = False
        os.truncate(tmp_path / FIRST, SEGMENT_HEADER.size + 80)
        with pytest.raises(CorruptLog, match="found"):
            store.vbuckets[0].get(key_of(1))


@pytest.mark.slow
def test_appends_and_reads_go_on_while_another_thread_commits(tmp_path: Path) -> None:
    rows, done = 4000, threading.Event()
    failures: list[BaseException] = []
    with opened(tmp_path, 4, segment_bytes=20_000) as store:
        fill(store)

        def flush() -> None:
            try:
                while not done.is_set():
                    for vbid, seqno in store.commit():
                        assert store.vbuckets[vbid].persisted_seqno >= seqno
            except BaseException as error:  # noqa: BLE001 - handed to the test
                failures.append(error)

        flusher = threading.Thread(target=flush)
        flusher.start()
        frames: dict[int, list[bytes]] = {vbid: [] for vbid in range(4)}
        chance = random.Random(7)
        for number in range(rows):
            vbid = chance.randrange(4)
            vbucket = store.vbuckets[vbid]
            frames[vbid].append(put(vbucket, key_of(number), b"v" * chance.randrange(60)))
            if number % 50 == 0:
                high = vbucket.high_seqno
                after = chance.randrange(high)
                assert read_all(vbucket, after, high) == frames[vbid][after:]
            if number % 500 == 499:
                keep = vbucket.high_seqno - 3
                vbucket.rollback(keep)
                del frames[vbid][keep:]
        done.set()
        flusher.join(timeout=patient(30))
        assert not flusher.is_alive()
        assert not failures
    with opened(tmp_path, 4) as store:
        for vbid, expected in frames.items():
            assert read_all(store.vbuckets[vbid], 0, rows) == expected


CHILD = """
import json, random, sys
from pathlib import Path
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store import disk as disk_module
from tests.kit.stores import fill, key_of, put
store = DiskBucketStore(Path(sys.argv[1]), 8, segment_bytes=50_000)
chance = random.Random(int(sys.argv[2]))
if not store.vbuckets:
    fill(store)
sent = {vbid: 0 for vbid in range(8)}
print(json.dumps({"open": {vbid: vb.high_seqno for vbid, vb in store.vbuckets.items()}}), flush=True)
while True:
    for _ in range(chance.randrange(200)):
        vbucket = store.vbuckets[chance.randrange(8)]
        seqno = vbucket.high_seqno + 1
        put(vbucket, key_of(seqno % 97), b"%d:%d" % (vbucket.vbid, seqno))
    print(json.dumps({"persisted": dict(store.commit())}), flush=True)
"""


def kill_and_check(path: Path, seed: int) -> int:
    """Run a writer, kill it after some of its commits, and check what is there; the number of rows checked."""
    chance = random.Random(seed)
    root = Path(__file__).parents[4]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(seed)], stdout=subprocess.PIPE, cwd=root,
        env={**os.environ, "PYTHONPATH": python_path(root)},
    )  # fmt: skip
    assert child.stdout is not None
    persisted: dict[int, int] = {}
    try:
        for _ in range(chance.randrange(1, 40)):
            line = child.stdout.readline()
            assert line, "the writer ended by itself"
            persisted.update({int(vbid): seqno for vbid, seqno in next(iter(json.loads(line).values())).items()})
    finally:
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        child.wait(timeout=patient(10))
        child.stdout.close()
    for line in rest.splitlines(keepends=True):
        if line.endswith(b"\n"):
            persisted.update({int(vbid): seqno for vbid, seqno in json.loads(line)["persisted"].items()})
    checked = 0
    store = opened(path, 8, segment_bytes=50_000)
    assert not store.was_clean
    for vbid, vbucket in store.vbuckets.items():
        high = vbucket.high_seqno
        assert high >= persisted.get(vbid, 0)
        assert vbucket.persisted_seqno == high
        newest = {seqno % 97: seqno for seqno in range(1, high + 1)}
        expected = [
            frame_of(vbid, key_of(seqno % 97), seqno, b"%d:%d" % (vbid, seqno)) for seqno in sorted(newest.values())
        ]
        assert read_all(vbucket, 0, high) == expected
        checked += high
    store.close(clean=False)
    return checked


def test_what_was_reported_persisted_survives_when_killed(tmp_path: Path) -> None:
    checked = [kill_and_check(tmp_path, seed) for seed in range(4)]
    assert checked == sorted(checked)
    assert checked[-1] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_reported_persisted_survives_when_killed_often(tmp_path: Path) -> None:
    for seed in range(100):
        kill_and_check(tmp_path / str(seed // 10), seed)


def test_purged_deletions_and_ended_collections_stay_gone_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        vbucket = store.vbuckets[0]
        for name in "ab":
            put(vbucket, key_of(name), b"body")
            put(vbucket, key_of(name, b"\x08"), b"body")
        put(vbucket, key_of("a"), None)
        put(vbucket, key_of("c"), b"body")
        store.commit()
        assert purge(vbucket, 2**64 - 1, 2**32) == 1
        ended = SystemEvent(
            vbid=0, opaque=0, by_seqno=7, event=SystemEventId.DROP_COLLECTION, version=0, key=b"",
            value=bytes(12) + (8).to_bytes(4, "big"),
        ).encode()  # fmt: skip
        vbucket.append(ended, b"", 7, kinds=BlockKind.SYSTEM_EVENT)
        before = read_all(vbucket, 0, 7)
    with opened(tmp_path) as store:
        vbucket = store.vbuckets[0]
        assert vbucket.purge_seqno == 5
        assert read_all(vbucket, 0, 7) == before
        assert [frame[24:32][-1] for frame in before] == [3, 6, 7]
        assert vbucket.item_count == 2
        assert vbucket.get(key_of("a")) is None
        assert vbucket.get(key_of("a", b"\x08")) is None
        vbucket.rollback(5)
        assert vbucket.get(key_of("a", b"\x08")) is not None
        assert vbucket.item_count == 3
