"""The fields of a bucket's documents, found in a sample.

Follows the inference of Spark's JSON source: whole numbers are BIGINT, others DOUBLE, objects STRUCT, arrays ARRAY;
types that do not agree become STRING, which holds every JSON value. Fields are sorted by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql import types as t

from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source.coordinator import Coordinator
from dcpstream_spark.source.reading import DcpPartition, read_partition
from dcpstream_spark.source.schema import field_columns
from dcpstream_spark.typed_columns.parsing import NumberText, object_of

_LONG_MAX = 2**63
_DECIMAL_DIGITS_MAX = 38


def inferred_schema(options: SourceOptions) -> t.StructType:
    """The default schema and the fields of documents.

    A sample with documents that are no JSON objects adds the column for them, if mode is PERMISSIVE.

    Raises:
        ConfigError: a field has the name of a column of the source; or the sample has no JSON object.
    """
    found, is_any_malformed = infer(_sample(options))
    fields = list(found.fields)
    if is_any_malformed and options.mode == "PERMISSIVE":
        fields.append(t.StructField(options.corrupt_column, t.StringType()))
    return field_columns(fields, options)


def inferred_fields(options: SourceOptions) -> t.StructType:
    """The fields of documents, without the columns of the source.

    Raises:
        ConfigError: the sample has no JSON object with a field.
    """
    fields, _ = infer(_sample(options))
    if not fields.fields:
        message = "inferSchema found no JSON object with a field among the first changes. Give a schema"
        raise ConfigError("schema", "infer", "a schema", message=message)
    return fields


def infer(documents: Iterable[bytes]) -> tuple[t.StructType, bool]:
    """(the fields of the documents, whether one of them is no JSON object)."""
    found: t.DataType = t.StructType()
    is_any_malformed = False
    for text in documents:
        data = object_of(text)
        if data is None:
            is_any_malformed = True
        else:
            found = _merged(found, _type_of(data))
    finished = _finished(found)
    return finished if isinstance(finished, t.StructType) else t.StructType(), is_any_malformed


def _sample(options: SourceOptions) -> Iterator[bytes]:
    """The documents among the first changes of a few vbuckets."""
    reading = replace(
        options,
        columns=("value", "op"),
        value_format="binary",
        meta_prefix="",
        infer_schema=False,
        mode="PERMISSIVE",
        starting_offsets=OffsetSpec("earliest"),
        ending_offsets=OffsetSpec("latest"),
        num_partitions=1,
    )
    coordinator = Coordinator(reading, default_start=OffsetSpec("earliest"))
    try:
        start, end = coordinator.batch(limit=options.sample_size)
        tasks = coordinator.tasks_of(
            coordinator.ranges_between(start, end, is_first=True, is_replayed=False, has_next_plan=False)
        )
    finally:
        coordinator.close()
    for node, ranges in tasks:
        for batch in read_partition(reading, DcpPartition(node, ranges)):
            for row in batch.to_pylist():
                if row["op"] == Op.MUTATION.value:
                    yield row["value"]


def _type_of(value: Any) -> t.DataType:
    if value is None:
        return t.NullType()
    if isinstance(value, bool):
        return t.BooleanType()
    if isinstance(value, int):
        if -_LONG_MAX <= value < _LONG_MAX:
            return t.LongType()
        digits = len(str(abs(value)))
        return t.DecimalType(digits, 0) if digits <= _DECIMAL_DIGITS_MAX else t.DoubleType()
    if isinstance(value, NumberText | float):
        return t.DoubleType()
    if isinstance(value, list):
        inner: t.DataType = t.NullType()
        for member in value:
            inner = _merged(inner, _type_of(member))
        return t.ArrayType(inner)
    if isinstance(value, dict):
        return t.StructType([t.StructField(name, _type_of(value[name])) for name in sorted(value)])
    return t.StringType()


def _merged(one: t.DataType, other: t.DataType) -> t.DataType:
    if one == other or isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NullType):
        return other
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        fields = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            known = fields.get(field.name)
            fields[field.name] = field.dataType if known is None else _merged(known, field.dataType)
        return t.StructType([t.StructField(name, fields[name]) for name in sorted(fields)])
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(_merged(one.elementType, other.elementType))
    numbers = (t.LongType, t.DecimalType, t.DoubleType)
    if isinstance(one, numbers) and isinstance(other, numbers):
        if isinstance(one, t.DoubleType) or isinstance(other, t.DoubleType):
            return t.DoubleType()
        digits = max(19 if isinstance(kind, t.LongType) else kind.precision for kind in (one, other))
        return t.DecimalType(max(digits, 20), 0)
    return t.StringType()


def _finished(kind: t.DataType) -> t.DataType:
    """The type with STRING where only null was seen, and for an object without fields."""
    if isinstance(kind, t.NullType):
        return t.StringType()
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_finished(kind.elementType))
    if isinstance(kind, t.StructType):
        fields = [t.StructField(field.name, _member(field.dataType)) for field in kind.fields]
        return t.StructType(fields)
    return kind


def _member(kind: t.DataType) -> t.DataType:
    finished = _finished(kind)
    return t.StringType() if isinstance(finished, t.StructType) and not finished.fields else finished
