"""Random histories of a bucket through planner, tasks and tables: nothing is lost, repeated, or left over.

The bucket fails over to stale replicas, sends deduplicated snapshots, purges deletions, and drops and creates
collections. The query dies
between any two writes, and replays a batch with what the bucket holds by then. The tables are folded now and then.

`BROKEN` breaks one rule at a time: the model must find each of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcpstream_node.testing.simulation import VirtualClock
from dcpstream_spark import Pipeline
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source.coordinator import FULL_OBSERVATION_INTERVAL_S, Coordinator
from dcpstream_spark.tables import fold_sql
from dcpstream_spark.tables.engine import void_bounds
from dcpstream_spark.tables.fold_sql import FoldQuery
from dcpstream_spark.tables.folding import Folder
from dcpstream_spark.tables.many import ManyTables
from dcpstream_spark.tables.rows import BATCH_ID, IS_FORCED, IS_RESTORED
from tests.kit import tables
from tests.kit.spark_model import FakeCluster, MemoryNotes, read_range
from tests.kit.tables import (
    APP,
    NEEDED,
    Died,
    Expected,
    ManyBench,
    MemoryBench,
    MemoryEngine,
    Row,
    assert_exact,
    change,
    created,
    dropped,
    live_of,
    pipeline_of,
    rollback,
    state_of,
    table_of,
)

COLLECTIONS = ("c", "d")
KEYS = "abc"
VBUCKETS = 2
STEPS = 40
HISTORIES = 80
FAST_HISTORIES = 8
"""A history takes about 60 ms. Each broken rule is found within 30 of them."""

OPTIONS = {**NEEDED, "startingOffsets": "earliest", "onRollback": "rewindAndMark", "rewindTo": "recorded"}


class Query:
    """A streaming query as Spark runs it, and the tables that it keeps."""

    def __init__(self, cluster: FakeCluster, bench: MemoryBench | ManyBench, dice: random.Random) -> None:
        self.cluster = cluster
        self.bench = bench
        self.dice = dice
        self.clock = VirtualClock()
        self.expected = Expected()
        self.batch_id = 0
        self.notes = MemoryNotes()
        self.end: dict[str, Any] | None = None
        self.pipeline: Pipeline
        self.restart()
        self.start: dict[str, Any] = self.coordinator.start_marker()

    def restart(self) -> None:
        """A new process: it knows the logged offsets and the tables."""
        self.coordinator = Coordinator(
            SourceOptions.parse(OPTIONS),
            default_start=OffsetSpec("latest"),
            connect=lambda options: self.cluster,
            clock=self.clock,
            notes=self.notes,
        )
        dying: Any = self.bench.dying(self.dice.choice((0, 1, 1, 2, 3, 10, 100)))
        self.pipeline = pipeline_of(self.bench, fold_rows_min=self.dice.choice((0, 5, 10_000)), engine=dying)

    def plan(self, limit: int | None) -> None:
        if self.end is None:
            end = self.coordinator.next_offset(self.start, limit)
            if json.dumps(end) != json.dumps(self.start):
                self.end = json.loads(json.dumps(end))

    def read(self) -> None:
        """An attempt of the planned batch."""
        if self.end is None:
            return
        batch: list[Row] = []
        for planned in self.coordinator.ranges(self.start, self.end):
            vbid = planned.range.vbid
            if planned.rolled_back_from is not None:
                batch.append(rollback(vbid, planned.range.start.seqno))
            if planned.seqnos:
                to_seqno, found = read_range(self.cluster, planned.range, to_zero=False, note=self.notes.went_below)
                if to_seqno is not None:
                    batch.append(rollback(vbid, to_seqno))
                batch += [row_of(vbid, *row) for row in found]
        held = self.bench.log()
        before = held.last_batch(APP)
        try:
            self.pipeline.apply_batch(APP, self.batch_id, self.bench.frame(table_of(batch)))
        except Died:
            self.restart()
            return
        finally:
            if held.last_batch(APP) != before:
                self.expected.apply(self.batch_id, batch)
        self.start, self.end = self.end, None
        self.batch_id += 1

    def fold(self) -> None:
        try:
            self.pipeline.fold()
        except Died:
            self.restart()

    def check(self) -> None:
        """A reader sees the right documents at any time; `changes` is right when no batch is half applied."""
        if self.end is None:
            assert_exact(self.bench, self.pipeline, self.expected)
        assert live_of(self.pipeline) == self.expected.current

    def drain(self) -> None:
        self.clock.now += FULL_OBSERVATION_INTERVAL_S
        for _ in range(200):
            self.plan(7)
            if self.end is None:
                break
            self.read()
        else:
            raise AssertionError("the query does not come to an end")
        self.pipeline = pipeline_of(self.bench)
        self.pipeline.fold()


def row_of(vbid: int, seqno: int, key: str, value: int | None) -> Row:
    """A row of the bucket's model; keys with an exclamation mark are events of a collection."""
    kind, collection, name = key.split("/")
    if kind == "!":
        # An event's number keeps the snapshots of the model from deduplicating it.
        return (created if name.startswith("created") else dropped)(collection, seqno, vbid)
    return change(f"{name}-{vbid}", seqno, None if value is None else str(value), vbid, collection)


