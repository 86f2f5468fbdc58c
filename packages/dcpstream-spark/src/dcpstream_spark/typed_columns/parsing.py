"""JSON documents as typed columns.

Follows `from_json` of Spark with its default options: a field of another type than its column is null and the document
counts as malformed, while its other fields are kept. A document that is no JSON object has only nulls.

Theory of operation. pyarrow's JSON reader parses a block of documents at once, about four times faster than a Python
loop, but one document that it does not like fails the whole block, and it has no maps, decimals or dates. So blocks are
halved until the documents that need care stand alone; these, and schemas with other types, are read one by one by the
standard `json`. Both give the same columns: a block counts only if every document in it was one JSON object, whose
fields had exactly the wanted types.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from dcpstream.arrow.values import offsets_and_data

FAST_ROWS_MIN = 32
"""Fewest documents for pyarrow's reader, whose fixed cost is about 100 µs."""

DEPTH_MAX = 500
"""Deepest nesting of a document; a deeper one is malformed. Python's parser uses its stack, which ends near 1000."""

_TOO_DEEP = f"nested deeper than {DEPTH_MAX}"
_MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DECIMAL_CONTEXT = Context(prec=400)
_DECIMAL_TEXT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_DATE = re.compile(r"(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?)?)?)?)?"
)
_NOT_A_NUMBER = {
    "NaN": float("nan"),
    "+INF": float("inf"),
    "INF": float("inf"),
    "-INF": float("-inf"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
"""Texts that Spark reads as numbers in a column of floats."""
_FAST = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string())
"""Types that pyarrow's reader reads as the Python loop does, or refuses. It rounds a float once, the loop twice."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Parsed documents.

    Attributes:
        columns: one array per field; null where the document has no such field, or is no JSON object.
        is_malformed: bool[documents], whether a document is no JSON object or has a field of another type.
    """

    columns: list[pa.Array]
    is_malformed: npt.NDArray[np.bool_]


class DocumentParser:
    """Parses documents into columns of one schema.

    Args:
        schema: name and type of each field. Types: those of `kinds`.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._convert = _struct_converter(pa.struct(list(schema)))
        self._is_fast = len(schema) > 0 and all(_is_fast(field.type) for field in schema)

    def parse(self, values: pa.BinaryArray) -> Documents:
        """The columns of the documents; a null value has only nulls and is not malformed."""
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        documents = values if len(present) == len(values) else values.take(pa.array(present))
        parts: list[tuple[list[pa.Array], npt.NDArray[np.bool_]]] = []
        self._parse_block(documents, parts)
        columns = [
            pa.concat_arrays([part[0][index] for part in parts] or [pa.nulls(0, field.type)])
            for index, field in enumerate(self._schema)
        ]
        malformed = np.concatenate([part[1] for part in parts]) if parts else np.zeros(0, np.bool_)
        if len(present) == len(values):
            return Documents(columns, malformed)
        places = np.full(len(values), -1, np.int64)
        places[present] = np.arange(len(present))
        indices = pa.array(places, mask=places < 0)
        spread = np.zeros(len(values), np.bool_)
        spread[present] = malformed
        return Documents([column.take(indices) for column in columns], spread)

    def _parse_block(
        self, documents: pa.BinaryArray, parts: list[tuple[list[pa.Array], npt.NDArray[np.bool_]]]
    ) -> None:
        count = len(documents)
        if not count:
            return
        if self._is_fast and count >= FAST_ROWS_MIN:
            columns = self._parse_together(documents)
            if columns is not None:
                parts.append((columns, np.zeros(count, np.bool_)))
                return
            self._parse_block(documents.slice(0, count // 2), parts)
            self._parse_block(documents.slice(count // 2), parts)
            return
        parts.append(self._parse_singly(documents.to_pylist()))

    def _parse_together(self, documents: pa.BinaryArray) -> list[pa.Array] | None:
        """The columns, or None if the block must be read in smaller parts."""
        offsets, data = offsets_and_data(documents)
        content = np.frombuffer(data, np.uint8)
        if (np.diff(offsets) < 2).any():
            return None
        # Between two objects pyarrow accepts any white space, or none: only documents that begin and end with braces
        # cannot be joined to a neighbour, and the number of objects then shows whether one held several.
        if (content[offsets[:-1]] != ord("{")).any() or (content[offsets[1:] - 1] != ord("}")).any():
            return None
        texts = documents.to_pylist()
        if any(_may_be_deep(text) for text in texts):
            return None
        # With a line feed at the very end the reader takes line feeds within documents, too, as it has one block.
        text = b"\n".join([*texts, b""])
        try:
            text.decode()
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._schema, newlines_in_values=False, unexpected_field_behavior="ignore"
                ),
            )
        except (UnicodeDecodeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if table.num_rows != len(documents):
            return None
        return [_joined(table.column(field.name), field.type) for field in self._schema]

    def _parse_singly(self, documents: Iterable[bytes]) -> tuple[list[pa.Array], npt.NDArray[np.bool_]]:
        rows: list[dict[str, Any] | None] = []
        malformed: list[bool] = []
        for text in documents:
            row, is_malformed = self.parse_one(text)
            rows.append(row)
            malformed.append(is_malformed)
        columns = [
            pa.array([None if row is None else row.get(field.name) for row in rows], field.type)
            for field in self._schema
        ]
        return columns, np.array(malformed, np.bool_)

    def parse_one(self, text: bytes) -> tuple[dict[str, Any] | None, bool]:
        """(values of the fields, or None if it is no JSON object; whether it is malformed) of one document."""
        data = object_of(text)
        if data is None:
            return None, True
        try:
            return self._convert(data), False
        except _Partial as partial:
            return partial.value, True


class NumberText(str):
    """A JSON number with a fraction or an exponent, as it was written."""

    __slots__ = ()


def load_json(text: bytes, *, is_strict: bool = False) -> Any:
    """The JSON value of a document; numbers with a fraction or an exponent are `NumberText`.

    Args:
        text: the document.
        is_strict: refuse NaN and Infinity, which are no JSON but which Spark's JSON source reads.

    Raises:
        ValueError: it is no JSON, or not UTF-8, or nested deeper than `DEPTH_MAX`.
    """
    try:
        value = (_decode_strictly if is_strict else _decode)(text.decode())
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _may_be_deep(text) and _depth(value) > DEPTH_MAX:
        raise ValueError(_TOO_DEEP)
    return value


def object_of(text: bytes) -> dict[str, Any] | None:
    """The JSON object that a document is, else None."""
    try:
        data = load_json(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _may_be_deep(text: bytes) -> bool:
    return len(text) > 2 * DEPTH_MAX and text.count(b"[") + text.count(b"{") > DEPTH_MAX


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [member for one in level for member in (one.values() if isinstance(one, dict) else one)]
    return depth


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_decode = json.JSONDecoder(parse_float=NumberText).decode
_decode_strictly = json.JSONDecoder(parse_float=NumberText, parse_constant=_refuse).decode


class _MismatchError(ValueError):
    """A value of another type."""


class _Partial(Exception):
    """A value with members of other types, which are null in it."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


Converter = Callable[[Any], Any]


def _is_fast(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_fast(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_fast(kind.value_type)
    return kind in _FAST


def _joined(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return array if array.type == kind else array.cast(kind)


def _converter(kind: pa.DataType) -> Converter:
    if pa.types.is_struct(kind):
        return _struct_converter(kind)
    if pa.types.is_map(kind):
        return _map_converter(kind)
    if pa.types.is_list(kind):
        return _list_converter(kind)
    if pa.types.is_integer(kind):
        return _integer_converter(kind.bit_width)
    if pa.types.is_floating(kind):
        return _to_float
    if pa.types.is_decimal(kind):
        return _decimal_converter(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return _to_micros if kind.tz is not None else _to_local_micros
    return _SIMPLE[kind]


def _struct_converter(kind: pa.StructType) -> Converter:
    converters = [(field.name, _converter(field.type)) for field in kind]

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _MismatchError
        result: dict[str, Any] = {}
        is_partial = False
        for name, of in converters:
            member = value.get(name)
            if member is None:
                continue
            try:
                result[name] = of(member)
            except _MismatchError:
                is_partial = True
            except _Partial as partial:
                result[name], is_partial = partial.value, True
        if is_partial:
            raise _Partial(result)
        return result

    return convert


def _list_converter(kind: pa.ListType) -> Converter:
    of = _converter(kind.value_type)

    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _MismatchError
        return _members(value, of, list)

    return convert


def _map_converter(kind: pa.MapType) -> Converter:
    of = _converter(kind.item_type)

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _MismatchError
        keys = [_clean(key) for key in value]
        return _members(list(value.values()), of, lambda items: list(zip(keys, items, strict=True)))

    return convert


def _members(values: Sequence[Any], of: Converter, make: Callable[[list[Any]], Any]) -> Any:
    """The converted members. One of another type makes the whole value null; a partial one stays, partial."""
    result: list[Any] = []
    is_partial = False
    for value in values:
        try:
            result.append(None if value is None else of(value))
        except _Partial as partial:
            result.append(partial.value)
            is_partial = True
    if is_partial:
        raise _Partial(make(result))
    return make(result)


def _integer_converter(bits: int) -> Converter:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _MismatchError
        return value

    return convert


def _decimal_converter(precision: int, scale: int) -> Converter:
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if type(value) is str:
            value = value.replace(",", "")
            if _DECIMAL_TEXT.fullmatch(value) is None:
                raise _MismatchError
        elif type(value) not in {int, NumberText}:
            raise _MismatchError
        number = Decimal(value)
        if number and number.adjusted() > precision:
            raise _MismatchError  # before the digits of a number like 1e999999 are written out
        number = number.quantize(unit, ROUND_HALF_UP, _DECIMAL_CONTEXT) if number.adjusted() > -400 else Decimal(0)
        if len(number.as_tuple().digits) > precision and number:
            raise _MismatchError
        return number

    return convert


def _to_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _MismatchError
    return value


def _to_float(value: Any) -> float:
    if type(value) is float or type(value) is NumberText:  # a float is one of NaN and Infinity
        return float(value)
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if type(value) is str and value in _NOT_A_NUMBER:
        return _NOT_A_NUMBER[value]
    raise _MismatchError


def _to_text(value: Any) -> str:
    return _clean(value) if type(value) is str else json_text(value)


def _clean(text: str) -> str:
    """Half a surrogate pair is no text; as in Java, a question mark stands for it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def json_text(value: Any) -> str:
    """Compact JSON of what `load_json` returned, with the numbers as they were written."""
    if type(value) is NumberText:
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(key)}:{json_text(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return _clean(json.dumps(value, ensure_ascii=False))


def _to_bytes(value: Any) -> bytes:
    if type(value) is not str:
        raise _MismatchError
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise _MismatchError from None


def _to_days(value: Any) -> int:
    found = _DATE.fullmatch(value.strip()) if type(value) is str else None
    if found is None:
        raise _MismatchError
    try:
        return date(int(found[1]), int(found[2] or 1), int(found[3] or 1)).toordinal() - _EPOCH_DAY
    except ValueError:
        raise _MismatchError from None


def _to_micros(value: Any) -> int:
    if type(value) is int:
        if not -(2**63) <= value * _MICROS < 2**63:
            raise _MismatchError
        return value * _MICROS
    return _parsed_micros(value)[0]


def _to_local_micros(value: Any) -> int:
    micros, has_zone = _parsed_micros(value)
    if has_zone:
        raise _MismatchError
    return micros


def _parsed_micros(value: Any) -> tuple[int, bool]:
    """(microseconds since the epoch, whether a zone was named) of a text; UTC without a zone."""
    found = _TIMESTAMP.fullmatch(value.strip()) if type(value) is str else None
    if found is None:
        raise _MismatchError
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        moment = datetime(
            int(year),
            int(month or 1),
            int(day or 1),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "0")[:6].ljust(6, "0")),
            tzinfo=_zone(zone),
        )
        return (moment - _EPOCH) // timedelta(microseconds=1), zone is not None
    except (ValueError, OverflowError):
        raise _MismatchError from None


def _zone(text: str | None) -> timezone:
    if text is None or text[0] not in "+-":
        return UTC
    hours, _, minutes = text[1:].partition(":")
    if not minutes and len(hours) > 2:
        hours, minutes = hours[:-2], hours[-2:]
    if int(hours) > 18 or int(minutes or 0) > 59:
        raise ValueError(text)
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    return timezone(-offset if text[0] == "-" else offset)


_SIMPLE: dict[pa.DataType, Converter] = {
    pa.bool_(): _to_bool,
    pa.string(): _to_text,
    pa.binary(): _to_bytes,
    pa.date32(): _to_days,
}
