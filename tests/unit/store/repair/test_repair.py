"""Making a damaged store openable again."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import SnapshotRange, VbucketState
from dcpstream.store import DiskBucketStore
from dcpstream.store.log import blocks
from dcpstream.store.log.blocks import BLOCK_MAGIC, SEGMENT_HEADER
from dcpstream.store.metadata import Metadata
from dcpstream.store.repair import repair as repair_module
from dcpstream.store.repair.check import check_store
from dcpstream.store.repair.repair import Repair, repair_store
from tests.kit.stores import fill, key_of, put, read_all, snapshot_at

FIRST = "segment-0000000001.log"


class Whole:
    """A store of three segments, the last of which grows; and every frame that was ever in it, by vbucket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames: dict[int, dict[int, bytes]] = {0: {}, 1: {}, 2: {}}
        with DiskBucketStore(path, 3, segment_bytes=1500) as store:
            fill(store)
            store.vbuckets[1].state = VbucketState.REPLICA
            for number in range(30):
                for vbid, vbucket in store.vbuckets.items():
                    if vbid == 1 and number % 3 == 0:
                        vbucket.set_snapshot(SnapshotRange(number, number + 3))
                    frame = put(vbucket, key_of(f"key{number % 20}"), b"%d " % number * 5)
                    self.frames[vbid][vbucket.high_seqno] = frame
                if number % 5 == 4:
                    store.commit()
            store.vbuckets[2].rollback(27)
            # A rollback that is lost with the rest of a file brings back what it had made void.
            self.ever = {vbid: dict(frames) for vbid, frames in self.frames.items()}
            for seqno in (28, 29, 30):
                del self.frames[2][seqno]
        self.names = sorted(file.name for file in path.glob("segment-*"))
        assert len(self.names) >= 3


