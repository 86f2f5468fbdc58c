from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset
from dcpstream.spark.offsets import (
    Rewind,
    SourceOffset,
    VbucketOffset,
    is_start_marker,
    position,
    position_json,
    start_marker,
    user_position,
    user_seqno,
)
from dcpstream.spark.options import OffsetSpec

U64 = st.integers(0, 2**64 - 1)


@st.composite
def positions(draw: st.DrawFn) -> StreamOffset:
    start, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    return StreamOffset(draw(U64), seqno, start, draw(st.sampled_from([None, end])), draw(U64))


ENTRIES = st.builds(
    VbucketOffset,
    positions(),
    st.lists(positions(), max_size=4).map(tuple),
    st.none() | st.builds(Rewind, positions(), U64),
)
OFFSETS = st.builds(
    SourceOffset,
    st.just("b"),
    st.none() | st.just(("a", "s.c")),
    st.dictionaries(st.integers(0, 1023), ENTRIES, max_size=5),
    st.none() | st.dictionaries(st.integers(0, 1023), positions(), max_size=3),
)


@given(OFFSETS)
def test_text_and_back(offset: SourceOffset) -> None:
    text = json.dumps(offset.to_json())
    again = SourceOffset.from_json(json.loads(text), bucket="b", collections=offset.collections)
    assert again == offset
    assert json.dumps(again.to_json()) == text


@given(st.permutations(range(12)))
def test_the_text_does_not_depend_on_the_order_of_insertion(order: list[int]) -> None:
    at = {vbid: VbucketOffset(StreamOffset(1, vbid, 0, None)) for vbid in order}
    ordered = {vbid: at[vbid] for vbid in sorted(at)}
    texts = {json.dumps(SourceOffset("b", None, entries).to_json()) for entries in (at, ordered)}
    assert len(texts) == 1


@given(positions())
def test_no_u64_goes_as_a_json_number(at: StreamOffset) -> None:
    assert all(value is None or isinstance(value, str) for value in position_json(at))
    assert position(json.loads(json.dumps(position_json(at)))) == at


GOOD = SourceOffset.starting_at("b", None, {0: StreamOffset(1, 2, 0, None)}).to_json()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"topic": {"0": 1}}, "did not write"),
        ("latest", "did not write"),
        (None, "did not write"),
        ({**GOOD, "v": 2}, "version 2"),
        ({**GOOD, "bucket": "other"}, "bucket 'other'"),
        ({**GOOD, "collections": ["a"]}, "collections a, the query asks for all"),
        ({**GOOD, "vbuckets": {"x": {}}}, "damaged"),
        ({**GOOD, "vbuckets": {"0": {"at": ["1", "2"]}}}, "damaged: not a position"),
        ({**GOOD, "vbuckets": {"0": {"at": ["1", "2", "3", None, "0"]}}}, "damaged: seqno 2 is not within"),
        ({**GOOD, "vbuckets": {"0": {"at": [1, 2, 0, None, 0]}}}, "damaged"),
        ({**GOOD, "vbuckets": []}, "damaged"),
        ({**GOOD, "base": {"0": None}}, "damaged"),
    ],
)
def test_an_offset_that_cannot_be_used_says_why_and_what_to_do(data: Any, message: str) -> None:
    with pytest.raises(OffsetError, match=message) as raised:
        SourceOffset.from_json(data, bucket="b", collections=None)
    assert "checkpointLocation" in str(raised.value)


def test_the_first_end_holds_its_start() -> None:
    start = SourceOffset.starting_at("b", None, {0: StreamOffset(1, 2, 2, 2)})
    end = SourceOffset.starting_at("b", None, {0: StreamOffset(1, 9, 2, None)}).based_on(start)
    again = SourceOffset.from_json(json.loads(json.dumps(end.to_json())), bucket="b", collections=None)
    assert again.base_offset() == start
    with pytest.raises(OffsetError, match="first batch"):
        start.base_offset()


def test_the_start_marker_is_a_constant() -> None:
    assert start_marker(OffsetSpec("latest")) == {"v": 1, "start": "latest"}
    one = start_marker(OffsetSpec("positions", {1: "5", 0: "7"}))
    assert json.dumps(one) == json.dumps(start_marker(OffsetSpec("positions", {0: "7", 1: "5"})))
    assert is_start_marker(one)
    assert not is_start_marker(GOOD)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("7", StreamOffset(9, 7, 7, 7)),
        (7, StreamOffset(9, 7, 7, 7)),
        ("0", StreamOffset.ZERO),
        ({"seqno": "7"}, StreamOffset(9, 7, 7, 7)),
        ({"vbuuid": "3", "seqno": "7"}, StreamOffset(3, 7, 7, 7)),
        ({"vbuuid": "3", "seqno": "7", "snapshot_start": "1", "snapshot_end": None}, StreamOffset(3, 7, 1, None)),
        (["3", "7", "1", "8", "0"], StreamOffset(3, 7, 1, 8)),
        ({"at": ["3", "7", "1", "8", "0"], "earlier": []}, StreamOffset(3, 7, 1, 8)),
    ],
)
def test_positions_as_users_write_them(data: Any, expected: StreamOffset) -> None:
    assert user_position(data, vbuuid_of_branch=9) == expected
    assert user_seqno(data) == expected.seqno


@pytest.mark.parametrize("data", [None, "x", "-1", 1.5, True, {}, [], str(2**64), ["1"], {"at": 4.5}])
def test_what_is_no_position_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a"):
        user_position(data, vbuuid_of_branch=9)
