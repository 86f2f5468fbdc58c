"""Promises of the source on every version of Spark; `make test-spark-matrix` runs these tests on all of them.

A test that needs a feature which a version lacks is skipped there, with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dcpstream_spark import Pipeline
from dcpstream_spark.jars import CONNECTORS, TableFormat
from tests.kit.spark import Bucket, current_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.every_spark]


def require_connector(spark: SparkSession, table_format: TableFormat) -> None:
    series = spark.version.rpartition(".")[0]
    if (table_format, series) not in CONNECTORS:
        pytest.skip(f"no connector of {table_format} is published for Spark {series}")


def stream_of(spark: SparkSession, bucket: Bucket, **options: str) -> DataFrame:
    given = {**bucket.options, "startingOffsets": "earliest", "valueFormat": "string", **options}
    return spark.readStream.format("dcp").options(**given).load()


def run_available(writer: Any, checkpoint: Path) -> list[Any]:
    """Run a query over what is there now; returns its progress."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return list(query.recentProgress)


def test_a_batch_reads_a_bucket(spark: SparkSession, bucket: Bucket) -> None:
    bucket.set_many("k", 300, '{"n": 1}')
    bucket.delete("k0", "k1")
    frame = spark.read.format("dcp").options(**bucket.options, valueFormat="string").load()
    counts = {row["_change_type"]: row["count"] for row in frame.groupBy("_change_type").count().collect()}
    assert counts == {"insert": 298, "delete": 2}
    row = frame.where("key = 'k7'").selectExpr("get_json_object(value, '$.n') n", "collection", "op").collect()[0]
    assert (row["n"], row["collection"], row["op"]) == ("1", "_default", "mutation")


def test_a_stream_resumes_exactly(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    def run() -> int:
        stream = stream_of(spark, bucket, maxOffsetsPerTrigger="40", columns="key,vbucket,seqno")
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        return sum(progress.numInputRows for progress in run_available(writer, tmp_path / "checkpoint"))

    bucket.set_many("k", 100, "1")
    assert run() == 100
    bucket.set_many("k", 30, "2")
    assert run() == 30
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert rows.count() == rows.select("vbucket", "seqno").distinct().count() == 130
    assert run() == 0


@pytest.mark.slow
def test_with_the_checkpoint_every_run_keeps_the_limit(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """Also the first one of a new query; before Spark 4.2 a run is one batch."""
    bucket.set_many("k", 100, "1")
    checkpoint = tmp_path / "checkpoint"
    rows: list[int] = []
    for _ in range(5):
        stream = stream_of(spark, bucket, maxOffsetsPerTrigger="40", checkpointLocation=str(checkpoint))
        progress = run_available(stream.writeStream.format("noop"), checkpoint)
        rows += [one.numInputRows for one in progress if one.numInputRows]
        if sum(rows) >= 100:
            break
    assert sum(rows) == 100
    assert max(rows) <= 40


@pytest.mark.slow
def test_a_run_of_a_pipeline_is_whole(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    from dcpstream_spark.data_source import HAS_ADMISSION_CONTROL

    if HAS_ADMISSION_CONTROL:
        pytest.skip("since Spark 4.2 one run has several batches")
    bucket.set_many("k", 100, "1")
    options = {**bucket.options, "maxOffsetsPerTrigger": "40"}
    with Pipeline(spark, tmp_path / "tables", options, engine="delta-rs") as pipeline:
        assert pipeline.run().rows == 100
        assert len(current_of(pipeline)) == 100


@pytest.mark.slow
def test_a_rollback_is_a_control_row(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    seen: list[Any] = []

    def run() -> None:
        stream = stream_of(spark, bucket, onRollback="rewindAndMark", columns="key,value,op,vbucket,seqno")
        writer = stream.writeStream.foreachBatch(lambda frame, _: seen.append(frame.collect()))
        run_available(writer, tmp_path / "checkpoint")

    bucket.set_many("kept", 50, "1")
    bucket.stop_flushing()
    bucket.set_many("lost", 50, "1")
    run()
    bucket.crash()
    bucket.set_many("new", 50, "1")
    run()
    state: dict[tuple[int, int], str] = {}
    for row in (row for batch in seen for row in batch):
        if row["op"] == "rollback":
            state = {at: key for at, key in state.items() if at[0] != row["vbucket"] or at[1] <= row["seqno"]}
        elif row["key"] is not None:
            state[row["vbucket"], row["seqno"]] = row["key"]
    assert sorted(state.values()) == sorted(f"{name}{n}" for name in ("kept", "new") for n in range(50))


def test_an_error_of_a_batch_is_one_sentence(spark: SparkSession, bucket: Bucket) -> None:
    frame = spark.read.format("dcp").options(**{**bucket.options, "password": "wrong"}).load()
    with pytest.raises(Exception, match="check username and password") as raised:
        frame.count()
    assert "Traceback" not in str(raised.value)


@pytest.mark.slow
def test_an_error_of_a_stream_is_one_sentence(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    writer = stream_of(spark, bucket, password="wrong").writeStream.format("noop")
    with pytest.raises(Exception, match="check username and password") as raised:
        run_available(writer, tmp_path)
    assert "Traceback" not in str(raised.value)


@pytest.mark.slow
def test_delta_holds_a_stream(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    require_connector(spark, "delta")
    bucket.set_many("k", 100, '{"n": 1}')
    writer = stream_of(spark, bucket).writeStream.format("delta").option("path", str(tmp_path / "table"))
    run_available(writer, tmp_path / "checkpoint")
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert table.count() == table.select("key").distinct().count() == 100


@pytest.mark.slow
def test_iceberg_holds_a_stream(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    require_connector(spark, "iceberg")
    bucket.set_many("k", 100, '{"n": 1}')
    spark.sql("CREATE TABLE IF NOT EXISTS iceberg.tests.changes (key STRING, seqno BIGINT) USING iceberg")
    query = (
        stream_of(spark, bucket, columns="key,seqno")
        .writeStream.format("iceberg")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .toTable("iceberg.tests.changes")
    )
    query.awaitTermination()
    table = spark.table("iceberg.tests.changes")
    assert table.count() == table.select("key").distinct().count() == 100


@pytest.mark.slow
def test_a_run_over_what_is_there_has_several_batches(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    from dcpstream_spark.data_source import HAS_ADMISSION_CONTROL

    if not HAS_ADMISSION_CONTROL:
        pytest.skip("before Spark 4.2, Trigger.AvailableNow is one batch")
    bucket.set_many("k", 100, "1")
    stream = stream_of(spark, bucket, maxOffsetsPerTrigger="30")
    progress = run_available(stream.writeStream.format("noop"), tmp_path)
    rows = [one.numInputRows for one in progress if one.numInputRows]
    assert sum(rows) == 100
    assert max(rows) <= 30


@pytest.mark.slow
def test_the_progress_shows_the_lag(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    from dcpstream_spark.data_source import HAS_ADMISSION_CONTROL

    if not HAS_ADMISSION_CONTROL:
        pytest.skip("before Spark 4.2, a source cannot report the newest offset")
    bucket.set_many("k", 20, "1")
    progress = run_available(stream_of(spark, bucket).writeStream.format("noop"), tmp_path)
    assert json.loads(progress[-1].sources[0].latestOffset)["lag"] == 0
