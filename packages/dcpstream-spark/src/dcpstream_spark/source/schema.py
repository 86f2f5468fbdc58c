"""The schema for Spark, and batches in exactly that schema.

A column of the schema is one of four kinds: a column of the source, a field of the JSON documents, the column of
documents that do not fit, or the value as a VARIANT. A name that the source has is the source's column; every other
name is a field. With the option `metaPrefix` the source's names have that prefix, and a field may have any name.

Spark checks only the first RecordBatch of a task; a later one with another layout fails deep inside the JVM. So every
batch passes through `Layout.batch`, which returns exactly the declared types or raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from dcpstream.arrow import FULL_SCHEMA, change_schema
from dcpstream.arrow.text import strings_of
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.typed_columns.fitting import ERROR_COLUMNS, VARIANT, DocumentColumns, corrupt_records, variants
from dcpstream_spark.typed_columns.kinds import arrow_type, spark_type

_DOCUMENT_OP = Op.MUTATION.value

Kind = Literal["meta", "field", "corrupt"]


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One column of the schema.

    Attributes:
        kind: "meta" for a column of the source, "field" for one of the documents, "corrupt" for malformed documents.
        source: name of the source's column or of the field.
        field: its name and type in batches.
    """

    kind: Kind
    source: str
    field: pa.Field


