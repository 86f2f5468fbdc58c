from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.client.machine.resume import RECORDED_POSITIONS, plan_end, remember
from dcpstream.errors import OffsetError
from dcpstream.model import CollectionName, StreamOffset
from dcpstream_spark.options import OffsetSpec
from dcpstream_spark.source.offsets import (
    Rewind,
    SourceOffset,
    VbucketOffset,
    explained,
    is_start_marker,
    positions_of,
    start_marker,
    user_position,
    user_seqno,
)
from tests.kit.cases import each_case

U64 = st.integers(0, 2**64 - 1)


@st.composite
def positions(draw: st.DrawFn) -> StreamOffset:
    start, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    at = StreamOffset(draw(U64), seqno, start, draw(st.sampled_from([None, end])), draw(U64))
    return at.with_collections(draw(SETS))


@st.composite
def histories(draw: st.DrawFn) -> VbucketOffset:
    """An entry as the planner makes it: positions that fall, each in the snapshot that began at the older one."""
    seqnos = sorted(draw(st.sets(st.integers(1, 2**40), min_size=1, max_size=6)))
    names = draw(SETS)
    branch = draw(U64)
    chain, older = [], 0
    for seqno in seqnos:
        end = draw(st.sampled_from([seqno, seqno + 1, seqno + 64, seqno + 7]))
        chain.append(StreamOffset(branch, seqno, older, end).with_collections(names))
        older = seqno
    at, *earlier = reversed(chain)
    at = StreamOffset(at.vbuuid, at.seqno, at.snapshot_start, None).with_collections(names)
    rewound = Rewind(earlier[0] if earlier else StreamOffset.ZERO, at.vbuuid)
    return VbucketOffset(at, tuple(earlier), draw(st.sampled_from([None, rewound])))


NAMES = [CollectionName(0, "_default", "_default"), CollectionName(8, "a", "x"), CollectionName(9, "a", "y")]
SETS = st.sampled_from(
    [None, (), tuple(NAMES), tuple(NAMES[1:]), (NAMES[0], NAMES[2]), (NAMES[0], CollectionName(8, "other", "x"))]
)
ENTRIES = histories() | st.builds(
    VbucketOffset,
    positions(),
    st.lists(positions(), max_size=4).map(tuple),
    st.none() | st.builds(Rewind, positions(), U64),
    st.none() | positions(),
)
OFFSETS = st.builds(
    SourceOffset,
    st.just("b"),
    st.none() | st.just(("a", "s.c")),
    st.dictionaries(st.integers(0, 1023), ENTRIES, max_size=5),
    st.none() | st.dictionaries(st.integers(0, 1023), positions(), max_size=3),
    st.none() | st.just("0123456789abcdef"),
    st.booleans(),
    st.frozensets(st.integers(0, 1023), max_size=3),
)


def names_in(offset: SourceOffset) -> list[Any]:
    """The sets of collections, which do not count when positions are compared."""
    found: list[Any] = []
    for entry in offset.vbuckets.values():
        rewound = () if entry.rewound is None else (entry.rewound.to,)
        refilled = () if entry.refilled is None else (entry.refilled,)
        found += [at.collections for at in (entry.at, *entry.earlier, *rewound, *refilled)]
    return found + [at.collections for at in (offset.base or {}).values()]


@given(OFFSETS)
def test_text_and_back(offset: SourceOffset) -> None:
    text = json.dumps(offset.to_json())
    again = SourceOffset.from_json(json.loads(text), bucket="b")
    assert again == offset
    assert sorted(map(str, names_in(again))) == sorted(map(str, names_in(offset)))
    assert json.dumps(again.to_json()) == text


@given(st.permutations(range(12)))
def test_the_text_does_not_depend_on_the_order_of_insertion(order: list[int]) -> None:
    at = {vbid: VbucketOffset(StreamOffset(1, vbid, 0, None)) for vbid in order}
    ordered = {vbid: at[vbid] for vbid in sorted(at)}
    texts = {json.dumps(SourceOffset("b", None, entries).to_json()) for entries in (at, ordered)}
    assert len(texts) == 1


@given(OFFSETS)
def test_no_u64_goes_as_a_json_number(offset: SourceOffset) -> None:
    data = offset.to_json()
    assert isinstance(data["vbuckets"], str)
    assert isinstance(data.get("base", ""), str)
    assert positions_of(data) == {vbid: entry.at for vbid, entry in offset.vbuckets.items()}


def full_offset(*, vbuckets: int = 1024, collections: int = 100) -> SourceOffset:
    """An offset of a bucket under load, with all recorded positions."""
    random = Random(1)
    names = tuple(CollectionName(8 + n, f"scope_{n % 4}", f"collection_{n:03}") for n in range(collections))
    entries = {}
    for vbid in range(vbuckets):
        branch = random.getrandbits(48)
        seqno = random.randint(1, 2_000_000)
        at = StreamOffset.ZERO
        earlier: tuple[StreamOffset, ...] = ()
        for _ in range(40):
            seqno += random.randint(1, 3_000)
            begin = at if at.snapshot_end is not None else at.with_snapshot_end(seqno)
            earlier = remember(earlier, begin)
            at = plan_end(begin, seqno, branch).with_collections(names)
        assert len(earlier) == RECORDED_POSITIONS
        entries[vbid] = VbucketOffset(at, earlier)
    return SourceOffset("default", None, entries, None, "0" * 32)


