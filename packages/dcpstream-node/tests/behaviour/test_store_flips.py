"""Any bit of any file flips: what is read is what was written, or an error that names the file. Never anything else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import Collection, FailoverLog, Manifest, Scope, SnapshotRange, VbucketState
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.log import blocks
from tests.kit.stores import fill, key_of, put, read_all, snapshot_at

VBUCKETS = 2
KEYS = [key_of(number) for number in range(12)]
IN_SEGMENT = "segment-"


def build(path: Path) -> None:
    """A store with two segments, pages and blocks of a few frames, a rollback, a copy, a deleted vbucket."""
    with DiskBucketStore(path, VBUCKETS + 1, segment_bytes=2500) as store:
        fill(store)
        store.manifest = Manifest(3, (Scope(0, "_default", (Collection(8, "things"),)),))
        store.vbuckets[1].set_state(VbucketState.REPLICA, FailoverLog.of((0xDEF, 7), (0xABC, 0)))
        for number in range(30):
            vbucket = store.vbuckets[number % 3]
            if number % 3 == 1 and number % 4 == 1:
                vbucket.set_snapshot(SnapshotRange(vbucket.high_seqno, vbucket.high_seqno + 2))
            put(vbucket, KEYS[number % 12], None if number % 7 == 0 else b"v%d" % number * 12)
            if number % 8 == 7:
                store.commit()
        store.commit()
        store.vbuckets[0].rollback(8)
        store.delete_vbucket(2)
        put(store.vbuckets[0], KEYS[0], b"the last one")


def dump(store: DiskBucketStore) -> dict[str, Any]:
    """Everything that can be asked of a store."""
    found: dict[str, Any] = {"manifest": store.manifest, "settings": store.settings}
    for vbid, vbucket in store.vbuckets.items():
        high = vbucket.high_seqno
        found[f"vbucket {vbid}"] = (
            vbucket.state, vbucket.failover_log, vbucket.purge_seqno, high, vbucket.persisted_seqno,
            vbucket.persisted_snapshot, snapshot_at(vbucket, 4), vbucket.branch_seqno, vbucket.item_count,
            [vbucket.get(key) for key in KEYS], [vbucket.meta(key) for key in KEYS],
            read_all(vbucket, 0, high), read_all(vbucket, 2, high, max_bytes=100), read_all(vbucket, 0, 5),
        )  # fmt: skip
    return found


class Built:
    """A store in files, closed cleanly, and what is in it."""

    def __init__(self, path: Path) -> None:
        build(path)
        self.files = {file.name: file.read_bytes() for file in path.iterdir()}
        with DiskBucketStore(path, VBUCKETS + 1) as store:
            self.expected = dump(store)
        self.names = sorted(name for name, data in self.files.items() if data)

    def copy_to(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        for name, data in self.files.items():
            (path / name).write_bytes(data)


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    directory = Path(tempfile.mkdtemp(prefix="dcpstream-flips-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "PAGE_BYTES", 200)
        patch.setattr(blocks, "MAX_BLOCK_BYTES", 600)
        yield Built(directory / "whole")
    shutil.rmtree(directory)


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def outcome(call: Callable[[], Any]) -> tuple[Any, StoreError | None]:
    """The result of a call, and the store's error that it raised."""
    try:
        return call(), None
    except StoreError as error:
        return None, error


def open_flipped(built: Built, path: Path, name: str, at: int, bit: int) -> bool:
    """Flip a bit of a closed store, open it and compare; whether it opened."""
    built.copy_to(path)
    flip(path / name, at, bit)
    store, error = outcome(lambda: DiskBucketStore(path, VBUCKETS + 1))
    if error is not None:
        assert str(path / name) in str(error), error
        if name.startswith(IN_SEGMENT):
            assert isinstance(error, CorruptLog)
            assert error.file == str(path / name)
            assert error.offset <= at
        return False
    try:
        assert dump(store) == built.expected, f"bit {bit} of byte {at} of {name} changed what is read"
    finally:
        store.close(clean=False)
    return True


FRACTIONS = st.floats(0, 1, exclude_max=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 10), where=FRACTIONS, bit=st.integers(0, 7))
def test_a_flip_in_a_closed_store_is_found_when_it_opens(
    built: Built, tmp_path: Path, which: int, where: float, bit: int
) -> None:
    name = built.names[which % len(built.names)]
    at = int(where * len(built.files[name]))
    opened = open_flipped(built, tmp_path / "flipped", name, at, bit)
    assert not (opened and name.startswith(IN_SEGMENT)), "a checksum does not cover this byte"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_flip_of_any_byte_in_a_closed_store_is_found(built: Built, tmp_path: Path) -> None:
    for name in built.names:
        for at in range(len(built.files[name])):
            opened = open_flipped(built, tmp_path / "flipped", name, at, at % 8)
            assert not (opened and name.startswith(IN_SEGMENT))


def check_open_store(built: Built, path: Path, flips: list[tuple[int, float, int]], cache_bytes: int) -> int:
    """Flip bits of the segments of an open store, and ask for everything; how many answers were errors."""
    built.copy_to(path)
    failed = 0
    store = DiskBucketStore(path, VBUCKETS + 1)
    store._segments.cache.capacity = cache_bytes
    try:
        segments = [name for name in built.names if name.startswith(IN_SEGMENT)]
        for which, where, bit in flips:
            name = segments[which % len(segments)]
            flip(path / name, int(where * len(built.files[name])), bit)
        for vbid, vbucket in store.vbuckets.items():
            *_, items, metas, whole, _, _ = built.expected[f"vbucket {vbid}"]
            calls: list[tuple[Callable[[], Any], Any]] = []
            for key, item, meta in zip(KEYS, items, metas, strict=True):
                calls += [(partial(vbucket.get, key), item), (partial(vbucket.meta, key), meta)]
            calls.append((partial(read_all, vbucket, 0, vbucket.high_seqno), whole))
            for call, expected in calls:
                answer, error = outcome(call)
                if error is None:
                    assert answer == expected
                    continue
                failed += 1
                assert isinstance(error, CorruptLog)
                assert error.file in {str(path / name) for name in segments}
                assert 0 < error.offset < len(built.files[Path(error.file).name])
    finally:
        store.close(clean=False)
    return failed


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(flips=[(0, 0.2, 3)], cache_bytes=0)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10), FRACTIONS, st.integers(0, 7)), min_size=1, max_size=4),
    cache_bytes=st.sampled_from([0, 1 << 20]),
)
def test_a_flip_under_an_open_store_is_never_served(
    built: Built, tmp_path: Path, flips: list[tuple[int, float, int]], cache_bytes: int
) -> None:
    check_open_store(built, tmp_path / "flipped", flips, cache_bytes)


def test_damage_under_an_open_store_costs_only_its_page(built: Built, tmp_path: Path) -> None:
    segments = [name for name in built.names if name.startswith(IN_SEGMENT)]
    name = next(name for name in segments if b"v25" * 12 in built.files[name])
    at = built.files[name].index(b"v25" * 12) / len(built.files[name]) + 1e-9
    failed = check_open_store(built, tmp_path / "flipped", [(segments.index(name), at, 1)], 0)
    assert 1 <= failed < 8
