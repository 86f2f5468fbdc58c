"""The types that a field of a document may have, for Arrow, Spark and SQL."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as t

_SIMPLE: dict[type[t.DataType], pa.DataType] = {
    t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.StringType: pa.string(),
    t.BinaryType: pa.binary(),
    t.DateType: pa.date32(),
    t.TimestampType: pa.timestamp("us", tz="UTC"),
    t.TimestampNTZType: pa.timestamp("us"),
}
"""Types without parameters."""


def arrow_type(kind: t.DataType) -> pa.DataType:
    """The Arrow type of a field's type.

    Raises:
        ValueError: no such column is made, or a member of it may not be null; says which.
    """
    if isinstance(kind, t.StructType):
        if not kind.fields:
            raise ValueError("a struct without fields")
        return pa.struct([_member(field.name, field.dataType, field.nullable) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return pa.list_(_member("element", kind.elementType, kind.containsNull))
    if isinstance(kind, t.MapType):
        if type(kind.keyType) is not t.StringType:
            raise ValueError(f"keys of a map are STRING, not {kind.keyType.simpleString().upper()}")
        return pa.map_(pa.string(), _member("value", kind.valueType, kind.valueContainsNull))
    if isinstance(kind, t.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = _SIMPLE.get(type(kind))
    if isinstance(kind, t.VariantType):
        raise ValueError("Spark's from_json makes a VARIANT, this source does not; use parse_json in the query")
    if found is None:
        raise ValueError(f"this source makes no {kind.simpleString().upper()} of JSON")
    return found


def _member(name: str, kind: t.DataType, is_nullable: bool) -> pa.Field:
    if not is_nullable:
        raise ValueError(f"{name} is NOT NULL, but a document may lack it")
    return pa.field(name, arrow_type(kind))


def spark_type(kind: pa.DataType) -> t.DataType:
    """The inverse of `arrow_type`."""
    if pa.types.is_struct(kind):
        return spark_fields(pa.schema(list(kind)))
    if pa.types.is_list(kind):
        return t.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return t.MapType(t.StringType(), spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return t.DecimalType(kind.precision, kind.scale)
    return next(spark() for spark, arrow in _SIMPLE.items() if arrow == kind)


def spark_fields(columns: pa.Schema) -> t.StructType:
    """The StructType of columns; every one is nullable."""
    return t.StructType([t.StructField(column.name, spark_type(column.type)) for column in columns])


def ddl(kind: pa.DataType) -> str:
    """The type as Spark writes it, for example `STRUCT<name: STRING>` with the names in backquotes."""
    if pa.types.is_struct(kind):
        return "STRUCT<" + ", ".join(f"`{one.name}`: {ddl(one.type)}" for one in kind) + ">"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<STRING, {ddl(kind.item_type)}>"
    return spark_type(kind).simpleString().upper()
