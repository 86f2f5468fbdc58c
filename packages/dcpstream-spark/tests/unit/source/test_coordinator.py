from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.errors import AuthenticationFailed, ConfigError, ConnectionLost, OffsetError, RollbackRequired
from dcpstream.model import CollectionName, StreamOffset
from dcpstream_node.testing.simulation import VirtualClock
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source.admission import Limits
from dcpstream_spark.source.coordinator import FULL_OBSERVATION_INTERVAL_S, Coordinator
from dcpstream_spark.source.lag import Lag
from dcpstream_spark.source.offsets import SourceOffset, positions_of
from tests.kit.cases import each_case
from tests.kit.spark_model import FakeCluster

NEEDED = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}


class Setup:
    """A coordinator of a fake cluster with two vbuckets of three rows each."""

    def __init__(self, default: OffsetSpec | None = None, **options: str) -> None:
        self.cluster = FakeCluster(2)
        self.clock = VirtualClock()
        for vbid in (0, 1):
            for number in range(3):
                self.cluster.write(vbid, f"k{number}", number)
        self.options = SourceOptions.parse({**NEEDED, **options})
        self.default = default or OffsetSpec("earliest")
        self.coordinator = self.another()

    def another(self) -> Coordinator:
        return Coordinator(
            self.options, default_start=self.default, connect=lambda options: self.cluster, clock=self.clock
        )

    def first(self, limit: int | None = None) -> dict[str, Any]:
        return self.coordinator.next_offset(self.coordinator.start_marker(), limit)

    def fail_over(self, vbid: int, at: int) -> None:
        self.cluster.add_replica(vbid, at, at)
        self.cluster.fail_over(vbid)


def seqnos(data: dict[str, Any]) -> list[int]:
    return [at.seqno for at in positions_of(data).values()]


def test_the_marker_asks_nobody() -> None:
    setup = Setup()
    assert setup.coordinator.start_marker() == {"v": 2, "start": "earliest"}
    assert setup.cluster.questions == []


def test_the_first_end_holds_where_latest_was() -> None:
    setup = Setup(OffsetSpec("latest"))
    end = setup.first()
    assert seqnos(end) == [3, 3]
    setup.cluster.write(0, "later", 1)
    # A restart before the first commit: the same batch, planned from what was logged, not from what is latest now.
    again = setup.another()
    assert again.ranges({"v": 2, "start": "latest"}, json.loads(json.dumps(end))) == []
    then = again.next_offset(end, None)
    (planned,) = again.ranges(end, then)
    assert (planned.range.start.seqno, planned.range.end_seqno) == (3, 4)


def test_nothing_new_gives_back_the_very_same_offset() -> None:
    setup = Setup()
    end = setup.first()
    assert setup.coordinator.next_offset(end, None) is end
    asked = len(setup.cluster.questions)
    assert setup.coordinator.next_offset(end, None) is end
    assert setup.cluster.questions[asked:] == ["high_seqnos"], "an idle bucket costs one question a node"


def test_all_branches_are_looked_at_now_and_then() -> None:
    setup = Setup(onRollback="rewindAndMark")
    end = setup.first()
    assert setup.coordinator.next_offset(end, None) is end
    setup.fail_over(0, 3)
    assert setup.coordinator.next_offset(end, None) is end, "nothing moved, so nobody was asked"
    setup.clock.now += FULL_OBSERVATION_INTERVAL_S
    assert setup.coordinator.next_offset(end, None) is end, "the position is whole and the new branch begins there"


def test_a_failover_of_a_vbucket_that_stood_still_costs_nothing() -> None:
    setup = Setup(onRollback="rewindAndMark")
    end = setup.first()
    setup.coordinator.next_offset(end, None)
    setup.fail_over(0, 3)
    setup.cluster.write(0, "new", 1)
    then = setup.coordinator.next_offset(end, None)
    (planned,) = setup.coordinator.ranges(end, then)
    assert planned.rolled_back_from is None
    # Another process does not know that the bounds were completed meanwhile, and must assume the worst.
    then = setup.another().next_offset(end, None)
    (planned,) = setup.coordinator.ranges(end, then)
    assert planned.rolled_back_from is not None


def test_a_rollback_with_policy_fail_says_what_to_do() -> None:
    setup = Setup()
    end = setup.first()
    setup.coordinator.next_offset(end, None)
    setup.fail_over(1, 1)
    setup.cluster.write(1, "new", 1)
    with pytest.raises(RollbackRequired, match="onRollback=rewindAndMark") as raised:
        setup.coordinator.next_offset(end, None)
    assert raised.value.vbid == 1


