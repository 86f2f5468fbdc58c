"""The check agrees with the store, whatever happened before: rollbacks, compactions, crashes, vbuckets made anew."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.closed.check import MAX_LOOKS, check_store
from dcpstream_node.store.closed.detect import copy_of_metadata
from dcpstream_node.store.compact.compaction import CompactionOrder
from dcpstream_node.store.metadata import FILE_NAME
from lab.tools.patience import patient
from tests.kit.stores import LOG, fill, key_of, put, read_all

VBUCKETS = 3


def work(path: Path, chance: random.Random, steps: int) -> dict[int, list[bytes]]:
    """Random work; of each vbucket what a read from the start gives at the end."""
    store = DiskBucketStore(path, VBUCKETS, segment_bytes=1500)
    if not store.vbuckets:
        fill(store)
    for _ in range(steps):
        vbid = chance.randrange(VBUCKETS)
        vbucket = store.vbuckets[vbid]
        what = chance.random()
        if what < 0.75:
            value = None if chance.random() < 0.1 else b"v" * chance.randrange(90)
            put(vbucket, key_of(chance.randrange(12)), value)
        elif what < 0.88:
            store.commit()
        elif what < 0.92:
            vbucket.rollback(max(0, vbucket.high_seqno - chance.randrange(5)))
        elif what < 0.97:
            store.compact(CompactionOrder(is_full=True))
        elif what < 0.98:
            store.create_vbucket(vbid, vbucket.state, LOG)
        else:
            store.commit()
            store.close(clean=chance.random() < 0.5)
            store = DiskBucketStore(path, VBUCKETS, segment_bytes=1500)
    store.commit()
    found = {vbid: read_all(vbucket, 0, vbucket.high_seqno) for vbid, vbucket in store.vbuckets.items()}
    store.close(clean=chance.random() < 0.5)
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_a_sound_store_is_found_sound_and_its_live_frames_are_those_that_are_read(tmp_path: Path, seed: int) -> None:
    found = work(tmp_path, random.Random(seed), 250)
    report = check_store(tmp_path)
    assert report.is_sound, (report.problems, report.damage)
    assert sum(segment.live_frames for segment in report.segments) == sum(map(len, found.values()))
    assert sum(segment.live_bytes for segment in report.segments) == sum(
        len(frame) for frames in found.values() for frame in frames
    )


def write_and_compact(store: DiskBucketStore, directory: Path) -> None:
    """Commit into several segments, and let a compaction replace all but the last."""
    for number in range(400):
        put(store.vbuckets[number % VBUCKETS], key_of(number % 50), b"v" * 200)
        if number % 10 == 9:
            store.commit()
    before = {*directory.glob("segment-*")}
    store.compact(CompactionOrder(is_full=True))
    assert len(before - {*directory.glob("segment-*")}) > 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_change_while_the_metadata_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with DiskBucketStore(tmp_path, VBUCKETS, segment_bytes=20_000) as store:
        fill(store)
        write_and_compact(store, tmp_path)
        looks = 0

        def change() -> None:
            nonlocal looks
            looks += 1
            if looks > 2 * MAX_LOOKS:
                return
            write_and_compact(store, tmp_path)

        @contextmanager
        def beside_a_change(directory: Path) -> Iterator[Path]:
            if moment == "before":
                change()
            with copy_of_metadata(directory) as copy:
                if moment == "after":
                    change()
                yield copy

        monkeypatch.setattr("dcpstream_node.store.closed.check.copy_of_metadata", beside_a_change)
        report = check_store(tmp_path)
        assert looks
        assert report.is_in_use
        assert report.is_sound, (report.problems, report.damage)


def test_a_compaction_while_segments_are_read_is_no_damage(tmp_path: Path) -> None:
    with DiskBucketStore(tmp_path, VBUCKETS, segment_bytes=20_000) as store:
        fill(store)
        write_and_compact(store, tmp_path)

        def change(_done: int, _total: int) -> None:
            write_and_compact(store, tmp_path)

        report = check_store(tmp_path, change)
        assert report.is_in_use
        assert report.is_sound, (report.problems, report.damage)


def test_a_copy_of_the_metadata_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskBucketStore(tmp_path, VBUCKETS) as store:
        fill(store)
        read_bytes, changes = Path.read_bytes, 0

        def beside_a_change(path: Path) -> bytes:
            nonlocal changes
            content = read_bytes(path)
            if path.parent == tmp_path and changes < 10:
                changes += 1
                store.vbuckets[1].set_purge_seqno(changes)
            return content

        monkeypatch.setattr(Path, "read_bytes", beside_a_change)
        with copy_of_metadata(tmp_path) as copy:
            assert changes == 10
            assert read_bytes(copy / FILE_NAME) == read_bytes(tmp_path / FILE_NAME)


def test_a_missing_segment_of_a_store_in_use_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = 0

    def counted(directory: Path) -> AbstractContextManager[Path]:
        nonlocal copies
        copies += 1
        return copy_of_metadata(directory)

    with DiskBucketStore(tmp_path, VBUCKETS, segment_bytes=20_000) as store:
        fill(store)
        write_and_compact(store, tmp_path)
        (tmp_path / check_store(tmp_path).segments[0].file).unlink()
        monkeypatch.setattr("dcpstream_node.store.closed.check.copy_of_metadata", counted)
        report = check_store(tmp_path)
        assert [damage.what for damage in report.damage] == ["the file is missing"]
        assert copies == 4, "two looks, each with two listings that say the same"


def test_a_store_can_be_checked_while_a_node_writes_and_compacts(tmp_path: Path) -> None:
    done = threading.Event()
    with DiskBucketStore(tmp_path, VBUCKETS, segment_bytes=20_000) as store:
        fill(store)

        def write() -> None:
            number = 0
            while not done.is_set():
                for _ in range(30):
                    number += 1
                    put(store.vbuckets[number % VBUCKETS], key_of(number % 50), b"v" * 60)
                store.commit()
                if number % 600 == 0:
                    store.compact(CompactionOrder(is_full=True))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(8):
                report = check_store(tmp_path)
                assert report.is_in_use
                assert report.is_sound, (report.problems, report.damage)
        finally:
            done.set()
            writer.join(timeout=patient(30))
        assert not writer.is_alive()
