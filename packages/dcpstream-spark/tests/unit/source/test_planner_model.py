"""Nothing is lost and nothing is repeated, whatever fails over between planning and reading."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpstream.client.machine.values import VbucketRange
from dcpstream_node.testing.simulation import VirtualClock
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source import planner
from dcpstream_spark.source.coordinator import FULL_OBSERVATION_INTERVAL_S, Coordinator
from tests.kit.cases import each_case
from tests.kit.spark_model import FakeCluster, MemoryNotes, Sink, collapsed, read_range

KEYS = st.sampled_from("abcde")
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), KEYS, st.one_of(st.none(), st.integers(0, 99))),
    st.tuples(st.just("write"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("replica"), st.integers(0, 40), st.integers(0, 40)),
    st.tuples(st.just("fail_over"), st.none(), st.none()),
    st.tuples(st.just("purge"), st.integers(0, 40), st.none()),
    st.tuples(st.just("plan"), st.one_of(st.none(), st.integers(1, 6)), st.none()),
    st.tuples(st.just("read"), st.booleans(), st.integers(0, 6)),
    st.tuples(st.just("poll"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


class Query:
    """A streaming query as Spark runs it: plan, log the end, read, commit; a failed batch is read again."""

    def __init__(
        self, cluster: FakeCluster, rewind_to: str, *, is_transactional: bool = True, is_noted: bool = True
    ) -> None:
        self.cluster = cluster
        self.notes = MemoryNotes() if is_noted else None
        self.to_zero = rewind_to == "zero"
        self.options = SourceOptions.parse(
            {
                "connectionString": "couchbase://localhost",
                "username": "u",
                "password": "p",
                "bucket": "b",
                "startingOffsets": "earliest",
                "onRollback": "rewindAndMark",
                "rewindTo": rewind_to,
                "numPartitions": "2",
            }
        )
        self.sink = Sink(is_transactional=is_transactional)
        self.clock = VirtualClock()
        self.restart()
        self.start: dict[str, Any] = self.coordinator.start_marker()
        self.end: dict[str, Any] | None = None

    def restart(self) -> None:
        """A new process: all but the logged offsets is forgotten."""
        self.coordinator = Coordinator(
            self.options,
            default_start=OffsetSpec("latest"),
            connect=lambda options: self.cluster,
            clock=self.clock,
            notes=self.notes,
        )

    def plan(self, limit: int | None) -> None:
        if self.end is None:
            end = self.coordinator.next_offset(self.start, limit)
            if json.dumps(end) != json.dumps(self.start):
                self.end = json.loads(json.dumps(end))

    def poll(self) -> None:
        """Spark asks for news and finds none that it may take: the limit keeps everything back."""
        if self.end is None and "start" not in self.start:
            self.coordinator.next_offset(self.start, 0)

    def read(self, is_committed: bool, delivered: int | None = None) -> None:
        """An attempt; one that fails may have given the sink the first few rows."""
        if self.end is None:
            return
        before = copy.deepcopy(self.sink.rows)
        for planned in self.coordinator.ranges(self.start, self.end):
            vbid = planned.range.vbid
            if planned.rolled_back_from is not None:
                self.sink.apply(vbid, planned.range.start.seqno, [])
            if planned.seqnos:
                to_seqno, rows = read_range(
                    self.cluster,
                    planned.range,
                    to_zero=self.to_zero,
                    note=None if self.notes is None else self.notes.went_below,
                )
                self.sink.apply(vbid, to_seqno, rows if is_committed else rows[:delivered])
        if is_committed:
            self.start, self.end = self.end, None
        elif self.sink.is_transactional:
            self.sink.rows = before

    def drain(self) -> None:
        self.clock.now += FULL_OBSERVATION_INTERVAL_S
        for _ in range(200):
            self.plan(7)
            if self.end is None:
                return
            self.read(True)
        raise AssertionError("the query does not come to an end")


def play(rewind_to: str, operations: list[tuple[str, Any, Any]], *, is_transactional: bool = True) -> None:
    """Run a history, drain, and compare the rows that a user holds with the bucket."""
    cluster = FakeCluster()
    query = Query(cluster, rewind_to, is_transactional=is_transactional)
    for name, first, second in operations:
        if name == "write":
            cluster.write(0, first, second)
        elif name == "replica":
            cluster.add_replica(0, first, second)
        elif name == "fail_over":
            cluster.fail_over(0)
        elif name == "purge":
            cluster.purge(0, first)
        elif name == "plan":
            query.plan(first)
        elif name == "read":
            query.read(first, second)
        elif name == "poll":
            query.poll()
        else:
            query.restart()
    query.read(True)
    query.drain()
    rows = query.sink.rows[0]
    assert len({seqno for seqno, _, _ in rows}) == len(rows), "a row came twice"
    assert collapsed(rows) == collapsed(cluster.active[0].rows)


@pytest.mark.parametrize("rewind_to", ["recorded", "zero"])
@given(operations=st.lists(OPERATIONS, max_size=60))
def test_the_rows_are_the_bucket_after_any_history(rewind_to: str, operations: list[tuple[str, Any, Any]]) -> None:
    play(rewind_to, operations)


@given(operations=st.lists(OPERATIONS, max_size=60))
def test_a_sink_that_keeps_rows_of_attempts_that_failed(operations: list[tuple[str, Any, Any]]) -> None:
    play("zero", operations, is_transactional=False)


@pytest.mark.parametrize("rewind_to", ["recorded", "zero"])
@pytest.mark.parametrize("is_told", [True, False])
def test_the_replay_of_a_batch_takes_back_what_its_attempt_gave(
    rewind_to: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the control row the void rows stay at least until the next batch."""
    make: Any = VbucketRange
    if not is_told:
        monkeypatch.setattr(
            planner, "VbucketRange", lambda *given, **named: make(*given, **{**named, "given_vbuuid": 0})
        )
    cluster = FakeCluster()
    query = Query(cluster, rewind_to, is_transactional=False)
    cluster.write(0, "a", 1)
    query.plan(None)
    query.read(True)
    query.poll()
    cluster.add_replica(0, 1, 1)
    cluster.write(0, "b", 2)
    query.plan(None)
    query.read(False)
    assert collapsed(query.sink.rows[0]) == {"a": 1, "b": 2}
    cluster.fail_over(0)
    query.read(True)
    assert collapsed(query.sink.rows[0]) == ({"a": 1} if is_told else {"a": 1, "b": 2})


