"""JSON documents as typed columns: many at once as one by one; what is no such document is malformed, never an error.

Input: the schema's number, how often the documents are repeated, and documents with zero bytes between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dcpstream_spark.typed_columns.parsing import FAST_ROWS_MIN, DocumentParser, load_json

MAX_BYTES = 1500

_SIMPLE = (
    ("b", pa.bool_()), ("y", pa.int8()), ("i", pa.int32()), ("l", pa.int64()), ("d", pa.float64()), ("s", pa.string()),
)  # fmt: skip
_SCHEMAS = (
    pa.schema([*_SIMPLE, ("a", pa.list_(pa.int64())), ("o", pa.struct([("s", pa.string()), ("d", pa.float64())]))]),
    pa.schema([("s", pa.string())]),
    pa.schema(
        [
            ("f", pa.float32()), ("c", pa.decimal128(10, 2)), ("x", pa.binary()), ("t", pa.date32()),
            ("u", pa.timestamp("us")), ("z", pa.timestamp("us", tz="UTC")), ("m", pa.map_(pa.string(), pa.int64())),
            ("n", pa.map_(pa.string(), pa.struct([("s", pa.string())]))), ("g", pa.decimal128(38, 18)),
        ]
    ),
    pa.schema([("a", pa.list_(pa.list_(pa.struct([("a", pa.string()), ("b", pa.bool_())]))))]),
)  # fmt: skip
_PARSERS = [DocumentParser(schema) for schema in _SCHEMAS]
_TEXTS = (
    rb'{"b":true,"y":-128,"i":2147483647,"l":-9223372036854775808,"d":1.5e3,"s":"\u00e9\ud83d\ude00","a":[1,null]}',
    rb'{"o":{"s":"x","d":-0.0}}',
    rb'{"s":{"k":[1,2.50,null]},"b":"no","y":128,"d":1}',
    rb'{"f":1e39,"c":"1,234.565","x":"aGk=","t":"2024-02-29","u":"2024-02-29T23:59:60.123Z","z":"2024-1-2 3:4+0530"}',
    rb'{"m":{"k":1},"n":{"k":{"s":"x"}},"g":0.000000000000000001}',
    rb'{"a":[[{"a":"x","b":true},null],[]]}',
    rb"[1]",
    rb'{"s":"\ud800"}',
    rb'{"d":NaN,"f":"-INF","l":1.0,"c":1e-500}',
)


def seeds() -> Iterator[bytes]:
    for number in range(len(_SCHEMAS)):
        for text in _TEXTS:
            yield bytes((number, 0)) + text
        yield bytes((number, 1)) + b"\0".join(_TEXTS)


def check(data: bytes) -> None:
    if len(data) < 2:
        return
    parser = _PARSERS[data[0] % len(_PARSERS)]
    texts = data[2:].split(b"\0")
    if data[1] & 1:
        texts *= FAST_ROWS_MIN // len(texts) + 1
    found = parser.parse(pa.array(texts, pa.binary()))
    rows = []
    for row, text in enumerate(texts):
        values, is_malformed = parser.parse_one(text)
        rows.append(values or {})
        assert is_malformed == found.is_malformed[row], (row, text)
    schema = _SCHEMAS[data[0] % len(_SCHEMAS)]
    for field, column in zip(schema, found.columns, strict=True):
        column.validate(full=True)
        expected = pa.array([row.get(field.name) for row in rows], field.type)
        assert same(column, expected), field.name
    with contextlib.suppress(ValueError):
        load_json(texts[0], is_strict=True)


def same(left: pa.Array, right: pa.Array) -> bool:
    """Equal, where NaN is equal to NaN, and 0 is not -0."""
    if left.equals(right):
        return True
    if left.type != right.type:
        return False
    return repr(left.to_pylist()) == repr(right.to_pylist()) and bool(
        np.array_equal(left.is_valid().to_numpy(zero_copy_only=False), right.is_valid().to_numpy(zero_copy_only=False))
    )
