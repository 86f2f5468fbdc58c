"""The maps that clients get around a failover: at any moment of a rebalance, and how soon; on virtual time."""

from __future__ import annotations

import pytest

from dcpstream.cluster.machine.failover import fail_over
from dcpstream.cluster.machine.rebalance import Rebalance
from dcpstream.testing.simulation import Judge, SimulatedCluster
from dcpstream.testing.simulation.steps import NAMES, Steps

VBUCKETS = 8
EXCHANGE_S = 0.002
"""Time that an exchange takes, so that moves are still under way when a node is failed over."""


class World:
    """A cluster under the eyes of a judge, which looks at every map that any node is told."""

    def __init__(self, *, nodes: int = 3, replicas: int = 1, seed: int = 0) -> None:
        self.cluster = SimulatedCluster(nodes, replicas=replicas, vbuckets=VBUCKETS, seed=seed, begins=False)
        self.orchestrator = self.cluster.orchestrator
        self.judge = Judge(self.cluster)
        self.cluster.begin()
        for vbid in range(VBUCKETS):
            self.cluster.write(vbid, "k")
        self.cluster.settle()

    def repair(self) -> None:
        """Give every vbucket its copies again, and have the judge compare them."""
        self.cluster.run(Rebalance(self.orchestrator).run())
        self.cluster.settle()
        self.judge.finish()


FAST = (("both chains decide", "n0"), ("a takeover is ordered", "n1"), ("a takeover ends", "n2"))
"""Steps and nodes of the fast runs; slow ones have all."""


@pytest.mark.parametrize(
    ("name", "victim"),
    [
        pytest.param(name, victim, marks=[] if (name, victim) in FAST else pytest.mark.slow)
        for name in NAMES
        for victim in ("n0", "n1", "n2")
    ],
)
def test_no_vbucket_that_has_a_copy_is_said_to_be_nowhere_when_a_node_dies_in_a_rebalance(name: str, victim: str):
    world = World()
    cluster, o = world.cluster, world.orchestrator
    cluster.add_node()
    moving = o.tasks.start(Rebalance(o).run())
    steps = Steps(cluster, name, 2)
    cluster.until(lambda: moving.is_done or steps.found is not None)
    assert steps.found is not None, "the rebalance comes to this step"
    cluster.after_pass = lambda: o.handle_timeout(o.tasks.now + EXCHANGE_S)
    cluster.crash(victim)
    report = cluster.run(fail_over(o, [victim]))
    assert report.lost == {"default": []}
    cluster.until(lambda: moving.is_done)
    cluster.after_pass = lambda: None
    world.repair()
