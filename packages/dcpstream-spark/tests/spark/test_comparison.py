"""A table compared with its bucket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError
from dcpstream_spark.tables import TableColumns, TableForm, compare
from tests.kit.access import LOGIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.spark import Bucket

COUNT = 300


@pytest.mark.slow
def test_every_difference_is_found(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.node.set_collections("default", {"shop": ["orders"]})
    values = {f"doc{n}": bytes((n % 256, 255, 0)) for n in range(COUNT)}
    with KvClient(bucket.node.connection_string, **LOGIN) as kv:
        kv.set_many(values.items())
    with KvClient(bucket.node.connection_string, **LOGIN, collection="shop.orders") as kv:
        kv.set_many([("doc1", b"x"), ("gone", b"x")])
        kv.delete("gone")
    rows = spark.read.format("dcp").options(**bucket.options).load().where("op = 'mutation'")
    good = str(tmp_path / "good")
    rows.write.parquet(good)
    report = compare(spark, good, bucket.options, also=("cas", "seqno"))
    assert (report.is_equal, report.equal) == (True, COUNT + 1)

    # One byte, one CAS, a missing and two extra documents (one of them deleted), one that is there twice.
    bad = rows.where("not (collection = '_default' and key = 'doc7')").selectExpr(
        "key",
        "case when key = 'doc3' then unhex('03FF01') else value end as value",
        "scope",
        "collection",
        "case when key = 'doc4' then cas + 1 else cas end as cas",
        "seqno",
    )
    more = bad.where("scope = 'shop'").selectExpr("'gone' as key", *bad.columns[1:])
    other = bad.where("scope = 'shop'").selectExpr("'other' as key", *bad.columns[1:])
    bad = bad.union(more).union(other).union(bad.where("key = 'doc9'"))
    found = compare(spark, bad, bucket.options, also=("cas",), values="bytes")
    assert (found.equal, found.different, found.missing, found.extra, found.duplicate) == (COUNT - 3, 2, 1, 2, 1)
    details = {(one.kind, one.scope, one.key): one.detail.split(" at ")[0] for one in found.examples}
    assert details["different", "_default", "doc3"] == "value"
    assert details["different", "_default", "doc4"] == "cas"
    assert details["extra", "shop", "gone"] == "deleted"
    assert details["extra", "shop", "other"] == "no change of it in the bucket"
    assert details["duplicate", "_default", "doc9"] == "2 rows"
    assert ("missing", "_default", "doc7") in details
    keys_only = compare(spark, bad.drop("value"), bucket.options, values="none", examples=0)
    assert (keys_only.different, keys_only.missing, keys_only.examples) == (0, 1, ())

    # Only one collection, and a table without columns for it.
    assert compare(spark, bad, {**bucket.options, "collections": "shop.*"}).extra == 2
    plain = rows.where("scope = 'shop'").selectExpr("key as k", "decode(value, 'UTF-8') as v")
    columns = TableColumns(key="k", value="v")
    assert compare(spark, plain, bucket.options, form=TableForm(columns=columns, collection="shop.orders")).equal == 1
    with pytest.raises(ConfigError, match="value column"):
        compare(spark, plain, bucket.options, form=TableForm(columns=TableColumns(key="k", value="nothing")))
    with pytest.raises(ConfigError, match=r"has no columns scope and collection\. Leave it out"):
        compare(spark, plain, {**bucket.options, "collections": "shop.orders"}, form=TableForm(columns=columns))


@pytest.mark.slow
def test_a_named_table_is_compared_as_it_is_now(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """The session has read the table before, and remembers its files. Another program adds one."""
    bucket.set_many("doc", 20, "1")
    path = tmp_path / "table"
    changes = spark.read.format("dcp").options(**bucket.options).load().where("op = 'mutation'").drop("xattrs")
    rows = changes.toArrow()
    path.mkdir()
    pq.write_table(rows.slice(0, 5), path / "first.parquet")
    try:
        spark.sql(f"CREATE TABLE remembered USING parquet LOCATION '{path}'")
        spark.sql("CREATE VIEW over_remembered AS SELECT * FROM remembered")
        for name in ("remembered", "over_remembered"):
            assert spark.table(name).count() == 5
        pq.write_table(rows.slice(5), path / "second.parquet")
        assert spark.table("remembered").count() == 5, "the session remembers"
        assert compare(spark, "over_remembered", bucket.options).equal == 20
        assert compare(spark, "remembered", bucket.options).is_equal
    finally:
        spark.sql("DROP VIEW IF EXISTS over_remembered")
        spark.sql("DROP TABLE IF EXISTS remembered")
