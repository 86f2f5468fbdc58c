"""The writer inside Spark: a DataFrame, a stream, a replayed batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import dcpstream_node
from dcpstream.client.kv.client import KvClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.kit.spark import Bucket

COUNT = 500


def read(node: dcpstream_node.Node, bucket: str, keys: list[str]) -> dict[str, bytes]:
    with KvClient(node.connection_string, "Administrator", "password", bucket) as kv:
        return {key: found.value for key, found in zip(keys, kv.get_many(keys), strict=True) if found is not None}


def write(frame: DataFrame, bucket: Bucket, **options: Any) -> None:
    frame.write.format("dcp").options(**bucket.options, **options).mode("append").save()


def test_a_data_frame(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    frame = spark.sql(f"select concat('k', id) as key, id as n, id / 4 as part, array(1, 2) as l from range({COUNT})")
    write(frame, bucket)
    found = read(bucket.node, "default", [f"k{n}" for n in range(COUNT)])
    assert {key: json.loads(value) for key, value in found.items()} == {
        f"k{n}": {"n": n, "part": n / 4, "l": [1, 2]} for n in range(COUNT)
    }
    some = spark.sql(f"select concat('k', id) as key, 'new' as v from range({COUNT - 10}, {COUNT + 10})")
    write(some, bucket, operation="insert", valueColumn="v", onReject="path", rejectsPath=str(tmp_path))
    refused = spark.read.json(str(tmp_path)).collect()
    assert {row["key"] for row in refused} == {f"k{n}" for n in range(COUNT - 10, COUNT)}
    assert {row["status"] for row in refused} == {"KEY_EEXISTS"}
    with pytest.raises(PySparkException, match=r"RowsRefused.*KEY_EEXISTS"):
        write(some, bucket, operation="insert", valueColumn="v", flags="9")


@pytest.mark.slow
def test_changes_into_another_bucket(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """A change set with deletions arrives, and arrives again without harm when the last batch is replayed."""
    bucket.node.create_bucket("copy", vbuckets=8)
    bucket.set_many("doc", COUNT, "1")
    target = {**bucket.options, "bucket": "copy", "opColumn": "op", "valueColumn": "value", "flagsColumn": "flags"}
    keys = [f"doc{n}" for n in range(COUNT)]
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        changes = spark.readStream.format("dcp").options(**bucket.options, startingOffsets="earliest").load()
        narrow = changes.select("key", "value", "op", "flags")
        writer = narrow.writeStream.format("dcp").options(**target).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    assert read(bucket.node, "copy", keys) == dict.fromkeys(keys, b"1")
    bucket.delete(*keys[:100])
    bucket.set(doc100="2")
    run()
    expected = {**dict.fromkeys(keys[100:], b"1"), "doc100": b"2"}
    assert read(bucket.node, "copy", keys) == expected
    _forget_last_commit(checkpoint)
    run()
    assert read(bucket.node, "copy", keys) == expected


@pytest.mark.slow
def test_a_replayed_batch_of_inserts(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.node.create_bucket("copy", vbuckets=8)
    bucket.set_many("doc", COUNT, "1")
    target = {**bucket.options, "bucket": "copy", "operation": "insert", "valueColumn": "value"}
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        changes = spark.readStream.format("dcp").options(**bucket.options, startingOffsets="earliest").load()
        writer = changes.select("key", "value").writeStream.format("dcp").options(**target)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    _forget_last_commit(checkpoint)
    run()
    keys = [f"doc{n}" for n in range(COUNT)]
    assert read(bucket.node, "copy", keys) == dict.fromkeys(keys, b"1")


def _forget_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint as a driver leaves it that dies after the tasks of its last batch."""
    commits = checkpoint / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    commits.joinpath(f".{last.name}.crc").unlink(missing_ok=True)
