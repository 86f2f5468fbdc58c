"""Rows as JSON objects."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.arrow.json_rows import check_type, json_rows
from dcpstream.errors import ConfigError
from tests.kit.cases import each_case


def one(values: list[Any], kind: pa.DataType) -> list[str]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["v"])
    return [row.decode() for row in json_rows(batch, ["v"])]


@each_case(
    ("value", "kind", "text"),
    [
        (2**63 - 1, pa.int64(), "9223372036854775807"),
        (-5, pa.int8(), "-5"),
        (True, pa.bool_(), "true"),
        (0.1, pa.float64(), "0.1"),
        (1e300, pa.float64(), "1e+300"),
        (float("nan"), pa.float64(), '"NaN"'),
        (float("-inf"), pa.float64(), '"-Infinity"'),
        (Decimal("12345678901234567890.10"), pa.decimal128(22, 2), "12345678901234567890.10"),
        (Decimal("0.0000001"), pa.decimal128(10, 7), "0.0000001"),
        ('ä"\n\\,', pa.string(), '"ä\\"\\n\\\\,"'),
        (b"\xff\0", pa.binary(), '"/wA="'),
        (date(2024, 5, 1), pa.date32(), '"2024-05-01"'),
        (datetime(2024, 5, 1, 10, 0, 0, 5, UTC), pa.timestamp("us", "UTC"), '"2024-05-01T10:00:00.000005Z"'),
        (
            datetime(2024, 5, 1, 10, tzinfo=timezone(timedelta(hours=2))),
            pa.timestamp("us", "Europe/Berlin"),
            '"2024-05-01T08:00:00.000000Z"',
        ),
        (datetime(2024, 5, 1, 10), pa.timestamp("us"), '"2024-05-01T10:00:00.000000"'),  # noqa: DTZ001
        ([1, None], pa.list_(pa.int32()), "[1,null]"),
        ({"a": 1, "b": None}, pa.struct([("a", pa.int32()), ("b", pa.int32())]), '{"a":1}'),
        ([("x", 1), ("y", None)], pa.map_(pa.string(), pa.int32()), '{"x":1,"y":null}'),
        ([(7, [Decimal("1.0")])], pa.map_(pa.int32(), pa.list_(pa.decimal128(3, 1))), '{"7":[1.0]}'),
    ],
)
def test_each_type_has_its_form(value: Any, kind: pa.DataType, text: str) -> None:
    assert one([value], kind) == [f'{{"v":{text}}}']
    check_type("v", kind)


def test_a_null_is_left_out_or_kept() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, None], "b": [None, "x"], "c": pa.nulls(2)[0:2].cast(pa.int32())})
    assert json_rows(batch, ["a", "b", "c"]) == [b'{"a":1}', b'{"b":"x"}']
    assert json_rows(batch, ["c", "a"], keeps_nulls=True) == [b'{"c":null,"a":1}', b'{"c":null,"a":null}']
    assert json_rows(batch, []) == [b"{}", b"{}"]


def test_a_variant_is_no_struct_to_write() -> None:
    metadata = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
    with pytest.raises(ConfigError, match="to_json"):
        check_type("v", pa.struct([pa.field("value", pa.binary(), nullable=False), metadata]))


_SCALARS = st.none() | st.integers(-(2**63), 2**63 - 1)
_ROWS = st.lists(st.fixed_dictionaries({"n": _SCALARS, 'q"': st.none() | st.text(), "l": st.lists(st.text())}))


@given(_ROWS)
def test_a_json_parser_reads_back_what_was_written(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([("n", pa.int64()), ('q"', pa.string()), ("l", pa.list_(pa.string()))])
    batch = pa.RecordBatch.from_pylist(rows, schema)
    written = [json.loads(row) for row in json_rows(batch, schema.names, keeps_nulls=True)]
    assert written == rows
