"""Whole clusters on virtual time from a seed: rebalance, failover, and lost connections at any moment.

After every exchange between the orchestrator and a node the world looks for two active copies of a vbucket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import ConfigError, ConnectionLost, DcpstreamError
from dcpstream.model import AutoFailover, FailoverLog, Manifest, VbucketState
from dcpstream.wire import Opcode, Status
from dcpstream_node.cluster.machine.failover import fail_over, fail_over_gracefully
from dcpstream_node.cluster.machine.layout import Chain
from dcpstream_node.cluster.machine.link import Link
from dcpstream_node.cluster.machine.moves import MoveCancelled, move
from dcpstream_node.cluster.machine.orchestrator import ORDER_TIMEOUT_S, REPLY_TIMEOUT_S
from dcpstream_node.cluster.machine.rebalance import Rebalance
from dcpstream_node.cluster.machine.recovery import add_back, rejoin
from dcpstream_node.cluster.machine.state import Recovery
from dcpstream_node.cluster.machine.watch import LOOK_PAUSE_S, Watch
from dcpstream_node.testing.simulation import Peer
from lab.simulation import SimulatedCluster
from lab.simulation.steps import Steps
from tests.kit.cases import each_case

SLOW_SEEDS = 40


def seeds(count: int, *known: int) -> list[Any]:
    """The first seeds, and those that found a bug; more of them in slow runs."""
    fast = {*range(count), *known}
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(SLOW_SEEDS) if seed not in fast]
    return [*sorted(fast), *slow]


def filled(
    *, seed: int = 0, replicas: int = 1, nodes: int = 3, vbuckets: int = 4, directory: Path | None = None
) -> SimulatedCluster:
    world = SimulatedCluster(nodes, replicas=replicas, seed=seed, vbuckets=vbuckets, directory=directory)
    for vbid in range(world.vbuckets):
        for number in range(5):
            world.write(vbid, f"k{number}")
    world.settle()
    world.check()
    return world


def documents(world: SimulatedCluster) -> dict[int, set[bytes]]:
    """Vbucket → the keys in its active copy."""
    return {vbid: set(world.copy(world.active(vbid)[0], vbid)) for vbid in range(world.vbuckets)}


def failover_logs(world: SimulatedCluster) -> list[FailoverLog]:
    """Per vbucket that of its active copy."""
    return [world.nodes[world.active(vbid)[0]].failover_log(vbid) for vbid in range(world.vbuckets)]


@each_case("replicas", [0, 1, 2])
def test_every_vbucket_has_its_copies(replicas: int):
    world = filled(replicas=replicas)
    assert all(len(chain) == replicas + 1 and None not in chain for chain in world.bucket.chains)


@pytest.mark.parametrize("seed", seeds(1, 12))
def test_nodes_come_and_go(seed: int):
    world = filled(seed=seed, replicas=1 + seed % 2)
    before = documents(world)
    logs = failover_logs(world)
    added = world.add_node()
    assert world.run(Rebalance(world.orchestrator).run()) == []
    world.settle()
    world.check()
    assert any(chain[0] == added for chain in world.bucket.chains)
    assert world.run(Rebalance(world.orchestrator, ["n0"]).run()) == ["n0"]
    world.settle()
    world.check()
    assert not any("n0" in chain for chain in world.bucket.chains)
    assert documents(world) == before
    assert failover_logs(world) == logs, "a takeover begins no branch"


@pytest.mark.parametrize("seed", seeds(1))
def test_writes_go_on_while_vbuckets_move(seed: int):
    world = filled(seed=seed)
    written = 0

    def write() -> None:
        nonlocal written
        vbid = world.chance.randrange(world.vbuckets)
        if world.passed % 7 == 0 and world.active(vbid) and written < 60:
            written += 1
            world.write(vbid, f"late {written}")

    world.add_node()
    world.after_pass = write
    world.run(Rebalance(world.orchestrator, ["n1"]).run())
    world.settle()
    world.check()
    assert written > 20
    assert sum(len(keys) for keys in documents(world).values()) == 20 + written


@pytest.mark.parametrize("seed", seeds(2))
def test_a_connection_is_lost_at_any_moment_of_a_rebalance(seed: int):
    """The rebalance goes on or fails; in either case the next one ends well."""
    world = filled(seed=seed)
    before = documents(world)
    world.add_node()
    start, cuts = world.passed, {world.chance.randint(1, 200) for _ in range(3)}

    def cut() -> None:
        if world.passed - start in cuts:
            world.cut()

    world.after_pass = cut
    for _ in range(10):
        try:
            world.run(Rebalance(world.orchestrator, ["n0"] if "n0" in world.orchestrator.members else []).run())
        except DcpstreamError:
            continue
        break
    else:
        raise AssertionError("no rebalance ends well")
    world.settle()
    world.check()
    assert {vbid: keys >= before[vbid] for vbid, keys in documents(world).items()} == dict.fromkeys(before, True)


@each_case("state", [VbucketState.PENDING, VbucketState.ACTIVE])
@pytest.mark.parametrize("seed", seeds(1))
def test_an_interrupted_takeover_is_over_before_another_copy_is_made_active(state: VbucketState, seed: int):
    """The word that makes the destination pending or active is still on its way when the source is lost."""
    world = filled(nodes=2, seed=seed, vbuckets=1)
    (chain,) = world.bucket.chains
    source, destination = (str(node) for node in chain)
    held: list[Link] = []

    def interrupt() -> None:
        if not held:
            link = world.interrupt(source, destination, Opcode.DCP_SET_VBUCKET_STATE, bytes([state]))
            held.extend([link] if link is not None else [])
        elif source in world.active(0):
            world.release(held[0])  # the worst moment

    world.after_pass = interrupt
    outcome = world.orchestrator.tasks.start(
        move(world.orchestrator, world.bucket, 0, (destination, source), lambda: False)
    )
    world.until(lambda: outcome.is_done)
    assert held
    assert isinstance(outcome.error, ConnectionLost)
    world.settle()
    world.check()
    assert not world.bucket.unsettled


@pytest.mark.parametrize("seed", seeds(1))
def test_a_move_whose_new_chain_rules_is_completed(seed: int):
    """The old chain may lack a durable write by then."""
    world = filled(seed=seed, vbuckets=1)
    active, old = world.bucket.chains[0]
    (new,) = {"n0", "n1", "n2"} - {active, old}
    failed: list[bool] = []

    def interrupt() -> None:
        if world.bucket.unsettled:
            failed.append(True)
        elif world.bucket.chains[0] == (active, new) and not failed:
            world.disconnect(world.orchestrator.orders(new, "default"))

    world.after_pass = interrupt
    outcome = world.orchestrator.tasks.start(move(world.orchestrator, world.bucket, 0, (active, new), lambda: False))
    world.until(lambda: outcome.is_done)
    assert isinstance(outcome.error, ConnectionLost)
    world.settle()
    world.check()
    assert world.bucket.chains[0] == (active, new)


def test_a_copy_whose_deletion_was_lost_is_deleted_by_the_end_of_the_rebalance():
    world = filled(nodes=2)
    world.add_node()
    outcome = world.orchestrator.tasks.start(Rebalance(world.orchestrator).run())
    steps = Steps(world, "a copy is deleted", 1)
    world.until(lambda: outcome.is_done or steps.found is not None)
    assert steps.found is not None
    world.lines.cut(steps.found.line)
    world.until(lambda: outcome.is_done)
    assert outcome.error is None, "a copy too many is no reason to fail"
    world.settle()
    world.check()


def test_a_node_that_leaves_in_this_moment_can_be_failed_over():
    """All its vbuckets have moved, so the rebalance goes on to remove it while the failover fences it."""
    world = filled()
    rebalance = world.orchestrator.tasks.start(Rebalance(world.orchestrator, ["n2"]).run())
    world.until(lambda: rebalance.is_done or not world.bucket.holds("n2"))
    world.until(lambda: rebalance.is_done or not world.bucket.moving)
    assert not rebalance.is_done
    orders = [world.line_of(world.orchestrator.orders("n2", bucket)) for bucket in ("default", "")]
    for line in world.lines.of_node("n2"):
        if line not in orders:
            world.stall(line, 1 << 60, 20.0)  # so the fence takes longer than the rebalance
    failover = world.orchestrator.tasks.start(fail_over(world.orchestrator, ["n2"]))
    world.until(lambda: rebalance.is_done and failover.is_done)
    assert rebalance.error is None
    assert failover.error is None
    assert "n2" not in world.orchestrator.members
    world.settle()
    world.check()


@pytest.mark.parametrize("seed", seeds(1))
def test_a_cancelled_rebalance_leaves_a_true_map(seed: int):
    world = filled(seed=seed)
    before = documents(world)
    world.add_node()
    rebalance, start = Rebalance(world.orchestrator), world.passed
    limit = world.chance.randint(1, 150)
    world.after_pass = lambda: rebalance.cancel() if world.passed - start == limit else None
    outcome = world.orchestrator.tasks.start(rebalance.run())
    world.until(lambda: outcome.is_done)
    assert outcome.error is None or isinstance(outcome.error, MoveCancelled)
    world.settle()
    world.check()
    assert documents(world) == before
    world.run(Rebalance(world.orchestrator).run())
    world.settle()
    world.check()


@pytest.mark.parametrize("seed", seeds(1))
def test_moves_that_are_cancelled_at_a_time_do_not_disturb_each_other(seed: int):
    world = filled(seed=seed, vbuckets=16)
    chains = list(world.bucket.chains)
    added = world.add_node()
    o, rebalance = world.orchestrator, Rebalance(world.orchestrator)
    o.pause(is_on=True)  # no move gets further than its backfill
    outcome = o.tasks.start(rebalance.run())
    world.settle()
    feeding = [o.replicator("default", source, added) for source in ("n0", "n1", "n2")]
    rebalance.cancel()
    o.pause(is_on=False)
    world.until(lambda: outcome.is_done)
    assert isinstance(outcome.error, MoveCancelled)
    assert world.bucket.unsettled == {}
    assert world.bucket.chains == chains
    assert not any(each.is_closed for each in feeding), "no takeover had begun, so nothing was cut"
    world.settle()
    world.check()


@pytest.mark.parametrize("seed", seeds(1, 9, 12))
def test_a_rebalance_goes_on_after_lost_connections(seed: int):
    """The takeover of one vbucket that failed cuts streams of others; they are added again."""
    world = filled(seed=seed, replicas=1 + seed % 2, vbuckets=16)
    world.add_node()
    start, moments = world.passed, {world.chance.randrange(50, 900) for _ in range(4)}

    def cut() -> None:
        if world.passed - start in moments:
            for _ in range(3):
                world.cut()

    world.after_pass = cut
    assert world.run(Rebalance(world.orchestrator, ["n0"]).run()) == ["n0"]
    assert world.bucket.unsettled == {}
    world.settle()
    world.check()


def unsettled_beside(replica_hangs_s: float) -> SimulatedCluster:
    """A move is cancelled while its old replica hangs, and time passes with the watch."""
    world = filled(vbuckets=1)
    o = world.orchestrator
    o.tasks.start(Watch(o, lambda: AutoFailover(is_enabled=False), lambda _: None).run())
    source, replica = (str(node) for node in world.bucket.chains[0])
    added = world.add_node()
    world.hang(replica)
    moving = o.tasks.start(move(o, world.bucket, 0, (source, added), lambda: True))
    world.until(lambda: moving.is_done)
    assert list(world.bucket.unsettled) == [0]
    assert not world.run(o.drained(world.bucket))
    world.settle(replica_hangs_s)
    assert list(world.bucket.unsettled) == [0]
    return world


def test_the_watch_undoes_a_move_when_no_copy_is_silent_any_more():
    world = unsettled_beside(replica_hangs_s=10.0)
    chain = world.bucket.chains[0]
    world.wake(str(chain[1]))
    world.settle(3 * LOOK_PAUSE_S)
    assert world.bucket.unsettled == {}
    assert world.bucket.chains[0] == chain
    assert world.run(world.orchestrator.drained(world.bucket))
    world.check()


def test_a_move_that_waits_for_a_silent_copy_keeps_no_failover_waiting():
    world = unsettled_beside(replica_hangs_s=10.0)
    source, replica = (str(node) for node in world.bucket.chains[0])
    begun = world.now
    world.run(fail_over(world.orchestrator, [replica]))
    assert world.now - begun < 5 * REPLY_TIMEOUT_S
    assert world.bucket.unsettled == {}
    assert world.active(0) == [source]


def test_a_rebalance_waits_for_a_failover():
    world = filled()
    o = world.orchestrator
    failover = o.tasks.start(fail_over(o, ["n0"]))
    world.until(lambda: o.is_failing_over)
    assert world.run(Rebalance(o).run()) == ["n0"]
    assert failover.error is None
    world.settle()
    world.check()


def test_a_rebalance_moves_nothing_if_no_node_is_left_to_stay():
    world = filled(nodes=2)
    o = world.orchestrator
    failover = o.tasks.start(fail_over(o, ["n0"]))
    chains = world.bucket.chains
    with pytest.raises(DcpstreamError, match="failed over"):
        world.run(Rebalance(o, ["n1"]).run())
    assert failover.error is None
    assert [chain[0] for chain in world.bucket.chains] == ["n1"] * len(chains)
    world.check()


def test_a_failover_promotes_the_replicas_on_a_new_branch():
    world = filled()
    before = documents(world)
    mine = world.bucket.vbuckets_of("n1")
    logs = {vbid: world.nodes["n1"].failover_log(vbid) for vbid in mine}
    world.crash("n1")
    report = world.run(fail_over(world.orchestrator, ["n1"]))
    assert set(report.promoted["default"]) == set(mine)
    assert report.lost["default"] == []
    world.settle()
    world.check()
    assert documents(world) == before
    for vbid in mine:
        log = world.nodes[world.active(vbid)[0]].failover_log(vbid)
        assert len(log) == len(logs[vbid]) + 1
        assert log.newest.seqno == 5
    world.run(Rebalance(world.orchestrator).run())
    world.settle()
    world.check()
    assert all(None not in chain for chain in world.bucket.chains)


def test_a_node_that_is_given_up_while_it_runs_serves_nothing_more():
    world = filled()
    world.run(fail_over(world.orchestrator, ["n0"]))
    assert not any("n0" in world.active(vbid) for vbid in range(world.vbuckets))


def test_a_stale_replica_is_promoted_and_the_others_are_rolled_back():
    """The replica that has most is chosen; the one that has less follows it."""
    world = filled(replicas=2)
    vbid = world.bucket.vbuckets_of("n0")[0]
    _, first, second = world.bucket.chains[vbid]
    assert first is not None
    assert second is not None
    world.orchestrator.replicator("default", "n0", first).pause(is_on=True)
    world.write(vbid, "beyond the first")
    world.settle()
    world.orchestrator.replicator("default", "n0", second).pause(is_on=True)
    world.write(vbid, "beyond both")
    world.settle()
    world.crash("n0")
    report = world.run(fail_over(world.orchestrator, ["n0"]))
    assert report.promoted["default"][vbid] == second
    world.settle()
    world.check()
    assert {b"\0beyond the first", b"\0beyond both"} & documents(world)[vbid] == {b"\0beyond the first"}
    assert world.nodes[second].failover_log(vbid).newest.seqno == 6


def test_a_copy_that_is_ahead_of_the_promoted_one_is_rolled_back():
    world = filled(replicas=2)
    vbid = world.bucket.vbuckets_of("n0")[0]
    _, first, second = world.bucket.chains[vbid]
    assert first is not None
    assert second is not None
    world.orchestrator.replicator("default", "n0", first).pause(is_on=True)
    world.write(vbid, "only the second has it")
    world.settle()
    world.orchestrator.members[second].is_failed = True  # it does not say how far it is
    world.crash("n0")
    world.orchestrator.forget_links("n0")
    world.orchestrator.members["n0"].is_active = False
    world.orchestrator.members["n0"].is_failed = True
    world.orchestrator.members[second].is_failed = False
    world.bucket.fed.pop((vbid, second))
    world.bucket.chains[vbid] = (first, second, None)
    world.settle(0.1)  # the second learns that its source is gone
    world.run(iter_once(world.orchestrator.set_state(world.bucket, vbid, first, VbucketState.ACTIVE)))
    world.run(world.orchestrator.feed(world.bucket, vbid, first, second))
    world.settle()
    assert world.copy(second, vbid) == world.copy(first, vbid)
    assert b"\0only the second has it" not in world.copy(second, vbid)


def iter_once(outcome):
    yield outcome


@pytest.mark.parametrize("seed", seeds(2))
def test_a_graceful_failover_begins_no_branch(seed: int):
    world = filled(seed=seed)
    before = documents(world)
    logs = failover_logs(world)
    count: list[tuple[int, int]] = []
    done = fail_over_gracefully(world.orchestrator, ["n0"], lambda: False, lambda *each: count.append(each))
    report = world.run(done)
    assert report.promoted == {"default": {}}
    assert count[-1] == (len(count), len(count))
    world.settle()
    world.check()
    assert documents(world) == before
    assert failover_logs(world) == logs


def test_several_nodes_are_failed_over_gracefully():
    world = filled(replicas=2, nodes=4)
    before = documents(world)
    report = world.run(fail_over_gracefully(world.orchestrator, ["n0", "n2"], lambda: False, lambda *_: None))
    assert (report.promoted, report.lost) == ({"default": {}}, {"default": []})
    world.settle()
    world.check()
    assert documents(world) == before
    assert {chain[0] for chain in world.bucket.chains} == {"n1", "n3"}


def test_a_vbucket_without_a_replica_on_a_node_that_stays_is_not_handed_over():
    world = filled()
    chains = list(world.bucket.chains)
    with pytest.raises(ConfigError, match="on nodes that stay"):
        world.run(fail_over_gracefully(world.orchestrator, ["n0", "n1"], lambda: False, lambda *_: None))
    assert world.bucket.chains == chains


def test_a_graceful_failover_moves_nothing_while_a_copy_may_be_active_elsewhere():
    """The destination of a takeover hangs: it may be active already, so the source must stay dead."""
    world = filled(vbuckets=1)
    source, destination = (str(node) for node in world.bucket.chains[0])

    def hang() -> None:
        if world.state(source, 0) is VbucketState.DEAD and destination not in world.hung:
            world.hang(destination)

    world.after_pass = hang
    outcome = world.orchestrator.tasks.start(
        move(world.orchestrator, world.bucket, 0, (destination, source), lambda: False)
    )
    world.until(lambda: outcome.is_done)
    assert 0 in world.bucket.unsettled
    with pytest.raises(DcpstreamError, match="may be active on node"):
        world.run(fail_over_gracefully(world.orchestrator, [source], lambda: False, lambda *_: None))
    world.after_pass = lambda: None
    world.wake(destination)
    world.run(Rebalance(world.orchestrator).run())
    world.settle()
    world.check()


def in_doubt(
    directory: Path | None = None, *, is_active: bool = True, replicas: int = 2
) -> tuple[SimulatedCluster, tuple[str, ...]]:
    """A source handed over, and its destination hangs, active or not yet. The copies: source, replica, destination."""
    world = filled(vbuckets=1, replicas=replicas, nodes=4, directory=directory)
    copies = tuple(str(node) for node in world.bucket.chains[0])
    source, *others, destination = copies

    def hang() -> None:
        found = world.state(source, 0), world.state(destination, 0) is VbucketState.ACTIVE
        if found == (VbucketState.DEAD, is_active) and destination not in world.hung:
            world.hang(destination)

    world.after_pass = hang
    wanted = (destination, source, *others)
    moving = world.orchestrator.tasks.start(move(world.orchestrator, world.bucket, 0, wanted, lambda: False))
    world.until(lambda: moving.is_done)
    world.after_pass = lambda: None
    assert 0 in world.bucket.unsettled
    return world, copies


@each_case("is_active", [True, False])
@each_case("lost", ["source", "replica"])
def test_no_copy_is_promoted_while_another_one_may_be_active(is_active: bool, lost: str):
    world, copies = in_doubt(is_active=is_active)
    source, replica, destination = copies
    o = world.orchestrator
    o.tasks.start(Watch(o, lambda: AutoFailover(is_enabled=False), lambda _: None).run())
    node = source if lost == "source" else replica
    world.crash(node)
    report = world.run(fail_over(o, [node]))
    assert (report.promoted, report.lost) == ({"default": {}}, {"default": []})
    assert world.active(0) == ([destination] if is_active else [])
    with pytest.raises(DcpstreamError, match=f"may be active on node {destination}"):
        world.run(Rebalance(o).run())
    world.wake(destination)
    world.settle(3 * LOOK_PAUSE_S)
    left = [name for name in copies if name != node]
    assert world.bucket.unsettled == {}
    assert sorted(name for name in world.bucket.chains[0] if name is not None) == sorted(left)
    if is_active:
        assert world.bucket.chains[0][0] == destination
    world.check()
    world.run(Rebalance(o).run())
    world.settle()
    world.check()


def test_the_only_copy_that_is_left_in_doubt_is_not_given_up_automatically():
    world, (source, destination) = in_doubt(replicas=1)
    o = world.orchestrator
    failed: list[list[str]] = []
    o.tasks.start(Watch(o, lambda: AutoFailover(is_enabled=True, timeout_s=5.0), failed.append).run())
    world.crash(source)
    world.run(fail_over(o, [source]))
    assert not world.run(o.drained(world.bucket))
    world.settle(60.0)
    assert failed == []
    world.wake(destination)
    world.settle(3 * LOOK_PAUSE_S)
    assert world.active(0) == [destination]
    assert len(documents(world)[0]) == 5
    world.check()


def test_copies_are_promoted_when_the_node_that_may_have_the_active_one_is_failed_over_too():
    world, (source, replica, destination) = in_doubt()
    o = world.orchestrator
    world.crash(source)
    world.run(fail_over(o, [source]))
    world.crash(destination)
    report = world.run(fail_over(o, [destination]))
    assert report.promoted == {"default": {0: replica}}
    assert world.bucket.unsettled == {}
    world.settle()
    world.check()


@pytest.mark.parametrize("back", ["source", "destination"])
def test_a_node_that_comes_back_serves_nothing_that_may_be_active_elsewhere(back: str, tmp_path: Path):
    world, (source, _, destination) = in_doubt(tmp_path)
    o = world.orchestrator
    o.tasks.start(Watch(o, lambda: AutoFailover(is_enabled=False), lambda _: None).run())
    if back == "source":
        world.lose_power(source)
        world.run(rejoin(o, source))
        assert world.active(0) == [destination]
        world.wake(destination)
    else:
        world.crash(source)
        world.run(fail_over(o, [source]))
        world.lose_power(destination)
        world.run(rejoin(o, destination))
    world.settle(3 * LOOK_PAUSE_S)
    assert world.bucket.unsettled == {}
    assert len(world.active(0)) == 1
    world.check()


def test_two_failovers_at_a_time_come_one_after_the_other():
    world = filled(nodes=2)
    first = world.orchestrator.tasks.start(fail_over(world.orchestrator, ["n0"]))
    second = world.orchestrator.tasks.start(fail_over(world.orchestrator, ["n1"]))
    world.until(lambda: first.is_done and second.is_done)
    assert first.error is None
    assert isinstance(second.error, ConfigError)
    world.settle()
    world.check()


def test_a_silent_replica_delays_a_failover_once_and_not_for_every_vbucket():
    world = filled(replicas=2, vbuckets=24)
    world.hang("n1")
    begun = world.now
    report = world.run(fail_over(world.orchestrator, ["n0"]))
    assert set(report.promoted["default"].values()) == {"n2"}
    assert world.now - begun < ORDER_TIMEOUT_S + 5 * REPLY_TIMEOUT_S


def test_a_node_that_hangs_delays_a_failover_only_where_it_has_a_copy():
    world = filled(nodes=4, vbuckets=12)
    o, chains = world.orchestrator, list(world.bucket.chains)
    o.tasks.start(Watch(o, AutoFailover, lambda _: None).run())
    world.settle()
    lost = world.bucket.vbuckets_of("n0")
    elsewhere = [vbid for vbid in lost if "n1" not in chains[vbid]]
    hanging = [vbid for vbid, chain in enumerate(chains) if chain == ("n1", "n0")]
    assert elsewhere
    assert hanging
    world.crash("n0")
    world.hang("n1")
    begun = world.now
    failing = o.tasks.start(fail_over(o, ["n0"]))
    told = world.nodes["n3"].bucket.chains

    def is_told(vbid: int) -> bool:
        names = [member.name for member in o.known_members()]
        chain = told()[vbid]
        return len(names) == 3 and chain[0] >= 0 and names[chain[0]] in world.active(vbid)

    world.until(lambda: all(is_told(vbid) for vbid in elsewhere))
    assert world.now - begun < 1.0
    assert not failing.is_done
    world.until(lambda: failing.is_done)
    assert world.now - begun < 4 * REPLY_TIMEOUT_S
    assert set(hanging) <= set(world.bucket.unsettled)
    for line in world.lines.of_node("n1"):  # what it was told does not reach it
        world.lines.cut(line)
    world.wake("n1")
    world.settle(3 * LOOK_PAUSE_S)
    assert world.bucket.unsettled == {}
    waiting = durable(world, hanging[0], "it knows that it has no replica any more, and does not wait for one")
    refused = [frame.status for frame in waiting.received if frame.opcode == Opcode.SET]
    assert refused == [Status.DURABILITY_IMPOSSIBLE]
    world.run(Rebalance(o).run())
    world.settle()
    world.check()


def test_a_failover_next_to_a_node_that_hangs_does_not_wait_for_the_roles_that_it_did_not_confirm():
    world = filled(replicas=2, nodes=5, vbuckets=10)
    world.crash("n0")
    world.hang("n1")
    world.run(fail_over(world.orchestrator, ["n0"]))
    assert world.bucket.unsettled
    world.crash("n2")
    begun = world.now
    world.run(fail_over(world.orchestrator, ["n2"]))
    assert world.now - begun < 5 * REPLY_TIMEOUT_S
    world.watchers.clear()  # it is not known that n1 serves nothing
    world.run(fail_over(world.orchestrator, ["n1"]))
    assert world.bucket.unsettled == {}
    assert {chain[0] for chain in world.bucket.chains} <= {"n3", "n4", None}


def test_of_two_nodes_that_come_back_the_copy_that_has_most_is_served_again():
    world = filled(vbuckets=3)
    vbid = world.bucket.vbuckets_of("n0")[0]
    replica = str(world.bucket.chains[vbid][1])
    world.orchestrator.replicator("default", "n0", replica).pause(is_on=True)
    world.write(vbid, "only the active copy has it")
    world.settle()
    report = world.run(fail_over(world.orchestrator, ["n0", replica]))
    assert vbid in report.lost["default"]
    for node in (replica, "n0"):  # first the one that has less
        world.run(add_back(world.orchestrator, node, Recovery.DELTA))
    world.run(Rebalance(world.orchestrator).run())
    world.settle()
    world.check()
    assert b"\0only the active copy has it" in documents(world)[vbid]


def test_a_node_that_was_added_back_may_leave_before_the_rebalance():
    world = filled()
    world.run(fail_over(world.orchestrator, ["n0"]))
    world.run(add_back(world.orchestrator, "n0", Recovery.DELTA))
    world.orchestrator.forget("n0")
    world.run(Rebalance(world.orchestrator).run())
    world.settle()
    world.check()


def test_a_node_comes_back_to_a_cluster_without_buckets():
    world = filled()
    world.orchestrator.remove_bucket("default")
    world.run(fail_over(world.orchestrator, ["n0"]))
    world.run(add_back(world.orchestrator, "n0", Recovery.FULL))
    world.run(Rebalance(world.orchestrator).run())
    assert {member.recovery for member in world.orchestrator.members.values()} == {None}


def test_a_node_that_was_failed_over_while_it_hung_serves_nothing_soon_after_it_wakes():
    world = filled()
    o = world.orchestrator
    o.tasks.start(Watch(o, AutoFailover, lambda _: None).run())
    world.settle(2.0)
    world.hang("n0")
    world.silent.add("n0")
    world.watchers.clear()
    for line in world.lines.of_node("n0"):  # what it is told does not reach it
        world.lines.cut(line)
    world.run(fail_over(o, ["n0"]))
    for line in world.lines.of_node("n0"):
        world.lines.cut(line)
    node = world.nodes["n0"]
    served = [vbid for vbid in range(world.vbuckets) if world.state("n0", vbid) is VbucketState.ACTIVE]
    assert served
    world.wake("n0")
    world.settle(2 * LOOK_PAUSE_S)
    assert not [vbid for vbid in served if world.state("n0", vbid) is VbucketState.ACTIVE]
    names = [member.name for member in o.known_members()]
    assert [names[chain[0]] for chain in node.bucket.chains()] == [chain[0] for chain in world.bucket.chains]
    world.run(add_back(o, "n0", Recovery.DELTA))
    world.run(Rebalance(o).run())
    world.settle()
    world.silent.clear()
    world.check()


@pytest.mark.parametrize("seed", seeds(2))
def test_a_node_is_failed_over_at_any_moment_of_a_rebalance(seed: int):
    world = filled(seed=seed, replicas=2, nodes=4)
    before = documents(world)
    rebalance = Rebalance(world.orchestrator, ["n3"])
    start, limit = world.passed, world.chance.randint(1, 250)
    outcome = world.orchestrator.tasks.start(rebalance.run())
    world.until(lambda: outcome.is_done or world.passed - start >= limit)
    victim = world.chance.choice(["n0", "n1", "n2"])
    if world.chance.random() < 0.5:
        world.crash(victim)
    report = world.run(fail_over(world.orchestrator, [victim]))
    world.until(lambda: outcome.is_done)
    assert report.lost == {"default": []}
    world.settle()
    world.check()
    assert documents(world) == before
    world.run(Rebalance(world.orchestrator).run())
    world.settle()
    world.check()


def durable(world: SimulatedCluster, vbid: int, key: str) -> Peer:
    """Begin a durable write; the peer that waits for its answer."""
    peer = world.nodes[world.active(vbid)[0]].connect()
    peer.send(Opcode.SET, vbid=vbid, key=b"\0" + key.encode(), extras=bytes(8), framing=b"\x11\x01")
    return peer


def test_a_durable_write_needs_a_majority():
    world = filled(replicas=2)
    vbid = 0
    waiting = durable(world, vbid, "durable")
    assert not [frame for frame in waiting.received if frame.opcode == Opcode.SET]
    world.settle()
    assert [frame.status for frame in waiting.received if frame.opcode == Opcode.SET] == [Status.SUCCESS]
    world.orchestrator.pause(is_on=True)
    waiting = durable(world, vbid, "held")
    world.settle()
    assert not [frame for frame in waiting.received if frame.opcode == Opcode.SET]
    world.orchestrator.pause(is_on=False)
    world.settle()
    assert [frame.status for frame in waiting.received if frame.opcode == Opcode.SET] == [Status.SUCCESS]


class DurableWrites:
    """Writes durably all the time, and checks what was acknowledged.

    At any time, an acknowledged write is on a majority of the copies that the map names.
    """

    def __init__(self, world: SimulatedCluster) -> None:
        self._world = world
        self._waiting: list[tuple[int, bytes, Peer]] = []
        self._chains: list[Chain] = list(world.bucket.chains)
        self.acknowledged: dict[int, set[bytes]] = {vbid: set() for vbid in range(world.vbuckets)}

    def __call__(self) -> None:
        world = self._world
        vbid = world.chance.choice(sorted(world.bucket.moving) or range(world.vbuckets))
        if world.passed % 2 == 0 and world.active(vbid) and len(self._waiting) < 20:
            name = f"durable {world.passed}"
            self._waiting.append((vbid, b"\0" + name.encode(), durable(world, vbid, name)))
        for each in list(self._waiting):
            vbid, key, peer = each
            statuses = [frame.status for frame in peer.received if frame.opcode == Opcode.SET]
            if statuses:
                self._waiting.remove(each)
                peer.disconnect()
            if statuses == [Status.SUCCESS]:
                self.acknowledged[vbid].add(key)
                self._check(vbid, key)
        for vbid, chain in enumerate(world.bucket.chains):
            if chain != self._chains[vbid]:
                self._chains[vbid] = chain
                for key in self.acknowledged[vbid]:
                    self._check(vbid, key)

    def _check(self, vbid: int, key: bytes) -> None:
        chain = self._world.bucket.chains[vbid]
        count = sum(self._world.has(name, vbid, key) for name in chain)
        assert count > len(chain) // 2, f"vbucket {vbid}: only {count} of {chain} have {key!r}"


@pytest.mark.parametrize("seed", seeds(2))
def test_no_acknowledged_durable_write_is_lost_by_one_failover(seed: int):
    """Durable writes all the time; any node dies at any moment of a rebalance."""
    world = filled(seed=seed, replicas=1 + seed % 2, nodes=4, vbuckets=12)
    writes = world.after_pass = DurableWrites(world)
    start, limit = world.passed, world.chance.randint(100, 2000)
    outcome = world.orchestrator.tasks.start(Rebalance(world.orchestrator, ["n3"]).run())
    world.until(lambda: world.passed - start >= limit or outcome.is_done)
    world.after_pass = lambda: None
    victim = world.chance.choice(["n0", "n1", "n2"])
    world.crash(victim)
    world.run(fail_over(world.orchestrator, [victim]))
    # A promoted copy may have a write prepared only: it commits when a majority is there again.
    world.run(Rebalance(world.orchestrator).run())
    world.settle()
    world.check()
    kept = documents(world)
    assert sum(map(len, writes.acknowledged.values())) > 0
    for vbid, keys in writes.acknowledged.items():
        assert keys <= kept[vbid], f"vbucket {vbid} lost {keys - kept[vbid]}"


def test_the_only_node_is_replaced():
    world = filled(nodes=1, replicas=0)
    before = documents(world)
    added = world.add_node()
    assert world.run(Rebalance(world.orchestrator, ["n0"]).run()) == ["n0"]
    world.settle()
    world.check()
    assert {chain[0] for chain in world.bucket.chains} == {added}
    assert documents(world) == before


@each_case("nodes", [["n9"], ["n0", "n1", "n2"]])
def test_what_cannot_be_failed_over_is_refused(nodes: list[str]):
    world = filled()
    with pytest.raises(ConfigError):
        world.run(fail_over(world.orchestrator, nodes))
    with pytest.raises(ConfigError):
        Rebalance(world.orchestrator, nodes)
    world.check()


def test_a_running_node_is_isolated_also_over_a_new_connection():
    world = filled()
    lost: list[Link] = []

    def lose() -> None:
        link = world.orchestrator.orders("n0", "default")
        if world.orchestrator.is_failing_over and not lost:
            lost.append(link)
            world.disconnect(link)

    world.after_pass = lose
    world.run(fail_over(world.orchestrator, ["n0"]))
    assert lost
    assert not any("n0" in world.active(vbid) for vbid in range(world.vbuckets))


@pytest.mark.parametrize("seed", seeds(1))
def test_a_new_node_has_the_map_before_others_name_it(seed: int):
    """A client that hears of it may ask it at once."""
    world = filled(seed=seed)
    added = world.add_node()
    named: list[bool] = []

    def look() -> None:
        if any(len(world.nodes[name].engine.config.nodes) > 3 for name in ("n0", "n1", "n2")):
            named.append(world.nodes[added].bucket.given_chains is not None)

    world.after_pass = look
    world.run(Rebalance(world.orchestrator).run())
    assert named
    assert all(named)


@pytest.mark.parametrize("seed", seeds(1))
def test_what_was_kept_last_names_every_copy_that_serves(seed: int):
    """At any moment a restart of the whole cluster would ask the copy that is active."""
    world = filled(seed=seed)
    o = world.orchestrator
    kept: list[list[set[str]]] = []
    branches: list[int] = []

    def keep() -> None:
        handing = world.bucket.handing
        known = {member.name for member in o.known_members()}
        kept.append([known & {*chain, *handing.get(vbid, ())} for vbid, chain in enumerate(world.bucket.chains)])

    def check() -> None:
        if world.passed % 60 == 0 and world.passed < cuts_until:
            world.cut()
        for vbid in range(world.vbuckets):
            for name in world.active(vbid):
                assert name in kept[-1][vbid], (vbid, name)
                if branches and len(world.nodes[name].failover_log(vbid)) > branches[vbid]:
                    assert "n1" not in kept[-1][vbid], "what the failed node had beyond this copy is lost"

    o.keep = keep
    keep()
    cuts_until = world.passed + 600
    world.after_pass = check
    world.add_node()
    for _ in range(10):
        try:
            world.run(Rebalance(o, ["n0"] if "n0" in o.members else []).run())
        except DcpstreamError:
            continue
        break
    world.settle()
    branches += [len(log) for log in failover_logs(world)]
    world.crash("n1")
    world.run(fail_over(o, ["n1"]))
    world.run(Rebalance(o).run())
    world.settle()
    world.check()
    assert len(kept) > 10


def test_a_node_whose_connection_is_lost_gets_the_collections_again():
    world = filled()
    o = world.orchestrator
    entry = {"name": "_default", "uid": "0"}
    manifest = Manifest.from_json(
        {"uid": "1", "scopes": [{**entry, "collections": [entry, {"name": "c8", "uid": "8"}]}]}
    )
    outcome = o.tasks.start(o.set_manifest(world.bucket, manifest))
    link = o.orders("n1", "default")
    world.until(lambda: bool(world.line_of(link).flying))
    world.disconnect(link)
    world.finish(outcome)
    assert [node.bucket.manifest.uid for node in world.nodes.values()] == [1] * len(world.nodes)


def test_a_new_node_whose_connection_is_lost_has_its_first_map_before_others_name_it():
    world = filled()
    o = world.orchestrator
    new = world.add_node()
    outcome = o.tasks.start(Rebalance(o).run())
    link = o.orders(new, "default")
    world.until(lambda: (line := world.line_of(link)) is not None and bool(line.flying))
    world.disconnect(link)
    others = [node for name, node in world.nodes.items() if name != new]
    world.until(lambda: any(len(node.engine.config.nodes) > 3 for node in others))
    assert new in world.bucket.informed
    world.finish(outcome)
