"""The orchestrator and a node that is silent."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.model import NodeAddress, VbucketState
from dcpstream.runtime import SystemRandom
from dcpstream_node.cluster.machine import recovery
from dcpstream_node.cluster.machine.failover import fail_over
from dcpstream_node.cluster.machine.orchestrator import ORDER_TIMEOUT_S, Orchestrator
from dcpstream_node.cluster.machine.state import BucketState, Member, Unsettled
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure
from tests.kit.cases import each_case


def with_silent_nodes(*names: str) -> Orchestrator:
    """Nothing ever answers: nobody carries the links' bytes."""
    orchestrator = Orchestrator(SystemRandom(), epoch=1, cluster_uuid="c")
    for name in names:
        address = NodeAddress("", 11210, 8091)
        orchestrator.members[name] = Member(name, address, "127.0.0.1", "admin", "secret", is_active=True)
    return orchestrator


def pass_time(orchestrator: Orchestrator, until: Outcome[Any]) -> None:
    orchestrator.tasks.run()
    while not until.is_done:
        due = orchestrator.next_timeout()
        assert due is not None, "it waits for ever"
        orchestrator.handle_timeout(due)


def test_an_order_to_a_silent_node_ends():
    orchestrator = with_silent_nodes("a")
    bucket = BucketState("b", "uuid", 0, [("a",)])
    answer = orchestrator.set_state(bucket, 0, "a", VbucketState.ACTIVE)
    pass_time(orchestrator, answer)
    assert orchestrator.tasks.now == ORDER_TIMEOUT_S
    with pytest.raises(TimeoutError, match="node a took more than 30 s"):
        _ = answer.value


@each_case("moving", [{0}, set()], ids=["while it is isolated", "while the map is sent"])
def test_a_node_that_leaves_during_its_failover_ends_nothing(moving: set[int]):
    """A rebalance removes it in its last moment, or somebody ejects it as soon as it is failed."""
    orchestrator = with_silent_nodes("a", "b", "c")
    orchestrator.buckets["b"] = BucketState("b", "uuid", 1, [("a", "b")], moving=moving)
    report = orchestrator.tasks.start(fail_over(orchestrator, ["c"]))
    orchestrator.tasks.run()
    assert orchestrator.members["c"].is_failed is not bool(moving)
    orchestrator.forget("c")
    pass_time(orchestrator, report)
    assert report.error is None
    assert set(orchestrator.members) == {"a", "b"}


def test_a_node_rejoins_though_another_one_that_is_promoted_is_silent(monkeypatch: pytest.MonkeyPatch):
    """The vbucket is unsettled until that node answers or is failed over."""
    orchestrator = with_silent_nodes("back", "silent")
    bucket = orchestrator.buckets["b"] = BucketState("b", "uuid", 1, [("back", "silent")])

    def held(*_: object) -> Procedure[set[int]]:
        yield []
        return {0}

    def best(*_: object) -> Procedure[dict[int, str | None]]:
        yield []
        return {0: "silent"}

    ask = orchestrator.set_state
    monkeypatch.setattr(recovery, "copies_of", held)
    monkeypatch.setattr(recovery, "best_copies", best)
    monkeypatch.setattr(
        orchestrator,
        "set_state",
        lambda bucket, vbid, node, *rest: Outcome.of(None) if node == "back" else ask(bucket, vbid, node, *rest),
    )
    report = orchestrator.tasks.start(recovery.rejoin(orchestrator, "back"))
    pass_time(orchestrator, report)
    assert report.value.promoted == {"b": {0: "silent"}}
    assert bucket.unsettled[0] == Unsettled(("silent", "back"), ("silent", "back"), is_begun=True)
    assert not orchestrator.is_failing_over
