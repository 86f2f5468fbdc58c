"""Play the stories of the Delta engine, and a pipeline, in another kind of session than that of the other tests.

    python -m tests.spark.session_stories connect DIRECTORY sc://HOST:PORT
    python -m tests.spark.session_stories built-in DIRECTORY JARS
    python -m tests.spark.session_stories s3 DIRECTORY JARS@ENDPOINT

A process has one kind of session: that of Spark Connect, a classic one in which Delta is built in, so that the list of
extensions is empty, or one with tables and checkpoint in an object store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from dcpstream.errors import ConfigError, DcpstreamError, LeaseRefused, LocalProtocolError
from dcpstream_spark import Pipeline, build_session
from dcpstream_spark.session import SHORT_RUN, TABLE_SETTINGS, cluster_partitions, use_this_python, warehouse_settings
from dcpstream_spark.tables import BatchReport, FoldReport, PipelineProgress, compare
from dcpstream_spark.tables.sessions import is_connect
from dcpstream_spark.tables.small_files import SparkFiles
from dcpstream_spark.tables.table_reading import open_table
from tests.kit.spark import Bucket
from tests.kit.waiting import wait_until
from tests.spark.test_engines import STORIES, play_during_folds, play_to_the_end, played_together
from tests.spark.test_spark_engine import SOME, SparkBench, play_lost_history
from tests.spark.typed_stories import play_story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


def main(kind: str, path: Path, place: str, stories: Sequence[str]) -> None:
    sessions = {"connect": lambda: connected(place), "s3": lambda: with_object_store(place)}
    spark = sessions.get(kind, lambda: with_delta_built_in(path, place))()
    told = {
        "short": play_short,
        "engine": play_engine,
        "all": play_all,
        "folds": play_folds,
        "typed": play_typed,
        "files": play_files,
        "history": lambda spark, directory: play_lost_history(spark, bench_in(spark, directory)),
        "pipeline": play_pipeline,
        "purged": play_purged,
        "tables": play_tables,
        "views": play_views,
        "client": play_client,
        "killed": play_killed,
    }
    for story in stories:
        directory = path / story
        directory.mkdir()
        told[story](spark, directory)
        print("exact", story, flush=True)
    spark.stop()


def connected(url: str) -> SparkSession:
    from pyspark.sql import SparkSession

    spark: SparkSession = SparkSession.builder.remote(url).getOrCreate()
    assert not hasattr(spark, "_jvm")
    return spark


def with_delta_built_in(path: Path, jars: str) -> SparkSession:
    from pyspark.sql import SparkSession

    use_this_python()
    settings = {name: value for name, value in TABLE_SETTINGS["delta"].items() if name != "spark.sql.extensions"}
    settings |= {**warehouse_settings(path / "warehouse"), "spark.jars": jars, "spark.ui.enabled": "false"}
    settings |= {"spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2"}
    settings |= SHORT_RUN
    builder: Any = SparkSession.builder.master("local[2,4]")
    spark: SparkSession = builder.config(map=settings).getOrCreate()
    assert spark.conf.get("spark.sql.extensions", "") == ""
    return spark


def with_object_store(place: str) -> SparkSession:
    jars, _, endpoint = place.partition("@")
    s3 = "spark.hadoop.fs.s3a."
    settings = {f"{s3}endpoint": endpoint, f"{s3}endpoint.region": "us-east-1", f"{s3}path.style.access": "true"}
    settings |= {f"{s3}access.key": "anybody", f"{s3}secret.key": "secret", "spark.jars": jars}
    return build_session(checkpoint=BUCKET_URL, settings={**SHORT_RUN, **settings})


BUCKET_URL = "s3a://lake"
"""The bucket of the object store, which is there."""


def tables_in(path: Path) -> str:
    """The place of a story's tables."""
    return f"{BUCKET_URL}/{path.name}/tables" if sys.argv[1] == "s3" else str(path / "tables")


def bench_in(spark: SparkSession, path: Path) -> SparkBench:
    bench = SparkBench(spark, path)
    assert bench.engine().name == "delta"
    return bench


def play_short(spark: SparkSession, path: Path) -> None:
    play_to_the_end(bench_in(spark, path), STORIES["a drop and a rollback in one batch"], 0, 1)


def play_engine(spark: SparkSession, path: Path) -> None:
    play_to_the_end(bench_in(spark, path), played_together(SOME), 1000, 1)


def play_all(spark: SparkSession, path: Path) -> None:
    play_to_the_end(bench_in(spark, path), played_together(tuple(STORIES)), 0, 1)


def play_folds(spark: SparkSession, path: Path) -> None:
    assert play_during_folds(bench_in(spark, path), played_together(SOME)[:1]) > 0


def play_typed(spark: SparkSession, path: Path) -> None:
    assert play_story(bench_in(spark, path), "PERMISSIVE", fold_rows_min=0, writes=1).deaths > 0


