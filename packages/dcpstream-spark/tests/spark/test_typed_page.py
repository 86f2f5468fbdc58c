"""The example of docs/how-to/keep-tables.md about typed columns, as it is written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dcpstream_spark import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.spark import Bucket

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_the_page_about_fields_as_columns(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    page = Path(__file__).parents[4].joinpath("docs", "how-to", "keep-tables.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r"^```python\n(.*?)^```\n", page.partition("## Fields of documents as columns")[2], re.MULTILINE | re.DOTALL
    )[:1]
    bucket.set(
        good='{"customer": "Ada", "total": 100.50, "lines": [{"sku": "x", "count": 2}], "more": 1}',
        small='{"customer": "Bob", "total": 1}',
        bad='{"customer": "Cyd", "total": 1e9, "lines": 1}',
    )
    names: dict[str, Any] = {"spark": spark, "Pipeline": Pipeline, "access": bucket.options}
    exec(code.replace("/data/orders", str(tmp_path / "orders")), names)
    assert [tuple(row) for row in names["orders"].collect()] == [("good", "Ada", ["x"])]
    (bad,) = names["misfits"].collect()
    assert (bad["key"], bad["reason"]) == ("bad", "not of the schema's type: total, lines")
    pipeline = Pipeline(spark, tmp_path / "orders", bucket.options, schema="infer")
    bucket.set(late='{"customer": 5}')
    assert pipeline.run(until="available").rows == 1
    assert {row["customer"] for row in pipeline.live().collect()} == {"Ada", "Bob", "Cyd", "5"}
    inferred = Pipeline(spark, tmp_path / "inferred", bucket.options, schema="infer")
    inferred.run(until="available")
    found = {row["key"]: (row["total"], row["more"]) for row in inferred.live().collect()}
    assert found == {"good": (100.5, 1), "small": (1.0, None), "bad": (1e9, None), "late": (None, None)}