@each_case("rewind_to", ["recorded", "zero"])
def test_a_branch_that_was_read_and_is_forgotten(rewind_to: str) -> None:
    """Two failovers, each to a replica that knows nothing of the other.

    The task of the second batch meets branch B. If it went back and delivered B's rows, and then a replica that never
    followed B took over, that replica would accept the position at which the second batch had been planned to start,
    although the rows that are held below it are B's by now.
    """
    cluster = FakeCluster()
    query = Query(cluster, rewind_to)
    for number, key in enumerate("abc"):
        cluster.write(0, key, number)
    cluster.add_replica(0, 1, 1)
    query.plan(None)
    query.read(True)
    query.poll()
    for number, key in enumerate("def"):
        cluster.write(0, key, number)
    cluster.add_replica(0, 5, 5)
    query.plan(None)
    cluster.fail_over(0)
    cluster.write(0, "x", 1)
    cluster.write(0, "y", 1)
    query.read(True)
    # A task that may go back only to the start of its batch delivers nothing of B.
    expected = {"a": 0, "b": 1, "c": 2} if rewind_to == "recorded" else {"a": 0, "x": 1, "y": 1}
    assert collapsed(query.sink.rows[0]) == expected
    cluster.fail_over(0)
    query.drain()
    assert collapsed(query.sink.rows[0]) == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 1}


@each_case("is_noted", [True, False])
def test_a_purge_between_planning_and_reading_before_a_failover(is_noted: bool) -> None:
    """The task begins the vbucket anew on the planned branch, so that no recorded position is one of its rows any more.

    Row 2 (the first version of b) is superseded when the task reads from zero. A stale replica has it as its newest
    version, and accepts the recorded position after it.
    """
    cluster = FakeCluster()
    query = Query(cluster, "recorded", is_noted=is_noted)
    cluster.write(0, "a", 1)
    cluster.write(0, "b", 1)
    query.plan(None)
    query.read(True)
    query.poll()
    cluster.add_replica(0, 2, 2)
    cluster.write(0, "a", None)
    cluster.write(0, "b", 2)
    query.plan(None)
    cluster.purge(0, 3)
    query.read(True)
    assert collapsed(query.sink.rows[0]) == {"b": 2}
    cluster.fail_over(0)
    query.drain()
    assert collapsed(query.sink.rows[0]) == ({"a": 1, "b": 1} if is_noted else {})


@pytest.mark.slow
@pytest.mark.parametrize("rewind_to", ["recorded", "zero"])
@settings(max_examples=4_000)
@given(operations=st.lists(OPERATIONS, max_size=80))
def test_many_histories(rewind_to: str, operations: list[tuple[str, Any, Any]]) -> None:
    play(rewind_to, operations)