@each_case(("rewind_to", "expected"), [("recorded", 3), ("zero", 0)])
def test_a_rollback_goes_back_as_far_as_asked(rewind_to: str, expected: int) -> None:
    setup = Setup(onRollback="rewindAndMark", rewindTo=rewind_to)
    one = setup.first()
    setup.coordinator.next_offset(one, None)
    for number in range(4):
        setup.cluster.write(0, f"n{number}", 1)
    two = setup.coordinator.next_offset(one, None)
    assert setup.coordinator.next_offset(two, None) is two
    setup.fail_over(0, 5)
    setup.cluster.write(0, "other", 1)
    three = setup.coordinator.next_offset(two, None)
    (planned,) = setup.coordinator.ranges(two, three)
    assert planned.rolled_back_from is not None
    assert (planned.rolled_back_from.seqno, planned.range.start.seqno, planned.range.end_seqno) == (7, expected, 6)


def test_available_now_stops_at_the_target() -> None:
    setup = Setup()
    setup.coordinator.freeze_target()
    setup.cluster.write(0, "later", 1)
    end = setup.first(2)
    rounds = 1
    while (then := setup.coordinator.next_offset(end, 2)) is not end:
        end = then
        rounds += 1
    assert seqnos(end) == [3, 3]
    assert rounds >= 3


def test_a_batch_goes_from_start_to_end() -> None:
    setup = Setup(startingOffsets='{"0": "1"}', endingOffsets='{"0": "2", "1": "2"}')
    start, end = setup.coordinator.batch()
    ranges = {one.range.vbid: one.range for one in setup.coordinator.ranges_between(start, end)}
    assert [(ranges[vbid].start.seqno, ranges[vbid].end_seqno) for vbid in (0, 1)] == [(1, 2), (0, 2)]
    assert setup.coordinator.tasks_of([]) == []


@each_case(
    ("option", "value"),
    [("endingOffsets", '{"0": "4"}'), ("endingOffsets", '{"0": "x"}'), ("startingOffsets", '{"0": []}'),
     ("startingOffsets", '{"5": "1"}')],
)  # fmt: skip
def test_positions_that_cannot_be_are_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Setup(None, **{option: value}).coordinator.batch()
    assert raised.value.option == option


def test_a_start_of_another_history_is_refused() -> None:
    with pytest.raises(RollbackRequired, match="vbucket 0"):
        Setup(startingOffsets='{"0": {"vbuuid": "77", "seqno": "2"}}').coordinator.batch()


@pytest.mark.parametrize("start", ["earliest", "latest", '{"0": 1, "1": -1}'])
def test_a_collection_that_the_bucket_does_not_have_is_refused_at_the_start(start: str) -> None:
    setup = Setup(startingOffsets=start, collections="_default._default,shop.orders")
    with pytest.raises(ConfigError, match=r"no collection shop\.orders\. It has _default\._default"):
        setup.first()
    with pytest.raises(ConfigError, match=r"no collection shop\.orders"):
        setup.another().batch()


def test_a_collection_that_was_read_before_may_be_gone_at_the_start() -> None:
    orders = [CollectionName(8, "shop", "orders")]
    read = {vbid: StreamOffset(1000 + vbid, 3, 3, 3).with_collections(orders) for vbid in (0, 1)}
    start = json.dumps({str(vbid): at.to_json() for vbid, at in read.items()})
    setup = Setup(startingOffsets=start, collections="shop.orders")
    assert seqnos(setup.first()) == [3, 3]


def test_a_checkpoint_of_another_bucket_is_refused() -> None:
    setup = Setup()
    end = setup.first()
    setup.cluster.active.append(setup.cluster.active[0])
    with pytest.raises(OffsetError, match="2 vbuckets"):
        setup.coordinator.next_offset(end, None)
    with pytest.raises(OffsetError, match="did not write"):
        setup.coordinator.next_offset({"partition": 1}, None)


class Away(FakeCluster):
    """A cluster that does not answer for a while; the clock runs meanwhile."""

    failures = 0
    error: Exception = ConnectionLost("nobody listens")

    def high_seqnos(self) -> dict[int, int]:
        self._fail()
        return super().high_seqnos()

    def observe(self, vbids: Any = None, *, high_seqnos: Any = None) -> Any:
        self._fail()
        return super().observe(vbids, high_seqnos=high_seqnos)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            self.clock.now += 1
            raise self.error

    clock: VirtualClock


