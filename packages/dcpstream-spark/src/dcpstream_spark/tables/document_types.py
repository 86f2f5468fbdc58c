"""The typed columns of `current`: the fields of the documents, and what happens to documents that do not fit.

`value` holds the exact bytes of a document. The typed columns are nothing but a function of `value` and of
these types. A fold computes them for the rows that it writes, so they need no history of their own: a rollback restores
the value, and the columns follow.

A document *fits* if its value is one JSON object in UTF-8 and every field of the schema in it is null or of the field's
type. The column `_corrupt_record` holds the text of a document that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow.documents import DocumentParser, load_json
from dcpstream.errors import ConfigError, FieldError
from dcpstream_spark.tables.rows import (
    BATCH_ID,
    CURRENT_COLUMNS,
    IS_FORCED,
    IS_REMOVED,
    IS_RESTORED,
    changes_schema,
)

Mode: TypeAlias = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]

CORRUPT = "_corrupt_record"
"""Column of `current`: the text of a document that does not fit, else null."""

REASON = "reason"
"""Column of rejects: why the document does not fit."""

REJECT_COLUMNS = ("key", "scope", "collection", "vbucket", "seqno", BATCH_ID, "_commit_timestamp", REASON, "value")
"""Columns of rejects."""

NOT_UTF8 = "not UTF-8"
NO_OBJECT = "no JSON object"
OTHER_TYPES = "not of the schema's type: "
"""Reasons; names of fields follow the last."""

SHOWN_FIELDS = 5
"""Fields that a message names."""

_RESERVED = frozenset(
    name.lower() for name in (*CURRENT_COLUMNS, CORRUPT, BATCH_ID, IS_REMOVED, IS_FORCED, IS_RESTORED)
)
_FORBIDDEN = frozenset(" ,;{}()\n\t=`'\"\\.")
"""Characters that a column of a Delta table, or a quoted name in SQL, does not take."""

_DDL = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}


@dataclass(frozen=True)
class DocumentTypes:
    """Types of the fields of documents.

    Attributes:
        fields: name and type of each field; see `dcpstream.arrow.documents.is_parsable`.
        mode: what happens to a document that does not fit. PERMISSIVE: the fields that do not fit are null. With
            DROPMALFORMED it is not in `current`. FAILFAST: the fold fails.
        prefix: of the columns' names; behind it follows the field's name.

    Raises:
        ConfigError: a field cannot be a column, or an unknown mode.
    """

    fields: pa.Schema
    mode: Mode = "PERMISSIVE"
    prefix: str = ""
    _parser: DocumentParser = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the names."""
        if self.mode not in get_args(Mode):
            raise ConfigError("mode", self.mode, "PERMISSIVE, DROPMALFORMED or FAILFAST")
        if not len(self.fields):
            raise ConfigError("schema", "", "at least one field")
        if _FORBIDDEN.intersection(self.prefix):
            raise ConfigError("field_prefix", self.prefix, "a text without spaces, dots, quotes, brackets, commas")
        bad = sorted(name for name in _names_in(self.fields) if not is_column_name(name))
        if bad:
            raise ConfigError(
                "schema", ", ".join(bad[:SHOWN_FIELDS]), "field names without spaces, dots, quotes, brackets, commas"
            )
        names = [name.lower() for name in self.columns.names[:-1]]
        clashes = [one.name for one, name in zip(self.fields, names, strict=True) if name in _RESERVED]
        if clashes:
            raise ConfigError(
                "field_prefix",
                self.prefix,
                f"a prefix like doc_, because current has columns {', '.join(clashes[:SHOWN_FIELDS])} of its own",
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                "schema", ", ".join(twice[:SHOWN_FIELDS]), "fields whose names differ in more than upper and lower case"
            )
        object.__setattr__(self, "_parser", DocumentParser(self.fields))

    @property
    def columns(self) -> pa.Schema:
        """The columns other than CURRENT_COLUMNS: the fields, and `_corrupt_record`."""
        typed = [pa.field(self.prefix + one.name, one.type) for one in self.fields]
        return pa.schema([*typed, pa.field(CORRUPT, pa.string())])

    def with_columns(self, rows: pa.Table, documents: pa.ChunkedArray) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Rows with the typed columns behind the others.

        Args:
            rows: any.
            documents: their values, null where there is no document.

        Returns: (the rows, bool[rows]: whether the document does not fit)
        """
        values = _bytes(documents)
        parsed = self._parser.parse(values)
        corrupt = pc.if_else(pa.array(parsed.is_malformed), values, pa.scalar(None, pa.binary()))
        for one, column in zip(self.columns, [*parsed.columns, _text(corrupt)], strict=True):
            rows = rows.append_column(one, column)
        return rows, parsed.is_malformed

    def reason(self, value: bytes) -> str:
        """Why a document does not fit; empty if it fits."""
        try:
            value.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
        try:
            found = load_json(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return NO_OBJECT
        bad = [one.name for one in self.fields if DocumentParser(pa.schema([one])).parse_one(value)[1]]
        return OTHER_TYPES + ", ".join(bad) if bad else ""


def effect_with_types(source: pa.Table, types: DocumentTypes) -> tuple[pa.Table, int]:
    """The rows to merge with the typed columns.

    Returns: (the rows; number of documents that do not fit)

    Raises:
        FieldError: one does not fit, and mode is FAILFAST.
    """
    is_removed = source.column(IS_REMOVED)
    values = source.column("value")
    documents = pc.if_else(is_removed, pa.scalar(None, values.type), values)
    typed, is_malformed = types.with_columns(source, documents)
    if types.mode == "FAILFAST" and is_malformed.any():
        first = typed.slice(int(np.argmax(is_malformed)), 1).to_pylist()[0]
        raise unfit_error(first, types.reason(as_bytes(first["value"])))
    if types.mode == "DROPMALFORMED":
        is_gone = pc.or_(is_removed, pa.array(is_malformed))
        typed = typed.set_column(typed.schema.get_field_index(IS_REMOVED), IS_REMOVED, is_gone)
    return typed, int(is_malformed.sum())


def unfit_error(row: dict[str, Any], reason: str) -> FieldError:
    """The error for a document of a row with `key`, `scope`, `collection`, `vbucket` and `seqno`."""
    return FieldError(
        f"document {row['key']!r} of {row['scope']}.{row['collection']} (vbucket {row['vbucket']}, seqno "
        f"{row['seqno']}) does not fit the schema: {reason}. Mode is FAILFAST, so it was not brought into current. "
        "Correct the document or the schema, or start with mode=PERMISSIVE, and run again"
    )


def as_bytes(value: str | bytes) -> bytes:
    """A value of `changes` as bytes."""
    return value.encode() if isinstance(value, str) else value


def is_column_name(name: str) -> bool:
    """Whether a field of this name can be a column."""
    return bool(name) and not _FORBIDDEN.intersection(name)


def ddl(kind: pa.DataType) -> str:
    """The type as Spark writes it, for example `STRUCT<name: STRING>` with the names in backquotes."""
    if pa.types.is_struct(kind):
        return "STRUCT<" + ", ".join(f"`{one.name}`: {ddl(one.type)}" for one in kind) + ">"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<STRING, {ddl(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _DDL[kind]


def rejects_schema(value_format: str) -> pa.Schema:
    """The columns of rejects."""
    known = changes_schema(value_format).append(pa.field(REASON, pa.string()))
    return pa.schema([known.field(name) for name in REJECT_COLUMNS])


def _names_in(fields: Iterable[pa.Field]) -> Sequence[str]:
    names: list[str] = []
    for one in fields:
        names.append(one.name)
        kind = one.type
        while pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        if pa.types.is_struct(kind):
            names += _names_in(kind)
    return names


def _bytes(values: pa.ChunkedArray) -> pa.Array:
    """One array of bytes; text as UTF-8."""
    array = values.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    return array if array.type == pa.binary() else array.cast(pa.binary())


def _text(values: pa.Array) -> pa.Array:
    """The values as text, with U+FFFD for what is not UTF-8, as Spark's `make_valid_utf8` does."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
