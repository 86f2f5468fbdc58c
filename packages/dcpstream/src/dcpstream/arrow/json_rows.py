"""Rows of an Arrow batch as JSON objects, column by column.

Each column becomes texts like `"name":value,`, which are joined row by row. That costs a fraction of a dictionary for
each row, and a number keeps all of its digits.

| Arrow type | JSON |
| --- | --- |
| integers, decimals | a number with all digits |
| floating point | a number in its shortest form; not a number and infinity as the strings NaN, Infinity, -Infinity |
| boolean | true, false |
| string | a string |
| binary | a string in base64 |
| date | a string, 2024-05-01 |
| timestamp with a zone | a string in UTC, 2024-05-01T10:00:00.000000Z |
| timestamp without a zone | a string, 2024-05-01T10:00:00.000000 |
| list | an array |
| struct | an object |
| map | an object; the keys are strings |
| null | left out of an object, null in an array |
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.errors import ConfigError

_Text = Callable[[Any], str]


def json_rows(batch: pa.RecordBatch, names: Sequence[str], *, keeps_nulls: bool = False) -> list[bytes]:
    """One JSON object for each row, in UTF-8.

    Args:
        batch: the rows.
        names: the columns that become fields, in this order.
        keeps_nulls: whether a null becomes a field with null; otherwise it is left out.

    Raises:
        ConfigError: a column has a type that JSON has no form for; see `check_type`.
    """
    if not names:
        return [b"{}"] * batch.num_rows
    members = []
    for name in names:
        column = batch.column(name)
        text = _texts(column)
        if keeps_nulls:
            text = text.fill_null("null")
        head = pa.scalar(encode_basestring(name) + ":", pa.string())
        # A null stays null through the join, and leaves nothing.
        members.append(pc.binary_join_element_wise(head, text, ",", "").fill_null(""))
    joined = members[0] if len(members) == 1 else pc.binary_join_element_wise(*members, "")
    # No value ends with a comma, so only the last separator goes.
    body = pc.utf8_rtrim(joined, ",")
    result: list[bytes] = pc.binary_join_element_wise("{", body, "}", "").cast(pa.binary()).to_pylist()
    return result


def check_type(name: str, kind: pa.DataType) -> None:
    """Refuse a type that JSON has no form for.

    Raises:
        ConfigError: names the column and its type.
    """
    _text_of(name, kind)


def _texts(column: pa.Array) -> pa.StringArray:
    """The JSON text of each value; null stays null."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    text = _text_of("", kind)
    return pa.array([None if value is None else text(value) for value in column.to_pylist()], pa.string())


def _text_of(name: str, kind: pa.DataType) -> _Text:  # noqa: PLR0911 - one for each type
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return encode_basestring
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_integer(kind):
        return str
    if types.is_floating(kind):
        return _float
    if types.is_decimal(kind):
        return _decimal
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if types.is_timestamp(kind):
        return _timestamp if kind.tz is None else _instant
    if types.is_date(kind):
        return _date
    if types.is_list(kind) or types.is_large_list(kind):
        return _array(_text_of(name, kind.value_type))
    if types.is_map(kind):
        return _map(_text_of(name, kind.key_type), _text_of(name, kind.item_type))
    if types.is_struct(kind) and not _is_variant(kind):
        return _object([(kind.field(i).name, _text_of(name, kind.field(i).type)) for i in range(kind.num_fields)])
    raise ConfigError(
        "valueColumn", name, f"column {name} of type {kind} has no form in JSON; cast it, or use to_json(...) in Spark"
    )


def _is_variant(kind: pa.StructType) -> bool:
    return any((kind.field(i).metadata or {}).get(b"variant") == b"true" for i in range(kind.num_fields))


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _date(value: date) -> str:
    return f'"{value.isoformat()}"'


def _timestamp(value: datetime) -> str:
    return f'"{value.isoformat(timespec="microseconds")}"'


def _instant(value: datetime) -> str:
    offset = value.utcoffset()
    moment = (value if not offset else value - offset).replace(tzinfo=None)
    return f'"{moment.isoformat(timespec="microseconds")}Z"'


def _array(text: _Text) -> _Text:
    return lambda value: "[" + ",".join(["null" if item is None else text(item) for item in value]) + "]"


def _map(key_text: _Text, text: _Text) -> _Text:
    def name(key: object) -> str:
        written = key_text(key)
        return written if written.startswith('"') else f'"{written}"'

    def write(value: Sequence[tuple[object, object]]) -> str:
        return "{" + ",".join([f"{name(key)}:{'null' if item is None else text(item)}" for key, item in value]) + "}"

    return write


def _object(fields: Sequence[tuple[str, _Text]]) -> _Text:
    members = [(name, encode_basestring(name), text) for name, text in fields]

    def write(value: dict[str, Any]) -> str:
        found = ((quoted, text, value[name]) for name, quoted, text in members)
        return "{" + ",".join([f"{quoted}:{text(item)}" for quoted, text, item in found if item is not None]) + "}"

    return write
