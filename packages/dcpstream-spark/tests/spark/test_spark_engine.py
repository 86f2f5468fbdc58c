"""The engine that writes with Spark: the stories of `test_engines`, played at the same time, and what only Spark has.

A commit of Spark's takes a second where delta-rs takes milliseconds. So the stories share their batches: each has a
scope and vbuckets of its own.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dcpstream import KvClient
from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream_node import Node
from dcpstream_spark import Pipeline
from dcpstream_spark.tables import table_formats
from dcpstream_spark.tables.engine import TableEngine
from dcpstream_spark.tables.engines import TableTarget, choose_engine
from dcpstream_spark.tables.spark_sql import _facts_of_batch
from dcpstream_spark.tables.versions_sql import VERSION_COLUMNS, versions
from lab.tools.patience import patient
from tests.kit.spark import Bucket
from tests.kit.tables import (
    APP,
    Row,
    answered,
    assert_exact,
    change,
    dropped,
    live_of,
    pipeline_of,
    questions,
    random_tables,
    rollback,
    rows_of,
    state_of,
    table_of,
)
from tests.spark.test_engines import (
    COMMITS_BETWEEN,
    STORIES,
    Play,
    assert_live_between,
    play_during_folds,
    play_to_the_end,
    played_together,
)
from tests.spark.typed_stories import TypedPlay, play_evolution, play_failfast, play_interrupted, play_story
from tests.unit.tables.test_versions_sql import VBUCKETS, found_in, played

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class SparkBench:
    """Delta tables that Spark writes.

    Args:
        spark: the session.
        path: of the tables.
        names: of the tables and the view in a catalog, instead of directories.
    """

    def __init__(self, spark: SparkSession, path: Path, **names: Any) -> None:
        self.path = path
        self._spark = spark
        self._names = names

    def engine(self) -> TableEngine:
        return choose_engine("auto", self._spark, TableTarget(str(self.path), "binary", **self._names))

    def frame(self, table: pa.Table) -> DataFrame:
        return self._spark.createDataFrame(table)

    def rows(self, table: str) -> list[Row]:
        if table in self._names:
            # The engine writes in a session of its own, and a catalog of Iceberg's caches tables by session.
            self._spark.sql(f"REFRESH TABLE {self._names[table]}")
            frame = self._spark.table(self._names[table])
        else:
            frame = self._spark.read.format("delta").load(str(self.path / table))
        rows: list[Row] = frame.toArrow().to_pylist()
        return rows


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> SparkBench:
    path = tmp_path / "tables"
    path.mkdir()
    return SparkBench(spark, path)


SOME = (
    "values that are no text",
    "a dropped collection",
    "a rollback inside a batch",
    "a drop and a rollback in one batch",
    "a rollback between a drop and a creation",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("stories", "fold_rows_min", "writes"),
    [
        pytest.param(SOME, 1000, 1, id="some, lazy, dying"),
        *(
            pytest.param(
                tuple(STORIES),
                fold_rows_min,
                writes,
                id=f"all, {'lazy' if fold_rows_min else 'folding'}, {'dying' if writes else 'alive'}",
            )
            for fold_rows_min in (0, 1000)
            for writes in (None, 1)
        ),
    ],
)
def test_the_tables_are_exact_after_every_batch(
    bench: SparkBench, stories: Sequence[str], fold_rows_min: int, writes: int | None
) -> None:
    play_to_the_end(bench, played_together(stories), fold_rows_min, writes)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batches", [1, len(played_together(SOME))])
def test_the_tables_are_exact_when_batches_come_while_a_fold_runs(bench: SparkBench, batches: int) -> None:
    assert play_during_folds(bench, played_together(SOME)[:batches]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("between", ["a fold", "the fold of a rollback"])
def test_live_is_exact_although_a_fold_commits_while_it_looks(
    bench: SparkBench, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = bench.engine()
    look, looks = engine._format.version, itertools.count(1)

    def hook(happen: Callable[[], None]) -> None:
        def version(session: Any, table: Any, app: str | None) -> Any:
            if next(looks) == 2:
                monkeypatch.undo()
                happen()
            return look(session, table, app)

        monkeypatch.setattr(engine._format, "version", version)

    assert_live_between(bench, engine, COMMITS_BETWEEN[between], hook)


@pytest.mark.slow
def test_tables_and_a_view_in_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "tables"
    path.mkdir()
    spark.sql("CREATE SCHEMA IF NOT EXISTS lake")
    names = {"changes": "spark_catalog.lake.changes", "current": "lake.current", "live": "lake.live"}
    bench = SparkBench(spark, path, **names)
    try:
        engine = bench.engine()
        assert (engine.name, engine.state().has_changes) == ("delta", False)
        play = Play(bench, fold_rows_min=1000, writes=None)

        def seen() -> dict[Any, Any]:
            return state_of(spark.table("lake.live").toArrow().to_pylist())

        play.apply(0, [change("a", 1, b"\xff"), change("b", 2, "1")])
        play.fold()
        play.apply(1, [change("a", 3, "void"), change("b", 4, None), change("x", 1, "1", vbucket=3)])
        assert seen() == play.expected.current
        assert engine.folded(APP) == 0
        # A reader sees no void row while a rollback waits for its fold.
        play.expected.apply(2, [rollback(0, 3)])
        engine.append(APP, 2, bench.frame(table_of([rollback(0, 3)])))
        assert seen() == play.expected.current
        assert live_of(pipeline_of(bench)) == play.expected.current
        play.pipeline = pipeline_of(bench)
        play.fold()
        assert seen() == play.expected.current
        assert_exact(bench, play.pipeline, play.expected, is_folded=True)
        assert engine.state().is_written
        # What else the session writes does not carry our transactions.
        assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None
    finally:
        spark.sql("DROP SCHEMA lake CASCADE")


@pytest.mark.slow
def test_a_pipeline_whose_rows_do_not_pass_through_the_driver(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    def refuse(*_: object) -> None:
        raise AssertionError("a batch came to the driver")

    bucket.set_many("k", 200, "1")
    pipeline = Pipeline(spark, tmp_path / "tables", {**bucket.options, "maxOffsetsPerTrigger": "150"})
    assert pipeline.engine.name == "delta"
    with monkeypatch.context() as patch:
        for name in ("toArrow", "toPandas", "toLocalIterator"):
            patch.setattr(ClassicFrame, name, refuse)
        assert pipeline.run(until="available").rows == 200
        bucket.set_many("k", 10, "2")
        bucket.delete("k10")
        assert Pipeline(spark, tmp_path / "tables", bucket.options).run(until="available").rows == 11
    for frame in (spark.read.format("delta").load(str(tmp_path / "tables" / "current")), pipeline.live()):
        found = {row["key"]: row["value"].decode() for row in frame.select("key", "value").collect()}
        assert found == bucket.documents(f"k{n}" for n in range(200))


@pytest.mark.parametrize(
    ("engine", "names", "message"),
    [
        ("iceberg", {}, "the engine iceberg needs the names of the tables"),
        ("parquet", {}, "one of auto, delta, iceberg, delta-rs"),
        ("delta-rs", {"changes": "lake.changes"}, "does not know Spark's catalogs"),
    ],
)
def test_what_an_engine_cannot_write_is_refused(
    spark: SparkSession, tmp_path: Path, engine: str, names: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_engine(engine, spark, TableTarget(str(tmp_path), "binary", **names))


def test_facts_of_a_batch_are_texts_and_numbers(spark: SparkSession) -> None:
    """Spark 4.0 hands an observed array to Python as a Java object."""
    rows = spark.sql("SELECT 'mutation' AS op, 's' AS scope, 'c' AS collection, 1 AS vbucket, X'31' AS value")
    for has_collections in (False, True):
        facts = rows.agg(*_facts_of_batch(has_collections=has_collections))
        assert {field.dataType.simpleString() for field in facts.schema} == {"string", "bigint"}


@pytest.mark.slow
def test_counts_that_spark_does_not_report_are_read(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    from dcpstream_spark.tables import spark_sql

    class Silent:
        @property
        def get(self) -> dict[str, Any]:
            threading.Event().wait()
            raise AssertionError

    monkeypatch.setattr(spark_sql, "OBSERVED_TIMEOUT_S", 0.01)
    observed = spark_sql._observed
    monkeypatch.setattr(spark_sql, "_observed", lambda _: observed(cast("Any", Silent())))
    engine = bench.engine()
    engine.create()
    summary = engine.append(APP, 0, bench.frame(table_of([change("a", 1, "1"), rollback(0, 0), dropped("old", 2)])))
    assert (summary.rows, summary.events, [report.to_seqno for report in summary.rollbacks]) == (1, 1, [0])


def play_lost_history(spark: SparkSession, bench: SparkBench) -> None:
    """The newest batch is found where the history does not show it."""
    engine: Any = bench.engine()
    engine.create()
    place = str(bench.path / "changes")
    assert engine.last_batch(APP) is None

    def append(batch_id: int) -> None:
        engine.append(APP, batch_id, bench.frame(table_of([change("a", batch_id + 1, "1")])))

    def others_write(count: int) -> None:
        for n in range(count):
            spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('n' = '{n}')")

    append(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_formats, "LOOK_BACK", 2)
        for others in (1, 2):
            others_write(others)
            assert engine.last_batch(APP) == 0
    # An earlier release writes: its commits have no user metadata.
    rows = bench.frame(table_of([change("a", 9, "1")])).selectExpr("*", "CAST(1 AS BIGINT) AS _batch_id")
    for app, batch_id in ((APP, 1), ("another", 9)):
        writer = rows.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", batch_id)
        writer.save(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_formats, "_marks", lambda _: (None, None))
        assert engine.last_batch(APP) == 1
    append(2)
    # So much has happened that Delta has removed the commits before a checkpoint.
    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    log = bench.path / "changes" / "_delta_log"
    newest = max(int(one.name[:20]) for one in log.glob("*.checkpoint*.parquet"))
    for one in log.glob("*.json"):
        if int(one.name[:20]) < newest:
            one.unlink()
    others_write(3)
    assert engine.last_batch(APP) == 2
    assert bench.engine().last_batch("nobody") is None


@pytest.mark.slow
def test_the_newest_batch_is_found_where_the_history_does_not_show_it(spark: SparkSession, bench: SparkBench) -> None:
    play_lost_history(spark, bench)


@pytest.mark.slow
def test_an_append_runs_only_the_job_that_writes(spark: SparkSession, bench: SparkBench) -> None:
    """The log's state of earlier batches was computed after the one before, in another thread."""
    engine = bench.engine()
    engine.create()
    context = spark.sparkContext
    jobs = []
    try:
        for batch_id in (0, 1):
            context.setJobGroup(group := f"{bench.path}-{batch_id}", "an append")
            engine.append(APP, batch_id, bench.frame(table_of([change("a", batch_id + 1, "1")])))
            jobs.append(len(context.statusTracker().getJobIdsForGroup(group)))
    finally:
        context.setLocalProperty("spark.jobGroup.id", cast("str", None))
    assert jobs[0] > jobs[1] == 1


