"""The plan of which node gets which copy: balanced, and with as few moves as possible.

A chain is the nodes of one vbucket's copies, the active one first; None stands for a copy that is nowhere. Each node
gets the same number of active copies, and of replicas, give or take one where the numbers allow it. A copy stays where
it is as long as its node has not more than its share. Knows nothing of connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Chain = tuple[str | None, ...]
"""Names of the nodes of a vbucket's copies, the active one first."""


def plan_chains(current: Sequence[Chain], nodes: Sequence[str], replicas: int) -> list[Chain]:
    """The chains of a cluster of these nodes.

    Args:
        current: per vbucket its chain now; empty chains for a bucket that is new.
        nodes: those that shall hold copies, at least one, each name once.
        replicas: wanted for each vbucket; there are fewer if there are too few nodes, and then None stands for each
            missing one.
    """
    present = min(replicas, len(nodes) - 1)
    active = _spread_active(current, nodes)
    copies = _spread_replicas(current, nodes, active, present)
    return [filled((first, *rest), 1 + replicas) for first, rest in zip(active, copies, strict=True)]


def filled(nodes: Iterable[str | None], length: int) -> Chain:
    """The chain of these nodes, at most `length` of them, and None in place of each that is missing."""
    present = [node for node in nodes if node is not None][:length]
    return (*present, *(None,) * (length - len(present)))


def led_by(node: str, chain: Chain) -> Chain:
    """The chain with this node's copy as its active one, and the other copies behind it."""
    return filled((node, *(each for each in chain if each != node)), len(chain))


def _spread_active(current: Sequence[Chain], nodes: Sequence[str]) -> list[str]:
    counts = Counter(dict.fromkeys(nodes, 0))
    for chain in current:
        if chain and chain[0] is not None and chain[0] in counts:
            counts[chain[0]] += 1
    share, extra = divmod(len(current), len(nodes))
    # The nodes that have most keep the copies that are left over.
    order = sorted(nodes, key=lambda node: -counts[node])
    room = {node: share + (number < extra) for number, node in enumerate(order)}
    result: list[str | None] = [None] * len(current)
    # A node that has too many gives up those first that need no backfill elsewhere.
    receivers = {node for node in nodes if counts[node] < room[node]}
    for vbid in sorted(range(len(current)), key=lambda vbid: not receivers.isdisjoint(current[vbid][1:])):
        node = current[vbid][0] if current[vbid] else None
        if node is not None and room.get(node, 0) > 0:
            result[vbid] = node
            room[node] -= 1
    for vbid, chain in enumerate(current):
        if result[vbid] is None:
            # A node that has a replica needs no backfill.
            candidates = [node for node in chain[1:] if node is not None and room.get(node, 0) > 0]
            chosen = max(candidates or nodes, key=lambda node: room[node])
            result[vbid] = chosen
            room[chosen] -= 1
    return [node for node in result if node is not None]


def _spread_replicas(
    current: Sequence[Chain], nodes: Sequence[str], active: Sequence[str], replicas: int
) -> list[list[str]]:
    """For each vbucket the nodes of its replicas."""
    share, extra = divmod(len(current) * replicas, len(nodes))
    room = {node: share + (number < extra) for number, node in enumerate(nodes)}
    pairs: Counter[tuple[str, str]] = Counter()
    result: list[list[str]] = [[] for _ in current]

    def add(vbid: int, node: str) -> None:
        result[vbid].append(node)
        room[node] -= 1
        pairs[active[vbid], node] += 1

    fair = -(-len(current) * replicas // max(1, len(nodes) * (len(nodes) - 1)))
    for vbid, chain in enumerate(current):
        for node in chain:
            if node is None or node not in room or node == active[vbid] or node in result[vbid]:
                continue
            if len(result[vbid]) < replicas and room[node] > 0 and pairs[active[vbid], node] < fair:
                add(vbid, node)
    for vbid, first in enumerate(active):
        while len(result[vbid]) < replicas:
            candidates = [node for node in nodes if node != first and node not in result[vbid]]
            # First those with room, then those that back this node least, so that a failover spreads its load.
            add(vbid, min(candidates, key=lambda node: (room[node] <= 0, pairs[first, node], -room[node])))
    return result
