from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import OffsetError
from dcpstream.model import CollectionName, FailoverLog, StreamOffset
from dcpstream_spark.source import planner
from dcpstream_spark.source.offsets import Rewind, SourceOffset, VbucketOffset
from dcpstream_spark.source.planner import PlannedRange

BACKLOGS = st.dictionaries(st.integers(0, 1023), st.integers(1, 10_000), max_size=40)


def state(vbuuid: int, high: int, *older: tuple[int, int]) -> BranchState:
    return BranchState(vbuuid, high, FailoverLog.of((vbuuid, older[-1][1] if older else 0), *older))


def offset(**entries: VbucketOffset) -> SourceOffset:
    return SourceOffset("b", None, {int(name[1:]): entry for name, entry in entries.items()})


@given(BACKLOGS, st.none() | st.integers(0, 50_000), st.integers(1, 8))
def test_a_limit_is_kept_and_used(backlog: dict[int, int], limit: int | None, tasks: int) -> None:
    takes = planner.share_out(backlog, limit, tasks)
    assert all(0 < take <= backlog[vbid] for vbid, take in takes.items())
    total = sum(takes.values())
    if limit is None or sum(backlog.values()) <= limit:
        assert takes == backlog
    else:
        assert total <= limit
        # Someone may be held back by a task's share; else the limit is used up.
        share = max(1, -(-limit // tasks))
        assert total == limit or all(takes.get(vbid, 0) == min(size, share) for vbid, size in backlog.items())


@given(BACKLOGS, st.integers(1, 5_000), st.integers(1, 4))
def test_a_limit_delays_a_vbucket_and_never_leaves_it_out(backlog: dict[int, int], limit: int, tasks: int) -> None:
    left = dict(backlog)
    rounds = 0
    while left:
        takes = planner.share_out(left, limit, tasks)
        assert takes
        left = {vbid: size - takes.get(vbid, 0) for vbid, size in left.items() if size > takes.get(vbid, 0)}
        rounds += 1
    assert rounds <= sum(backlog.values()) / max(1, limit // tasks) + len(backlog) + 1


def test_few_vbuckets_end_inside_a_snapshot() -> None:
    takes = planner.share_out(dict.fromkeys(range(1000), 1000), 100_000, 2)
    assert sum(take < 1000 for take in takes.values()) <= 1
    assert sorted(takes) == list(range(100)), "neighbours, so that a table by vbucket is touched in few files"


def test_a_vbucket_that_starts_over_after_a_purge_is_read_as_a_whole() -> None:
    # All three stand at 4 on their branches, and nodes refuse positions below a purge at 13.
    at = StreamOffset(7, 4, 0, 30)
    start = offset(**{f"v{vbid}": VbucketOffset(at) for vbid in range(4)})
    observed = dict.fromkeys(range(4), state(7, 30))
    landings = dict.fromkeys(range(3), StreamOffset.ZERO)
    end = planner.plan_end_offset(start, observed, landings, limit=4)
    assert end.vbuckets[0].at.seqno == 30, "one of them even if it exceeds the limit"
    assert end.vbuckets[0].rewound == Rewind(StreamOffset.ZERO, 7)
    assert [end.vbuckets[vbid] for vbid in (1, 2, 3)] == [VbucketOffset(at)] * 3, "the others wait"
    end = planner.plan_end_offset(start, observed, landings, limit=65)
    assert [end.vbuckets[vbid].at.seqno for vbid in range(4)] == [30, 30, 4, 9]
    end = planner.plan_end_offset(start, observed, landings)
    assert [end.vbuckets[vbid].at.seqno for vbid in range(4)] == [30, 30, 30, 30]
    # After a failover the branch is another one, and no purge is in the way of a part.
    failed_over = dict.fromkeys(range(3), state(8, 30, (7, 2)))
    end = planner.plan_end_offset(start, failed_over, landings, limit=6, tasks=2)
    assert [end.vbuckets[vbid].at.seqno for vbid in range(4)] == [3, 3, 0, 4]


def test_a_planned_end_has_conservative_bounds_and_remembers_its_start() -> None:
    old = StreamOffset(7, 3, 3, 3)
    at = StreamOffset(7, 10, 3, None)
    start = offset(v0=VbucketOffset(at, (old,)))
    observed = {0: state(7, 25)}
    completed = planner.completed(start, observed)
    assert completed.vbuckets[0].at == StreamOffset(7, 10, 3, 25)
    end = planner.plan_end_offset(completed, observed, {}, limit=5)
    assert end.vbuckets[0] == VbucketOffset(StreamOffset(7, 15, 10, None), (StreamOffset(7, 10, 3, 25), old))
    (planned,) = planner.planned_ranges(start, end, keeps_start=True)
    assert planned.range == VbucketRange(0, StreamOffset(7, 10, 3, 25), 15, (), 7, 7, keeps_start=True)
    assert not planner.planned_ranges(start, end, keeps_start=False)[0].range.keeps_start


def test_a_plan_that_ends_below_its_start_is_refused() -> None:
    start = offset(v0=VbucketOffset(StreamOffset(7, 10, 3, 12)), v1=VbucketOffset(StreamOffset(8, 20, 0, 20)))
    end = offset(v0=VbucketOffset(StreamOffset(7, 12, 10, None)), v1=VbucketOffset(StreamOffset(8, 19, 0, None)))
    with pytest.raises(OffsetError, match=r"vbucket 1: the planned end, seqno 19, lies below the start, seqno 20"):
        planner.planned_ranges(start, end, keeps_start=True)


def test_a_batch_between_equal_offsets_reads_nothing() -> None:
    """Spark 4.0 and 4.1 ask for it after a restart, also if the last batch had a rollback."""
    at = StreamOffset(9, 10, 6, None)
    end = offset(v0=VbucketOffset(at, (), Rewind(StreamOffset.ZERO, 9)))
    assert planner.planned_ranges(end, end, keeps_start=True) == []


def test_nothing_new_is_the_same_offset() -> None:
    start = offset(v0=VbucketOffset(StreamOffset(7, 10, 3, None)))
    completed = planner.completed(start, {0: state(7, 10)})
    assert planner.plan_end_offset(completed, {0: state(7, 10)}, {}) is completed
    assert planner.plan_end_offset(start, {}, {}) is start, "an unknown node moves nothing"


def test_a_vbucket_that_does_not_move_keeps_its_bounds_and_gets_no_task() -> None:
    start = offset(v0=VbucketOffset(StreamOffset(7, 10, 3, 12)), v1=VbucketOffset(StreamOffset(8, 1, 0, 1)))
    end = planner.plan_end_offset(start, {0: state(7, 12), 1: state(8, 9)}, {}, target={1: 9})
    assert end.vbuckets[0] == start.vbuckets[0]
    assert [planned.range.vbid for planned in planner.planned_ranges(start, end, keeps_start=True)] == [1]


def test_only_a_changed_branch_or_a_lost_end_is_suspect() -> None:
    at = StreamOffset(7, 10, 3, 10)
    start = offset(
        v0=VbucketOffset(at), v1=VbucketOffset(at), v2=VbucketOffset(at), v3=VbucketOffset(StreamOffset.ZERO)
    )
    observed = {0: state(7, 10), 1: state(9, 20, (7, 10)), 2: state(7, 9), 3: state(5, 3)}
    assert set(planner.suspects(start, observed)) == {1, 2}


def test_a_position_without_an_end_is_not_completed_by_another_branch() -> None:
    start = offset(v0=VbucketOffset(StreamOffset(7, 10, 3, None)))
    assert planner.completed(start, {0: state(9, 40, (7, 10))}) == start


def test_a_rollback_begins_the_batch_at_the_accepted_position() -> None:
    old = StreamOffset(7, 6, 2, 8)
    start = offset(v0=VbucketOffset(StreamOffset(7, 10, 6, 12), (old, StreamOffset(7, 8, 6, 9))))
    observed = {0: state(9, 20, (7, 8))}
    end = planner.plan_end_offset(start, observed, {0: old}, limit=4)
    assert end.vbuckets[0] == VbucketOffset(StreamOffset(9, 10, 6, None), (old,), Rewind(old, 9))
    (planned,) = planner.planned_ranges(start, end, keeps_start=True)
    assert planned == PlannedRange(VbucketRange(0, old, 10, (), 9, 9, keeps_start=True), StreamOffset(7, 10, 6, 12), 9)
    # The next batch does not tell it again.
    later = planner.plan_end_offset(planner.completed(end, observed), observed, {})
    (planned,) = planner.planned_ranges(end, later, keeps_start=True)
    assert planned.rolled_back_from is None


def test_a_rollback_is_reported_even_if_the_limit_leaves_no_rows() -> None:
    start = offset(v0=VbucketOffset(StreamOffset(7, 10, 6, 12)))
    end = planner.plan_end_offset(start, {0: state(9, 20, (7, 8))}, {0: StreamOffset.ZERO}, limit=0)
    (planned,) = planner.planned_ranges(start, end, keeps_start=False)
    assert (planned.seqnos, planned.rolled_back_from) == (0, StreamOffset(7, 10, 6, 12))
    again = planner.plan_end_offset(end, {0: state(9, 20, (7, 8))}, {})
    (planned,) = planner.planned_ranges(end, again, keeps_start=False)
    assert (planned.range.start, planned.range.end_seqno, planned.rolled_back_from) == (StreamOffset.ZERO, 20, None)


@given(st.dictionaries(st.integers(0, 200), st.integers(0, 50_000), min_size=1, max_size=60), st.integers(1, 8))
def test_tasks_hold_each_range_once_on_its_own_node(sizes: dict[int, int], tasks: int) -> None:
    ranges = [PlannedRange(VbucketRange(vbid, StreamOffset.ZERO, size)) for vbid, size in sizes.items()]
    node_of = {vbid: f"n{vbid % 3}" for vbid in sizes if vbid % 7}
    result = planner.balance(ranges, node_of, tasks)
    assert sorted(one.range.vbid for _, members in result for one in members) == sorted(sizes)
    for node, members in result:
        assert all(node_of.get(one.range.vbid, "") == node for one in members)
    nodes = {node for node, _ in result}
    assert len(result) <= tasks + len(nodes), "a node has one task at least, and its share is rounded"


def test_tasks_are_of_about_one_size() -> None:
    ranges = [PlannedRange(VbucketRange(vbid, StreamOffset.ZERO, 100 + vbid)) for vbid in range(1024)]
    sizes = [sum(one.seqnos for one in members) for _, members in planner.balance(ranges, {}, 2)]
    assert len(sizes) == 2
    assert max(sizes) - min(sizes) <= 1200
    few = [PlannedRange(VbucketRange(vbid, StreamOffset.ZERO, 1)) for vbid in range(10)]
    assert len(planner.balance(few, {}, 8)) == 1, "a task costs more than ten rows"


A, B = CollectionName(8, "shop", "a"), CollectionName(9, "shop", "b")


def test_a_vbucket_first_reads_new_collections_and_moves_later() -> None:
    old, at = StreamOffset(7, 3, 3, 3, 0, (A,)), StreamOffset(7, 10, 3, 10, 0, (A,))
    pending = {vbid: VbucketOffset(at, (old,)) for vbid in range(3)}
    start = SourceOffset("b", ("shop.a", "shop.b"), pending, pending=frozenset(pending))
    observed = {vbid: state(7, 25) for vbid in pending}
    end = planner.plan_end_offset(
        start, observed, {}, limit=20, coverage=planner.BatchCollections((A, B), is_filtered=True)
    )
    # Two vbuckets exhaust the limit, by their seqnos. Their rows are deduplicated up to now, so the bounds begin at 0;
    # a recorded position without the new collection would deliver its rows a second time, so none is kept.
    assert [entry.at for entry in end.vbuckets.values()] == [StreamOffset(7, 10, 0, None)] * 2 + [at]
    assert end.vbuckets[0] == VbucketOffset(end.vbuckets[0].at, (), None, at)
    assert end.vbuckets[0].at.collections == (A, B)
    assert end.pending == {2}
    ranges = planner.planned_ranges(start, end, keeps_start=True)
    assert [(planned.range.vbid, planned.range.start, planned.range.end_seqno) for planned in ranges] == [
        (0, at, 10),
        (1, at, 10),
    ]
    assert all(planned.is_refill and planned.seqnos == 10 and not planned.range.earlier for planned in ranges)
    assert planner.planned_ranges(end, end, keeps_start=True) == [], "an offset and itself"
    then = planner.plan_end_offset(
        planner.completed(end, observed),
        observed,
        {},
        limit=40,
        coverage=planner.BatchCollections((A, B), is_filtered=True),
    )
    assert {vbid: entry.at.seqno for vbid, entry in then.vbuckets.items()} == {0: 25, 1: 25, 2: 10}
    assert not then.pending
    assert then.vbuckets[0].refilled is None


def test_one_vbucket_reads_new_collections_even_beyond_the_limit() -> None:
    entry = VbucketOffset(StreamOffset(7, 10, 10, 10, 0, (A,)))
    start = SourceOffset("b", None, {0: entry, 1: entry}, pending=frozenset({0, 1}))
    end = planner.plan_end_offset(
        start, {vbid: state(7, 10) for vbid in (0, 1)}, {}, limit=1, coverage=planner.BatchCollections((A, B))
    )
    assert end.pending == {1}


def test_a_rollback_with_nothing_to_read_leaves_new_collections_pending() -> None:
    at, landed = StreamOffset(7, 10, 10, 10, 0, (A,)), StreamOffset(7, 3, 3, 3, 0, (A,))
    start = SourceOffset("b", ("shop.a", "shop.b"), {0: VbucketOffset(at, (landed,))}, pending=frozenset({0}))
    observed = {0: state(9, 3, (7, 3))}
    end = planner.plan_end_offset(
        start, observed, {0: landed}, coverage=planner.BatchCollections((A, B), is_filtered=True)
    )
    assert end.pending == {0}
    assert end.vbuckets[0].at.collections == (A,)
    end = planner.plan_end_offset(
        start, {0: state(9, 5, (7, 3))}, {0: landed}, coverage=planner.BatchCollections((A, B), is_filtered=True)
    )
    assert not end.pending
    assert (end.vbuckets[0].at, end.vbuckets[0].earlier) == (StreamOffset(9, 5, 0, None), ())