@pytest.fixture(scope="module")
def whole() -> Iterator[Whole]:
    directory = Path(tempfile.mkdtemp(prefix="dcpstream-repair-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "PAGE_BYTES", 200)
        patch.setattr(blocks, "MAX_BLOCK_BYTES", 500)
        yield Whole(directory / "whole")
    shutil.rmtree(directory)


@pytest.fixture
def path(whole: Whole, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.path, tmp_path / "bucket"))


def damage(file: Path, at: int, size: int = 1) -> None:
    data = bytearray(file.read_bytes())
    for place in range(at, min(at + size, len(data))):
        data[place] ^= 0x55
    file.write_bytes(data)


def check_repaired(whole: Whole, path: Path, repair: Repair) -> dict[int, list[int]]:
    """What has to be true after every repair; of each vbucket the seqnos that are left."""
    assert repair.is_needed
    assert check_store(path).is_sound
    again = repair_store(path)
    assert (again.is_needed, again.kept_in) == (False, "")
    left = {}
    with DiskBucketStore(path, 3) as store:
        assert store.was_clean
        for vbid, vbucket in store.vbuckets.items():
            found = read_all(vbucket, 0, vbucket.high_seqno)
            rows = {int.from_bytes(frame[24:32], "big"): frame for frame in found}
            assert rows.items() <= whole.ever[vbid].items()
            left[vbid] = [seqno for seqno in vbucket.rows.seqnos if seqno]
            branch = repair.branches.get(vbid)
            complete = [seqno for seqno in whole.frames[vbid] if branch is None or seqno <= branch]
            assert complete == left[vbid][: len(complete)], f"vbucket {vbid} lost something below {branch}"
            if branch is not None:
                assert vbucket.failover_log.newest.seqno == branch
                assert vbucket.failover_log.newest.vbuuid != 0xABC
                snapshot = snapshot_at(vbucket, branch)
                assert snapshot.end_seqno <= branch or snapshot.start_seqno == branch or not branch
    return left


def test_a_sound_store_is_left_alone(path: Path) -> None:
    before = {file: file.read_bytes() for file in path.iterdir()}
    repair = repair_store(path)
    assert (repair.is_needed, repair.branches) == (False, {})
    assert {file: file.read_bytes() for file in path.iterdir()} == before


def test_a_damaged_page_costs_its_frames_and_a_branch(whole: Whole, path: Path) -> None:
    file = path / FIRST
    damage(file, file.read_bytes().index(b"3 3 3"))
    with pytest.raises(CorruptLog, match="vbucket 0, seqnos"):
        DiskBucketStore(path, 3)
    would = repair_store(path, dry_run=True)
    assert not would.kept_in
    assert not check_store(path).is_sound
    repair = repair_store(path)
    assert repair.branches == would.branches == {0: 2}
    left = check_repaired(whole, path, repair)
    assert left[0] == [seqno for seqno in range(1, 31) if seqno not in {3, 4}]
    kept = Path(repair.kept_in)
    assert sorted(file.name for file in kept.iterdir()) == ["meta.sqlite", "report.json", FIRST]
    report = json.loads((kept / "report.json").read_text())
    assert report["before"]["segments"][0]["damage"][0]["keys"] == ["key2", "key3"]
    with DiskBucketStore(path, 3) as store:
        assert store.vbuckets[0].get(key_of("key3")) is not None  # the newer version, seqno 24
        put(store.vbuckets[0], key_of("more"), b"")
    assert check_store(path).is_sound


def test_a_repair_looks_once_because_nobody_changes_the_store_meanwhile(whole: Whole, path: Path) -> None:
    file = path / FIRST
    damage(file, file.read_bytes().index(b"3 3 3"))
    progress: list[tuple[int, int]] = []
    repair = repair_store(path, dry_run=True, on_progress=lambda done, total: progress.append((done, total)))
    assert repair.is_needed
    assert not repair.before.is_in_use
    assert len(progress) == 2 * len(whole.names)


def test_a_lost_block_costs_every_vbucket_a_branch(whole: Whole, path: Path) -> None:
    file = path / FIRST
    damage(file, file.read_bytes().index(BLOCK_MAGIC, 800))
    repair = repair_store(path)
    assert sorted(repair.branches) == [0, 1, 2]
    check_repaired(whole, path, repair)


def test_a_lost_rollback_is_made_good(whole: Whole, path: Path) -> None:
    with DiskBucketStore(path, 3) as store:
        for number in range(3):
            put(store.vbuckets[2], key_of(number), b"after the rollback")
    file = path / max(name.name for name in path.glob("segment-*"))
    data = file.read_bytes()
    at = data.index(BLOCK_MAGIC)
    while data[at + 5] != 2:
        at = data.index(BLOCK_MAGIC, at + 1)
    damage(file, at + 60)
    assert check_store(path).damage[0].is_rollback
    repair = repair_store(path)
    with DiskBucketStore(path, 3) as store:
        assert store.vbuckets[2].get(key_of("key9")).seqno == 10
    shutil.rmtree(path / "lost+found")
    assert 2 not in repair.branches  # its header said all


def test_a_missing_segment(whole: Whole, path: Path) -> None:
    (path / whole.names[1]).unlink()
    repair = repair_store(path)
    assert repair.dropped == [whole.names[1]]
    assert sorted(repair.branches) == [0, 1, 2]
    check_repaired(whole, path, repair)


def test_an_end_that_is_missing(whole: Whole, path: Path) -> None:
    last = path / whole.names[-1]
    last.write_bytes(last.read_bytes()[:-100])
    repair = repair_store(path)
    assert repair.branches
    check_repaired(whole, path, repair)


def test_damaged_lines_of_the_metadata(whole: Whole, path: Path) -> None:
    with sqlite3.connect(path / "meta.sqlite") as other:
        other.execute("UPDATE vbuckets SET purge_seqno = '3' WHERE vbid = 2")
    other.close()
    repair = repair_store(path)
    assert repair.branches == {0: 0, 1: 0, 2: 0}
    assert (Path(repair.kept_in) / "meta.sqlite").exists()
    check_repaired(whole, path, repair)


@pytest.mark.parametrize("content", [None, b"not a database" * 100])
def test_without_metadata_nothing_is_done(path: Path, content: bytes | None) -> None:
    (path / "meta.sqlite").unlink()
    if content is not None:
        (path / "meta.sqlite").write_bytes(content)
    names = sorted(file.name for file in path.iterdir())
    assert "restore it from a copy" in repair_store(path).impossible
    assert sorted(file.name for file in path.iterdir()) == names


def test_segments_that_the_metadata_does_not_know_are_moved_away(whole: Whole, path: Path) -> None:
    stranger = path / "segment-0000000077.log"
    salt, number = 5, 77
    stranger.write_bytes(
        blocks.encode_segment_header(number, blocks.SegmentKind.APPENDED, salt)
        + blocks.encode_rollback(salt, 0, 1, commit_offset=SEGMENT_HEADER.size, seqno=0)
    )
    with pytest.raises(CorruptLog, match="commits that it does not know"):
        DiskBucketStore(path, 3)
    repair = repair_store(path)
    assert (Path(repair.kept_in) / stranger.name).exists()
    check_repaired(whole, path, repair)


def test_not_while_a_node_has_it_open(path: Path) -> None:
    with DiskBucketStore(path, 3), pytest.raises(StoreError, match="stop the node first"):
        repair_store(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@example(wheres=[(0, 0.9, 1)], is_clean=True)
@given(
    wheres=st.lists(
        st.tuples(st.integers(0, 5), st.floats(0, 1, exclude_max=True), st.sampled_from([1, 1, 30, 400])),
        min_size=1,
        max_size=3,
    ),
    is_clean=st.just(True),
)
def test_after_a_repair_every_store_opens(
    whole: Whole, tmp_path: Path, wheres: list[tuple[int, float, int]], is_clean: bool
) -> None:
    path = tmp_path / "bucket"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole.path, path)
    for which, where, size in wheres:
        file = path / whole.names[which % len(whole.names)]
        damage(file, int(where * file.stat().st_size), size)
    if not check_store(path).is_sound:  # damage twice in one place may undo itself
        check_repaired(whole, path, repair_store(path))


@pytest.mark.parametrize("step", ["_make_room", "_write", "put", "rename"])
def test_a_repair_that_is_interrupted_can_be_done_again(
    whole: Whole, path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = path / FIRST
    damage(file, file.read_bytes().index(b"3 3 3"))

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        owner = {"put": Metadata, "rename": Path}.get(step, repair_module._Repairer)
        patch.setattr(owner, step, fail)
        with pytest.raises(StoreError, match=r"cannot be repaired: .*No space left"):
            repair_store(path)
    if step == "rename":  # all but moving the damaged file away was done
        assert check_store(path).is_sound
    else:
        assert not check_store(path).is_sound
        check_repaired(whole, path, repair_store(path))
    DiskBucketStore(path, 3).close()
    assert check_store(path).is_sound
    assert not check_store(path).others


def test_a_branch_does_not_begin_above_a_later_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PAGE_BYTES", 80)
    with DiskBucketStore(tmp_path, 1) as store:
        fill(store)
        vbucket = store.vbuckets[0]
        for number in range(1, 7):
            put(vbucket, key_of(number), b"old %d" % number)
        store.commit()
        vbucket.rollback(2)
        new = [put(vbucket, key_of("new"), b"%d" % number) for number in (3, 4)]
    damage(tmp_path / FIRST, (tmp_path / FIRST).read_bytes().index(b"old 5"))
    repair = repair_store(tmp_path)
    assert repair.branches == {0: 2}
    with DiskBucketStore(tmp_path, 1) as store:
        assert read_all(store.vbuckets[0], 2, 9) == new[1:]
        assert store.vbuckets[0].get(key_of(5)) is None
        assert store.vbuckets[0].get(key_of(2)) is not None
