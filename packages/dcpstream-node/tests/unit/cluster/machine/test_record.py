"""The record that a whole cluster starts again from."""

from __future__ import annotations

import json

from dcpstream.model import NodeAddress
from dcpstream.runtime import SystemRandom
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.machine.record import new_record, take_record, to_record
from dcpstream_node.cluster.machine.state import BucketState, Member, Recovery


def orchestrator(epoch: int = 7) -> Orchestrator:
    return Orchestrator(SystemRandom(), epoch=epoch, cluster_uuid="c")


def members(*names: str) -> list[Member]:
    return [Member(name, NodeAddress("", 11210, 8091), "127.0.0.1", "admin", "secret") for name in names]


def test_what_was_recorded_is_there_under_the_new_names():
    before = orchestrator()
    take_record(before, new_record(before, 3), members("a", "b", "c"))
    before.members["c"].is_active, before.members["c"].is_failed = False, True
    before.members["b"].recovery = Recovery.DELTA
    bucket = before.buckets["x"] = BucketState("x", "uuid", 1, [("a", "b"), ("b", None), (None, None), ("gone", "a")])
    bucket.handing[0] = "b", "a"
    bucket.recovered["b"] = {2, 3}
    after = orchestrator(epoch=3)
    take_record(after, json.loads(json.dumps(to_record(before))), members("A", "B", "C"))
    assert [(m.name, m.is_active, m.is_failed, m.is_given_up) for m in after.members.values()] == [
        ("A", True, False, False),
        ("B", True, False, False),
        ("C", False, True, True),
    ]
    assert after.members["B"].recovery is Recovery.DELTA
    found = after.buckets["x"]
    assert found.chains == [("A", "B"), ("B", None), (None, None), (None, "A")]
    assert (found.handing, found.recovered) == ({0: ("B", "A")}, {"B": {2, 3}})
    assert (found.uuid, found.replicas, after.cluster_uuid) == ("uuid", 1, "c")
    assert after.epoch > before.epoch, "clients take its maps for newer"
