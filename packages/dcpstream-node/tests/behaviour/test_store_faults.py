"""A disk that is full, broken, or loses its power: what was reported persisted is there, and nothing is made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcpstream.errors import StoreError
from dcpstream.model import VbucketState
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.closed.check import check_store
from dcpstream_node.store.metadata import Metadata
from tests.kit.disks import FaultyFileSystem
from tests.kit.stores import LOG, fill, key_of, put, read_all

VBUCKETS = 2
SEGMENT_BYTES = 500


class Writer:
    """Random work on a store, and what has to be there afterwards."""

    def __init__(self, path: Path, seed: int, disk: FaultyFileSystem) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.disk = disk
        self.store = DiskBucketStore(path, VBUCKETS, file_system=disk, segment_bytes=SEGMENT_BYTES)
        if not self.store.vbuckets:
            fill(self.store)
        self.frames: dict[int, list[bytes]] = {vbid: [] for vbid in range(VBUCKETS)}
        """Every frame of each vbucket, the one with seqno n at n - 1."""
        self.persisted: dict[int, int] = dict.fromkeys(range(VBUCKETS), 0)
        self.certain = dict(self.persisted)
        """The frames that survive for certain: less than the persisted ones, while a failed rollback is in doubt."""
        self.ever: set[bytes] = set()
        self.failures = 0

    def work(self, steps: int) -> None:
        for _ in range(steps):
            step = self.chance.choice([self.put, self.put, self.put, self.commit, self.commit, self.roll_back])
            try:
                step()
            except StoreError:
                self.failures += 1
            self.check(self.store)

    def put(self) -> None:
        vbid = self.chance.randrange(VBUCKETS)
        vbucket = self.store.vbuckets[vbid]
        value = b"v" * self.chance.randrange(120)
        self.frames[vbid].append(put(vbucket, key_of(vbucket.high_seqno), value))
        self.ever.add(self.frames[vbid][-1])

    def commit(self) -> None:
        moved = self.store.commit()
        for vbid, seqno in moved:
            assert seqno == self.store.vbuckets[vbid].high_seqno == len(self.frames[vbid])
            self.persisted[vbid] = seqno
        if moved:
            self.certain = dict(self.persisted)

    def roll_back(self) -> None:
        vbid = self.chance.randrange(VBUCKETS)
        vbucket = self.store.vbuckets[vbid]
        seqno = self.chance.randint(max(0, vbucket.high_seqno - 4), vbucket.high_seqno)
        self.certain[vbid] = min(self.certain[vbid], seqno)
        assert vbucket.rollback(seqno) == seqno
        self.persisted[vbid] = min(self.persisted[vbid], seqno)
        del self.frames[vbid][seqno:]

    def check(self, store: DiskBucketStore) -> None:
        """An open store has all that was written; keys do not repeat, so each frame is live."""
        for vbid, frames in self.frames.items():
            vbucket = store.vbuckets[vbid]
            assert vbucket.persisted_seqno == self.persisted[vbid]
            assert read_all(vbucket, 0, len(frames) + 1) == frames

    def check_reopened(self) -> None:
        """After a crash every persisted frame is there, and what else is there was written."""
        with DiskBucketStore(self.path, VBUCKETS, segment_bytes=SEGMENT_BYTES) as store:
            for vbid, frames in self.frames.items():
                vbucket = store.vbuckets[vbid]
                assert self.certain[vbid] <= vbucket.high_seqno <= len(frames)
                assert read_all(vbucket, 0, len(frames) + 1) == frames[: vbucket.high_seqno]
        assert check_store(self.path).is_sound


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_power_cut_loses_nothing_that_was_persisted(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    check_power_cut(tmp_path_factory.mktemp("store"), seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_power_cuts_in_great_number(tmp_path_factory: pytest.TempPathFactory) -> None:
    for seed in range(2000):
        check_power_cut(tmp_path_factory.mktemp("store"), seed)


def check_power_cut(path: Path, seed: int) -> None:
    chance, disk = random.Random(seed), FaultyFileSystem(seed)
    writer = Writer(path, seed, disk)
    writer.work(chance.randrange(25))
    if chance.random() < 0.7:
        # The cut comes within a call: whatever it was about, it is not finished.
        disk.fail_at, disk.stays_broken = disk.calls + chance.randrange(1, 12), True
        writer.work(6)
    writer.store.close(clean=False)
    disk.cut_power(path)
    writer.check_reopened()


def script(path: Path, disk: FaultyFileSystem) -> tuple[Writer, list[StoreError]]:
    """The same work every time: writes, rolls to new files, a rollback, metadata, a close."""
    errors: list[StoreError] = []

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
        except StoreError as error:
            errors.append(error)

    writer = Writer(path, 3, disk)
    for number in range(4):
        for _ in range(3):
            writer.put()
        attempt(writer.commit)
        writer.check(writer.store)
        if number == 2:
            attempt(writer.roll_back)
            attempt(lambda: setattr(writer.store.vbuckets[0], "purge_seqno", 1))
    return writer, errors


def calls_of_script(path: Path) -> int:
    disk = FaultyFileSystem()
    writer, errors = script(path, disk)
    writer.store.close()
    assert not errors
    assert len(check_store(path).segments) >= 3
    return disk.calls


@pytest.mark.parametrize(
    ("stays_broken", "every"), [(True, 3), *(pytest.param(stays, 1, marks=pytest.mark.slow) for stays in (False, True))]
)
def test_a_full_disk_at_any_call_is_survived(tmp_path: Path, stays_broken: bool, every: int) -> None:
    for fail_at in range(1, calls_of_script(tmp_path / "whole") + 1, every):
        disk = FaultyFileSystem(fail_at)
        path = tmp_path / str(fail_at)
        disk.fail_at, disk.stays_broken = fail_at, stays_broken
        try:
            writer, errors = script(path, disk)
        except StoreError:
            disk.fail_at = None
            writer, errors = script(path, disk)  # it could not be made; now it can
            assert not errors
        assert all(str(path) in str(error) for error in errors)
        if fail_at % 2:
            disk.fail_at = None
            writer.commit()
            writer.check(writer.store)
            writer.store.close()
        else:
            writer.store.close(clean=False)
        disk.fail_at = None
        writer.check_reopened()


def test_metadata_that_cannot_be_written_at_any_call_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count, fail_at = Metadata.put, 0, 0

    def put_or_fail(self: Metadata, *arguments: object, **more: object) -> None:
        nonlocal count
        count += 1
        if count == fail_at:
            raise StoreError(f"{tmp_path} is full")
        real(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Metadata, "put", put_or_fail)
    writer, _ = script(tmp_path / "whole", FaultyFileSystem())
    writer.store.close()
    total = count
    assert total > 5
    for at in range(3, total + 1):  # the first two make the store
        count, fail_at = 0, at
        path = tmp_path / str(at)
        writer, errors = script(path, FaultyFileSystem())
        if errors:
            writer.commit()
        writer.check(writer.store)
        try:
            writer.store.close()
        except StoreError:
            assert count == fail_at
        fail_at = 0
        writer.check_reopened()


@pytest.mark.slow
def test_a_store_that_could_not_be_made_can_be_made_later(tmp_path: Path) -> None:
    disk = FaultyFileSystem()
    DiskBucketStore(tmp_path / "whole", 1, file_system=disk).close(clean=False)
    assert disk.calls > 4
    for fail_at in range(1, disk.calls + 1):
        path = tmp_path / str(fail_at)
        disk = FaultyFileSystem()
        disk.fail_at, disk.stays_broken = fail_at, True
        with pytest.raises(StoreError, match=r"cannot be (made durable|opened): .*(Input/output|No space)"):
            DiskBucketStore(path, 1, file_system=disk)
        disk.fail_at = None
        with DiskBucketStore(path, 1, file_system=disk) as store:
            put(store.create_vbucket(0, VbucketState.ACTIVE, LOG), key_of("a"), b"")
        assert check_store(path).is_sound


@pytest.mark.slow
def test_a_disk_that_lies_about_syncs_is_found_out_where_it_can_be(tmp_path: Path) -> None:
    """A loss of a lying disk within the last commit looks torn; an earlier loss is reported."""
    for seed in range(12):
        path = tmp_path / str(seed)
        disk = FaultyFileSystem(seed)
        writer = Writer(path, seed, disk)
        writer.work(6)
        disk.loses_syncs = True
        writer.work(10)
        writer.store.close(clean=False)
        disk.cut_power(path)
        try:
            store = DiskBucketStore(path, VBUCKETS)
        except StoreError:
            continue
        for vbid in writer.frames:
            assert {*read_all(store.vbuckets[vbid], 0, 1000)} <= writer.ever
        store.close(clean=False)
