"""Recovery: a node that was down, or was failed over, comes back with the copies that it has.

A member begins with dead copies: it does not know what became of its vbuckets. `rejoin` is for a node of the map that
was restarted before anybody failed it over. For each vbucket that it served, the copy that has most becomes active, as
in a failover; the node's own copy, if no other one has more. A crash may have cost the node writes that a replica has.

`add_back` is for a node that was failed over. It gets copies by the next rebalance. In a delta recovery these are its
old ones: each begins where it was, and is rolled back to where its history left the one of the present active copy. In
a full recovery they are built again.

Source: ns_server's recovery types and janitor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from dcpstream.errors import ConfigError
from dcpstream.model import VbucketState
from dcpstream.wire import Opcode
from dcpstream_node.cluster.machine.failover import (
    MOVES_PAUSE_S,
    FailoverReport,
    activate,
    best_copies,
    feed_what_is_left,
    promote,
    settle_before_failover,
)
from dcpstream_node.cluster.machine.layout import Chain, filled, led_by
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.machine.state import BucketState, Recovery, topology
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure

logger = logging.getLogger(__name__)


def add_back(o: Orchestrator, node: str, recovery: Recovery) -> Procedure[None]:
    """Let a node that was failed over take part in the next rebalance.

    Errors: ConfigError: it was not failed over. ConnectionLost, TimeoutError: it is not up; nothing has changed.
    """
    member = o.members.get(node)
    if member is None or not (member.is_failed or member.recovery):
        raise ConfigError("node", node, "a node that was failed over and not yet removed")
    o.forget_links(node)
    kept: dict[str, set[int]] = {}
    for bucket in o.buckets.values():
        held = kept[bucket.name] = yield from copies_of(o, bucket, node)
        yield _all_dead(o, bucket, node, held)  # a node that was hung may have gone on to serve what it had
        if recovery is Recovery.FULL:
            link = o.orders(node, bucket.name)
            orders = [link.order(Opcode.DEL_VBUCKET, vbid=vbid) for vbid in sorted(held)]
            yield [o.answer(node, each) for each in orders]
    member.is_failed = member.is_given_up = False
    member.recovery = recovery
    for bucket in o.buckets.values():
        bucket.recovered[node] = kept[bucket.name] if recovery is Recovery.DELTA else set()
    yield from o.remember_or_log()
    yield from o.push_manifests(node)


def _all_dead(o: Orchestrator, bucket: BucketState, node: str, held: set[int]) -> list[Outcome[Any]]:
    link = o.orders(node, bucket.name)
    orders = [link.order(Opcode.SET_VBUCKET, vbid=vbid, extras=bytes([VbucketState.DEAD])) for vbid in sorted(held)]
    return [o.answer(node, each) for each in orders]


def stand_down(o: Orchestrator, node: str) -> Procedure[None]:
    """Have a node that was failed over serve nothing, and send its clients to the others: it is heard again.

    It hung when it was failed over, so the orders of then may not have reached it.
    """
    for bucket in list(o.buckets.values()):
        held = yield from copies_of(o, bucket, node)
        if not o.members[node].is_failed:
            return
        yield _all_dead(o, bucket, node, held)
    yield from o.inform_failed(node)


def copies_of(o: Orchestrator, bucket: BucketState, node: str) -> Procedure[set[int]]:
    """The vbuckets of which a node has a copy, in whatever state. Errors: it does not answer."""
    stats = yield o.answer(node, o.orders(node, bucket.name).stats(b"vbucket"))
    return {int(key.removeprefix(b"vb_")) for key in stats}


def chains_with_recovered(bucket: BucketState) -> list[Chain]:
    """The chains as they would be if the copies of recovered nodes followed already: what a plan shall begin with."""
    found = []
    for vbid, chain in enumerate(bucket.chains):
        back = [node for node, held in bucket.recovered.items() if vbid in held and node not in chain]
        found.append(filled((*chain, *back) if chain[0] is not None else (), len(chain)))
    return found


def restore_lost(o: Orchestrator) -> Procedure[None]:
    """Serve vbuckets without any copy from a recovered node that has one: of several the one that has most."""
    for bucket in o.buckets.values():
        lost = {
            vbid: tuple(node for node, held in bucket.recovered.items() if vbid in held)
            for vbid, chain in enumerate(bucket.chains)
            if chain[0] is None
        }
        best_of = yield from best_copies(o, bucket, {vbid: nodes for vbid, nodes in lost.items() if nodes})
        served = {vbid: node for vbid, node in best_of.items() if node is not None}
        for vbid, node in served.items():
            bucket.chains[vbid] = filled([node], len(bucket.chains[vbid]))
        if served:
            yield from o.remember()
        yield [
            o.set_state(bucket, vbid, node, VbucketState.ACTIVE, topology(bucket.chains[vbid]))
            for vbid, node in served.items()
        ]


def end_recovery(o: Orchestrator) -> Procedure[None]:
    """Delete the old copies of recovered nodes that the map does not name; they are nodes like any other now."""
    for bucket in o.buckets.values():
        for node, held in list(bucket.recovered.items()):
            needless = [vbid for vbid in sorted(held) if node not in bucket.chains[vbid]]
            yield [o.delete_copy(bucket, vbid, node).quietly() for vbid in needless]
            del bucket.recovered[node]
    for member in o.members.values():
        member.recovery = None


def delete_needless(o: Orchestrator) -> Procedure[None]:
    """Delete copies that no chain names: a connection was lost when one of them was to be deleted before.

    A node that does not answer keeps them until the next rebalance.
    """
    for bucket in o.buckets.values():
        for member in o.known_members():
            held = yield o.tasks.start(copies_of(o, bucket, member.name)).quietly()
            needless = [vbid for vbid in sorted(held or ()) if member.name not in bucket.chains[vbid]]
            yield [o.delete_copy(bucket, vbid, member.name).quietly() for vbid in needless]


def rejoin(o: Orchestrator, node: str) -> Procedure[FailoverReport]:
    """Take a node in again that was restarted while it was in the map; through when its vbuckets are served.

    A rebalance that is under way is cancelled.

    Errors: those of the node, if it does not answer.
    """
    while o.is_failing_over:
        yield o.tasks.pause(MOVES_PAUSE_S)
    member = o.members[node]
    o.is_failing_over = True
    member.is_given_up = member.is_failed = True
    member.is_active = False
    try:
        o.forget_links(node)
        # Moves that are under way fail for want of the node, and settle themselves.
        while o.is_rebalancing:
            yield o.tasks.pause(MOVES_PAUSE_S)
        for bucket in o.buckets.values():
            yield from settle_before_failover(o, bucket, [node])
        member.is_given_up = member.is_failed = False
        member.is_active = True
        report = FailoverReport()
        for bucket in o.buckets.values():
            bucket.informed.discard(node)
            yield from o.push_manifest(bucket, node)
            yield from _elect(o, bucket, node, report)
            yield from promote(o, bucket, report)  # what waited for this node
        yield from o.publish_nodes()
        feed_what_is_left(o)
        return report
    finally:
        o.is_failing_over = False


def _elect(o: Orchestrator, bucket: BucketState, node: str, report: FailoverReport) -> Procedure[None]:
    """Give the copies of a restarted node their roles."""
    promoted = report.promoted.setdefault(bucket.name, {})
    lost = report.lost.setdefault(bucket.name, [])
    held = yield from copies_of(o, bucket, node)
    for key in [key for key, source in bucket.fed.items() if node in (key[1], source)]:
        del bucket.fed[key]
    orders: list[Callable[[], Outcome[Any]]] = []
    served = {
        vbid: tuple(each for each in bucket.chains[vbid] if each is not None and (each != node or vbid in held))
        for vbid in bucket.vbuckets_of(node)
        if not bucket.is_in_doubt(vbid)
    }
    best_of = yield from best_copies(o, bucket, served)
    for vbid, chain in enumerate(bucket.chains):
        if node not in chain:
            if vbid in held:
                orders.append(partial(o.delete_copy, bucket, vbid, node))
            continue
        if bucket.is_in_doubt(vbid):  # it may be active elsewhere
            continue
        active = best_of.get(vbid, chain[0])
        if active is None:
            lost.append(vbid)
            logger.warning("vbucket %d of %s has no copy left", vbid, bucket.name)
            bucket.chains[vbid] = filled((), len(chain))
            continue
        if active != chain[0]:
            promoted[vbid] = active
            bucket.chains[vbid] = led_by(active, chain)
        if active != node:
            orders.append(partial(o.set_state, bucket, vbid, node, VbucketState.REPLICA))
        if active != chain[0] or active == node:
            orders.append(partial(_activated, o, bucket, vbid))
    yield from o.remember_or_log()
    yield [order() for order in orders]


def _activated(o: Orchestrator, bucket: BucketState, vbid: int) -> Outcome[None]:
    return o.tasks.start(activate(o, bucket, vbid, bucket.chains[vbid]))
