"""Batches are joined up to a bound, and no row is lost, repeated or moved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream_spark.source import coalescing
from dcpstream_spark.source.coalescing import coalesced

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def batches_of(sizes: list[int]) -> list[pa.RecordBatch]:
    found, at = [], 0
    for size in sizes:
        numbers = range(at, at + size)
        found.append(pa.record_batch([list(numbers), [f"value {n}" for n in numbers]], schema=SCHEMA))
        at += size
    return found


@given(sizes=st.lists(st.integers(1, 12), max_size=30), max_rows=st.integers(1, 20))
def test_rows_keep_their_order_in_fewer_batches(sizes: list[int], max_rows: int) -> None:
    joined = list(coalesced(batches_of(sizes), max_rows))
    assert [n for batch in joined for n in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    assert [t for batch in joined for t in batch.column("text").to_pylist()] == [
        f"value {n}" for n in range(sum(sizes))
    ]
    assert all(batch.num_rows <= max(max_rows, *sizes) for batch in joined)
    # Two neighbours that fit into one batch are in one batch.
    assert all(a.num_rows + b.num_rows > max_rows for a, b in itertools.pairwise(joined))
    assert all(batch.schema == SCHEMA for batch in joined)


def test_slices_of_a_large_batch_are_joined_with_their_own_rows() -> None:
    (whole,) = batches_of([10])
    joined = list(coalesced([whole.slice(7, 2), whole.slice(1, 3)], 100))
    assert [batch.column("n").to_pylist() for batch in joined] == [[7, 8, 1, 2, 3]]


def test_bytes_bound_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = batches_of([5, 5, 5])
    monkeypatch.setattr(coalescing, "JOINED_BYTES_MAX", first.nbytes + second.nbytes)
    assert [batch.num_rows for batch in coalesced([first, second, third], 1000)] == [10, 5]


def test_an_error_comes_before_rows_that_wait() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches_of([1, 1])
        raise OSError("the node is away")

    with pytest.raises(OSError, match="the node is away"):
        next(coalesced(broken(), 100))


def test_a_large_batch_is_passed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large, *rest = batches_of([2, 9, 2, 2])
    monkeypatch.setattr(coalescing, "WHOLE_BYTES_MIN", large.nbytes)
    joined = list(coalesced([small, large, *rest], 1000))
    assert [batch.num_rows for batch in joined] == [2, 9, 4]
    assert joined[1] is large
