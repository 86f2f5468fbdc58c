"""The schema of a table of changes.

The types are those that Spark accepts in an Arrow batch: plain string and binary with 32-bit offsets, no unsigned
integers, timestamps in microseconds of UTC, every column nullable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import pyarrow as pa

from dcpstream.errors import ConfigError

ValueFormat: TypeAlias = Literal["binary", "string"]
Missing: TypeAlias = Literal["null", "drop"]

TIMESTAMP = pa.timestamp("us", tz="UTC")
XATTRS = pa.map_(pa.string(), pa.string())

CHANGE_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", TIMESTAMP),
        ("op", pa.string()),
        ("scope", pa.string()),
        ("collection", pa.string()),
        ("vbucket", pa.int32()),
        ("vbuuid", pa.string()),
        ("seqno", pa.int64()),
        ("rev", pa.int64()),
        ("cas", pa.int64()),
        ("flags", pa.int32()),
        ("datatype", pa.int32()),
        ("expiry", TIMESTAMP),
        ("xattrs", XATTRS),
    ]
)
"""Columns of a change with the value as bytes. `change_schema` makes other forms; `to_changes` documents them."""

COLUMNS: tuple[str, ...] = tuple(CHANGE_SCHEMA.names)

VALUE_TEXT = "value_text"
"""A column that is built only when it is named: the value as text, null if its bytes are not UTF-8. It stands behind
`value`. In all rows it would double the bytes of a batch."""

FULL_SCHEMA = CHANGE_SCHEMA.insert(CHANGE_SCHEMA.get_field_index("value") + 1, pa.field(VALUE_TEXT, pa.string()))
"""CHANGE_SCHEMA and the columns that must be named."""


def change_schema(
    value_format: str = "binary", columns: Iterable[str] | None = None, missing: str = "drop"
) -> pa.Schema:
    """The schema of changes.

    Args:
        value_format: "binary" or "string", the type of `value`.
        columns: the columns to build, names of FULL_SCHEMA in any order; those of CHANGE_SCHEMA if None.
        missing: "drop" leaves the others out, "null" keeps all columns of CHANGE_SCHEMA in the schema.

    Returns: fields in the order of FULL_SCHEMA.

    Raises:
        ConfigError: an unknown format or column.
    """
    if value_format not in {"binary", "string"}:
        raise ConfigError("value_format", value_format, "binary or string")
    if missing not in {"null", "drop"}:
        raise ConfigError("missing", missing, "null or drop")
    wanted = set(COLUMNS) if columns is None else set(columns)
    unknown = sorted(wanted.difference(FULL_SCHEMA.names))
    if unknown:
        raise ConfigError("columns", ", ".join(unknown), "some of " + ", ".join(FULL_SCHEMA.names))
    schema = FULL_SCHEMA if VALUE_TEXT in wanted else CHANGE_SCHEMA
    if value_format == "string":
        schema = schema.set(schema.get_field_index("value"), pa.field("value", pa.string()))
    if missing == "drop" and len(wanted) < len(schema):
        schema = pa.schema([field for field in schema if field.name in wanted])
    return schema