def play_files(spark: SparkSession, path: Path) -> None:
    files = SparkFiles(spark, str(path / "files"))
    assert files.contents() == {}
    assert files.create("1", b'{"a": "\xc3\xa4"}')
    assert not files.create("1", b"other")
    assert files.contents()["1"] == b'{"a": "\xc3\xa4"}'
    for turn in range(3):
        files.replace("1", str(turn).encode())
        assert files.contents()["1"] == str(turn).encode()
    assert files.create("2", b"two")
    assert sorted(files.contents()) == ["1", "2"]
    files.delete("1")
    assert sorted(files.contents()) == ["2"]
    assert files.create("1", b"again")
    assert files.contents()["1"] == b"again"
    (path / "files" / "7").write_bytes(b"of an earlier release")
    assert files.contents()["7"] == b"of an earlier release"
    files.replace("2", b"newer")
    # Another process writes the place that does not count, and is killed.
    part = next((path / "files" / "2" / "0").glob("part-*"))
    part.unlink()
    assert files.contents()["2"] == b"newer"


STARTS = 20
"""Attempts to start a query: Spark gives its Python process ten seconds to connect, which a busy machine exceeds."""


def run(pipeline: Pipeline) -> PipelineProgress:
    """Run over what is there; a pipeline goes on where it was."""
    return again(lambda: pipeline.run(until="available"))


def again(start: Callable[[], T]) -> T:
    """Start again where the machine was too busy."""
    for _ in range(STARTS):
        try:
            return start()
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
            print("busy", flush=True)
    raise AssertionError(f"no start in {STARTS} attempts")


def documents_in(pipeline: Pipeline) -> dict[str, str]:
    live: Any = pipeline.live()
    rows = live.select("key", "value").collect()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: bytes(row["value"]).decode() for row in rows}


def play_pipeline(spark: SparkSession, path: Path) -> None:
    """Updates, deletions, a rollback, and a second pipeline, in the whole query."""
    assert cluster_partitions(spark) == 2
    bucket = Bucket(path / "node")
    batches: list[BatchReport] = []
    folds: list[FoldReport] = []
    options = {**bucket.options, "maxOffsetsPerTrigger": "150"}

    def pipeline_of(**more: Any) -> Pipeline:
        return Pipeline(
            spark, tables_in(path), options, on_batch=batches.append, on_fold=folds.append, fold_rows_min=60, **more
        )

    bucket.set_many("k", 200, "1")
    with pipeline_of() as pipeline:
        assert pipeline.engine.name == "delta"
        assert run(pipeline).rows == 200
    assert sum(one.rows for one in batches) == 200
    assert [one.batch_id for one in batches] == list(range(len(batches)))
    assert folds[-1].current_rows == 200
    bucket.set_many("k", 10, "2")
    bucket.delete("k10")
    bucket.stop_flushing()
    bucket.set_many("lost", 20, "1")
    with pipeline_of() as pipeline:
        run(pipeline)
        assert documents_in(pipeline) == bucket.documents(
            [f"k{n}" for n in range(200)] + [f"lost{n}" for n in range(20)]
        )
        bucket.crash()
        bucket.set_many("new", 5, "3")
        assert run(pipeline).rollbacks > 0
    found = documents_in(pipeline_of())
    assert found == bucket.documents(
        [f"k{n}" for n in range(200)] + [f"{name}{n}" for name in ("lost", "new") for n in range(20)]
    )
    assert compare(spark, f"{tables_in(path)}/current", bucket.options, also=("seqno",)).is_equal
    bucket.node.stop()


def play_purged(spark: SparkSession, path: Path) -> None:
    """Deletions are purged that no batch has seen; then the tables are maintained."""
    bucket = Bucket(path / "node")
    bucket.set_many("k", 50, "1")
    with Pipeline(spark, tables_in(path), bucket.options) as pipeline:
        run(pipeline)
    bucket.delete(*(f"k{n}" for n in range(10)))
    bucket.set_many("new", 5, "2")
    bucket.node.inject("purge", bucket="default")
    with Pipeline(spark, tables_in(path), bucket.options) as pipeline:
        run(pipeline)
        pipeline.maintain()
        assert documents_in(pipeline) == bucket.documents(
            [*(f"k{n}" for n in range(50)), *(f"new{n}" for n in range(5))]
        )
        assert len(documents_in(pipeline)) == 45
    assert compare(spark, f"{tables_in(path)}/current", bucket.options, also=("seqno",)).is_equal
    bucket.node.stop()


