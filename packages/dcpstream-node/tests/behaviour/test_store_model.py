"""Random histories against a simple model, on every version of the store."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dcpstream.model import SnapshotRange
from dcpstream_node.store import BucketStore, CompactionOrder, DiskBucketStore, MemoryBucketStore, View, memory, vbucket
from dcpstream_node.store.compact import retention, row_removal
from dcpstream_node.store.index import bulk_load, queries
from dcpstream_node.store.log import blocks, frame_log
from tests.kit.cases import each_case
from tests.kit.stores import LOG, ModelVbucket, fill, frame_of, key_of, put, read_all

VBUCKETS = 2
NAMES = st.integers(0, 7)
COLLECTIONS = st.sampled_from([b"\0", b"\x08", b"\x80\x01"])
VALUES = st.one_of(st.none(), st.binary(max_size=40))
WHICH = st.integers(0, VBUCKETS - 1)


class StoreMachine(RuleBasedStateMachine):
    """One store, two vbuckets, and their models."""

    is_disk = False
    segment_bytes = 600

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="dcpstream-store-"))
        self.models = [ModelVbucket() for _ in range(VBUCKETS)]
        self.views: list[tuple[int, View]] = []
        self.purge_seqnos = [0] * VBUCKETS
        self.store: BucketStore = self.make()
        fill(self.store)

    def make(self) -> BucketStore:
        if self.is_disk:
            return DiskBucketStore(self.directory / "bucket", VBUCKETS, segment_bytes=self.segment_bytes)
        return MemoryBucketStore(VBUCKETS)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @initialize()
    def start(self) -> None:
        assert self.store.was_clean

    @rule(
        which=WHICH,
        name=NAMES,
        collection=COLLECTIONS,
        value=VALUES,
        skip=st.integers(0, 3),
        kind=st.sampled_from(["", "expiration"]),
    )
    def append(self, which: int, name: int, collection: bytes, value: bytes | None, skip: int, kind: str) -> None:
        model, key = self.models[which], key_of(name, collection)
        seqno = model.high + 1 + skip
        frame = put(self.store.vbuckets[which], key, value, seqno=seqno, kind=kind)
        model.rows.append((seqno, key, frame, value is not None))

    @rule(which=WHICH, writes=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=8, max_size=30))
    def churn(self, which: int, writes: list[tuple[int, bool]]) -> None:
        model = self.models[which]
        for name, is_doc in writes:
            key, seqno = key_of(name), model.high + 1
            frame = put(self.store.vbuckets[which], key, b"w" if is_doc else None, seqno=seqno)
            model.rows.append((seqno, key, frame, is_doc))

    @rule(which=WHICH, names=st.lists(NAMES, max_size=30), value=st.binary(max_size=40))
    def append_many(self, which: int, names: list[int], value: bytes) -> None:
        model = self.models[which]
        first = model.high + 1
        keys = [key_of(name) for name in names]
        frames = [frame_of(which, key, seqno, value) for seqno, key in enumerate(keys, first)]
        self.store.vbuckets[which].append_many(frames, keys, range(first, first + len(keys)))
        for seqno, (key, frame) in enumerate(zip(keys, frames, strict=True), first):
            model.rows.append((seqno, key, frame, True))

    @rule(which=WHICH, count=st.integers(16, 60))
    def append_fresh(self, which: int, count: int) -> None:
        model = self.models[which]
        first = model.high + 1
        keys = [key_of(f"fresh{number % 50}") for number in range(first, first + count)]
        frames = [frame_of(which, key, seqno, b"v") for seqno, key in enumerate(keys, first)]
        self.store.vbuckets[which].append_many(frames, keys, range(first, first + count))
        for seqno, (key, frame) in enumerate(zip(keys, frames, strict=True), first):
            model.rows.append((seqno, key, frame, True))

    @rule()
    def commit(self) -> None:
        moved = dict(self.store.commit())
        for vbid, model in enumerate(self.models):
            if self.is_disk and model.persisted != model.high:
                assert moved.pop(vbid) == model.high
            model.persisted = model.high
        assert not moved
        assert self.store.pending_bytes == 0

    @rule(which=WHICH, data=st.data())
    def read(self, which: int, data: Any) -> None:
        model = self.models[which]
        end = data.draw(st.integers(0, model.high + 1), "end")
        after = data.draw(st.integers(0, end), "after")
        snapshot_end = data.draw(st.integers(max(end, model.horizon), model.high + 2), "snapshot end")
        max_bytes = data.draw(st.sampled_from([1, 100, 300, 1 << 20]), "max bytes")
        vbucket = self.store.vbuckets[which]
        found = read_all(vbucket, after, end, snapshot_end=snapshot_end, max_bytes=max_bytes)
        assert found == model.read(after, end, snapshot_end)

    @rule(which=WHICH, data=st.data())
    def roll_back(self, which: int, data: Any) -> None:
        model = self.models[which]
        seqno = data.draw(st.integers(0, model.high), "seqno")
        model.rollback(seqno)
        assert self.store.vbuckets[which].rollback(seqno) == model.high
        self.purge_seqnos[which] = min(self.purge_seqnos[which], model.high)
        self.views = [view for view in self.views if view[0] != which or view[1].seqno <= model.high]

    @rule(which=WHICH, data=st.data())
    def hold(self, which: int, data: Any) -> None:
        if len(self.views) < 4:
            model = self.models[which]
            seqno = data.draw(st.integers(model.horizon, model.high), "seqno")
            if seqno:
                self.views.append((which, self.store.vbuckets[which].hold(seqno)))

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def let_go(self, data: Any) -> None:
        self.views.pop(data.draw(st.integers(0, len(self.views) - 1), "view"))

    @rule(
        which=WHICH,
        before_seqno=st.sampled_from([2, 20, 50, 1000]),
        before_time=st.sampled_from([0, 77, 78, 78, 78]),
        is_full=st.sampled_from([True, True, False]),
    )
    def compact(self, which: int, before_seqno: int, before_time: int, is_full: bool) -> None:
        purged = 0
        if before_time == 78:
            model = self.models[which]
            purged = model.purge(min(before_seqno, (model.persisted if self.is_disk else model.high) - 1))
            if purged:
                self.purge_seqnos[which] = max(self.purge_seqnos[which], *model.purged)
        vbids = frozenset([which])
        order = CompactionOrder(before_time=before_time, before_seqno=before_seqno, vbids=vbids, is_full=is_full)
        report = self.store.compact(order)
        assert report.rows_purged == purged
        for vbid, model in enumerate(self.models):
            vbucket = self.store.vbuckets[vbid]
            assert model.horizon <= vbucket.horizon_seqno <= model.high
            model.horizon = vbucket.horizon_seqno

    @rule(which=WHICH)
    def create_anew(self, which: int) -> None:
        old = self.store.vbuckets[which]
        self.store.create_vbucket(which, old.state, LOG)
        self.models[which] = ModelVbucket()
        self.purge_seqnos[which] = 0
        self.views = [view for view in self.views if view[0] != which]

    @precondition(lambda self: self.is_disk)
    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.store.close(clean)
        self.views.clear()
        self.store = self.make()
        assert self.store.was_clean is clean
        for model in self.models:
            if not clean:
                model.rollback(model.persisted)
            model.persisted = model.high
        for vbid, model in enumerate(self.models):
            model.purge(self.purge_seqnos[vbid])
            vbucket = self.store.vbuckets[vbid]
            assert vbucket.horizon_seqno <= model.horizon
            model.horizon = vbucket.horizon_seqno

    @invariant()
    def views_stay(self) -> None:
        for which, view in self.views:
            model = self.models[which]
            found = read_all(self.store.vbuckets[which], 0, view.seqno)
            assert found == model.read(0, view.seqno, view.seqno)

    @invariant()
    def agrees(self) -> None:
        pending = 0
        for vbid, model in enumerate(self.models):
            vbucket = self.store.vbuckets[vbid]
            persisted = model.persisted if self.is_disk else model.high
            newest = model.view(model.high)
            assert (vbucket.high_seqno, vbucket.persisted_seqno) == (model.high, persisted)
            assert vbucket.persisted_snapshot == SnapshotRange(persisted, persisted)
            assert vbucket.branch_seqno == persisted
            assert vbucket.item_count == sum(is_doc for _, _, is_doc in newest.values())
            for key, (seqno, frame, is_doc) in newest.items():
                item = vbucket.get(key)
                assert item is not None
                assert (item.key, item.seqno, item.is_deleted) == (key, seqno, not is_doc)
                assert frame.endswith(item.key + item.value)
                assert (key in vbucket) is is_doc
            for key in {row[1] for row in model.rows} - newest.keys():
                assert vbucket.get(key) is None
            assert vbucket.get(b"\0nobody") is None
            assert vbucket.purge_seqno == self.purge_seqnos[vbid]
            assert read_all(vbucket, 0, model.high) == model.read(0, model.high, model.high)
            for collection_id, prefix in ((0, b"\0"), (8, b"\x08"), (128, b"\x80\x01")):
                least = max((seqno for key, (seqno, _, _) in newest.items() if key.startswith(prefix)), default=0)
                most = max((seqno for seqno, key, _, _ in model.rows if key.startswith(prefix)), default=0)
                assert least <= vbucket.high_seqno_of([collection_id]) <= most
            pending += sum(len(frame) for seqno, _, frame, _ in model.rows if seqno > persisted)
        assert self.store.pending_bytes == pending


class DiskMachine(StoreMachine):
    """The same on disk, with commits, restarts and crashes."""

    is_disk = True


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make steps small, so that every branch is met."""
    monkeypatch.setattr(queries, "SELECT_ROWS", 5)
    monkeypatch.setattr(bulk_load, "MIN_KEYS_OF_A_LENGTH", 1)
    monkeypatch.setattr(frame_log, "CHUNK_BYTES", 400)
    monkeypatch.setattr(blocks, "MAX_BLOCK_BYTES", 300)
    monkeypatch.setattr(retention, "SLICE_ROWS", 7)
    monkeypatch.setattr(row_removal, "READ_SPAN_BYTES", 300)
    monkeypatch.setattr(memory, "REWRITE_BYTES", 900)
    monkeypatch.setattr("dcpstream_node.store.compact.retention.MIN_ROLLBACK_BYTES", 200)
    monkeypatch.setattr(vbucket, "STEP_ROWS", 3)


@each_case("machine", [StoreMachine, DiskMachine], ids=["memory", "disk"])
@pytest.mark.usefixtures("_small_steps")
def test_histories_agree_with_the_model(machine: type[StoreMachine]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    profile = settings()
    run_state_machine_as_test(
        machine,
        settings=settings(
            profile,
            max_examples=min(profile.max_examples, 300),
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )
