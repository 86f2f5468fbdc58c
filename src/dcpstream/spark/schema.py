"""The columns that Spark sees, and batches in exactly that layout.

Spark checks only the first RecordBatch of a task; a later one with another layout fails deep inside the JVM. So every
batch passes through `conform`, which either has exactly the declared types or raises here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
from pyspark.sql import types as t

from dcpstream.columnar import CHANGE_SCHEMA

_SPARK_TYPES: dict[str, t.DataType] = {
    "key": t.StringType(),
    "_change_type": t.StringType(),
    "_commit_version": t.LongType(),
    "_commit_timestamp": t.TimestampType(),
    "op": t.StringType(),
    "scope": t.StringType(),
    "collection": t.StringType(),
    "vbucket": t.IntegerType(),
    "vbuuid": t.StringType(),
    "seqno": t.LongType(),
    "rev": t.LongType(),
    "cas": t.LongType(),
    "flags": t.IntegerType(),
    "datatype": t.IntegerType(),
    "expiry": t.TimestampType(),
    "xattrs": t.MapType(t.StringType(), t.StringType()),
}


def spark_schema(columns: Sequence[str], value_format: Literal["binary", "string"]) -> t.StructType:
    """The StructType of the chosen columns; every column is nullable, because control rows fill only some."""
    value = t.StringType() if value_format == "string" else t.BinaryType()
    return t.StructType([t.StructField(name, _SPARK_TYPES.get(name, value)) for name in columns])


def arrow_schema(columns: Sequence[str], value_format: Literal["binary", "string"]) -> pa.Schema:
    """The Arrow schema that Spark demands for `spark_schema`: plain utf8 and binary, microseconds in UTC."""
    value = pa.string() if value_format == "string" else pa.binary()
    fields = [pa.field(name, value if name == "value" else CHANGE_SCHEMA.field(name).type) for name in columns]
    return pa.schema(fields)


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
