"""Several tables of one query: deaths between two of them, new and missing ones, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from dcpstream.errors import ConfigError, LeaseRefused, OffsetError
from dcpstream.model import Op
from dcpstream_spark.tables import Pipeline
from dcpstream_spark.tables.delta_rs import DeltaRsEngine
from dcpstream_spark.tables.engines import DeltaRsParts, TableTarget
from dcpstream_spark.tables.many import ManyTables
from tests.kit.tables import (
    APP,
    ArrowFrame,
    Died,
    DyingParts,
    Expected,
    Life,
    ManyBench,
    MemoryBench,
    MemoryTable,
    Row,
    assert_exact,
    change,
    created,
    dropped,
    event,
    live_of,
    pipeline_of,
    rollback,
    state_of,
    table_of,
)

COLLECTIONS = ("a", "b", "c", "d")


def rows_of(batch: int, collections: Sequence[str] = COLLECTIONS) -> list[Row]:
    """A change of a document in each collection, each collection in a vbucket of its own."""
    return [
        change(key, 10 * batch + number, f"{batch}", COLLECTIONS.index(name), name)
        for name in collections
        for number, key in enumerate(("k", f"k{batch}"), 1)
    ]


def apply(bench: Any, pipeline: Pipeline, batch_id: int, rows: Sequence[Row]) -> None:
    pipeline.apply_batch(APP, batch_id, bench.frame(table_of(rows)))


def folds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tables that are folded from now on."""
    found: list[str] = []
    true = MemoryTable.fold

    def noted(table: MemoryTable, *args: Any) -> Any:
        found.append(table._table)
        return true(table, *args)

    monkeypatch.setattr(MemoryTable, "fold", noted)
    return found


def many_of(pipeline: Pipeline) -> ManyTables:
    return cast(ManyTables, pipeline.engine)


@pytest.mark.parametrize(
    "death", [pytest.param(death, marks=() if death % 3 == 1 else pytest.mark.slow) for death in range(1, 12)]
)
def test_a_death_between_two_tables(death: int, tmp_path: Path) -> None:
    """A rollback concerns two of four tables, whichever write is the last before the death."""
    bench, expected = ManyBench(tmp_path), Expected()
    batches = [rows_of(0), rows_of(1), [rollback(0, 5), rollback(1, 5), change("new", 6, "b", 0, "a")], rows_of(3)]
    life = Life(death)
    pipeline = pipeline_of(bench, fold_rows_min=3, engine=cast(Any, DyingParts(bench.parts, life)))
    for number, batch in enumerate(batches):
        expected.apply(number, batch)
        try:
            apply(bench, pipeline, number, batch)
        except Died:
            pipeline = pipeline_of(bench, fold_rows_min=3)
            apply(bench, pipeline, number, batch)
        assert_exact(bench, pipeline, expected)
    pipeline.fold()
    assert_exact(bench, pipeline, expected, is_folded=True)


