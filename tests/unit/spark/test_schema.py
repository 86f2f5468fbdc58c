from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from dcpstream.columnar import CHANGE_SCHEMA
from dcpstream.spark.schema import arrow_schema, conform, spark_schema


@pytest.mark.parametrize("value_format", ["binary", "string"])
def test_both_schemas_are_the_one_that_spark_derives(value_format: Literal["binary", "string"]) -> None:
    names = CHANGE_SCHEMA.names
    assert to_arrow_schema(spark_schema(names, value_format), timezone="UTC") == arrow_schema(names, value_format)
    assert all(field.nullable for field in spark_schema(names, value_format))


def test_the_order_is_the_users() -> None:
    assert spark_schema(("seqno", "key"), "binary").names == ["seqno", "key"]


def test_conform_reorders_without_copying() -> None:
    schema = arrow_schema(("key", "seqno"), "binary")
    batch = pa.record_batch({"seqno": pa.array([1], pa.int64()), "key": ["k"], "more": [1]})
    result = conform(batch, schema)
    assert result.schema == schema
    assert result.column("seqno").buffers()[1].address == batch.column("seqno").buffers()[1].address
    assert conform(result, schema) is result
