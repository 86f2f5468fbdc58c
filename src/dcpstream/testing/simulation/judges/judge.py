"""All judges of one cluster, and the promises about durable writes and replicas."""

from __future__ import annotations

from dataclasses import dataclass

from dcpstream.testing.simulation.cluster import SimulatedCluster
from dcpstream.testing.simulation.judges.conversations import Conversations
from dcpstream.testing.simulation.judges.history import Histories, Violation, items_of, replay


@dataclass(slots=True)
class DurableWrite:
    """A durable write that was acknowledged."""

    vbid: int
    key: bytes
    value: bytes


class Judge:
    """Watches a cluster from its beginning.

    Attributes:
        histories: of all vbuckets.
        conversations: of all connections.
        durable: acknowledged durable writes, each with a key of its own, which no failover may lose.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.histories = Histories()
        self.conversations = Conversations(self.histories)
        self.durable: list[DurableWrite] = []
        cluster.lines.tap = self.conversations
        cluster.touched = self.touched
        for line in cluster.lines.all:
            self.conversations.opened(line)
        for name in cluster.nodes:
            self.touched(name)

    def touched(self, name: str) -> None:
        """A node may have changed."""
        node = self._cluster.nodes.get(name)
        if node is None or name in self._cluster.silent:
            self.histories.forget_node(name)
            return
        for vbid in range(self._cluster.vbuckets):
            self.histories.look(name, vbid, node.bucket.vbucket(vbid))

    def wrote(self, vbid: int, vbuuid: int, seqno: int, key: tuple[int, bytes], value: bytes | None) -> None:
        """A node acknowledged a write with this position: the history must have it there."""
        branch = self.histories.branches.get((vbid, vbuuid))
        found = next((item for item in reversed(branch.items) if item.seqno == seqno), None) if branch else None
        if found is None or found.key != key or found.value != value:
            raise Violation(f"an acknowledged write is in the history: {key} at {seqno} of vbucket {vbid} is {found}")

    def finish(self) -> None:
        """The cluster has come to rest with all its replicas: nothing is lost, and every copy is the same."""
        bucket = self._cluster.bucket
        for vbid, chain in enumerate(bucket.chains):
            if chain[0] is None or self.histories.serving(vbid) != chain[0]:
                raise Violation(
                    f"the map is true: vbucket {vbid} of {chain} is active on {self.histories.serving(vbid)}"
                )
            branch = self.histories.newest[vbid]
            expected = branch.documents(branch.high)
            for name in chain:
                if name is None:
                    continue
                log = self._cluster.nodes[name].vbucket(vbid).log
                if replay(items_of(log, 0), log.high_seqno) != expected:
                    raise Violation(f"replicas equal their actives: vbucket {vbid} of {name} differs from {chain[0]}")
        for write in self.durable:
            documents = self.histories.newest[write.vbid].documents(self.histories.newest[write.vbid].high) or {}
            if documents.get((0, write.key)) != write.value:
                raise Violation(
                    f"no acknowledged durable write is lost: vbucket {write.vbid} has {write.key!r} no more"
                )
        try:
            self._cluster.check(allows_leftovers=True)
        except AssertionError as error:
            raise Violation(f"the cluster is at rest: {error}") from error
