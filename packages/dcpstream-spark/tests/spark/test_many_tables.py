"""One query, many tables, end to end: a table for each collection, in directories and in a catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError
from dcpstream_spark import Pipeline
from dcpstream_spark.tables import compare
from dcpstream_spark.tables.engines import TableTarget, choose_parts
from dcpstream_spark.tables.table_names import TableNames
from lab.chaos.tables import read_delta
from tests.kit.spark import Bucket
from tests.kit.tables import (
    Died,
    DyingParts,
    Expected,
    Life,
    Row,
    assert_exact,
    live_of,
    pipeline_of,
    state_of,
)
from tests.unit.tables.test_many import STORY, apply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TABLES = "{scope}.{collection}"


@contextmanager
def kv(node: dcpstream_node.Node, collection: str) -> Iterator[KvClient]:
    with KvClient(
        node.connection_string,
        username="Administrator",
        password="password",
        bucket="default",
        collection=f"s.{collection}",
    ) as client:
        yield client


def write(node: dcpstream_node.Node, collection: str, count: int, value: str) -> None:
    with kv(node, collection) as client:
        client.set_many((f"k{n}", json.dumps({"n": n, "v": value}).encode()) for n in range(count))


def documents(table: Any) -> dict[str, bytes]:
    found: pa.Table = table if isinstance(table, pa.Table) else table.toArrow()
    return {row["key"]: row["value"] for row in found.to_pylist()}


@pytest.mark.slow
def test_new_and_dropped_collections_and_documents_of_the_system(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    node, path = bucket.node, tmp_path / "tables"
    node.set_collections("default", {"s": ["a", "b"]})
    write(node, "a", 30, "1")
    write(node, "b", 20, "1")
    with kv(node, "a") as client:
        client.set_many([("_txn:atr-7-#1", b"{}"), ("_txn:client-record", b"{}")])

    def run(**more: Any) -> Pipeline:
        pipeline = Pipeline(spark, path, bucket.options, engine="delta-rs", tables=TABLES, **more)
        pipeline.run(until="now")
        return pipeline

    pipeline = run()
    assert pipeline.tables == {"s.a": ("s.a",), "s.b": ("s.b",)}
    assert len(documents(read_delta(path / "s.a" / "current"))) == 30, "without records of transactions"
    assert len(documents(pipeline.live("s.b"))) == 20
    node.set_collections("default", {"s": ["a", "c"]})
    write(node, "a", 10, "2")
    write(node, "c", 5, "1")
    pipeline = run()
    assert set(pipeline.tables) == {"s.a", "s.b", "s.c"}
    assert [len(documents(read_delta(path / f"s.{name}" / "current"))) for name in "abc"] == [30, 0, 5]
    assert documents(pipeline.live("s.a"))["k9"] == b'{"n": 9, "v": "2"}'
    assert compare(spark, pipeline.live(), bucket.options).equal == 35
    report = compare(spark, pipeline.live("s.c"), {**bucket.options, "collections": "s.c"})
    assert (report.is_equal, report.equal) == (True, 5)
    # The records of transactions are in the bucket, and in no table.
    report = compare(spark, pipeline.live(), {**bucket.options, "systemDocuments": "true"})
    assert (report.equal, report.missing) == (35, 2)


class SparkMany:
    """Delta tables for each collection that Spark writes."""

    def __init__(self, spark: SparkSession, path: Path, **names: str) -> None:
        self.path = path
        rule = "{scope}_{collection}" if names else TABLES
        self.options: dict[str, Any] = {"tables": rule}
        self._spark = spark
        self._names = names
        target = TableTarget(str(path), "binary", **cast(Any, names))
        self.parts = choose_parts("auto", spark, target, TableNames(rule))

    def engine(self) -> Any:
        return self.parts

    def frame(self, table: pa.Table) -> DataFrame:
        return self._spark.createDataFrame(table)

    def rows(self, table: str) -> list[Row]:
        if table == "changes":
            places = [self._names.get("changes", f"delta.`{self.path}/changes`")]
        elif self._names:
            tables = pipeline_of(self).tables
            places = [self._names["current"].replace("{table}", name) for name in tables]
        else:
            places = [f"delta.`{one}`" for one in self.path.glob("*/current")]
        return [row for place in places for row in self._spark.sql(f"SELECT * FROM {place}").toArrow().to_pylist()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("writes", [100, 3, 6])
def test_spark_keeps_many_tables(spark: SparkSession, tmp_path: Path, writes: int) -> None:
    """Also if the process dies between two of them."""
    bench, expected = SparkMany(spark, tmp_path), Expected()
    life = Life(writes)
    pipeline = pipeline_of(bench, fold_rows_min=0, engine=cast(Any, DyingParts(bench.parts, life)))
    for number, batch in enumerate(STORY):
        expected.apply(number, batch)
        try:
            apply(bench, pipeline, number, batch)
        except Died:
            pipeline = pipeline_of(bench, fold_rows_min=0)
            apply(bench, pipeline, number, batch)
        assert_exact(bench, pipeline, expected)
    pipeline.fold()
    pipeline.maintain()
    assert_exact(bench, pipeline, expected, is_folded=True)
    assert {one.parent.name for one in tmp_path.glob("*/current")} >= {"_default._default", "s.a-b~20"}
    changes: Any = pipeline.changes("s.b")
    assert {row["collection"] for row in changes.toArrow().to_pylist()} == {"b", None}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_names_and_views_in_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE DATABASE many LOCATION '{tmp_path}/many'")
    names = {"changes": "many.changes", "current": "many.{table}", "live": "many.{table}_live"}
    bench, expected = SparkMany(spark, tmp_path, **names), Expected()
    views = {place: f"many.`{place[0]}_{place[1]}_live`" for place in (("s", "a"), ("s", "b"), ("s", "d"))}
    plain = [[row for row in batch if row["collection"] != "a-b%20"] for batch in STORY]
    for number, batch in enumerate(plain):
        expected.apply(number, batch)
        pipeline = pipeline_of(bench, fold_rows_min=1000)
        apply(bench, pipeline, number, batch)
        assert live_of(pipeline) == expected.current
        for place, view in views.items():
            rows = spark.sql(f"SELECT * FROM {view}").toArrow().to_pylist()
            assert state_of(rows) == {one: two for one, two in expected.current.items() if one[:2] == place}
    pipeline.fold()
    assert_exact(bench, pipeline, expected, is_folded=True)
    target = TableTarget(str(tmp_path / "other"), "binary", **cast(Any, names))
    with pytest.raises(ConfigError, match="has a dot"):
        choose_parts("auto", spark, target, TableNames(TABLES))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rollback_and_a_bucket_of_the_same_name_reach_every_table(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.node.set_collections("default", {"s": ["a", "b", "idle"]})
    options = {**bucket.options, "onBucketReset": "rebuild"}
    pipeline = Pipeline(spark, tmp_path / "tables", options, tables=TABLES, schema={"s.a": "n INT, v STRING"})
    for name in ("a", "b", "idle"):
        write(bucket.node, name, 40, "0")
    pipeline.run()
    bucket.stop_flushing()
    for name in "ab":
        write(bucket.node, name, 60, "lost")
    pipeline.run()
    assert len(documents(pipeline.live())) == 60
    bucket.crash()
    write(bucket.node, "a", 5, "2")
    progress = pipeline.run()
    assert progress.rollbacks > 0
    report = compare(spark, pipeline.live(), bucket.options, also=("seqno",))
    assert (report.is_equal, report.equal) == (True, 120), report
    rows = cast("DataFrame", pipeline.live("s.a")).toArrow().to_pylist()
    assert {row["v"] for row in rows} == {"0", "2"}
    bucket.node.drop_bucket("default")
    bucket.node.create_bucket("default", vbuckets=16)
    bucket.node.set_collections("default", {"s": ["b"]})
    write(bucket.node, "b", 7, "3")
    pipeline.run()
    assert [len(documents(pipeline.live(f"s.{name}"))) for name in ("a", "b", "idle")] == [0, 7, 0]
    assert compare(spark, pipeline.live(), bucket.options).is_equal