def play(seed: int, path: Path, make: type[MemoryBench | ManyBench] = MemoryBench) -> None:
    """One history, and its comparison with the bucket."""
    dice = random.Random(seed)
    cluster = FakeCluster(VBUCKETS)
    path = path / str(seed)
    path.mkdir()
    query = Query(cluster, make(path), dice)
    for step in range(STEPS):
        vbid = dice.randrange(VBUCKETS)
        what = dice.random()
        if what < 0.40:
            for _ in range(dice.randint(1, 3)):
                key = f"=/{dice.choice(COLLECTIONS)}/{dice.choice(KEYS)}"
                cluster.write(vbid, key, None if dice.random() < 0.25 else step)
        elif what < 0.47:
            collection = dice.choice(COLLECTIONS)
            cluster.write(vbid, f"!/{collection}/dropped{step}", 0)
            if dice.random() < 0.7:
                cluster.write(vbid, f"!/{collection}/created{step}", 0)
        elif what < 0.55:
            high = cluster.active[vbid].high
            cluster.add_replica(vbid, high - dice.randint(0, 4), high - dice.randint(0, 8))
        elif what < 0.60:
            # If every vbucket lost the branch that was read, nobody could tell that from a flush.
            if vbid or _keeps_branch(cluster):
                cluster.fail_over(vbid)
        elif what < 0.63:
            cluster.purge(vbid, cluster.active[vbid].high)
        elif what < 0.78:
            query.plan(dice.choice((None, 2, 4)))
        elif what < 0.96:
            query.read()
        else:
            query.fold()
        if what >= 0.78:
            query.check()
    query.read()
    query.drain()
    assert_exact(query.bench, query.pipeline, query.expected, is_folded=True)
    bucket = Expected()
    held = [row_of(vbid, *row) for vbid, copy in enumerate(cluster.active) for row in copy.rows]
    bucket.apply(0, held)
    assert state_of(query.bench.rows("current")) == bucket.current, "the tables differ from the bucket"
    places = [(row["vbucket"], row["seqno"]) for row in query.bench.rows("changes") if row["op"] != "rollback"]
    assert len(set(places)) == len(places), "a row is in changes twice"


def _keeps_branch(cluster: FakeCluster) -> bool:
    """Whether vbucket 0 knows its newest branch after a failover, too."""
    newest = cluster.active[0].log[0]
    return any(newest in copy.log and newest[1] <= copy.snapshot[0] for copy in cluster.replicas[0][:1])


def play_all(seeds: Iterable[int], path: Path, make: type[MemoryBench | ManyBench] = MemoryBench) -> None:
    for seed in seeds:
        play(seed, path, make)


def test_the_tables_are_the_bucket_after_any_history(tmp_path: Path) -> None:
    play_all(range(FAST_HISTORIES), tmp_path)


def test_each_of_many_tables_is_the_bucket_after_any_history(tmp_path: Path) -> None:
    play_all(range(FAST_HISTORIES), tmp_path, ManyBench)