def away(failures: int, **options: str) -> tuple[Coordinator, Away, dict[str, Any]]:
    cluster = Away(1)
    cluster.write(0, "k", 1)
    cluster.clock = VirtualClock()
    coordinator = Coordinator(
        SourceOptions.parse({**NEEDED, **options}),
        default_start=OffsetSpec("earliest"),
        connect=lambda options: cluster,
        clock=cluster.clock,
    )
    end = coordinator.next_offset(coordinator.start_marker(), None)
    cluster.write(0, "k", 2)
    cluster.failures = failures
    return coordinator, cluster, end


def test_a_query_outlives_a_node_that_is_away_for_a_while() -> None:
    coordinator, _, end = away(3, idleTimeout="10")
    assert [coordinator.next_offset(end, None) is end for _ in range(4)] == [True, True, True, False]


def test_a_query_gives_up_after_the_idle_timeout() -> None:
    coordinator, _, end = away(9, idleTimeout="3")
    assert coordinator.next_offset(end, None) is end
    assert coordinator.next_offset(end, None) is end
    with pytest.raises(ConnectionLost, match=r"nobody listens.* asked for 3 s, the time of idleTimeout"):
        coordinator.next_offset(end, None)


def test_a_wrong_password_is_reported_at_once() -> None:
    coordinator, cluster, end = away(1)
    cluster.error = AuthenticationFailed("wrong password")
    with pytest.raises(AuthenticationFailed):
        coordinator.next_offset(end, None)


def test_a_run_that_ends_waits_for_the_cluster() -> None:
    coordinator, _, end = away(2)
    coordinator.freeze_target()
    assert seqnos(coordinator.next_offset(end, None)) == [2]


def test_lag_is_reported_from_the_planned_end() -> None:
    coordinator, cluster, _ = away(0)
    cluster.write(0, "k", 3)
    assert coordinator.report() == Lag(2, {0: 2}, 1, 1, 1)
    cluster.failures = 1
    assert coordinator.report() is None
    assert Setup().coordinator.report() is None, "nothing was planned yet"


def test_without_a_known_start_the_end_holds_for_every_start() -> None:
    setup = Setup()
    end = setup.coordinator.unanchored_offset()
    offset = SourceOffset.from_json(end, bucket="b")
    assert offset.vbuckets[0].at == StreamOffset(1000, 3, 0, None)
    logged = SourceOffset.starting_at("b", None, {0: StreamOffset(1000, 2, 1, None), 1: StreamOffset.ZERO}).to_json()
    ranges = {one.range.vbid: one.range for one in setup.coordinator.ranges(logged, end)}
    assert ranges[0].start == StreamOffset(1000, 2, 1, 3), "completed by what the node says now"


def test_close_twice() -> None:
    setup = Setup()
    setup.first()
    setup.coordinator.close()
    setup.coordinator.close()
    assert setup.cluster.questions.count("close") == 1


