"""Changes: what a row says in a table."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, ClassVar

import cramjam
import pyarrow as pa
import pytest

from dcpstream.arrow import (
    CHANGE_SCHEMA,
    ChangeContext,
    WireChunk,
    change_schema,
    control_rows,
    to_changes,
)
from dcpstream.errors import FieldError
from dcpstream.wire.values import encode_xattrs
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.control_rows import rollback_row
from tests.kit.wire_columns import decode_messages, decode_wire

pytestmark = pytest.mark.usefixtures("each_decoder")

NAMES = {0: ("_default", "_default"), 8: ("inventory", "airline"), 0x555: ("inventory", "route")}
CONTEXT = ChangeContext(collection_names=NAMES, vbuuids={3: 2**64 - 1, 4: 77})
WRITTEN = 1_385_769_600_123_456
"""Microseconds of 2013-11-30T00:00:00.123456Z."""
CAS = (WRITTEN * 1000 + 789) & ~0xFFFF | 0xFFF5


def rows_of(*frames: bytes, **options: Any) -> list[dict[str, Any]]:
    """The changes of frames; the same whether they are few or many."""
    context = options.pop("context", CONTEXT)
    few = to_changes(decode_messages(b"".join(frames)), context=context, **options)
    buffer = b"".join(frames) * 60
    many = to_changes(decode_wire(buffer), context=context, **options)
    for batch in (few, many):
        batch.validate(full=True)
    assert many.schema == few.schema
    assert many.slice(0, len(frames)).equals(few)
    assert many.slice(len(frames) * 59).equals(few)
    result: list[dict[str, Any]] = few.to_pylist()
    return result


@each_case(("rev", "kind"), [(1, "insert"), (2, "update_postimage")])
def test_kinds_of_change_when_all_are_the_same(rev: int, kind: str) -> None:
    rows = rows_of(raw_frames.mutation(rev=rev), raw_frames.mutation(rev=rev))
    assert {row["_change_type"] for row in rows} == {kind}


@each_case("value_format", ["binary", "string"])
@each_case("json_bit", [0, 1])
def test_every_combination_of_datatypes(value_format: str, json_bit: int) -> None:
    body = b'{"x": "' + b"y" * 200 + b'"}'
    section = encode_xattrs({"_a": b"1", "b": b"[2]"}, body)
    rows = rows_of(
        raw_frames.mutation(value=body, datatype=json_bit),
        raw_frames.mutation(value=bytes(cramjam.snappy.compress_raw(body)), datatype=json_bit | 2),
        raw_frames.mutation(value=section, datatype=json_bit | 4),
        raw_frames.mutation(value=bytes(cramjam.snappy.compress_raw(section)), datatype=json_bit | 6),
        raw_frames.deletion(value=bytes(cramjam.snappy.compress_raw(encode_xattrs({"_a": b"1"}))), datatype=6),
        value_format=value_format,
    )
    expected = body if value_format == "binary" else body.decode()
    assert [row["value"] for row in rows] == [expected] * 4 + [None]
    assert [row["datatype"] for row in rows] == [json_bit, json_bit | 2, json_bit | 4, json_bit | 6, 6]
    pairs = [("_a", "1"), ("b", "[2]")]
    assert [row["xattrs"] for row in rows] == [None, None, pairs, pairs, [("_a", "1")]]


def test_numbers_without_sign_keep_their_bits() -> None:
    (row,) = rows_of(raw_frames.mutation(seqno=2**64 - 1, rev=2**63, cas=2**64 - 1, flags=2**32 - 1, expiry=2**32 - 1))
    assert (row["seqno"], row["_commit_version"], row["rev"], row["cas"]) == (-1, -1, -(2**63), -1)
    assert row["flags"] == -1
    assert row["expiry"] == datetime.fromtimestamp(2**32 - 1, UTC)
    assert row["_commit_timestamp"].year == 2554


class TestShapes:
    def chunk(self, count: int = 3) -> WireChunk:
        return decode_messages(raw_frames.mutation() * count)

    @each_case("name", CHANGE_SCHEMA.names)
    def test_each_column_alone_is_the_same(self, name: str) -> None:
        every = to_changes(self.chunk(), context=CONTEXT)
        alone = to_changes(self.chunk(), context=CONTEXT, columns=[name], missing="drop")
        assert alone.schema.names == [name]
        assert alone.column(0).equals(every.column(name))
        filled = to_changes(self.chunk(), context=CONTEXT, columns=[name])
        assert filled.schema == CHANGE_SCHEMA
        assert filled.column(name).equals(every.column(name))
        assert all(filled.column(other).null_count == 3 for other in CHANGE_SCHEMA.names if other != name)

    def test_no_column_still_counts(self) -> None:
        assert to_changes(self.chunk(), context=CONTEXT, columns=[], missing="drop").num_rows == 3


@each_case(
    ("value", "datatype"), [(b"\x80", 2), (b"\0\0\xff\xff{}", 4), (bytes(cramjam.snappy.compress_raw(b"\xff" * 9)), 6)]
)
def test_a_value_that_cannot_be_read_says_where(value: bytes, datatype: int) -> None:
    chunk = decode_messages(
        raw_frames.mutation(seqno=40) + raw_frames.mutation(value=value, datatype=datatype, seqno=41, vbucket=17)
    )
    with pytest.raises(FieldError, match=r"seqno 41 in vbucket 17 \(datatype 0x0[246]\)"):
        to_changes(chunk, context=CONTEXT)
    to_changes(chunk, context=CONTEXT, columns=["key", "seqno"])


def test_batches_do_not_change_when_the_buffer_is_used_again() -> None:
    received = bytearray(b"".join(raw_frames.mutation(b"\0%d" % n, b"value %d" % n, cas=CAS) for n in range(300)))
    changes = to_changes(decode_wire(received), context=CONTEXT)
    expected = to_changes(decode_messages(bytes(received)), context=CONTEXT)
    received[:] = b"\xaa" * len(received)
    assert changes.equals(expected)
    received.clear()


class TestRollbackRow:
    EXPECTED: ClassVar = {"from_seqno": "90", "to_seqno": "80", "old_vbuuid": str(2**64 - 1), "new_vbuuid": "5"}

    def row(self, **options: Any) -> pa.RecordBatch:
        return control_rows([rollback_row(7, 90, 80, 2**64 - 1, 5)], time=1_700_000_000.25, **options)

    @each_case("value_format", ["binary", "string"])
    def test_it_says_what_is_void(self, value_format: str) -> None:
        batch = self.row(value_format=value_format)
        batch.validate(full=True)
        assert batch.schema == change_schema(value_format)
        (row,) = batch.to_pylist()
        assert isinstance(row["value"], bytes if value_format == "binary" else str)
        assert json.loads(row.pop("value")) == self.EXPECTED
        assert {name: value for name, value in row.items() if value is not None} == {
            "_commit_version": 80,
            "_commit_timestamp": datetime(2023, 11, 14, 22, 13, 20, 250_000, UTC),
            "op": "rollback",
            "vbucket": 7,
            "vbuuid": "5",
            "seqno": 80,
        }
