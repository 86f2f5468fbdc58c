"""The data source in Spark itself: found, read, refused. What holds on every version is in `test_every_version`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.spark import Bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_an_empty_bucket_gives_no_rows(spark: SparkSession, bucket: Bucket) -> None:
    assert spark.read.format("dcp").options(**bucket.options).load().count() == 0


@pytest.mark.slow
def test_latest_starts_at_what_comes(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.set_many("old", 20, "1")
    seen: list[str] = []
    stream = spark.readStream.format("dcp").options(**bucket.options).load()
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: seen.extend(row["key"] for row in frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        bucket.set_many("new", 5, "1")
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(seen) == [f"new{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "Did you mean startingOffsets"),
        ({"valueFormat": "json"}, "valueFormat cannot be 'json'. Allowed: one of binary, string"),
        ({"password": "wrong"}, "AuthenticationFailed.*Administrator"),
        ({"bucket": "nothing"}, "no such bucket"),
        ({"connectionString": "couchbase://127.0.0.1:1", "idleTimeout": "0.1", "connectTimeout": "0.3"}, "127.0.0.1:1"),
    ],
)
def test_a_mistake_is_reported_by_name(
    spark: SparkSession, bucket: Bucket, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=f"(?s){message}"):
        spark.read.format("dcp").options(**{**bucket.options, **options}).load().count()


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"startingOffset": "latest"}, "key STRING", "Did you mean startingOffsets"),
        ({"endingOffsets": '{"0": 5}'}, "key STRING", "endingOffsets"),
        ({}, "key INT", "Allowed: key STRING"),
    ],
)
def test_a_mistake_in_a_stream_with_a_schema_is_reported_by_name(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, options: dict[str, str], schema: str, message: str
) -> None:
    stream = spark.readStream.format("dcp").options(**{**bucket.options, **options}).schema(schema).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=f"(?s)ConfigError.*{message}"):
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.slow
def test_a_corrupt_checkpoint_is_reported(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    def run() -> None:
        stream = spark.readStream.format("dcp").options(**bucket.options, startingOffsets="earliest").load()
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    bucket.set_many("k", 20, "1")
    run()
    log = tmp_path / "checkpoint" / "offsets" / "0"
    version, metadata, offset = log.read_text(encoding="utf-8").split("\n")
    for name in log.parent.glob(".*.crc"):
        name.unlink()
    damaged = json.loads(offset)
    damaged["vbuckets"] = "minus one"
    log.write_text("\n".join([version, metadata, json.dumps(damaged)]), encoding="utf-8")
    with pytest.raises(Exception, match=r"offset is damaged.*another checkpointLocation"):
        run()
    foreign = {**json.loads(offset), "bucket": "other"}
    log.write_text("\n".join([version, metadata, json.dumps(foreign)]), encoding="utf-8")
    with pytest.raises(Exception, match="belongs to bucket 'other'"):
        run()