def test_a_small_batch_waits_for_more_or_for_the_longest_delay() -> None:
    setup = Setup(minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    limits = Limits(None, None, 5)
    end = setup.coordinator.next_offset(setup.coordinator.start_marker(), limits)
    assert seqnos(end) == [3, 3], "the first batch does not wait"
    setup.cluster.write(0, "a", 1)
    assert setup.coordinator.next_offset(end, limits) is end
    for key in "bcde":
        setup.cluster.write(1, key, 1)
    more = setup.coordinator.next_offset(end, limits)
    assert seqnos(more) == [4, 7]
    setup.cluster.write(0, "b", 1)
    assert setup.coordinator.next_offset(more, limits) is more
    setup.clock.now += 10
    late = setup.coordinator.next_offset(more, limits)
    assert seqnos(late) == [5, 7], "the longest delay is over"
    setup.cluster.write(0, "c", 1)
    setup.coordinator.freeze_target()
    assert seqnos(setup.coordinator.next_offset(late, limits)) == [6, 7], "a run that ends does not wait"


def test_a_rollback_does_not_wait_for_more() -> None:
    setup = Setup(onRollback="rewindAndMark", minOffsetsPerTrigger="100")
    limits = Limits(None, None, 100)
    end = setup.coordinator.next_offset(setup.coordinator.start_marker(), limits)
    assert setup.coordinator.next_offset(end, limits) is end
    setup.fail_over(0, 1)
    setup.cluster.write(0, "other", 1)
    (planned,) = setup.coordinator.ranges(end, setup.coordinator.next_offset(end, limits))
    assert planned.rolled_back_from is not None


def test_bytes_limit_a_batch_by_a_sample() -> None:
    setup = Setup()
    setup.cluster.row_bytes = 1_000
    end = setup.coordinator.next_offset(setup.coordinator.start_marker(), Limits(None, 4_000))
    assert sum(seqnos(end)) == 4
    assert "read_ranges" in setup.cluster.questions


def test_small_batches_have_the_least_number_of_tasks() -> None:
    setup = Setup(minPartitions="2")
    assert (
        len(setup.coordinator.tasks_of(setup.coordinator.ranges(setup.coordinator.start_marker(), setup.first()))) == 2
    )


class PartlyAway(FakeCluster):
    """A cluster whose vbucket 1 has no active node."""

    is_away = True

    def high_seqnos(self) -> dict[int, int]:
        return self._without(super().high_seqnos())

    def observe(self, vbids: Any = None, *, high_seqnos: Any = None) -> Any:
        return self._without(super().observe(vbids, high_seqnos=high_seqnos))

    def _without(self, found: dict[int, Any]) -> dict[int, Any]:
        return {vbid: value for vbid, value in found.items() if vbid != 1 or not self.is_away}


def test_other_vbuckets_are_read_on_while_one_is_away() -> None:
    setup = Setup(idleTimeout="10")
    away_cluster = PartlyAway(2)
    setup.cluster = away_cluster
    for vbid in (0, 1):
        away_cluster.write(vbid, "k", 1)
    setup.coordinator = setup.another()
    end = setup.first()
    assert seqnos(end) == [1, 0]
    away_cluster.write(0, "k", 2)
    setup.clock.now += 9
    then = setup.coordinator.next_offset(end, None)
    assert seqnos(then) == [2, 0]
    away_cluster.is_away = False
    assert seqnos(setup.coordinator.next_offset(then, None)) == [2, 1]
    away_cluster.is_away = True
    setup.coordinator.next_offset(then, None)
    setup.clock.now += 10
    assert setup.coordinator.next_offset(then, None) is then, "it will end after idleTimeout"
    setup.clock.now += 10
    with pytest.raises(ConnectionLost, match="1 of 2 vbuckets"):
        setup.coordinator.next_offset(then, None)


def test_a_batch_read_leaves_no_vbucket_out() -> None:
    """A node that goes away between two questions must not make the read shorter."""
    setup = Setup(idleTimeout="0.5")

    class Leaves(PartlyAway):
        def high_seqnos(self) -> dict[int, int]:
            return FakeCluster.high_seqnos(self)

        def observe(self, vbids: Any = None, *, high_seqnos: Any = None) -> Any:
            setup.clock.now += 1
            return super().observe(vbids, high_seqnos=high_seqnos)

    setup.cluster = Leaves(2)
    for vbid in (0, 1):
        setup.cluster.write(vbid, "k", 1)
    with pytest.raises(ConnectionLost, match="1 of 2 vbuckets"):
        setup.another().batch()


def purged(*sizes: int, **options: str) -> tuple[Setup, Coordinator]:
    """A first load of vbuckets of these sizes. The row before the last of the first one is a purged deletion."""
    setup = Setup(None, **options)
    setup.cluster = FakeCluster(len(sizes))
    for vbid, size in enumerate(sizes):
        for number in range(size):
            setup.cluster.write(vbid, f"k{number}", None if number == size - 2 else number)
    setup.cluster.purge(0, sizes[0])
    setup.coordinator = setup.another()
    return setup, setup.coordinator


@each_case("gap", [{}, {"purgeGap": "fail"}])
def test_a_limit_cuts_no_vbucket_below_its_purge_seqno(gap: dict[str, str]) -> None:
    setup, coordinator = purged(10, 30, numPartitions="1", onRollback="rewindAndMark", **gap)
    data = setup.first(limit=4)
    assert seqnos(data) == [0, 4], "vbucket 0 waits: the larger one comes first"
    found = []
    while True:
        following = coordinator.next_offset(data, 4)
        if following is data:
            break
        assert all(planned.rolled_back_from is None for planned in coordinator.ranges(data, following))
        data = following
        found.append(seqnos(data)[0])
    assert set(found) == {0, 10}, "it is read as a whole, although that exceeds the limit"
    assert seqnos(data) == [10, 30]


def test_a_limit_cuts_a_vbucket_above_its_purge_seqno() -> None:
    setup, coordinator = purged(10, 3, numPartitions="1")
    data = setup.first(limit=9)
    assert seqnos(data) == [9, 0]
    assert seqnos(coordinator.next_offset(data, 9)) == [10, 3]


def test_who_ignores_purges_is_asked_nothing() -> None:
    setup, _ = purged(10, 3, purgeGap="ignore", numPartitions="1")
    assert seqnos(setup.first(limit=4)) == [4, 0]
    assert "check_positions" not in setup.cluster.questions
