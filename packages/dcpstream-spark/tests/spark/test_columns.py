"""Columns, schemas and filters in Spark itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dcpstream_node
from dcpstream_node.summary import summarize_bucket
from dcpstream_spark.tables import compare
from tests.kit.spark import VBUCKETS, Bucket, access, kv_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DOCUMENTS = [
    b'{"name": "Ada", "age": 36, "born": "1815-12-10", "tags": ["a", "b"], "more": {"x": 1.005, "y": null}}',
    b'{"name": "Bob", "age": "x", "tags": [1, {"z": 2}], "at": "2024-05-01T10:00:00.123456+02:00"}',
    b'{"name": {"first": "Cyd"}, "age": 1.0, "ok": true, "map": {"k": {"x": "no"}, "l": {"x": 2}}}',
    b'{"age": 9223372036854775808, "ratio": 1e400, "ok": "true", "map": [], "data": "AAH/"}',
    b'{"ratio": "NaN", "age": 3, "born": "1815-12", "at": 60, "more": {"x": "1,234.5"}, "tags": null}',
    b"[1, 2]",
    b"{broken",
]
DDL = (
    "name STRING, age BIGINT, born DATE, tags ARRAY<STRING>, more STRUCT<x: DECIMAL(6,2), y: INT>, at TIMESTAMP, "
    "ok BOOLEAN, map MAP<STRING, STRUCT<x: INT>>, ratio DOUBLE, data BINARY, _corrupt_record STRING"
)


@pytest.fixture
def documents(bucket: Bucket) -> Bucket:
    with kv_of(bucket.node) as kv:
        for number, text in enumerate(DOCUMENTS):
            kv.set(f"k{number}", text)
    return bucket


def source(spark: SparkSession, bucket: Bucket, **options: str) -> Any:
    return spark.read.format("dcp").options(**bucket.options, **options)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.orderBy("key").collect()]


@pytest.mark.slow
def test_fields_of_documents_are_those_of_from_json(spark: SparkSession, documents: Bucket) -> None:
    from pyspark.sql.functions import from_json

    typed = rows_of(source(spark, documents).schema(f"key STRING, {DDL}").load())
    plain = source(spark, documents, columns="key,value_text").load()
    judged = rows_of(plain.select("key", from_json("value_text", DDL).alias("d")).select("key", "d.*"))
    assert len(typed) == len(DOCUMENTS)
    for one, other in zip(typed[:5], judged[:5], strict=True):
        assert repr(one) == repr(other)  # NaN differs from itself
    # from_json takes the first element of an array for the object, and keeps no text of what is none at all.
    nothing = dict.fromkeys(typed[0])
    assert typed[5:] == [{**nothing, "key": f"k{n}", "_corrupt_record": DOCUMENTS[n].decode()} for n in (5, 6)]


@pytest.mark.slow
def test_rows_without_values_from_disk_of_76(spark: SparkSession, tmp_path: Path) -> None:
    node = dcpstream_node.Node(vbuckets=2, path=tmp_path / "76", release="7.6")
    with node, kv_of(node) as kv:
        kv.set_many(((f"k{n}", b"1") for n in range(20)), flags=7)
        kv.delete_many(f"k{n}" for n in range(5))
    with node:
        frame = spark.read.format("dcp").options(**access(node))
        whole = frame.load()
        names = "key", "op", "cas", "rev", "flags", "expiry"
        expected = rows_of(whole.select(*names))
        assert [row["op"] for row in expected].count("deletion") == 5
        assert rows_of(frame.option("columns", ",".join(names)).load().select(*names)) == expected
        assert rows_of(frame.schema("key STRING, op STRING, cas BIGINT").load()) == [
            {name: row[name] for name in ("key", "op", "cas")} for row in expected
        ]
        report = compare(spark, whole.where("op = 'mutation'"), access(node), values="none", also=("cas",))
        assert (report.is_equal, report.equal) == (True, 15)


@pytest.mark.slow
def test_variant_is_what_parse_json_makes(spark: SparkSession, documents: Bucket) -> None:
    from pyspark.sql.functions import col, parse_json, to_json

    with kv_of(documents.node) as kv:
        kv.delete_many(["k6"])
        numbers = [0, -1, 127, 128, 32768, 2**31, 2**63 - 1, 2**63, 10**37, 10**38, 1.5, -1.25e10, 1e-7, 12345.678901]
        texts = ["", "é", "x" * 63, "x" * 64, "x" * 300]
        kv.set("k7", json.dumps({"n": numbers, "t": texts, **{f"f{n}": n for n in range(300)}}).encode())
        kv.set("k8", b"[" + b",".join(b'{"a":%d}' % n for n in range(300)) + b"]")
    variants = source(spark, documents, valueFormat="variant", where="op = 'mutation'", columns="key,value").load()
    assert dict(variants.dtypes)["value"] == "variant"
    texts_of = source(spark, documents, where="op = 'mutation'", columns="key,value_text").load()
    ours = {row[0]: row[1] for row in variants.select("key", to_json("value")).collect()}
    judged = {row[0]: row[1] for row in texts_of.select("key", to_json(parse_json(col("value_text")))).collect()}
    assert ours == judged
    assert len(ours) == 8
    ages = variants.selectExpr("key", "try_variant_get(value, '$.name', 'string') AS name").where("name = 'Ada'")
    assert [row["key"] for row in ages.collect()] == ["k0"]


@pytest.mark.slow
def test_inferred_fields(spark: SparkSession, documents: Bucket) -> None:
    frame = source(spark, documents, inferSchema="true", columns="key").load()
    text = [document.decode() for document in DOCUMENTS]
    judged = spark.read.json(spark.sparkContext.parallelize(text[:5] + text[6:])).schema
    assert {f.name: f.dataType for f in frame.schema if f.name != "key"} == {f.name: f.dataType for f in judged}
    assert frame.where("name = 'Ada'").count() == 1


@pytest.mark.slow
def test_binary_and_text_documents_differ(spark: SparkSession, bucket: Bucket) -> None:
    with kv_of(bucket.node) as kv:
        kv.set("binary", b"\xff\x00\x01")
        kv.set("text", rb"\xff\x00\x01")
    frame = source(spark, bucket, columns="key,value,value_text").load()
    assert [tuple(row) for row in frame.orderBy("key").collect()] == [
        ("binary", b"\xff\x00\x01", None),
        ("text", rb"\xff\x00\x01", r"\xff\x00\x01"),
    ]


def options_of(bucket: Bucket) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in bucket.options.items())


@pytest.fixture
def builtin(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with Spark's own catalog: with another one, Spark reads no table of a Python source."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    yield session
    session.sql("DROP VIEW IF EXISTS dcp_view")
    for name in ("dcp_table", "dcp_listed"):
        session.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.slow
def test_a_temporary_view(spark: SparkSession, bucket: Bucket) -> None:
    bucket.set_many("k", 20, '{"n": 1}')
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW dcp_shown USING dcp OPTIONS ({options_of(bucket)})")
    assert spark.table("dcp_shown").where("key LIKE 'k1%'").count() == 11
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW dcp_shown (n INT) USING dcp OPTIONS ({options_of(bucket)})")
    assert spark.sql("SELECT sum(n) FROM dcp_shown").collect()[0][0] == 20
    spark.sql("DROP VIEW dcp_shown")


@pytest.mark.slow
def test_tables_and_views(builtin: SparkSession, bucket: Bucket) -> None:
    spark, tables = builtin, options_of(bucket)
    bucket.set_many("k", 20, '{"n": 1}')
    spark.sql(f"CREATE TABLE dcp_table USING dcp OPTIONS ({tables}, columns 'seqno,key,value_text')")
    assert spark.table("dcp_table").columns == ["seqno", "key", "value_text"]
    assert spark.sql("SELECT count(*) FROM dcp_table WHERE key LIKE 'k1%'").collect()[0][0] == 11
    spark.sql("CREATE VIEW dcp_view AS SELECT key, get_json_object(value_text, '$.n') n FROM dcp_table")
    assert spark.sql("SELECT count(DISTINCT key), max(n) FROM dcp_view").collect()[0][:] == (20, "1")
    assert spark.sql("SELECT key FROM dcp_table WITH (where = 'key = ''k7''')").collect()[0][0] == "k7"


@pytest.mark.slow
def test_a_table_with_a_list_of_columns_takes_its_options_from_the_query(builtin: SparkSession, bucket: Bucket) -> None:
    spark, tables = builtin, options_of(bucket)
    bucket.set_many("k", 20, '{"n": 1}')
    spark.sql(f"CREATE TABLE dcp_listed (n INT, key STRING) USING dcp OPTIONS ({tables})")
    with pytest.raises(Exception, match="only if CREATE TABLE has no list of columns"):
        spark.table("dcp_listed").count()
    frame = spark.read.options(**bucket.options).table("dcp_listed")
    assert frame.columns == ["n", "key"]
    assert frame.selectExpr("sum(n)").collect()[0][0] == 20


def test_filters_are_pushed_down_and_stay_exact(spark: SparkSession, bucket: Bucket) -> None:
    bucket.set_many("k", 200, "1")
    bucket.delete("k1", "k2")
    condition = "vbucket IN (3, 5) AND key LIKE 'k1%' AND seqno > 2 AND op = 'mutation' AND key NOT LIKE '%9'"

    def read() -> list[Any]:
        return source(spark, bucket, columns="key,vbucket,seqno,op").load().where(condition).orderBy("key").collect()

    def items_sent() -> int:
        return sum(one.items_sent for one in summarize_bucket(bucket.node._bucket("default")).dcp)

    def physical_plan(frame: Any) -> str:
        return str(frame._jdf.queryExecution().executedPlan().toString())

    expected = read()
    assert "Filter (" in physical_plan(source(spark, bucket).load().where(condition))
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        assert read() == expected
        bucket.node.set_collections("default", {"shop": ["orders"]})
        sent = items_sent()
        orders = source(spark, bucket, columns="key,op,scope,collection").load().where("collection = 'orders'")
        assert [row["op"] for row in orders.collect()] == ["collection_created"] * VBUCKETS
        assert items_sent() - sent <= VBUCKETS, "the node sends no other collection"
        assert "Filter (" not in physical_plan(orders)
    finally:
        spark.conf.unset(setting)
    assert expected
