"""Types of fields: the same for Arrow, Spark and SQL."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from dcpstream_spark.typed_columns.kinds import arrow_type, ddl, spark_type
from tests.kit.cases import each_case

NESTED = pa.struct([("a", pa.list_(pa.decimal128(6, 2))), ("b", pa.map_(pa.string(), pa.timestamp("us")))])


def test_ddl() -> None:
    assert ddl(NESTED) == "STRUCT<`a`: ARRAY<DECIMAL(6,2)>, `b`: MAP<STRING, TIMESTAMP_NTZ>>"


def test_spark_types_and_back() -> None:
    kind = t.StructType([t.StructField("n", spark_type(NESTED)), t.StructField("t", t.TimestampType())])
    assert spark_type(arrow_type(kind)) == kind


@each_case("kind", [t.VariantType(), t.CharType(3), t.MapType(t.LongType(), t.LongType())])
def test_types_that_no_field_has(kind: t.DataType) -> None:
    with pytest.raises(ValueError, match=r"VARIANT|makes no CHAR|keys of a map"):
        arrow_type(kind)
