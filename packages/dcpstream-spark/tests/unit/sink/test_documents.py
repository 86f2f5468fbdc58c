"""Rows as writes of documents."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dcpstream.arrow.text import escape
from dcpstream.client.kv.writes import Write, WriteOp
from dcpstream.errors import ConfigError
from dcpstream_spark.sink.documents import (
    BINARY_FLAGS,
    JSON_FLAGS,
    STRING_FLAGS,
    DocumentColumns,
    Documents,
    unescaped,
)
from dcpstream_spark.sink.write_options import WriteOptions
from tests.kit.cases import each_case
from tests.unit.sink.test_write_options import NEEDED


def documents(rows: list[dict[str, Any]], schema: list[tuple[str, pa.DataType]], **options: str) -> Documents:
    arrow = pa.schema(schema)
    columns = DocumentColumns.check(WriteOptions.parse({**NEEDED, **options}), arrow)
    return columns.writes_of(pa.RecordBatch.from_pylist(rows, arrow))


KEY = ("key", pa.string())
VALUE = ("value", pa.binary())


def test_the_other_columns_become_json() -> None:
    found = documents([{"key": "a", "n": 1, "t": "x"}], [KEY, ("n", pa.int64()), ("t", pa.string())])
    assert found.writes == [Write(WriteOp.UPSERT, b"a", b'{"n":1,"t":"x"}', flags=JSON_FLAGS)]


def test_special_columns_are_not_part_of_the_document() -> None:
    row = {"key": "a", "n": 1, "c": "orders", "s": "shop", "e": 9, "f": 3, "x": 5, "o": "replace"}
    kinds = [KEY, ("n", pa.int64()), ("c", pa.string()), ("s", pa.string()), ("e", pa.int64()), ("f", pa.int32())]
    found = documents(
        [row],
        [*kinds, ("x", pa.int64()), ("o", pa.string())],
        collectionColumn="c",
        scopeColumn="s",
        expiryColumn="e",
        flagsColumn="f",
        casColumn="x",
        opColumn="o",
    )
    assert found.writes == [Write(WriteOp.REPLACE, b"a", b'{"n":1}', "shop.orders", 3, 9, 5)]


@each_case(
    ("kind", "value", "body", "flags"),
    [
        (pa.binary(), b'{"a":1}', b'{"a":1}', JSON_FLAGS),
        (pa.binary(), b"\xff", b"\xff", BINARY_FLAGS),
        (pa.binary(), b"", b"", BINARY_FLAGS),
        (pa.string(), "12", b"12", JSON_FLAGS),
        (pa.string(), "hä", "hä".encode(), STRING_FLAGS),
        (pa.large_string(), "NaN", b"NaN", STRING_FLAGS),
        (pa.struct([("a", pa.int32())]), {"a": 1}, b'{"a":1}', JSON_FLAGS),
        (pa.list_(pa.int32()), [1, 2], b"[1,2]", JSON_FLAGS),
    ],
)
def test_a_value_column_and_the_flags_of_its_format(kind: pa.DataType, value: Any, body: bytes, flags: int) -> None:
    found = documents([{"key": "a", 'v"': value}], [KEY, ('v"', kind)], valueColumn='v"')
    assert [(write.value, write.flags) for write in found.writes] == [(body, flags)]


def test_rows_of_the_source_are_written_as_they_are() -> None:
    rows: list[dict[str, Any]] = [
        {"key": "a", "value": b"1", "op": "mutation"},
        {"key": "b", "value": None, "op": "deletion"},
        {"key": "c", "value": None, "op": "expiration"},
        {"key": None, "value": b"{}", "op": "collection_created"},
        {"key": None, "value": b"{}", "op": "rollback"},
        {"key": "d", "value": b"1", "op": "merge"},
    ]
    found = documents(rows, [KEY, VALUE, ("op", pa.string())], valueColumn="value", opColumn="op")
    kinds = [(write.op, write.key) for write in found.writes]
    assert kinds == [(WriteOp.UPSERT, b"a"), (WriteOp.DELETE, b"b"), (WriteOp.DELETE, b"c")]
    assert found.controls == 1
    assert [(reject.op, reject.status) for reject in found.rejects] == [("rollback", "ROW"), ("merge", "ROW")]


@each_case("options", [{}, {"opColumn": "op"}])
def test_rows_that_cannot_be_a_write(options: dict[str, str]) -> None:
    rows: list[dict[str, Any]] = [
        {"key": None, "value": b"1", "op": "upsert"},
        {"key": "a", "value": None, "op": "upsert"},
    ]
    found = documents(rows, [KEY, VALUE, ("op", pa.string())], valueColumn="value", **options)
    assert [reject.reason.split(";")[0] for reject in found.rejects] == ["the key is null", "the value is null"]
    assert not found.writes


def test_times_of_expiration() -> None:
    kinds = [KEY, VALUE, ("e", pa.timestamp("us", "UTC"))]
    moments = [datetime(2033, 5, 18, 3, 33, 20, 999_999, UTC), None, datetime(1960, 1, 1, tzinfo=UTC)]
    rows: list[dict[str, Any]] = [{"key": "a", "value": b"1", "e": moment} for moment in moments]
    found = documents(rows, kinds, valueColumn="value", expiryColumn="e")
    assert [write.expiry for write in found.writes] == [2_000_000_000, 0]
    assert ["expiration" in reject.reason for reject in found.rejects] == [True]
    fixed = documents(rows[:1], kinds, valueColumn="value", expiry="60")
    assert fixed.writes[0].expiry == 60


@each_case(
    ("kind", "value", "cas"),
    [
        (pa.int64(), -1, 2**64 - 1),
        (pa.int64(), 5, 5),
        (pa.decimal128(20, 0), Decimal(2**64 - 1), 2**64 - 1),
        (pa.string(), str(2**64 - 1), 2**64 - 1),
        (pa.string(), None, 0),
        (pa.string(), "x", None),
        (pa.string(), str(2**64), None),
        (pa.decimal128(20, 0), Decimal(-1), None),
    ],
)
def test_a_cas_in_each_form(kind: pa.DataType, value: Any, cas: int | None) -> None:
    rows: list[dict[str, Any]] = [{"key": "a", "value": b"1", "c": value}]
    found = documents(rows, [KEY, VALUE, ("c", kind)], valueColumn="value", casColumn="c")
    assert [write.cas for write in found.writes] == ([] if cas is None else [cas])
    assert len(found.rejects) == (cas is None)


def test_an_insert_with_a_cas_is_refused_as_a_row() -> None:
    kinds = [KEY, VALUE, ("c", pa.int64()), ("op", pa.string())]
    rows = [{"key": "a", "value": b"1", "c": 5, "op": "insert"}]
    found = documents(rows, kinds, valueColumn="value", casColumn="c", opColumn="op")
    assert found.rejects[0].reason == "a new document has no CAS"


def test_a_deletion_needs_only_a_key() -> None:
    found = documents([{"key": "a", "n": None}], [KEY, ("n", pa.duration("us"))], operation="delete")
    assert found.writes == [Write(WriteOp.DELETE, b"a")]


@each_case("key", [b"plain", b"\xff\\", b"\\xff", "ä\\x".encode(), b"\xfe\xff"])
def test_keys_as_the_source_writes_them(key: bytes) -> None:
    text = escape(key)
    if key != b"\\xff":  # the one collision of the source's text
        assert unescaped(text) == key
    found = documents([{"key": text, "value": b"1"}], [KEY, VALUE], valueColumn="value")
    assert found.writes[0].key == text.encode(), "only with keyEncoding=escaped"
    found = documents([{"key": text, "value": b"1"}], [KEY, VALUE], valueColumn="value", keyEncoding="escaped")
    assert found.writes[0].key == unescaped(text)


def test_a_text_that_the_source_would_not_write_is_no_escape() -> None:
    assert unescaped(r"\q\xff") == rb"\q\xff"


@each_case(
    ("options", "option", "message"),
    [
        ({"keyColumn": "k"}, "keyColumn", "columns of the rows: key, value, n"),
        ({"keyColumn": "n"}, "keyColumn", "string or binary"),
        ({"valueColumn": "none"}, "valueColumn", "one of the columns"),
        ({"opColumn": "n"}, "opColumn", "string"),
        ({"flagsColumn": "value"}, "flagsColumn", "whole number"),
        ({"expiryColumn": "value"}, "expiryColumn", "timestamp"),
        ({"casColumn": "d"}, "casColumn", "bigint"),
        ({}, "valueColumn", "d of type duration"),
    ],
)
def test_columns_that_do_not_fit(options: dict[str, str], option: str, message: str) -> None:
    schema = pa.schema([KEY, VALUE, ("n", pa.int64()), ("d", pa.duration("us"))])
    with pytest.raises(ConfigError, match=message) as raised:
        DocumentColumns.check(WriteOptions.parse({**NEEDED, **options}), schema)
    assert raised.value.option == option


def test_a_column_that_is_there_twice() -> None:
    with pytest.raises(ConfigError, match="different names"):
        DocumentColumns.check(WriteOptions.parse(NEEDED), pa.schema([KEY, KEY]))
