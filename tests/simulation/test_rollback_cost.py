"""The cost of a hard failover of one of three nodes for a running query: the seqnos that are read again.

The planner and the coordinator are the real ones; the cluster is the model of `tests.kit.spark_model`, with 128
vbuckets. Print the figures with `pytest -s`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream_node.testing.simulation import VirtualClock
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source.coordinator import Coordinator
from tests.kit.spark_model import FakeCluster, read_range

VBUCKETS = 128
NODES = 3
BATCHES = 30
SEQNOS_PER_BATCH = 10
"""Seqnos of each vbucket in a batch, all with new keys."""

OPTIONS = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}


class Running:
    """A query that follows a bucket, one batch for each round of writes, and was never idle."""

    def __init__(self, rewind_to: str) -> None:
        self.cluster = FakeCluster(VBUCKETS)
        options = SourceOptions.parse(
            {**OPTIONS, "startingOffsets": "earliest", "onRollback": "rewindAndMark", "rewindTo": rewind_to}
        )
        self.to_zero = rewind_to == "zero"
        self.coordinator = Coordinator(
            options, default_start=OffsetSpec("latest"), connect=lambda _: self.cluster, clock=VirtualClock()
        )
        self.at: dict[str, Any] = self.coordinator.start_marker()
        self.keys = 0
        for _ in range(BATCHES):
            self.write(SEQNOS_PER_BATCH)
            self.plan()

    def write(self, seqnos: int) -> None:
        for vbid in range(VBUCKETS):
            for _ in range(seqnos):
                self.keys += 1
                self.cluster.write(vbid, f"{self.keys}", 1)

    def plan(self) -> Any:
        start, self.at = self.at, json.loads(json.dumps(self.coordinator.next_offset(self.at, None)))
        return self.coordinator.ranges(start, self.at)

    def fail_over_a_node(self, lost: int) -> list[int]:
        """The vbuckets of one node go on at copies that lack their last seqnos."""
        vbids = [vbid for vbid in range(VBUCKETS) if vbid % NODES == 0]
        for vbid in vbids:
            high = self.cluster.active[vbid].high
            self.cluster.add_replica(vbid, high - lost, high - lost)
            self.cluster.fail_over(vbid)
        return vbids


@pytest.mark.parametrize(
    ("lost", "most"),
    [
        pytest.param(1, 20, marks=pytest.mark.slow),
        (10, 20),
        pytest.param(47, 130, marks=pytest.mark.slow),
        pytest.param(141, 300, marks=pytest.mark.slow),
    ],
)
def test_a_failover_costs_what_was_lost_and_a_batch(lost: int, most: int) -> None:
    """`most` is what a vbucket may read again; it holds 300 seqnos. Before, it was the whole vbucket, always."""
    query = Running("recorded")
    vbids = query.fail_over_a_node(lost)
    left = {vbid: query.cluster.active[vbid].high for vbid in vbids}
    query.write(1)
    ranges = query.plan()
    again = {one.range.vbid: left[one.range.vbid] - one.range.start.seqno for one in ranges if one.range.vbid in left}
    void = lost * len(vbids)
    print(
        f"{VBUCKETS} vbuckets, one of {NODES} nodes lost, {void} void seqnos: {sum(again.values())} seqnos are read "
        f"again, of {sum(left.values())} in these vbuckets"
    )
    assert again.keys() == left.keys()
    assert max(again.values()) + lost <= most
    assert all(one.rolled_back_from is None for one in ranges if one.range.vbid not in left), "no other vbucket"
    assert query.plan() == [], "it is told and read once"


@pytest.mark.slow
def test_to_zero_it_costs_the_whole_vbuckets() -> None:
    """For a sink that cannot restore older versions."""
    query = Running("zero")
    vbids = query.fail_over_a_node(10)
    query.write(1)
    ranges = {one.range.vbid: one.range for one in query.plan()}
    assert all(ranges[vbid].start.seqno == 0 for vbid in vbids)


@pytest.mark.slow
def test_a_failover_between_planning_and_reading_costs_no_more() -> None:
    query = Running("recorded")
    query.write(SEQNOS_PER_BATCH)
    planned = {one.range.vbid: one.range for one in query.plan()}
    vbids = query.fail_over_a_node(25)
    for vbid in vbids:
        to_seqno, rows = read_range(query.cluster, planned[vbid], to_zero=False)
        assert (to_seqno, rows) == (planned[vbid].start.seqno, [])
    left = {vbid: query.cluster.active[vbid].high for vbid in vbids}
    query.write(1)
    again = {
        one.range.vbid: left[one.range.vbid] - one.range.start.seqno for one in query.plan() if one.range.vbid in left
    }
    print(f"the same between planning and reading, {25 * len(vbids)} void: {sum(again[vbid] for vbid in vbids)} again")
    assert max(again[vbid] for vbid in vbids) <= 100