def play_client(spark: SparkSession, path: Path) -> None:
    """What a client may do while the server writes, and what the server does once the client's lease is gone."""
    bucket = Bucket(path / "node")
    bucket.set_many("k", 50, "1")
    batches: list[BatchReport] = []
    pipeline = Pipeline(spark, path / "tables", bucket.options, on_batch=batches.append)
    again(lambda: pipeline.start(trigger="200 milliseconds"))
    wait_until(lambda: len(batches) > 0, "no report came")
    for call in (pipeline.fold, pipeline.maintain):
        with pytest.raises(LocalProtocolError, match="after it has ended"):
            call()
    with pytest.raises(LeaseRefused, match="its tables are kept by"):
        Pipeline(spark, path / "tables", bucket.options).run()
    # Another one takes the lease.
    SparkFiles(spark, str(path / "tables" / "checkpoint" / "dcp-lease")).create("2", b"{}")
    bucket.set_many("k", 10, "2")
    wait_until(lambda: not pipeline.is_running, "the server went on without a lease")
    assert isinstance(pipeline.failure, Exception)
    assert "no longer by the client" in str(pipeline.failure)
    with contextlib.suppress(DcpstreamError):
        pipeline.stop()
    changes = spark.read.format("delta").load(str(path / "tables" / "changes"))
    assert changes.where("value IS NOT NULL").count() == 50
    with pytest.raises(ConfigError, match="over Spark Connect the tables are the server's"):
        Pipeline(spark, path / "other", bucket.options, engine="delta-rs")
    bucket.node.stop()


def play_killed(spark: SparkSession, path: Path) -> None:
    """The process of the server is killed in the middle of batches, and of what follows them."""
    bucket = Bucket(path / "node")
    options = {**bucket.options, "maxOffsetsPerTrigger": "40"}
    kills: list[int] = []

    def kill(report: BatchReport) -> None:
        if not kills or kills[-1] != report.batch_id:
            kills.append(report.batch_id)
            for worker in batch_workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)

    for turn in range(3):
        bucket.set_many("k", 200, str(turn))
        bucket.delete(f"k{turn}")
        pipeline = Pipeline(spark, path / "tables", options, on_batch=kill, fold_rows_min=50)
        with contextlib.suppress(Exception), pipeline:
            pipeline.run()
    assert kills
    with Pipeline(spark, path / "tables", options, fold_rows_min=50) as pipeline:
        run(pipeline)
        assert documents_in(pipeline) == bucket.documents(f"k{n}" for n in range(200))
    assert compare(spark, str(path / "tables" / "current"), bucket.options, also=("seqno",)).is_equal
    changes = spark.read.format("delta").load(str(path / "tables" / "changes")).where("key IS NOT NULL")
    assert changes.count() == changes.select("vbucket", "seqno").distinct().count()
    bucket.node.stop()


def batch_workers() -> list[int]:
    """The processes that write the batches of the server of this program."""
    port = sys.argv[3].rpartition(":")[2].encode()
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if one.name.isdecimal() and b"foreach_batch_worker" in (one / "cmdline").read_bytes():
                environ = (one / "environ").read_bytes().split(b"\0")
                found += [
                    int(one.name) for text in environ if text.startswith(b"SPARK_CONNECT_LOCAL_URL") and port in text
                ]
    return found


def play_tables(spark: SparkSession, path: Path) -> None:
    """One table for each collection; their ledger is on the server."""
    bucket = Bucket(path / "node")
    bucket.set_many("k", 30, '{"n": 1}')
    given: Any = {"tables": "{scope}.{collection}", "schema": "n INT"}
    for turn in ("2", "3"):
        with Pipeline(spark, path / "tables", bucket.options, **given) as pipeline:
            run(pipeline)
            table = spark.read.format("delta").load(str(path / "tables" / "_default._default" / "current"))
            assert {(row["key"], row["n"]) for row in table.select("key", "n").collect()} == {
                (f"k{n}", 1 if turn == "2" or n >= 5 else 2) for n in range(30)
            }
        bucket.set_many("k", 5, '{"n": 2}')
    bucket.node.stop()


def play_views(spark: SparkSession, path: Path) -> None:
    """Tables and views with names are made once, and found again; tables are also opened by their place."""
    bucket = Bucket(path / "node")
    bucket.set_many("k", 30, '{"n": 1}')
    bucket.set(bad='{"n": "x"}')
    spark.sql("CREATE SCHEMA IF NOT EXISTS seen")
    given: Any = {"live": "seen.live", "rejects": "seen.rejects", "schema": "n INT"}
    expected = dict.fromkeys((f"k{n}" for n in range(30)), 1)
    for turn in (2, 3):
        with Pipeline(spark, path / "tables", bucket.options, **given) as pipeline:
            run(pipeline)
        rows = spark.table("seen.live").where("key != 'bad'").select("key", "n").collect()
        assert {row["key"]: row["n"] for row in rows} == expected
        assert len(rows) == len(expected)
        assert [row["key"] for row in spark.table("seen.rejects").select("key").collect()] == ["bad"]
        bucket.set_many("k", 5, f'{{"n": {turn}}}')
        expected |= dict.fromkeys((f"k{n}" for n in range(5)), turn)
    place = str(path / "tables" / "current")
    assert {row["key"] for row in open_table(spark, place).select("key").collect()} == {*expected, "bad"}
    assert open_table(spark, "seen.live").count() == len(expected) + 1
    with pytest.raises(ConfigError, match="nothing at this path"):
        open_table(spark, f"{place}-of-nobody")
    if is_connect(spark):
        with pytest.raises(ConfigError, match="absolute path or a URL"):
            open_table(spark, "tables/current")
    bucket.node.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