@pytest.mark.parametrize("k", range(len(COLLECTIONS) + 1))
def test_only_the_missing_tables_are_written_again(k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, expected = ManyBench(tmp_path), Expected()
    pipeline = pipeline_of(bench, fold_rows_min=100, engine=cast(Any, DyingParts(bench.parts, Life(1 + k))))
    expected.apply(0, rows_of(0))
    apply(bench, pipeline, 0, rows_of(0))
    if k < len(COLLECTIONS):
        with pytest.raises(Died):
            pipeline.fold()
    else:
        # After the last table, before the ledger.
        with monkeypatch.context() as patch:
            patch.setattr("dcpstream_spark.tables.ledger.Ledger.save", lambda *_: (_ for _ in ()).throw(Died()))
            with pytest.raises(Died):
                pipeline.fold()
    written = folds(monkeypatch)
    pipeline = pipeline_of(bench)
    pipeline.fold()
    assert written == [f"s.{name}" for name in COLLECTIONS[k:]]
    assert_exact(bench, pipeline, expected, is_folded=True)


def test_a_table_without_rows_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, expected = ManyBench(tmp_path), Expected()
    pipeline = pipeline_of(bench)
    written = folds(monkeypatch)
    for number in range(4):
        batch = rows_of(number, COLLECTIONS if number == 0 else "c")
        expected.apply(number, batch)
        apply(bench, pipeline, number, batch)
        pipeline.fold()
        assert_exact(bench, pipeline, expected, is_folded=True)
    assert written == [*(f"s.{name}" for name in COLLECTIONS), "s.c", "s.c", "s.c"]
    assert pipeline.engine.current_rows() == len(expected.current)
    # Another process reads only what is new.
    pipeline = pipeline_of(bench)
    assert pipeline.fold() is None
    assert live_of(pipeline) == expected.current


def test_new_collections_get_their_table_by_themselves(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    pipeline = pipeline_of(bench)
    apply(bench, pipeline, 0, rows_of(0, "a"))
    assert pipeline.tables == {"s.a": ("s.a",)}
    apply(bench, pipeline, 1, [created("empty", 3), dropped("unknown", 4), *rows_of(1, "b")])
    assert set(bench.parts.tables) == set(pipeline.tables) == {"s.a", "s.b", "s.empty"}
    live: Any = pipeline.live("s.b")
    assert state_of(live.to_pylist()) == {("s", "b", "k"): (11, b"1"), ("s", "b", "k1"): (12, b"1")}
    changes: Any = pipeline.changes("s.a")
    assert {row["collection"] for row in changes.to_pylist()} == {"a"}
    with pytest.raises(ConfigError, match=r"s\.a, s\.b, s\.empty"):
        pipeline.live("s.unknown")


def test_a_dropped_collection(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    pipeline = pipeline_of(bench)
    apply(bench, pipeline, 0, rows_of(0))
    pipeline.fold()
    apply(bench, pipeline, 1, [dropped("a", 9, 0)])
    pipeline.fold()
    assert {row["collection"] for row in bench.rows("current")} == {"b", "c", "d"}
    assert bench.parts.tables["s.a"].table.num_rows == 0
    apply(bench, pipeline, 2, [created("a", 20, 0), change("again", 21, "x", 0, "a")])
    pipeline.fold()
    assert [row["key"] for row in bench.parts.tables["s.a"].table.to_pylist()] == ["again"]


def test_a_missing_table_is_made_again(tmp_path: Path) -> None:
    bench, expected = ManyBench(tmp_path), Expected()
    pipeline = pipeline_of(bench, fold_rows_min=0)
    batches = [rows_of(0), rows_of(1), [rollback(0, 5)]]
    for number, batch in enumerate(batches[:2]):
        expected.apply(number, batch)
        apply(bench, pipeline, number, batch)
    expected.apply(2, batches[2])
    # It dies before the void rows are deleted.
    pipeline = pipeline_of(bench, fold_rows_min=0, engine=cast(Any, DyingParts(bench.parts, Life(2))))
    with pytest.raises(Died):
        apply(bench, pipeline, 2, batches[2])
    del bench.parts.tables["s.a"], bench.parts.tables["s.b"]
    pipeline = pipeline_of(bench, fold_rows_min=0)
    many_of(pipeline).prepare(APP)
    assert state_of(bench.rows("current")) == expected.current
    apply(bench, pipeline, 2, batches[2])
    assert_exact(bench, pipeline, expected, is_folded=True)


def test_a_table_that_goes_missing_while_the_process_runs(tmp_path: Path) -> None:
    bench, expected = ManyBench(tmp_path), Expected()
    pipeline = pipeline_of(bench, fold_rows_min=1000)
    for number in range(2):
        expected.apply(number, rows_of(number))
        apply(bench, pipeline, number, rows_of(number))
        pipeline.fold()
        bench.parts.tables.pop("s.a" if number == 0 else "none", None)
        # As after an error.
        many_of(pipeline)._forget()
    assert_exact(bench, pipeline, expected, is_folded=True)


def test_a_ledger_that_is_lost(tmp_path: Path) -> None:
    bench, expected = ManyBench(tmp_path), Expected()
    for number, batch in enumerate([rows_of(0), rows_of(1), [rollback(0, 5)], rows_of(3, "b")]):
        expected.apply(number, batch)
        apply(bench, pipeline_of(bench, fold_rows_min=0), number, batch)
    shutil.rmtree(tmp_path / "checkpoint" / "dcp-tables")
    pipeline = pipeline_of(bench)
    pipeline.fold()
    assert_exact(bench, pipeline, expected, is_folded=True)
    assert set(pipeline.tables) == {f"s.{name}" for name in COLLECTIONS}


def test_an_older_copy_of_a_table_is_refused(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    pipeline = pipeline_of(bench)
    apply(bench, pipeline, 0, rows_of(0))
    pipeline.fold()
    old = bench.parts.tables["s.b"]
    held, batch = old.table, dict(old.batch)
    apply(bench, pipeline, 1, rows_of(1))
    pipeline.fold()
    old.table, old.batch = held, batch
    pipeline = pipeline_of(bench, fold_rows_min=1000)
    apply(bench, pipeline, 2, rows_of(2))
    with pytest.raises(OffsetError, match=r"s\.b .*older copy"):
        pipeline.fold()
    del bench.parts.tables["s.b"]
    pipeline = pipeline_of(bench)
    pipeline.fold()
    assert live_of(pipeline) == state_of(bench.rows("current"))
    assert len(state_of(bench.rows("current"))) == len(COLLECTIONS) * 4


def test_rows_of_another_pipeline_are_refused(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    pipeline = pipeline_of(bench)
    apply(bench, pipeline, 0, rows_of(0))
    pipeline.fold()
    bench.parts.tables["s.a"].batch = {"another": 0}
    shutil.rmtree(tmp_path / "checkpoint" / "dcp-tables")
    with pytest.raises(OffsetError, match="another pipeline"):
        pipeline_of(bench).fold()


def test_a_collection_keeps_its_table(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    pipeline = pipeline_of(bench, tables={"s.a": "one", "s.b": "one"})
    apply(bench, pipeline, 0, rows_of(0, "ab"))
    assert pipeline.tables == {"one": ("s.a", "s.b")}
    assert pipeline._options["collections"] == "s.a,s.b"
    with pytest.raises(ConfigError, match="whose rows are in the table 'one'"):
        apply(bench, pipeline_of(bench, tables={"s.a": "one", "s.b": "two"}), 1, rows_of(1, "ab"))
    pipeline = pipeline_of(bench, tables={"s.a": "one", "s.c": "two"})
    apply(bench, pipeline, 1, [*rows_of(1, "ac"), event(Op.COLLECTION_EXCLUDED, "b", 15, 1)])
    pipeline.fold()
    assert pipeline.tables == {"one": ("s.a", "s.b"), "two": ("s.c",)}
    assert {row["collection"] for row in bench.parts.tables["one"].table.to_pylist()} == {"a"}


@pytest.mark.parametrize(
    ("name", "other", "message"), [("Orders", "orders", "not distinguish"), ("changes", "x", "no table can have")]
)
def test_names_that_no_table_can_have(name: str, other: str, message: str, tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    pipeline = pipeline_of(bench, tables="{collection}")
    with pytest.raises(ConfigError, match=message):
        apply(bench, pipeline, 0, [change("k", 1, "1", 0, name), change("k", 2, "1", 0, other)])


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    for wrong in (
        {"tables": "orders"},
        {"tables_at_once": 0},
        {"on_collection_dropped": "forget"},
        {"schema": {"s.a": StructType().add("x", IntegerType(), nullable=False)}},
        {"mode": "FAILFAST", "schema": {}},
    ):
        with pytest.raises(ConfigError):
            pipeline_of(bench, **wrong)
    one = MemoryBench(tmp_path)
    with pytest.raises(ConfigError, match="Give tables"):
        pipeline_of(one).live("s.a")
    with pytest.raises(ConfigError, match="without tables"):
        pipeline_of(one, schema={"s.a": StructType()})


def test_one_table_and_several_are_not_mixed_up(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    apply(bench, pipeline_of(bench), 0, rows_of(0))
    with pytest.raises(OffsetError, match="no tables are given now"):
        pipeline_of(MemoryBench(tmp_path)).start()
    (tmp_path / "current").mkdir()
    with pytest.raises(OffsetError, match="Remove the directory"):
        pipeline_of(bench).start()


def test_another_process_is_noticed(tmp_path: Path) -> None:
    bench = ManyBench(tmp_path)
    first = pipeline_of(bench, fold_rows_min=1000)
    apply(bench, first, 0, rows_of(0))
    second = pipeline_of(bench, fold_rows_min=1000)
    second.fold()
    with pytest.raises(LeaseRefused):
        first.fold()


class DeltaRsMany:
    """Tables of delta-rs for each collection."""

    def __init__(self, path: Path, *, keeps_dropped: bool = False) -> None:
        self.path = path
        self.parts = DeltaRsParts(path, TableTarget(str(path), "binary", keeps_dropped=keeps_dropped))
        self.options = {"tables": "{scope}.{collection}"}

    def engine(self) -> Any:
        return self.parts

    def frame(self, table: pa.Table) -> Any:
        return ArrowFrame(table)

    def rows(self, table: str) -> list[Row]:
        if table == "changes":
            rows: list[Row] = DeltaRsEngine(self.path).changes.open().to_pyarrow_table().to_pylist()
            return rows
        engines = [DeltaRsEngine(self.path, table=one.parent.name) for one in self.path.glob("*/current")]
        return [row for one in engines for row in one.current.open().to_pyarrow_table().to_pylist()]


STORY = [
    [created("a", 1, 0), *rows_of(1), change("k", 3, b"\xff", 0, "_default", "_default")],
    rows_of(2),
    [rollback(0, 15), rollback(1, 12), change("new", 17, "branch", 0, "a")],
    [dropped("c", 40, 2), *rows_of(4, "ab")],
    [created("c", 51, 2), *rows_of(6, "cd"), change("x", 1, "odd", 5, "a-b%20")],
]


@pytest.mark.parametrize("fold_rows_min", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_delta_rs_keeps_many_tables(fold_rows_min: int, tmp_path: Path) -> None:
    bench, expected = DeltaRsMany(tmp_path), Expected()
    for number, batch in enumerate(STORY):
        expected.apply(number, batch)
        pipeline = pipeline_of(bench, fold_rows_min=fold_rows_min)
        apply(bench, pipeline, number, batch)
        assert_exact(bench, pipeline, expected)
    pipeline.fold()
    pipeline.maintain()
    assert_exact(bench, pipeline, expected, is_folded=True)
    directories = {one.parent.name for one in tmp_path.glob("*/current")}
    names = {"s.a", "s.b", "s.c", "s.d", "_default._default", "s.a-b%20"}
    assert set(pipeline.tables) == names
    assert directories == {name.replace("%", "~") for name in names}
    for name in names:
        live: Any = pipeline.live(name)
        assert {f"{row['scope']}.{row['collection']}" for row in live.to_pylist()} == {name}


def test_documents_of_a_dropped_collection_may_stay(tmp_path: Path) -> None:
    bench = DeltaRsMany(tmp_path, keeps_dropped=True)
    pipeline = pipeline_of(bench)
    apply(bench, pipeline, 0, rows_of(0, "ab"))
    apply(bench, pipeline, 1, [dropped("a", 9, 0), event(Op.COLLECTION_FLUSHED, "b", 9, 1)])
    pipeline.fold()
    assert {(row["collection"], row["key"]) for row in bench.rows("current")} == {("a", "k"), ("a", "k0")}
    apply(bench, pipeline, 2, [created("a", 20, 0), change("again", 21, "x", 0, "a")])
    assert set(live_of(pipeline)) == {("s", "a", "again")}
    pipeline.fold()
    assert [row["key"] for row in bench.rows("current")] == ["again"]


def test_typed_columns_of_each_table(tmp_path: Path) -> None:
    bench = DeltaRsMany(tmp_path)
    schema = {"s.a": StructType().add("n", IntegerType()), "s.b": StructType().add("t", StringType())}
    pipeline = pipeline_of(bench, schema=schema)
    rows = [
        change("1", 1, '{"n": 1}', 0, "a"),
        change("2", 2, '{"n": "x"}', 0, "a"),
        change("3", 3, '{"t": "y"}', 0, "b"),
        change("4", 4, "text", 0, "c"),
    ]
    apply(bench, pipeline, 0, rows)
    pipeline.fold()
    live: Any = pipeline.live("s.a")
    assert {row["key"]: row["n"] for row in live.to_pylist()} == {"1": 1, "2": None}
    live = pipeline.live("s.b")
    assert live.column("t").to_pylist() == ["y"]
    assert "t" not in cast(Any, pipeline.live("s.c")).schema.names
    assert cast(Any, pipeline.rejects("s.a")).column("key").to_pylist() == ["2"]
    assert len(live_of(pipeline)) == 4
    # Another process, and a wider schema of one table.
    pipeline = pipeline_of(bench, schema={**schema, "s.a": StructType().add("n", LongType()).add("m", StringType())})
    apply(bench, pipeline, 1, [change("5", 5, '{"n": 5000000000, "m": "z"}', 0, "a")])
    pipeline.fold()
    live = pipeline.live("s.a")
    assert {row["key"]: (row["n"], row["m"]) for row in live.to_pylist()} == {
        "1": (1, None),
        "2": (None, None),
        "5": (5_000_000_000, "z"),
    }
    assert pipeline.rebuild() is None
