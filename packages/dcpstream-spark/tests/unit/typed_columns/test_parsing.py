"""JSON documents as columns: by the rules of Spark's `from_json`, the same in both paths."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream_spark.typed_columns import parsing as module
from dcpstream_spark.typed_columns.parsing import DocumentParser, json_text, load_json
from tests.kit.cases import each_case

LONG = pa.int64()
UTC_TIME = pa.timestamp("us", tz="UTC")


def parsed(kind: pa.DataType, *texts: str | bytes) -> list[Any]:
    """The field `a` of documents whose field has these JSON texts."""
    parser = DocumentParser(pa.schema([("a", kind)]))
    documents = [b'{"a":' + (text.encode() if isinstance(text, str) else text) + b"}" for text in texts]
    result: list[Any] = parser.parse(pa.array(documents, pa.binary())).columns[0].to_pylist()
    return result


def is_malformed(kind: pa.DataType, text: str) -> bool:
    parser = DocumentParser(pa.schema([("a", kind)]))
    return bool(parser.parse(pa.array([b'{"a":' + text.encode() + b"}"], pa.binary())).is_malformed[0])


@each_case(
    ("kind", "text", "value"),
    [
        (pa.bool_(), "true", True),
        (pa.int8(), "-128", -128),
        (LONG, "9223372036854775807", 2**63 - 1),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "0.1234567890123456789", 0.12345678901234568),
        (pa.float64(), "1e400", float("inf")),
        (pa.float64(), '"-INF"', float("-inf")),
        (pa.float64(), "1" + "0" * 400, float("inf")),
        (pa.float32(), "1.5", 1.5),
        (pa.string(), '"\\u00e9\\u0000"', "é\0"),
        (pa.string(), '"\\ud800"', "?"),
        (pa.string(), "1.50", "1.50"),
        (pa.string(), '{"b": [1, 2.0, null, "x"]}', '{"b":[1,2.0,null,"x"]}'),
        (pa.string(), "true", "true"),
        (pa.binary(), '"AAH/"', b"\0\1\xff"),
        (pa.decimal128(5, 2), "1.005", Decimal("1.01")),
        (pa.decimal128(6, 2), '"1,234.5"', Decimal("1234.50")),
        (
            pa.decimal128(38, 0),
            "12345678901234567890123456789012345678",
            Decimal(12345678901234567890123456789012345678),
        ),
        (pa.decimal128(5, 2), "1e-999999", Decimal("0.00")),
        (pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
        (pa.date32(), '"2024-2"', date(2024, 2, 1)),
        (UTC_TIME, '"2024-02-29T12:30:15.1234567+02:00"', datetime(2024, 2, 29, 10, 30, 15, 123456, UTC)),
        (UTC_TIME, '"2024-02-29 12:30"', datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
        (UTC_TIME, "60", datetime(1970, 1, 1, 0, 1, tzinfo=UTC)),
        (pa.timestamp("us"), '"2024-02-29T12:30:15"', datetime(2024, 2, 29, 12, 30, 15)),  # noqa: DTZ001
        (pa.list_(LONG), "[1, null]", [1, None]),
        (pa.map_(pa.string(), LONG), '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
        (pa.struct([("b", LONG)]), '{"b": 1, "c": 2}', {"b": 1}),
        (LONG, "null", None),
    ],
)
def test_values(kind: pa.DataType, text: str, value: Any) -> None:
    assert parsed(kind, text) == [value]
    assert is_malformed(kind, text) == (value is None and text != "null")


@each_case(
    ("kind", "text"),
    [
        (pa.bool_(), '"true"'),
        (pa.bool_(), "1"),
        (pa.int8(), "128"),
        (LONG, "1.0"),
        (LONG, '"1"'),
        (LONG, "true"),
        (LONG, "9223372036854775808"),
        (pa.float64(), '"1.5"'),
        (pa.float64(), "true"),
        (pa.binary(), '"?"'),
        (pa.decimal128(5, 2), "1000"),
        (pa.decimal128(5, 2), "1e999999"),
        (pa.decimal128(5, 2), '"x"'),
        (pa.date32(), '"2023-02-29"'),
        (pa.date32(), "1"),
        (UTC_TIME, '"yesterday"'),
        (UTC_TIME, "1e3"),
        (pa.timestamp("us"), '"2024-02-29T12:30:15Z"'),
        (pa.list_(LONG), '[1, "x"]'),
        (pa.list_(LONG), "{}"),
        (pa.map_(pa.string(), LONG), '{"x": "1"}'),
        (pa.struct([("b", LONG)]), "[]"),
    ],
)
def test_a_value_of_another_type_is_null_and_the_document_malformed(kind: pa.DataType, text: str) -> None:
    assert parsed(kind, text) == [None]
    assert is_malformed(kind, text)


def test_the_other_fields_of_a_malformed_document_stay() -> None:
    inner = pa.struct([("x", LONG), ("y", LONG)])
    schema = pa.schema([("a", LONG), ("b", inner), ("c", pa.list_(inner)), ("d", pa.map_(pa.string(), inner))])
    partial = {"x": "no", "y": 1}
    text = json.dumps({"a": 7, "b": partial, "c": [partial, {"x": 2}], "d": {"k": partial}})
    found = DocumentParser(schema).parse(pa.array([text.encode()], pa.binary()))
    assert found.is_malformed.tolist() == [True]
    kept = {"x": None, "y": 1}
    assert [column.to_pylist()[0] for column in found.columns] == [
        7,
        kept,
        [kept, {"x": 2, "y": None}],
        [("k", kept)],
    ]


@each_case(
    "text",
    [
        b"",
        b" ",
        b"nope",
        b"[1]",
        b"1",
        b'"x"',
        b"null",
        b'{"a":1',
        b'{"a":1}{"a":2}',
        b'{"a":1} x',
        b"{'a':1}",
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1,}',
        b'{"a":"x\ny"}',
        b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"b":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
@each_case("neighbours", [0, 40])
def test_what_is_no_json_object(text: bytes, neighbours: int) -> None:
    """Alone, and in a block that is long enough to be parsed together."""
    documents = [b'{"a":%d}' % number for number in range(neighbours)]
    documents.insert(neighbours // 2, text)
    found = DocumentParser(pa.schema([("a", LONG)])).parse(pa.array(documents, pa.binary()))
    values = found.columns[0].to_pylist()
    assert values.pop(neighbours // 2) is None
    assert values == list(range(neighbours))
    assert found.is_malformed.nonzero()[0].tolist() == [neighbours // 2]


def test_a_document_with_two_objects_does_not_hide_an_empty_one() -> None:
    """Together they have as many objects as a block without faults."""
    documents = [b'{"a":1}'] * 40
    documents[3], documents[4] = b'{"a":8}{"a":9}', b""
    found = DocumentParser(pa.schema([("a", LONG)])).parse(pa.array(documents, pa.binary()))
    assert found.is_malformed.nonzero()[0].tolist() == [3, 4]
    assert found.columns[0].to_pylist() == [1] * 3 + [None] * 2 + [1] * 35


def test_null_values_are_not_malformed_and_slices_stay_slices() -> None:
    documents: list[bytes | None] = [b"broken", *(b'{"a":%d}' % number for number in range(50)), None, b"x", None]
    found = DocumentParser(pa.schema([("a", LONG)])).parse(pa.array(documents, pa.binary()).slice(1))
    assert found.columns[0].to_pylist() == [*range(50), None, None, None]
    assert found.is_malformed.nonzero()[0].tolist() == [51]


def test_the_deepest_document_that_is_allowed() -> None:
    deep = b'{"a":7,"b":' + b"[" * (module.DEPTH_MAX - 1) + b"]" * (module.DEPTH_MAX - 1) + b"}"
    for count in (1, 40):
        found = DocumentParser(pa.schema([("a", LONG)])).parse(pa.array([deep] * count, pa.binary()))
        assert found.columns[0].to_pylist() == [7] * count
        assert not found.is_malformed.any()


def test_no_documents() -> None:
    found = DocumentParser(pa.schema([("a", LONG)])).parse(pa.array([], pa.binary()))
    assert (len(found.columns[0]), len(found.is_malformed)) == (0, 0)
    assert found.columns[0].type == LONG


def test_documents_with_line_feeds_are_parsed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("parsed one by one")

    monkeypatch.setattr(DocumentParser, "_parse_singly", fail)
    documents = [json.dumps({"a": number, "b": {"c": "x"}}, indent=2).encode() for number in range(100)]
    found = DocumentParser(pa.schema([("a", LONG)])).parse(pa.array(documents, pa.binary()))
    assert found.columns[0].to_pylist() == list(range(100))


SCHEMA = pa.schema(
    [
        ("a", LONG),
        ("b", pa.float64()),
        ("c", pa.string()),
        ("d", pa.list_(pa.int8())),
        ("e", pa.struct([("a", pa.bool_()), ("f", pa.list_(pa.struct([("x", pa.string())])))])),
    ]
)
_leaf = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=4)
    | st.just("\ud800")
)
_value = st.recursive(
    _leaf, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abfx"), inner, max_size=3)
)
_good = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "b": st.floats(),
        "c": st.text(max_size=4),
        "d": st.lists(st.integers(-128, 127) | st.none(), max_size=3),
        "e": st.fixed_dictionaries(
            {}, optional={"a": st.booleans(), "f": st.lists(st.fixed_dictionaries({"x": st.text(max_size=2)}))}
        ),
        "z": _value,
    },
)
_documents = st.one_of(
    _good.map(lambda data: json.dumps(data).encode()),
    _good.map(lambda data: json.dumps(data, indent=1, ensure_ascii=False).encode(errors="surrogatepass")),
    st.dictionaries(st.sampled_from("abcdez"), _value, max_size=4).map(lambda data: json.dumps(data).encode()),
    st.binary(max_size=6),
    st.sampled_from(
        [b'{"a":1}{"a":2}', b"", b'{"a":1,"a":2}', b'{"a":-0}', b'{"a":01}', b'{"b":1e400}', b'{"d":[[]]}']
    ),
)


@given(st.lists(_documents, max_size=12), st.lists(_good, min_size=1, max_size=6))
def test_both_paths_give_the_same(some: list[bytes], good: list[Any]) -> None:
    fillers = [json.dumps(data).encode() for data in good]
    documents = pa.array([*some, *(fillers * module.FAST_ROWS_MIN)[: module.FAST_ROWS_MIN]], pa.binary())
    parser = DocumentParser(SCHEMA)
    found = parser.parse(documents)
    columns, malformed = parser._parse_singly(documents.to_pylist())
    assert found.is_malformed.tolist() == malformed.tolist()
    for one, other, field in zip(found.columns, columns, SCHEMA, strict=True):
        one.validate(full=True)
        assert one.type == other.type == field.type
        assert repr(one.to_pylist()) == repr(other.to_pylist())


def test_numbers_keep_their_text() -> None:
    assert json_text(load_json(b'{"a": [1.50, 1E3, -0.0, 12345678901234567890123]}')) == (
        '{"a":[1.50,1E3,-0.0,12345678901234567890123]}'
    )


def test_binary_is_base64() -> None:
    data = bytes(range(256))
    assert parsed(pa.binary(), json.dumps(base64.b64encode(data).decode())) == [data]
