"""Silent nodes that are failed over without an order, and the time of it; on virtual time."""

from __future__ import annotations

from dataclasses import replace

from dcpstream.model import AutoFailover
from dcpstream_node.cluster.machine.watch import Watch
from lab.simulation import SimulatedCluster
from tests.kit.cases import each_case

TIMEOUT_S = 5.0


class Watched:
    """A cluster that is watched."""

    def __init__(self, *, nodes: int = 4, replicas: int = 1, max_count: int = 1) -> None:
        self.world = SimulatedCluster(nodes, replicas=replicas, seed=1, vbuckets=4)
        self.settings = AutoFailover(is_enabled=True, timeout_s=TIMEOUT_S, max_count=max_count)
        self.failed: list[str] = []
        watch = Watch(self.world.orchestrator, lambda: self.settings, self._note)
        self.world.orchestrator.tasks.start(watch.run())
        self.world.settle()

    def _note(self, nodes: list[str]) -> None:
        self.failed += nodes
        self.settings = replace(self.settings, count=self.settings.count + len(nodes))


def test_a_silent_node_is_failed_over_in_time_and_not_before():
    watched = Watched()
    watched.world.settle(2 * TIMEOUT_S)
    assert watched.failed == [], "all answer"
    watched.world.crash("n1")
    watched.world.settle(TIMEOUT_S - 1)
    assert watched.failed == []
    watched.world.settle(3)
    assert watched.failed == ["n1"]
    assert not any("n1" in chain for chain in watched.world.bucket.chains)


def test_it_acts_as_often_as_it_may():
    watched = Watched()
    watched.world.crash("n1")
    watched.world.settle(TIMEOUT_S + 3)
    watched.world.crash("n2")
    watched.world.settle(2 * TIMEOUT_S)
    assert watched.failed == ["n1"]
    watched.settings = replace(watched.settings, count=0)
    watched.world.settle(3)
    assert watched.failed == ["n1", "n2"]


@each_case(
    ("down", "options"),
    [
        (["n1"], {"nodes": 2}),
        (["n1"], {"replicas": 0}),
        (["n1", "n2"], {"max_count": 2}),
        (["n1", "n2"], {"nodes": 5, "max_count": 1}),
    ],
    ids=["no majority", "no copy elsewhere", "half of the nodes", "more than it may"],
)
def test_it_does_not_act_where_that_does_harm(down: list[str], options: dict[str, int]):
    watched = Watched(**options)
    for name in down:
        watched.world.crash(name)
    watched.world.settle(3 * TIMEOUT_S)
    assert watched.failed == []


def test_it_does_not_act_while_it_is_off_or_a_rebalance_is_under_way():
    watched = Watched()
    watched.settings = replace(watched.settings, is_enabled=False)
    watched.world.crash("n1")
    watched.world.settle(2 * TIMEOUT_S)
    assert watched.failed == []
    watched.settings = replace(watched.settings, is_enabled=True)
    watched.world.orchestrator.is_rebalancing = True
    watched.world.settle(3)
    assert watched.failed == []
    watched.world.orchestrator.is_rebalancing = False
    watched.world.settle(3)
    assert watched.failed == ["n1"]
