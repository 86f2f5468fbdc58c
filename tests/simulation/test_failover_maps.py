"""The maps that clients get around a failover: at any moment of a rebalance, and how soon; on virtual time."""

from __future__ import annotations

import pytest

from dcpstream.errors import ConnectionLost
from dcpstream.model import VbucketState
from dcpstream_node.cluster.machine.failover import fail_over
from dcpstream_node.cluster.machine.rebalance import Rebalance
from dcpstream_node.cluster.machine.tasks import Outcome
from lab.simulation import Judge, Line, SimulatedCluster
from lab.simulation.judges import frames
from lab.simulation.steps import NAMES, Steps

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

    def rebalance_until(self, name: str) -> Outcome[list[str]]:
        """A node comes; begin a rebalance, and return when it comes to a step for the second time."""
        self.cluster.add_node()
        moving = self.orchestrator.tasks.start(Rebalance(self.orchestrator).run())
        steps = Steps(self.cluster, name, 2)
        self.cluster.until(lambda: moving.is_done or steps.found is not None)
        assert steps.found is not None, "the rebalance comes to this step"
        return moving

    def repair(self) -> None:
        """Give every vbucket its copies again, and have the judge compare them."""
        self.cluster.run(Rebalance(self.orchestrator).run())
        self.cluster.settle()
        self.judge.finish()


FAST = (("both chains decide", "n0"), ("a takeover is ordered", "n1"), ("a takeover ends", "n2"))
"""Steps and nodes of the fast runs; slow ones have all."""
FAST_WAITS = dict(zip(FAST, (0.0, 3.0, 7.0), strict=True))
SOON_S = 1.5
"""Longest time until clients know the new map. Nodes that are killed take up to 0.3 s, those that hang up to 1.1 s."""


MOMENTS = [
    pytest.param(name, victim, marks=[] if (name, victim) in FAST else pytest.mark.slow)
    for name in NAMES
    for victim in ("n0", "n1", "n2")
]


@pytest.mark.parametrize(("name", "victim"), MOMENTS)
def test_no_vbucket_that_has_a_copy_is_said_to_be_nowhere_when_a_node_dies_in_a_rebalance(name: str, victim: str):
    world = World()
    cluster, o = world.cluster, world.orchestrator
    moving = world.rebalance_until(name)
    cluster.after_pass = lambda: o.handle_timeout(o.tasks.now + EXCHANGE_S)
    cluster.crash(victim)
    report = cluster.run(fail_over(o, [victim]))
    assert report.lost == {"default": []}
    cluster.until(lambda: moving.is_done)
    cluster.after_pass = lambda: None
    world.repair()


def took_until_told(world: World, victim: str) -> float:
    """Fail a node over; the seconds until every other node of the map names another one for all its vbuckets."""
    cluster, o = world.cluster, world.orchestrator
    began = cluster.now
    cluster.silent.add(victim)
    cluster.touched(victim)
    failing = o.tasks.start(fail_over(o, [victim]))

    def serving(name: str) -> set[str]:
        bucket = cluster.nodes[name].bucket
        return {cluster.name_at(bucket.given_nodes[chain[0]].kv_port) for chain in bucket.chains()}

    cluster.until(
        lambda: o.members[victim].is_failed and not any(victim in serving(each.name) for each in o.known_members())
    )
    took = cluster.now - began
    cluster.finish(failing)
    return took


@pytest.mark.parametrize(
    ("name", "victim", "wait"),
    [
        pytest.param(name, victim, wait, marks=[] if wait == FAST_WAITS.get((name, victim)) else pytest.mark.slow)
        for name in NAMES
        for victim in ("n0", "n1", "n2")
        for wait in (0.0, 3.0, 7.0)
    ],
)
@pytest.mark.parametrize(
    "hangs", [pytest.param(True, id="hangs"), pytest.param(False, id="killed", marks=pytest.mark.slow)]
)
def test_a_node_that_hangs_in_a_rebalance_is_replaced_as_soon_as_a_killed_one(
    name: str, victim: str, wait: float, hangs: bool
):
    """`wait`: seconds between the node's last sign of life and the decision to give it up."""
    world = World()
    cluster = world.cluster
    moving = world.rebalance_until(name)
    if hangs:
        cluster.hang(victim)
    else:
        cluster.crash(victim)
    cluster.settle(wait)
    assert took_until_told(world, victim) <= SOON_S
    cluster.until(lambda: moving.is_done)
    world.repair()


def test_nothing_waits_for_a_node_that_is_given_up():
    world = World()
    cluster, o, bucket = world.cluster, world.orchestrator, world.cluster.bucket
    cluster.hang("n1")
    waiting = [
        o.tasks.start(each)
        for each in (o.state_of(bucket, 0, "n1"), o.seqno_of(bucket, 0, "n1", 1), o.cut(bucket, "n0", "n1"))
    ]
    cluster.settle(0.1)
    assert not any(each.is_done for each in waiting)
    began = cluster.now
    o.members["n1"].is_given_up = True
    o.forget_links("n1")
    later = [
        o.tasks.start(each)
        for each in (
            o.state_of(bucket, 0, "n1"),
            o.seqno_of(bucket, 0, "n1", 1),
            o.feed(bucket, 0, "n0", "n1"),
            o.feed(bucket, 0, "n1", "n2"),
        )
    ]
    told = o.publish(bucket)
    cluster.until(lambda: told.is_done and all(each.is_done for each in waiting))
    cluster.until(lambda: all(each.is_done for each in later))
    assert cluster.now == began
    assert {type(each.error) for each in later} == {ConnectionLost}


class Orders:
    """Listens to a node's connection for orders: which copies it is told to be dead."""

    def __init__(self) -> None:
        self.dead: list[int] = []

    def said(self, _: Line, data: bytes) -> None:
        self.dead += [
            message.number
            for message in frames.cut(data)
            if message.opcode == frames.SET_VBUCKET and message.extras[0] == VbucketState.DEAD
        ]

    def to_node(self, _line: Line, _data: bytes) -> None: ...

    from_node = to_node

    def opened(self, _line: Line) -> None: ...

    closed = opened


def test_a_node_that_hangs_is_ordered_at_once_to_serve_nothing():
    """It finds the orders when it goes on."""
    cluster = SimulatedCluster(3, vbuckets=VBUCKETS)
    o = cluster.orchestrator
    line = cluster.line_of(o.orders("n1", "default"))
    assert line is not None
    line.tap = orders = Orders()
    served = cluster.bucket.vbuckets_of("n1")
    cluster.hang("n1")
    o.tasks.start(fail_over(o, ["n1"]))
    cluster.settle(0.1)
    assert sorted(orders.dead) == served