@pytest.mark.parametrize(("collections", "most"), [(1, 48_000), pytest.param(1000, 80_000, marks=pytest.mark.slow)])
def test_an_offset_of_1024_vbuckets_is_short(collections: int, most: int) -> None:
    """Spark shows two offsets in each progress event, without spaces; the limit of an event is 100 KB."""
    offset = full_offset(collections=collections)
    text = json.dumps(offset.to_json(), separators=(",", ":"))
    print(f"an offset of 1,024 vbuckets and {collections} collections has {len(text)} bytes of JSON")
    assert len(text) <= most
    assert SourceOffset.from_json(json.loads(text), bucket="default") == offset


def test_after_a_failover_of_all_vbuckets_an_offset_is_below_its_limit() -> None:
    offset = full_offset()
    entries = {
        vbid: VbucketOffset(StreamOffset(2**48 - 1 - vbid, entry.at.seqno, entry.earlier[1].seqno, None),
                            entry.earlier[1:], Rewind(entry.earlier[1], 2**48 - 1 - vbid))
        for vbid, entry in offset.vbuckets.items()
    }  # fmt: skip
    text = json.dumps(SourceOffset("default", None, entries).to_json())
    print(f"after a failover of all vbuckets it has {len(text)} bytes")
    assert len(text) <= 80_000


def test_people_can_read_an_offset() -> None:
    names = (CollectionName(0, "_default", "_default"), CollectionName(8, "shop", "orders"))
    earlier = tuple(StreamOffset(202042094215084, seqno, 0, 13) for seqno in (11, 10, 7))
    at = StreamOffset(202042094215084, 13, 11, None).with_collections(names)
    shown = explained(SourceOffset("default", None, {2: VbucketOffset(at, earlier)}).to_json())
    assert shown["vbuckets"]["2"]["at"] == {
        "vbuuid": "202042094215084", "seqno": "13", "snapshot_start": "11", "snapshot_end": None, "manifest_uid": "0",
        "collections": {"0": "_default._default", "8": "shop.orders"},
    }  # fmt: skip
    assert [at["seqno"] for at in shown["vbuckets"]["2"]["earlier"]] == ["11", "10", "7"]


GOOD = SourceOffset.starting_at("b", None, {0: StreamOffset(1, 2, 0, None)}).to_json()


@each_case(
    ("data", "message"),
    [
        ({"topic": {"0": 1}}, "did not write"),
        ("latest", "did not write"),
        (None, "did not write"),
        ({**GOOD, "v": 1}, "version 1"),
        ({**GOOD, "v": 3}, "version 3"),
        ({**GOOD, "v": [2]}, "version \\[2\\]"),
        ({**GOOD, "bucket": "other"}, "bucket 'other'"),
        ({**GOOD, "vbuckets": {"0": {}}}, "damaged"),
        ({**GOOD, "vbuckets": "1@2"}, "damaged: not a position"),
        ({**GOOD, "vbuckets": "1@2<3?"}, "damaged: seqno 2 is not within"),
        ({**GOOD, "vbuckets": "1@2/1?"}, "damaged"),
        ({**GOOD, "vbuckets": "1@2?x"}, "damaged: not a position"),
        ({**GOOD, "vbuckets": [7]}, "damaged"),
        ({**GOOD, "sets": ["0-2"]}, "damaged"),
        ({**GOOD, "sets": ["0-ffffffffffff"]}, "more collections than are named"),
        ({**GOOD, "base": 1}, "damaged"),
        ({**GOOD, "pending": [float("inf")]}, "damaged"),
    ],
)
def test_an_offset_that_cannot_be_used_says_why_and_what_to_do(data: Any, message: str) -> None:
    with pytest.raises(OffsetError, match=message) as raised:
        SourceOffset.from_json(data, bucket="b")
    assert "checkpointLocation" in str(raised.value)


def test_the_first_end_holds_its_start() -> None:
    start = SourceOffset.starting_at("b", None, {0: StreamOffset(1, 2, 2, 2)})
    end = SourceOffset.starting_at("b", None, {0: StreamOffset(1, 9, 2, None)}).based_on(start)
    again = SourceOffset.from_json(json.loads(json.dumps(end.to_json())), bucket="b")
    assert again.base_offset() == start
    with pytest.raises(OffsetError, match="first batch"):
        start.base_offset()


def test_the_start_marker_is_a_constant() -> None:
    assert start_marker(OffsetSpec("latest")) == {"v": 2, "start": "latest"}
    one = start_marker(OffsetSpec("positions", {1: "5", 0: "7"}))
    assert json.dumps(one) == json.dumps(start_marker(OffsetSpec("positions", {0: "7", 1: "5"})))
    assert is_start_marker(one)
    assert not is_start_marker(GOOD)


@each_case(
    ("data", "expected"),
    [
        ("7", StreamOffset(9, 7, 7, 7)),
        (7, StreamOffset(9, 7, 7, 7)),
        ("0", StreamOffset.ZERO),
        ({"seqno": "7"}, StreamOffset(9, 7, 7, 7)),
        ({"vbuuid": "3", "seqno": "7"}, StreamOffset(3, 7, 7, 7)),
        ({"vbuuid": "3", "seqno": "7", "snapshot_start": "1", "snapshot_end": None}, StreamOffset(3, 7, 1, None)),
        ("3@7<6A2=!", StreamOffset(3, 7, 1, 8)),
        (".", StreamOffset.ZERO),
    ],
)
def test_positions_as_users_write_them(data: Any, expected: StreamOffset) -> None:
    assert user_position(data, vbuuid_of_branch=9) == expected
    assert user_seqno(data) == expected.seqno


@each_case("data", [None, "x", "-1", 1.5, True, {}, [], str(2**64), ["1"], {"at": 4.5}])
def test_what_is_no_position_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a"):
        user_position(data, vbuuid_of_branch=9)