class Layout:
    """The making of a schema's columns from the source's rows.

    Args:
        schema: Spark's.
        options: checked.

    Raises:
        ConfigError: a column that cannot be made; says which and why.
    """

    def __init__(self, schema: t.StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        self._outputs = [_output(field, options) for field in schema.fields]
        names = [one.field.name for one in self._outputs]
        if not names or len(set(names)) != len(names):
            raise ConfigError("schema", schema.simpleString(), "one or more columns with different names")
        self.arrow = pa.schema([one.field for one in self._outputs])
        self._fields = [one for one in self._outputs if one.kind == "field"]
        meta = {one.source for one in self._outputs if one.kind == "meta"}
        self._has_variant = options.value_format == "variant" and "value" in meta
        self._reads_documents = self._has_variant or any(one.kind != "meta" for one in self._outputs)
        self.value_format: Literal["binary", "string"] = "binary"
        if self._reads_documents:
            meta |= {"op", "value"}
            if options.mode == "FAILFAST":
                meta |= set(ERROR_COLUMNS)
            fields = pa.schema([pa.field(one.source, one.field.type) for one in self._fields])
            self._documents = DocumentColumns(fields, options.mode)
        elif options.value_format == "string":
            self.value_format = "string"
        self.columns: tuple[str, ...] = tuple(name for name in FULL_SCHEMA.names if name in meta)
        """The source's columns to read, with the value in `value_format`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it is made of."""
        return type(self), (self._schema, self._options)

    @property
    def sources(self) -> dict[str, str]:
        """Name in the schema → column of the source, of those that are such columns."""
        return {one.field.name: one.source for one in self._outputs if one.kind == "meta"}

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as a batch in the schema.

        Args:
            rows: with at least `columns`.

        Raises:
            FieldError: a document does not fit, and mode is FAILFAST.
        """
        if not self._reads_documents:
            if rows.schema.equals(self.arrow):
                return rows  # taking 17 columns out and putting them back takes 23 us a batch
            columns = [_checked(rows.column(one.source), one.field) for one in self._outputs]
            return pa.RecordBatch.from_arrays(columns, schema=self.arrow)
        values, is_document = rows.column("value"), pc.equal(rows.column("op"), _DOCUMENT_OP)
        documents = values
        if is_document.true_count < len(is_document):
            documents = pc.if_else(is_document, values, pa.scalar(None, values.type))
        is_unfit: npt.NDArray[np.bool_] = np.zeros(len(values), np.bool_)
        made: dict[str, pa.Array] = {}
        if self._fields or not self._has_variant:
            parsed = self._documents.parse(documents)
            is_unfit |= parsed.is_malformed
            made = {one.source: column for one, column in zip(self._fields, parsed.columns, strict=True)}
        value_cells: pa.Array | None = None
        if self._has_variant:
            value_cells, is_no_json = variants(values)
            is_unfit |= is_no_json & is_document.to_numpy(zero_copy_only=False)
        columns = []
        for one in self._outputs:
            if one.kind == "corrupt":
                column = corrupt_records(values, is_unfit, one.field.type)
            elif one.kind == "field":
                column = made[one.source]
            elif one.source == "value" and value_cells is not None:
                column = value_cells
            elif one.source == "value" and one.field.type == pa.string():
                column = strings_of(values)
            else:
                column = rows.column(one.source)
            columns.append(_checked(column, one.field))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.arrow)
        self._documents.check(rows, is_unfit)
        stay = self._documents.stay(is_unfit)
        return batch if stay.all() else batch.filter(pa.array(stay))


def default_schema(options: SourceOptions) -> t.StructType:
    """The schema without one of the user's, and without fields of documents."""
    return spark_schema(options.meta_columns, options.value_format, options.meta_prefix)


def spark_schema(
    columns: Sequence[str], value_format: Literal["binary", "string", "variant"], prefix: str = ""
) -> t.StructType:
    """The StructType of the source's columns; every column is nullable, because control rows fill only some."""
    return t.StructType([t.StructField(prefix + name, _meta_type(name, value_format)) for name in columns])


def _meta_type(name: str, value_format: Literal["binary", "string", "variant"]) -> t.DataType:
    if name == "value" and value_format == "variant":
        return t.VariantType()
    return spark_type(change_schema("string" if value_format == "string" else "binary", [name]).field(name).type)


def _output(field: t.StructField, options: SourceOptions) -> OutputColumn:
    name, kind, prefix = field.name, field.dataType, options.meta_prefix
    shown = f"{name} {kind.simpleString().upper()}"
    if not field.nullable:
        raise ConfigError("schema", f"{shown} NOT NULL", "nullable columns, because a control row fills only some")
    if name == options.corrupt_column:
        if type(kind) not in {t.StringType, t.BinaryType}:
            raise ConfigError("schema", shown, f"{name} STRING, or {name} BINARY for the exact bytes")
        return OutputColumn("corrupt", name, pa.field(name, arrow_type(kind)))
    source = name.removeprefix(prefix)
    if name.startswith(prefix) and source in FULL_SCHEMA.names:
        expected = _meta_type(source, options.value_format)
        if kind != expected:
            raise ConfigError("schema", shown, _other_type(name, expected, prefix))
        if source == "value" and options.value_format == "variant":
            return OutputColumn("meta", source, pa.field(name, VARIANT))
        return OutputColumn("meta", source, pa.field(name, arrow_type(expected)))
    try:
        return OutputColumn("field", name, pa.field(name, arrow_type(kind)))
    except ValueError as error:
        raise ConfigError("schema", shown, f"a type that a field can have ({error})") from None


def _other_type(name: str, expected: t.DataType, prefix: str) -> str:
    text = f"{name} {expected.simpleString().upper()}, a column of the source"
    if name.removeprefix(prefix) == "value":
        return f"{text}; valueFormat chooses its type, and value_text STRING is its text"
    return f"{text}; to read a field {name} of the documents, set metaPrefix to give the source's columns other names"


def _checked(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type != field.type:
        raise TypeError(f"column {field.name} is {column.type}, declared was {field.type}")
    return column


def field_columns(fields: Iterable[t.StructField], options: SourceOptions) -> t.StructType:
    """The default schema with these fields of documents.

    Raises:
        ConfigError: a field has the name of a column of the source.
    """
    schema = default_schema(options)
    clashes = [
        field.name for field in fields if field.name in {options.meta_prefix + name for name in FULL_SCHEMA.names}
    ]
    if clashes:
        raise ConfigError(
            "metaPrefix",
            options.meta_prefix,
            f"a prefix like _dcp_, because documents have fields {', '.join(clashes)}",
        )
    return t.StructType([*schema.fields, *fields])
