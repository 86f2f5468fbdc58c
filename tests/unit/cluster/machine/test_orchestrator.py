"""The orchestrator and a node that is silent."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.cluster.machine.failover import fail_over
from dcpstream.cluster.machine.orchestrator import ORDER_TIMEOUT_S, Orchestrator
from dcpstream.cluster.machine.state import BucketState, Member, Unsettled
from dcpstream.cluster.machine.tasks import Outcome
from dcpstream.model import NodeAddress, VbucketState
from dcpstream.runtime import SystemRandom


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


def test_a_failover_ends_also_if_the_next_node_is_silent():
    """The vbucket is that node's, and its role is asked again later."""
    orchestrator = with_silent_nodes("a", "b", "c")
    bucket = orchestrator.buckets["default"] = BucketState("default", "uuid", 1, [("a", "b"), ("c", "b")])
    report = orchestrator.tasks.start(fail_over(orchestrator, ["a"]))
    pass_time(orchestrator, report)
    assert report.value.promoted == {"default": {0: "b"}}
    assert bucket.chains == [("b", None), ("c", "b")]
    assert bucket.unsettled == {0: Unsettled(("b", None), ("b", None), is_begun=True)}