def test_a_limited_batch_gets_beyond_a_purge(tmp_path: Path) -> None:
    # Each new process asks about all positions, and was sent back to the same place again and again.
    play_all((1038, 1071), tmp_path)


@pytest.mark.slow
def test_many_histories(tmp_path: Path) -> None:
    play_all(range(FAST_HISTORIES, 4_000), tmp_path)


@pytest.mark.slow
def test_many_histories_of_many_tables(tmp_path: Path) -> None:
    play_all(range(FAST_HISTORIES, 2_000), tmp_path, ManyBench)


def _nothing(*_: Any) -> None:
    pass


def _altered(method: str, old: str, new: str) -> tuple[Any, str, Any]:
    """A method of FoldQuery, and one that makes another text in its place."""
    true = getattr(FoldQuery, method)

    def broken(query: FoldQuery, **kwargs: Any) -> str:
        text: str = true(query, **kwargs)
        assert old in text or not query.bounds
        return text.replace(old, new.replace("AFTER", str(query.after)))

    return FoldQuery, method, broken


def _deleting_first(folder: Any, held: Any, rollbacks: Any) -> Any:
    folder._engine.take_back(rollbacks, held.last)
    return fold_of(folder, held, rollbacks)


is_void, fold_of = fold_sql._is_void, Folder._folded

BROKEN: dict[str, list[tuple[Any, str, Any]]] = {
    "void rows count": [(fold_sql, "_is_void", lambda upto: "false")],
    "rows of the rollback's own batch are void": [(fold_sql, "_is_void", lambda upto: is_void(upto + 1))],
    "the row at the bound is void": [
        (tables, "void_bounds", lambda found: {vbid: seqno - 1 for vbid, seqno in void_bounds(found).items()})
    ],
    "rows before the tail are forgotten": [
        _altered("_candidates", "ON r.vbucket = b.vbucket", f"ON r.vbucket = b.vbucket AND r.{BATCH_ID} > AFTER")
    ],
    "a void row of current wins by its seqno": [
        _altered("_common", f"{IS_RESTORED} AS {IS_FORCED}", f"false AS {IS_FORCED}")
    ],
    "collections never end": [(fold_sql, "_IS_EMPTYING", "false")],
    "collections do not end in current": [(FoldQuery, "_is_ended", lambda query, table: "false")],
    "void rows stay in changes": [(MemoryEngine, "take_back", _nothing)],
    "void rows are deleted before the fold": [(Folder, "_folded", _deleting_first)],
    "a replayed batch is appended again": [
        (MemoryEngine, "last_batch", lambda engine, app: max(engine.changes.batch.get(app, -1) - 1, -1)),
        (Pipeline, "_require_next", _nothing),
    ],
}
"""Rule → what to put in its place."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN)
def test_the_model_finds_a_broken_rule(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, replacement in BROKEN[rule]:
        monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, KeyError)):
        play_all(range(HISTORIES), tmp_path)


def _noting_first(many: ManyTables, app: str, *args: Any) -> Any:
    upto = args[2]
    many._ledger.save(replace(many._ledger.read(), app=app, folded=upto))
    return fold_tables(many, app, *args)


def _without_void_rows(query: FoldQuery) -> str:
    return collections_of(replace(query, bounds={}))


fold_tables, collections_of = ManyTables._fold_tables, FoldQuery.collections

BROKEN_OF_MANY: dict[str, list[tuple[Any, str, Any]]] = {
    "the ledger is written before the tables": [(ManyTables, "_fold_tables", _noting_first)],
    "tables with void rows alone are not folded": [(FoldQuery, "collections", _without_void_rows)],
    "tables with events alone are not folded": [_altered("collections", "scope IS NOT NULL", "key IS NOT NULL")],
    "void rows are deleted before the fold": BROKEN["void rows are deleted before the fold"],
    "collections never end": BROKEN["collections never end"],
    "a table gets rows of all collections": [
        (tables, "rows_of_collections", lambda changes, places: changes),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN_OF_MANY)
def test_the_model_finds_a_broken_rule_of_many_tables(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name, replacement in BROKEN_OF_MANY[rule]:
        monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, KeyError)):
        play_all(range(HISTORIES), tmp_path, ManyBench)
