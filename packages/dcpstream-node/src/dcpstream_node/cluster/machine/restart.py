"""A whole cluster comes back: all nodes were started again with their data, and have dead copies.

Of each vbucket the copy that has most becomes active, of equal ones the one that was: after a clean end that is the
active copy of before, which lacks nothing and goes on with its branch; after a kill a replica may have writes that the
active copy's disk lacks. Candidates are the copies of the chain that was saved. If the vbucket was about to be handed
over, the copies of the chain that it should get are candidates, too: they had followed, and one may have been active.
The other copies of the chain become replicas, and follow from where they are, rolled back as far as they must be.

A vbucket of which no node has a copy begins empty: its bucket is in memory, or it had just been made.
"""

from __future__ import annotations

import logging

from dcpstream.model import VbucketState
from dcpstream_node.cluster.machine.failover import best_copies
from dcpstream_node.cluster.machine.layout import Chain, filled
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.machine.recovery import copies_of
from dcpstream_node.cluster.machine.state import BucketState, topology
from dcpstream_node.cluster.machine.tasks import Procedure

logger = logging.getLogger(__name__)


def resume(o: Orchestrator) -> Procedure[None]:
    """Have the nodes serve again; through when all replicas are fed.

    Errors: those of the nodes: all must answer.
    """
    yield [o.tasks.start(o.push_manifests(member.name)) for member in o.members.values() if not member.is_failed]
    for bucket in o.buckets.values():
        yield from _give_roles(o, bucket)
    yield from o.publish_nodes()
    yield [o.tasks.start(o.feed_all(bucket)) for bucket in o.buckets.values()]


def _give_roles(o: Orchestrator, bucket: BucketState) -> Procedure[None]:
    nodes = [member.name for member in o.known_members()]
    found = yield [o.tasks.start(copies_of(o, bucket, node)) for node in nodes]
    held = dict(zip(nodes, found, strict=True))
    candidates = {vbid: _candidates(bucket, vbid, held) for vbid in range(len(bucket.chains))}
    best_of = yield from best_copies(o, bucket, {vbid: copies for vbid, copies in candidates.items() if copies})
    for vbid, chain in enumerate(bucket.chains):
        best = best_of.get(vbid) or _first(chain, held)
        if best is None:  # no copy was left when the cluster ended
            continue
        wanted = bucket.handing.get(vbid, chain)
        new = wanted if wanted[0] == best else chain
        others = [node for node in new if node != best and node in held]
        bucket.chains[vbid] = filled((best, *others), len(chain))
    lost = sum(chain[0] is not None for vbid, chain in enumerate(bucket.chains) if vbid not in best_of)
    if lost:
        logger.warning("%d vbuckets of %s have no copy on any node, and begin empty", lost, bucket.name)
    bucket.handing.clear()
    yield from o.remember()
    orders = []
    for vbid, chain in enumerate(bucket.chains):
        if chain[0] is not None:
            orders.append(o.set_state(bucket, vbid, chain[0], VbucketState.ACTIVE, topology(chain)))
        orders += [o.set_state(bucket, vbid, node, VbucketState.REPLICA) for node in chain[1:] if node is not None]
    orders += [
        o.delete_copy(bucket, vbid, node)
        for node, vbids in held.items()
        for vbid in sorted(vbids)
        if node not in bucket.chains[vbid] and vbid not in bucket.recovered.get(node, ())
    ]
    yield orders


def _candidates(bucket: BucketState, vbid: int, held: dict[str, set[int]]) -> Chain:
    chains = (*bucket.chains[vbid], *bucket.handing.get(vbid, ()))
    return tuple(dict.fromkeys(node for node in chains if node is not None and vbid in held.get(node, ())))


def _first(chain: Chain, held: dict[str, set[int]]) -> str | None:
    """The first node of a chain that is in the map."""
    return next((node for node in chain if node in held), None)
