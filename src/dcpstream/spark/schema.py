"""The schema for Spark, and batches in exactly that schema.

Spark checks only the first RecordBatch of a task; a later one with another layout fails deep inside the JVM. So every
batch passes through `conform`, which returns exactly the declared types or raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
from pyspark.sql import types as t

from dcpstream.columnar import change_schema

_SPARK_TYPES: dict[pa.DataType, t.DataType] = {
    pa.string(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.timestamp("us", tz="UTC"): t.TimestampType(),
    pa.map_(pa.string(), pa.string()): t.MapType(t.StringType(), t.StringType()),
}


def spark_schema(columns: Sequence[str], value_format: Literal["binary", "string"]) -> t.StructType:
    """The StructType of the chosen columns; every column is nullable, because control rows fill only some."""
    fields = arrow_schema(columns, value_format)
    return t.StructType([t.StructField(field.name, _SPARK_TYPES[field.type]) for field in fields])


def arrow_schema(columns: Sequence[str], value_format: Literal["binary", "string"]) -> pa.Schema:
    """The Arrow schema that Spark demands for `spark_schema`: plain utf8 and binary, microseconds in UTC."""
    schema = change_schema(value_format)
    return pa.schema([schema.field(name) for name in columns])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema: the same column buffers, in its order.

    Raises:
        TypeError: a column has another type (a defect of ours, named here instead of in the JVM).
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            raise TypeError(f"column {field.name} is {column.type}, declared was {field.type}")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