@pytest.mark.slow
def test_maintenance_of_a_small_table_runs_few_tasks(spark: SparkSession, bench: SparkBench) -> None:
    engine = bench.engine()
    engine.create()
    engine.append(APP, 0, bench.frame(table_of([change("a", 1, "1")])))
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup(group := f"{bench.path}-maintenance", "maintenance")
    try:
        engine.maintain(24)
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", cast("str", None))
    assert 0 < sum(stage.numTasks for stage in stages if stage is not None) < 1000


@pytest.mark.parametrize(
    ("play", "mode", "fold_rows_min", "writes"),
    [
        pytest.param(play_evolution, "DROPMALFORMED", 0, 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(play_story, "PERMISSIVE", 0, 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_typed_tables_are_exact(
    bench: SparkBench, play: Callable[..., TypedPlay], mode: str, fold_rows_min: int, writes: int | None
) -> None:
    played = play(bench, mode, fold_rows_min=fold_rows_min, writes=writes)
    assert (played.deaths > 0) == (writes is not None)


@pytest.mark.slow
def test_a_document_that_does_not_fit_ends_a_fold(bench: SparkBench) -> None:
    play_failfast(bench)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_typed_tables_and_rejects_in_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "tables"
    path.mkdir()
    spark.sql("CREATE SCHEMA IF NOT EXISTS typed")
    names = {"changes": "typed.changes", "current": "typed.current", "live": "typed.live", "rejects": "typed.rejects"}
    bench = SparkBench(spark, path, **names)

    def seen(name: str, *columns: str) -> set[tuple[Any, ...]]:
        return {tuple(row) for row in spark.table(f"typed.{name}").select("key", *columns).collect()}

    try:
        pipeline = pipeline_of(bench, schema="age INT, at TIMESTAMP_NTZ", fold_rows_min=1000)
        rows = [change("a", 1, '{"age": 1, "to": {"zip code": 1, "n": 2}}'), change("b", 2, '{"age": "x"}')]
        pipeline.apply_batch(APP, 0, bench.frame(table_of(rows)))
        report = pipeline.fold()
        assert report is not None
        assert (report.current_rows, report.rejected) == (2, 1)
        rows = [change("a", 3, '{"age": "void"}'), change("c", 4, b"\xff")]
        pipeline.apply_batch(APP, 1, bench.frame(table_of(rows)))
        assert seen("current", "age") == {("a", 1), ("b", None)}
        assert seen("live", "age") == {("a", None), ("b", None), ("c", None)}
        assert {key for (key,) in seen("rejects")} == {"a", "b", "c"}
        # A reader sees no void row while a rollback waits for its fold.
        engine = pipeline.engine
        engine.append(APP, 2, bench.frame(table_of([rollback(0, 2)])))
        assert seen("live", "age") == {("a", 1), ("b", None)}
        assert seen("rejects", "reason", "_batch_id") == {("b", "not of the schema's type: age", 0)}
        again = pipeline_of(bench, schema="age BIGINT, to STRUCT<n: INT>", fold_rows_min=1000)
        again.fold()
        again.apply_batch(
            APP, 3, bench.frame(table_of([change("d", 3, '{"age": 9223372036854775807, "to": {"n": 3}}')]))
        )
        assert seen("live", "age", "to.n") == {("a", 1, 2), ("b", None, None), ("d", 2**63 - 1, 3)}
        assert spark.table("typed.current").columns[-4:] == ["age", "at", "to", "_corrupt_record"]
    finally:
        spark.sql("DROP SCHEMA typed CASCADE")


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 2])
def test_rejects_and_another_schema_are_exact_while_a_rollback_waits(bench: SparkBench, writes: int) -> None:
    play_interrupted(bench, writes)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["live", "rejects"])
def test_a_catalog_without_views_is_refused_at_the_start(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, option: str
) -> None:
    """The fold was the first to make the view: hours later, after all batches so far."""
    spark.conf.set("spark.sql.catalog.plain", "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    spark.conf.set("spark.sql.catalog.plain.url", "jdbc:derby:memory:plain;create=true")
    spark.conf.set("spark.sql.catalog.plain.driver", "org.apache.derby.iapi.jdbc.AutoloadedDriver")
    view: dict[str, Any] = {option: "plain.APP.view"}
    pipeline = Pipeline(spark, tmp_path, bucket.options, schema="n INT", **view)
    with pytest.raises(ConfigError, match=rf"{option} cannot be 'plain.APP.view'.*call Pipeline\.{option}\(\)"):
        pipeline.start()
    assert not pipeline.is_running


@pytest.mark.slow
def test_a_view_is_there_before_the_first_fold(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.set_many("k", 30, "{}")
    is_written = threading.Event()
    pipeline = Pipeline(spark, tmp_path, bucket.options, live="early_live", on_batch=lambda _: is_written.set())
    try:
        with pipeline:
            pipeline.start()
            assert spark.table("early_live").columns[0] == "key"
            assert is_written.wait(patient(60))
            assert spark.table("early_live").count() == 30
            assert spark.read.format("delta").load(str(tmp_path / "current")).count() == 0
    finally:
        spark.sql("DROP VIEW IF EXISTS early_live")


@pytest.mark.slow
def test_spark_answers_as_the_other_engines(spark: SparkSession) -> None:
    """SQLite and delta-rs: `tests/unit/tables/test_fold_sql.py`."""
    for seed in range(6):
        changes, current, query = random_tables(random.Random(seed))
        spark.createDataFrame(changes).createOrReplaceTempView("changes")
        spark.createDataFrame(current).createOrReplaceTempView("current")
        for sql in questions(query):
            assert rows_of(spark.sql(sql).toArrow()) == rows_of(answered(changes, current, sql)), sql


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark_finds_the_versions_that_the_model_has(spark: SparkSession) -> None:
    """All lives in one query: each has vbuckets and a scope of its own."""
    lives, expected = [], []
    for seed in range(40):
        changes, versions_of_life = played(seed)
        offset = pa.scalar(VBUCKETS * seed, changes.schema.field("vbucket").type)
        lives.append(
            changes.set_column(
                changes.schema.get_field_index("vbucket"),
                changes.schema.field("vbucket"),
                pc.add(changes.column("vbucket"), offset),
            )
        )
        expected += [(vbid + VBUCKETS * seed, *rest) for vbid, *rest in versions_of_life]
    # Of a table in several chunks, Spark 4.2 takes only the first ones.
    frame = spark.createDataFrame(pa.concat_tables(lives).combine_chunks())
    frame.createOrReplaceTempView("lives")
    try:
        rows = spark.sql(versions("lives")).toArrow()
    finally:
        spark.catalog.dropTempView("lives")
    assert tuple(rows.schema.names) == VERSION_COLUMNS
    assert found_in(rows.to_pylist()) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_keeps_every_version_of_a_bucket_with_history(spark: SparkSession, tmp_path: Path) -> None:
    settings = BucketSettings(history_retention_s=3600)
    with Node(vbuckets=4, settings=settings) as node:
        options = {"connectionString": node.connection_string, "bucket": "default", "history": "true"}
        options |= {"username": node.username, "password": node.password}
        with KvClient(node.connection_string, node.username, node.password, "default") as kv:
            for number in range(3):
                kv.set("k", str(number))
            kv.delete("k")
            kv.set("k", "3")
        with Pipeline(spark, str(tmp_path), options) as pipeline:
            pipeline.run(until="available")
            found: Any = pipeline.versions()
            rows = found.where("key = 'k'").orderBy("seqno").toArrow().to_pylist()
    assert [(row["value"], row["is_current"]) for row in rows] == [
        (b"0", False),
        (b"1", False),
        (b"2", False),
        (b"3", True),
    ]
    assert [row["valid_to_seqno"] for row in rows[:2]] == [row["seqno"] for row in rows[1:3]]
    assert rows[2]["valid_to_seqno"] == rows[2]["seqno"] + 1 == rows[3]["seqno"] - 1
    assert [row["valid_to"] for row in rows[:2]] == [row["valid_from"] for row in rows[1:3]]
