"""Failover: the copies of a node that is given up are promoted elsewhere.

Hard failover gives the node up at once. If it still answers, it is isolated first: nothing can make a copy of it active
any more, and its active copies are made dead, so no two copies are active. A node that is silent for `SILENCE_MAX_S`
is not waited for: it is dead, or hangs and finds the orders when it goes on. Maps name the node until a copy of each of
its vbuckets is promoted, because clients end the streams of a vbucket that is nowhere. For each of its vbuckets the
replica that has most is promoted: the one with the highest prepared seqno, then with the highest seqno. It begins a new
branch of history; what the failed node had beyond that is lost, and clients that received it are rolled back. Every
acknowledged durable write is there, because a majority of the chain has it: as a document, or prepared, and then it is
committed when there is a majority again.

Another node may hang meanwhile, without being given up. Vbuckets of which it has no copy do not wait for it: those with
the same copies are promoted together, each group for itself, and after `PROMPT_S` clients get a map with the vbuckets
that are served by then. A vbucket whose active copy does not answer the order stays unsettled; `activate_again` repeats
the order when its node is heard again.

A vbucket that was just being handed over to the node that hangs may be active there. No other copy is promoted: it is
served again when that node answers, see `settle_again`, or is failed over, too.

Graceful failover hands the active copies over first, one takeover after the other, and loses nothing.

Source: ns_server's failover.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from dcpstream.errors import ConfigError
from dcpstream.model import VbucketState
from dcpstream_node.cluster.machine.layout import Chain, filled, led_by
from dcpstream_node.cluster.machine.moves import Move, run_moves, settle, settle_all
from dcpstream_node.cluster.machine.orchestrator import TROUBLE, Orchestrator
from dcpstream_node.cluster.machine.state import BucketState, Unsettled, topology
from dcpstream_node.cluster.machine.tasks import Procedure

logger = logging.getLogger(__name__)

MOVES_PAUSE_S = 0.01
"""Pause between two looks whether the rebalance that a failover interrupts is over."""
PROMPT_S = 0.5
"""Time after which clients get a map with the copies that are promoted, also if a node keeps others waiting. Healthy
nodes take much less, so clients mostly get one map."""


@dataclass(slots=True)
class FailoverReport:
    """The result of a failover.

    Attributes:
        promoted: bucket → vbucket → the node whose copy is active now.
        lost: bucket → vbuckets without any copy left. They are empty after the next rebalance.
    """

    promoted: dict[str, dict[int, str]] = field(default_factory=dict)
    lost: dict[str, list[int]] = field(default_factory=dict)


def fail_over(o: Orchestrator, nodes: Sequence[str]) -> Procedure[FailoverReport]:
    """Give nodes up; through when their vbuckets are served elsewhere.

    It waits for the end of another failover, or of a node's return.

    Errors: ConfigError: a node that is not in the map, or all of them.
    """
    while o.is_failing_over:
        yield o.tasks.pause(MOVES_PAUSE_S)
    check_active(o, nodes)
    o.is_failing_over = True
    try:
        return (yield from _fail_over(o, nodes))
    finally:
        o.is_failing_over = False


def _fail_over(o: Orchestrator, nodes: Sequence[str]) -> Procedure[FailoverReport]:
    for node in nodes:
        o.members[node].is_given_up = True
    yield [o.tasks.start(o.isolate(node)) for node in nodes]
    nodes = [node for node in nodes if node in o.members]  # a rebalance may have removed one in its last moment
    for node in nodes:
        o.members[node].is_failed = True
        o.members[node].is_active = False
        o.members[node].recovery = None
        o.forget_links(node)
    # Moves that are under way fail for want of the node, and settle themselves.
    while o.is_rebalancing:
        yield o.tasks.pause(MOVES_PAUSE_S)
    nodes = [node for node in nodes if node in o.members]
    report = FailoverReport()
    for bucket in o.buckets.values():
        yield from settle_before_failover(o, bucket, nodes)
        for node in nodes:
            bucket.recovered.pop(node, None)
            bucket.informed.discard(node)
    yield [o.tasks.start(promote(o, bucket, report)) for bucket in o.buckets.values()]
    yield from o.publish_nodes()
    yield [o.tasks.start(o.dismiss(node)) for node in nodes if node in o.members]  # it may have been ejected meanwhile
    feed_what_is_left(o)
    return report


def feed_what_is_left(o: Orchestrator) -> None:
    """Feed the replicas of the map. Nobody waits for it: they may be paused."""
    for bucket in o.buckets.values():
        o.tasks.start(o.feed_all(bucket)).then(partial(o.look_after_all, bucket))


def check_active(o: Orchestrator, nodes: Sequence[str]) -> None:
    """Raises: ConfigError: a node is not in the map, or these are all of them."""
    active = [member.name for member in o.known_members()]
    for node in nodes:
        if node not in active:
            raise ConfigError("node", node, f"an active node of the cluster: {', '.join(active)}")
    if len(set(nodes)) >= len(active):
        raise ConfigError("nodes", list(nodes), "not all nodes of the cluster")


def promote(o: Orchestrator, bucket: BucketState, report: FailoverReport) -> Procedure[None]:
    """Take the nodes that were failed over out of the chains, and promote copies that are left.

    Args:
        report: gets what became of the vbuckets.
    """
    failed = {member.name for member in o.members.values() if member.is_failed}
    promoted = report.promoted.setdefault(bucket.name, {})
    lost = report.lost.setdefault(bucket.name, [])
    for key in [key for key, source in bucket.fed.items() if key[1] in failed or source in failed]:
        del bucket.fed[key]
    groups: dict[tuple[bool, Chain], list[int]] = {}
    for vbid, chain in enumerate(bucket.chains):
        present: Chain = tuple(node for node in chain if node is not None and node not in failed)
        if bucket.is_in_doubt(vbid):
            logger.warning(
                "vbucket %d of %s may be active on node %s, which does not answer: it is served again when that node "
                "answers or is failed over",
                vbid, bucket.name, bucket.unsettled[vbid].wanted[0],
            )  # fmt: skip
        elif len(present) < sum(node is not None for node in chain):
            groups.setdefault((chain[0] in failed, present), []).append(vbid)

    def promote_all() -> Procedure[None]:
        yield [o.tasks.start(_promote_group(o, bucket, each, *key, promoted, lost)) for key, each in groups.items()]

    done = o.tasks.start(promote_all())
    yield o.tasks.within(done, PROMPT_S, "the promotion").quietly()
    if not done.is_done:
        o.publish(bucket)
    yield done


def _promote_group(
    o: Orchestrator,
    bucket: BucketState,
    vbids: Sequence[int],
    is_active_lost: bool,
    present: Chain,
    promoted: dict[int, str],
    lost: list[int],
) -> Procedure[None]:
    """Give vbuckets that have the same copies left the chain of these, and its active copy the role.

    Args:
        is_active_lost: whether the copy that was active is not among them.
        promoted, lost: get what became of the vbuckets, as in `FailoverReport`.
    """
    best_of = yield from best_copies(o, bucket, dict.fromkeys(vbids, present) if is_active_lost else {})
    for vbid in vbids:
        chain = present
        if is_active_lost:
            best = best_of[vbid]
            if best is None:
                lost.append(vbid)
                logger.warning("vbucket %d of %s has no copy left", vbid, bucket.name)
            else:
                promoted[vbid] = best
                chain = led_by(best, present)
        bucket.chains[vbid] = filled(chain, len(bucket.chains[vbid]))
    yield from o.remember_or_log()
    chains = {vbid: bucket.chains[vbid] for vbid in vbids}
    yield [o.tasks.start(activate(o, bucket, vbid, new)) for vbid, new in chains.items() if new[0] is not None]


def activate(o: Orchestrator, bucket: BucketState, vbid: int, chain: Chain) -> Procedure[None]:
    """Make the first copy of a chain active. Until its node says that it is, the vbucket is unsettled.

    A node that does not answer soon is waited for no longer: it may hang, and then it carries the order out later.
    """
    assert chain[0] is not None, "the caller looks first"
    missing = Unsettled(chain, chain, is_begun=True)
    failed = bucket.unsettled.get(vbid)
    if failed is None or failed.is_role:
        bucket.unsettled[vbid] = missing
    order = o.set_state(bucket, vbid, chain[0], VbucketState.ACTIVE, topology(chain))
    try:
        yield o.answer(chain[0], order)
    except TROUBLE as error:
        logger.warning("vbucket %d of %s is unsettled: %s", vbid, bucket.name, error)
    else:
        if bucket.unsettled.get(vbid) is missing:  # a rebalance may have settled it meanwhile
            del bucket.unsettled[vbid]


def activate_again(o: Orchestrator, node: str) -> Procedure[None]:
    """Repeat the orders to make copies of a node active that it did not answer."""
    missing = [
        (bucket, vbid, failed.wanted)
        for bucket in o.buckets.values()
        for vbid, failed in bucket.unsettled.items()
        if failed.is_role and failed.wanted[0] == node
    ]
    yield [o.tasks.start(activate(o, *each)) for each in missing]


def settle_again(o: Orchestrator, node: str, silent: Collection[str]) -> Procedure[None]:
    """Undo or complete the moves that failed and wait for this node, and then serve what is left.

    It does nothing while something else moves vbuckets: the watch repeats it. If it is known which copy of a vbucket is
    active, the move waits until no node with another copy is silent, because that would keep a failover waiting.
    """

    def waiting(bucket: BucketState) -> list[int]:
        return [vbid for vbid, each in bucket.unsettled.items() if _may_settle(each, node, silent)]

    if o.is_failing_over or o.is_rebalancing or not any(waiting(bucket) for bucket in o.buckets.values()):
        return
    o.is_failing_over = True
    try:
        for bucket in o.buckets.values():
            yield [o.tasks.start(settle(o, bucket, vbid)) for vbid in waiting(bucket)]
        yield [o.tasks.start(promote(o, bucket, FailoverReport())) for bucket in o.buckets.values()]
        yield from o.publish_nodes()
        feed_what_is_left(o)
    finally:
        o.is_failing_over = False


def _may_settle(failed: Unsettled, node: str, silent: Collection[str]) -> bool:
    if failed.is_role or failed.decider != node:
        return False
    return failed.is_in_doubt or not any(each in silent for each in (*failed.old, *failed.wanted))


def settle_before_failover(o: Orchestrator, bucket: BucketState, nodes: Sequence[str]) -> Procedure[None]:
    """Undo or complete the moves that failed, and forget roles that the failover of these nodes assigns again."""
    for vbid, failed in list(bucket.unsettled.items()):
        if failed.is_role and failed.wanted[0] in nodes:
            del bucket.unsettled[vbid]
    yield [o.tasks.start(settle(o, bucket, vbid)) for vbid, failed in bucket.unsettled.items() if not failed.is_role]


def best_copies(o: Orchestrator, bucket: BucketState, copies: Mapping[int, Chain]) -> Procedure[dict[int, str | None]]:
    """`best_copy` of several vbuckets at a time: a node that is silent is waited for once."""
    found = yield [o.tasks.start(best_copy(o, bucket, vbid, each)) for vbid, each in copies.items()]
    return dict(zip(copies, found, strict=True))


def best_copy(o: Orchestrator, bucket: BucketState, vbid: int, copies: Chain) -> Procedure[str | None]:
    """The copy that has most, of equal ones the first; None without any that answers."""
    if len(copies) == 1:
        return copies[0]
    best: tuple[tuple[int, int], str] | None = None
    nodes = [node for node in copies if node is not None]
    reached = yield [o.tasks.start(_reached_or_silent(o, bucket, vbid, node)) for node in nodes]
    for node, key in zip(nodes, reached, strict=True):
        if key is not None and (best is None or key > best[0]):
            best = key, node
    return None if best is None else best[1]


def _reached_or_silent(o: Orchestrator, bucket: BucketState, vbid: int, node: str) -> Procedure[tuple[int, int] | None]:
    """The same as `_reached`; None if the node does not say."""
    try:
        return (yield from _reached(o, bucket, vbid, node))
    except TROUBLE as error:
        logger.warning("node %s does not say how far vbucket %d is: %s", node, vbid, error)
        return None


def _reached(o: Orchestrator, bucket: BucketState, vbid: int, node: str) -> Procedure[tuple[int, int]]:
    """(high prepared seqno, high seqno) of a copy."""
    stats = yield o.answer(node, o.orders(node, bucket.name).stats(b"vbucket-durability-state %d" % vbid))
    prefix = b"vb_%d:" % vbid
    return int(stats[prefix + b"high_prepared_seqno"]), int(stats[prefix + b"high_seqno"])


def fail_over_gracefully(
    o: Orchestrator, nodes: Sequence[str], is_cancelled: Callable[[], bool], moved: Callable[[int, int], None]
) -> Procedure[FailoverReport]:
    """Hand over every active copy of some nodes, then give the nodes up.

    Args:
        moved: called with the number of copies that were handed over, and that of all.

    Errors: ConfigError: a vbucket has no replica that could take over, or a node is not active. MoveCancelled, or those
        of the nodes: none is given up.
    """
    check_active(o, nodes)
    while o.is_rebalancing or o.is_failing_over:
        yield o.tasks.pause(MOVES_PAUSE_S)
    o.is_rebalancing = True
    try:
        yield from settle_all(o)  # a copy that may be active already must not be made active elsewhere
        yield from run_moves(o, _handovers(o, nodes), lambda: is_cancelled() or o.is_failing_over, moved)
    finally:
        o.is_rebalancing = False
    return (yield from fail_over(o, nodes))


class GracefulFailover:
    """One graceful failover of some nodes, with its progress.

    Attributes:
        is_cancelled: whether `cancel` was called.
        progress: the share of the active copies that were handed over, 0 to 1.

    Raises: ConfigError: as `fail_over_gracefully`.
    """

    def __init__(self, o: Orchestrator, nodes: Sequence[str]) -> None:
        check_active(o, nodes)
        _handovers(o, nodes)
        self._orchestrator = o
        self._nodes = nodes
        self.is_cancelled = False
        self.progress = 0.0

    def cancel(self) -> None:
        """Begin no more moves."""
        self.is_cancelled = True

    def _note(self, moved: int, moves: int) -> None:
        self.progress = moved / moves if moves else 1.0

    def run(self) -> Procedure[FailoverReport]:
        """Carry it out. Errors: as `fail_over_gracefully`."""
        return (yield from fail_over_gracefully(self._orchestrator, self._nodes, lambda: self.is_cancelled, self._note))


def _handovers(o: Orchestrator, nodes: Sequence[str]) -> list[Move]:
    """A move to a replica on a node that stays, for every active copy of some nodes.

    Raises: ConfigError: a vbucket has no such replica.
    """
    moves = []
    for bucket in o.buckets.values():
        for node in dict.fromkeys(nodes):
            for vbid in bucket.vbuckets_of(node):
                chain = bucket.chains[vbid]
                new = next((each for each in chain[1:] if each is not None and each not in nodes), None)
                if new is None:
                    raise ConfigError(
                        "node", node, f"a node whose vbuckets have replicas on nodes that stay; vbucket {vbid} has none"
                    )
                rest = [each for each in chain[1:] if each != new]
                moves.append(Move(bucket, vbid, (new, node, *rest)))
    return moves
