"""Filters of rows: the same rows as a full read that is filtered afterwards."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.arrow import (
    CHANGE_SCHEMA,
    FILTER_COLUMNS,
    ChangeContext,
    Comparison,
    ControlRow,
    RowFilter,
    WireChunk,
    control_rows,
    to_changes,
)
from dcpstream.model import Op
from dcpstream.wire.keys import leb128_encode
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.comparing import all_true
from tests.kit.wire_columns import decode_messages

CONTEXT = ChangeContext(
    collection_names={0: ("_default", "_default"), 8: ("shop", "orders"), 9: ("shop", "é")},
    vbuuids={1: 5, 2: 2**64 - 1},
)
KEYS = [b"", b"a", b"user:1", b"user:2", b"\xff", "ü".encode(), b"z"]


def chunk_of_everything() -> WireChunk:
    frames = []
    for number in range(120):
        key = leb128_encode([0, 8, 9, 0x77][number % 4]) + KEYS[number % len(KEYS)]
        if number % 5 == 0:
            frames.append(raw_frames.deletion(key, b"", seqno=number + 1, vbucket=number % 3, rev=number % 4))
        else:
            cas = 0 if number % 7 == 0 else (1_700_000_000 + number) * 10**9 & ~0xFFFF
            expiry = number * 1000 if number % 2 else 0
            frames.append(
                raw_frames.mutation(
                    key,
                    b"{}",
                    seqno=2**64 - 1 if number == 77 else number + 1,
                    vbucket=number % 3,
                    rev=number % 4,
                    cas=cas,
                    expiry=expiry,
                    flags=2**32 - 1 - number,
                )
            )
    return decode_messages(b"".join(frames))


CHUNK = chunk_of_everything()
ROWS: list[dict[str, Any]] = to_changes(CHUNK, context=CONTEXT).to_pylist()

_EXTRA: dict[pa.DataType, set[Any]] = {
    pa.string(): {"", "a", "user:", "user:10", "~"},
    pa.int32(): {-1, 0, 5, 2**31 - 1},
    pa.int64(): {-(2**63), 0, 50, 2**63 - 1},
}


def values_of(column: str) -> st.SearchStrategy[Any]:
    extra = _EXTRA.get(CHANGE_SCHEMA.field(column).type, {datetime(2023, 11, 14, tzinfo=UTC)})
    return st.sampled_from(sorted({row[column] for row in ROWS if row[column] is not None} | extra))


_values = {name: values_of(name) for name in FILTER_COLUMNS}


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    column = draw(st.sampled_from(FILTER_COLUMNS))
    operators = ["=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null"]
    if CHANGE_SCHEMA.field(column).type == pa.string():
        operators.append("startswith")
    operator: Any = draw(st.sampled_from(operators))
    if operator.endswith("null"):
        return Comparison(column, operator)
    if operator in {"in", "not in"}:
        return Comparison(column, operator, tuple(draw(st.lists(_values[column], min_size=1, max_size=3))))
    return Comparison(column, operator, draw(_values[column]))


@given(st.lists(comparisons(), max_size=3), st.lists(comparisons(), max_size=2))
def test_it_equals_a_full_read_that_is_filtered_afterwards(some: list[Comparison], exact: list[Comparison]) -> None:
    row_filter = RowFilter(tuple(some), tuple(exact))
    stays = row_filter.rows(CHUNK, CONTEXT)
    assert stays.tolist() == [all_true([*some, *exact], row) for row in ROWS]
    selected = to_changes(CHUNK.select(stays), context=CONTEXT).to_pylist()
    assert selected == [row for row in ROWS if all_true([*some, *exact], row)]


@given(st.lists(comparisons(), max_size=3))
def test_vbuckets_that_are_left_out_have_no_rows(some: list[Comparison]) -> None:
    row_filter = RowFilter(tuple(some))
    wanted = row_filter.vbuckets(1024)
    assert {row["vbucket"] for row in ROWS if all_true(some, row)} <= wanted


CONTROL = [
    ControlRow(Op.ROLLBACK, 1, 10, 5, {}),
    ControlRow(Op.ROLLBACK, 2, 10, 5, {}),
    ControlRow(Op.COLLECTION_DROPPED, 1, 20, 5, {}, "shop", "orders"),
    ControlRow(Op.COLLECTION_DROPPED, 1, 30, 5, {}, "shop", "other"),
]


@each_case(
    ("some", "left"),
    [
        ([], [0, 1, 2, 3]),
        ([Comparison("key", "startswith", "user:")], [0, 1, 2, 3]),
        ([Comparison("seqno", ">", 100), Comparison("_change_type", "=", "insert")], [0, 1, 2, 3]),
        ([Comparison("vbucket", "=", 1)], [0, 2, 3]),
        ([Comparison("collection", "=", "orders"), Comparison("scope", "=", "shop")], [0, 1, 2]),
        ([Comparison("op", "=", "mutation")], []),
        ([Comparison("op", "in", ("mutation", "rollback"))], [0, 1]),
    ],
)
def test_control_rows_that_concern_the_wanted_documents_stay(some: list[Comparison], left: list[int]) -> None:
    batch = control_rows(CONTROL, time=0)
    assert RowFilter(tuple(some)).control_rows(batch).equals(batch.take(pa.array(left, pa.int64())))


@given(st.lists(comparisons(), max_size=2))
def test_exact_comparisons_filter_control_rows_like_all_others(some: list[Comparison]) -> None:
    batch = control_rows(CONTROL, time=1_700_000_000)
    found = RowFilter(exact=tuple(some)).control_rows(batch).to_pylist()
    assert found == [row for row in batch.to_pylist() if all_true(some, row)]


@given(st.lists(st.sampled_from([b"", b"_", b"_txn:", b"_txn:a", b"_txn", b"a", b"a_txn:"])), st.integers(0, 9))
def test_records_of_transactions_are_left_out_of_any_part_of_a_chunk(keys: list[bytes], first: int) -> None:
    frames = [raw_frames.mutation(b"\0" + key, b"{}", seqno=1) for key in keys]
    chunk = decode_messages(b"".join(frames))
    first = min(first, len(keys))
    part = chunk.slice(first, len(keys))
    stays = RowFilter(leaves_out_system=True).rows(part, ChangeContext())
    assert stays.tolist() == [not key.startswith(b"_txn:") for key in keys[first:]]
