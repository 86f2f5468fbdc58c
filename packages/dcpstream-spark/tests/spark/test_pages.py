"""The parts of programs on Spark that pages show, run in the order of the page, with what the page takes for granted.

`tests/kit/pages.py` says which blocks these are. The paths of the pages, below /data, are replaced by ones of the test,
and the address of the cluster by that of a node.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dcpstream_spark import Pipeline
from tests.kit.pages import Block, all_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.spark import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGES = {
    page: [block for block in group if block.kind == "fragment"]
    for page, group in groupby(all_blocks(), lambda block: block.page)
}
Names = dict[str, Any]


def tables(names: Names, path: Path) -> None:
    """A pipeline's tables, as `keep-tables` makes them."""
    names["pipeline"] = Pipeline(names["spark"], path / "default", names["access"])
    names["pipeline"].run(until="available")


def tables_of_flights(names: Names, path: Path) -> None:
    Pipeline(names["spark"], path / "flights", names["access"]).run(until="available")
    names["options"] = names["access"]


def tables_in_a_catalog(names: Names, path: Path) -> None:
    tables(names, path)
    names["Pipeline"] = Pipeline
    spark = names["spark"]
    names["later"].callback(spark.sql, "DROP SCHEMA lake CASCADE")  # other tests share the session's catalog
    spark.sql("CREATE SCHEMA lake")
    Pipeline(
        names["spark"],
        path / "lake",
        names["access"],
        changes="lake.changes",
        current="lake.current",
        live="lake.live",
    ).run(until="available")


def rows_to_write(names: Names, path: Path) -> None:
    spark, node = names["spark"], names["bucket"].node
    names["orders"] = spark.createDataFrame([("order::1", 7)], "order_id STRING, total INT")
    node.create_bucket("copy")
    for name in ("default", "copy"):
        node.set_collections(name, {"reports": ["words"]})
    # The counts go into the same bucket, so the stream leaves their collection out.
    read = names["access"] | {"startingOffsets": "earliest", "collections": "_default._default"}
    words = spark.readStream.format("dcp").options(**read).load()
    names["counts"] = words.groupBy(words["key"].alias("word")).count()


def changes(names: Names, path: Path) -> None:
    names["changes"] = names["spark"].read.format("dcp").options(**names["access"]).load()


def collections(names: Names, path: Path) -> None:
    names["bucket"].node.set_collections("default", {"sales": ["orders", "returns"]})


SETUPS: dict[str, Callable[[Names, Path], None]] = {
    "docs/how-to/compare-a-table.md": tables_of_flights,
    "docs/how-to/keep-tables.md": collections,
    "docs/how-to/query-tables.md": tables_in_a_catalog,
    "docs/how-to/write-from-spark.md": rows_to_write,
    "docs/reference/spark-compared.md": changes,
}
"""Page → what it takes for granted, beside `spark` and `access`."""


@pytest.mark.parametrize("page", [page for page, fragments in PAGES.items() if fragments])
def test_the_parts_of_the_page_run(
    page: str, spark: SparkSession, bucket: Bucket, tmp_path: Path, record_property
) -> None:
    bucket.set(**{f"user:{n}": f'{{"name": "N{n}", "address": {{"city": "Oslo"}}, "age": {n}}}' for n in range(20)})
    data = tmp_path / "data"
    fragments = PAGES[page]
    record_property("blocks", len(fragments))
    with contextlib.ExitStack() as later:
        names: Names = {"spark": spark, "access": bucket.options, "bucket": bucket, "later": later}
        SETUPS.get(page, lambda *_: None)(names, data)
        for fragment in fragments:
            run(fragment, names, data)
        for query in spark.streams.active:
            query.processAllAvailable()
    if page == "docs/how-to/write-from-spark.md":
        assert bucket.documents(["order::1"]) == {"order::1": '{"total":7}'}
        words = spark.read.format("dcp").options(**bucket.options, collections="reports.words").load()
        counted = {*(f"user:{n}" for n in range(20)), "order::1"}
        assert {row["key"] for row in words.where("op = 'mutation'").collect()} == counted
        copies = spark.read.format("dcp").options(**{**bucket.options, "bucket": "copy"}).load()
        assert copies.where("op = 'mutation'").select("collection", "key").distinct().count() == 2 * len(counted)


def run(fragment: Block, names: Names, data: Path) -> None:
    code = fragment.code.replace("couchbase://127.0.0.1", names["bucket"].node.connection_string)
    code = re.sub(r"/(data|lake)/", f"{data}/", code)
    if fragment.language == "sql":
        for statement in filter(str.strip, code.split(";")):
            names["spark"].sql(statement).collect()
    else:
        exec(compile(code, fragment.name, "exec"), names)
