"""Positions in a vbucket's history."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.model import MAX_SEQNO, SnapshotRange, StreamOffset
from tests.kit.cases import each_case

_SEQNOS = st.integers(0, MAX_SEQNO)


@st.composite
def offsets(draw: st.DrawFn) -> StreamOffset:
    start, seqno, limit, end = sorted(draw(_SEQNOS) for _ in range(4))
    if start < seqno < limit and draw(st.booleans()):
        return StreamOffset(draw(_SEQNOS), seqno, start, end, draw(_SEQNOS), purge_limit=limit)
    return StreamOffset(draw(_SEQNOS), seqno, start, draw(st.sampled_from((None, end))), draw(_SEQNOS))


@given(offsets())
def test_json_keeps_all_bits(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    for found in (StreamOffset.from_json(json.loads(text)), pickle.loads(pickle.dumps(offset))):
        assert (found, found.manifest_uid, found.purge_limit) == (offset, offset.manifest_uid, offset.purge_limit)
    assert not any(isinstance(value, int | float) for value in json.loads(text).values())


@each_case(("start", "seqno", "end", "limit"), [(0, 5, 9, 5), (0, 5, 9, 10), (5, 5, 9, 7), (0, 5, None, 7)])
def test_a_purge_limit_lies_between_the_seqno_and_the_end_of_its_snapshot(
    start: int, seqno: int, end: int | None, limit: int
) -> None:
    with pytest.raises(ValueError, match=f"the purge limit {limit} is not"):
        StreamOffset(1, seqno, start, end, purge_limit=limit)


def test_a_purge_limit_stays_with_other_collections_and_does_not_count_in_comparisons() -> None:
    at = StreamOffset(1, 5, 0, 9, purge_limit=8)
    assert at.with_collections(()).purge_limit == 8
    assert at == StreamOffset(1, 5, 0, 9)


def test_snapshot_range() -> None:
    assert 5 in SnapshotRange(5, 9)
    assert 10 not in SnapshotRange(5, 9)
    with pytest.raises(ValueError, match=r"9\.\.5"):
        SnapshotRange(9, 5)
