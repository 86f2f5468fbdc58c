"""Rebalance: all moves that a new set of nodes needs.

Nodes that were added get copies; nodes that are to go, and those that were failed over, lose theirs and leave. Every
vbucket moves by itself, so the map is consistent at any time: also after a rebalance that was cancelled or failed. The
next one begins with what is there.

Source: ns_server's ns_rebalancer.
"""

from __future__ import annotations

from collections.abc import Iterable

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.wire import Opcode
from dcpstream_node.cluster.machine.layout import plan_chains
from dcpstream_node.cluster.machine.moves import Move, run_moves, settle_all
from dcpstream_node.cluster.machine.orchestrator import RETRY_S, Orchestrator
from dcpstream_node.cluster.machine.recovery import chains_with_recovered, delete_needless, end_recovery, restore_lost
from dcpstream_node.cluster.machine.tasks import Procedure


class Rebalance:
    """One rebalance.

    Args:
        remove: names of nodes that shall leave, also of those that were added and have nothing yet.

    Attributes:
        moved, moves: vbuckets that are where they shall be, and all that move.
        is_cancelled: whether `cancel` was called: moves that are under way end, no other begins.

    Raises:
        ConfigError: a node to remove is not in the cluster or was failed over, or all are to be removed.
    """

    def __init__(self, orchestrator: Orchestrator, remove: Iterable[str] = ()) -> None:
        self._orchestrator = orchestrator
        self._remove = set(remove)
        staying = {member.name for member in orchestrator.members.values() if not member.is_failed}
        for name in self._remove - staying:
            raise ConfigError("remove", name, f"nodes of the cluster: {', '.join(sorted(staying))}")
        if staying <= self._remove:
            raise ConfigError("remove", sorted(self._remove), "not all nodes of the cluster")
        self.moved = self.moves = 0
        self.is_cancelled = False

    def cancel(self) -> None:
        """Begin no more moves."""
        self.is_cancelled = True

    @property
    def progress(self) -> float:
        """The share of the moves that are through, 0 to 1."""
        return self.moved / self.moves if self.moves else 0.0

    def _note(self, moved: int, moves: int) -> None:
        self.moved, self.moves = moved, moves

    def run(self) -> Procedure[list[str]]:
        """Carry it out; returns the nodes that left. It waits for a failover; one that begins meanwhile cancels it.

        Errors: MoveCancelled, or those of the nodes; the map is consistent.
        """
        while self._orchestrator.is_failing_over or self._orchestrator.is_rebalancing:
            yield self._orchestrator.tasks.pause(RETRY_S)
        self._orchestrator.is_rebalancing = True
        try:
            return (yield from self._run())
        finally:
            self._orchestrator.is_rebalancing = False

    def _is_over(self) -> bool:
        return self.is_cancelled or self._orchestrator.is_failing_over

    def _run(self) -> Procedure[list[str]]:
        o = self._orchestrator
        yield from settle_all(o)
        for member in o.members.values():
            member.is_active = not member.is_failed
        yield from o.remember()
        yield from restore_lost(o)
        # A node that hung when collections changed knows the old ones.
        yield [o.tasks.start(o.push_manifests(member.name)).quietly() for member in o.known_members()]
        yield from o.publish_nodes()
        nodes = [member.name for member in o.known_members() if member.name not in self._remove]
        if not nodes:
            raise DcpstreamError("the nodes that were to stay have been failed over: nothing was moved")
        moves = [
            Move(bucket, vbid, wanted)
            for bucket in o.buckets.values()
            for vbid, wanted in enumerate(plan_chains(chains_with_recovered(bucket), nodes, bucket.replicas))
            if wanted != bucket.chains[vbid]
        ]
        self.moves = len(moves)
        # A node that is failed over from now on is the failover's, and leaves with the next rebalance.
        gone = [name for name, member in o.members.items() if member.is_failed or name in self._remove]
        yield from run_moves(o, moves, self._is_over, self._note)
        yield from end_recovery(o)
        yield from delete_needless(o)
        for name in gone:
            o.members[name].is_active = False
        yield from o.publish_nodes()
        for name in gone:
            if not o.members[name].is_failed:
                yield [
                    o.answer(name, o.orders(name, "").order(Opcode.DELETE_BUCKET, key=each.encode())).quietly()
                    for each in o.buckets
                ]
            o.forget(name)
        yield from o.remember_or_log()
        return gone


def is_balanced(o: Orchestrator) -> bool:
    """Whether a rebalance would change nothing."""
    nodes = [member.name for member in o.known_members()]
    return len(nodes) == len(o.members) and all(
        not bucket.unsettled and plan_chains(bucket.chains, nodes, bucket.replicas) == bucket.chains
        for bucket in o.buckets.values()
    )
