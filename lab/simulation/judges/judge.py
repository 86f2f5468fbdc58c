"""All judges of one cluster, and the promises about durable writes and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dcpstream.model import VbucketState
from lab.simulation.cluster import MAIN, SimulatedCluster
from lab.simulation.judges.conversations import Conversations
from lab.simulation.judges.history import Histories, Violation, items_of, replay

SERVING = frozenset((VbucketState.ACTIVE, VbucketState.DEAD))
"""Roles of a copy that is active, or was until it handed over."""


@dataclass(slots=True)
class DurableWrite:
    """A durable write that was acknowledged.

    Attributes:
        seqno: of its prepare.
        is_persisted: whether most copies must have it on their disks.
    """

    vbid: int
    key: bytes
    value: bytes
    seqno: int = 0
    is_persisted: bool = False


class Judge:
    """Watches a bucket of a cluster, from its beginning.

    Attributes:
        histories: of all vbuckets.
        conversations: of all connections.
        recovering: nodes that have lost their power, and what they had in memory, and are not fed again yet.
        durable: acknowledged durable writes, each with a key of its own, which no failover may lose.
    """

    def __init__(self, cluster: SimulatedCluster, bucket: str = MAIN) -> None:
        self._cluster = cluster
        self._bucket = bucket
        self._vbuckets = range(cluster.sizes[bucket])
        self.histories = Histories(self._is_given_up)
        self.conversations = Conversations(self.histories, self._map_sent)
        self.recovering: set[str] = set()
        self.durable: list[DurableWrite] = []
        self._named: dict[int, list[str]] = {}
        cluster.lines.taps[bucket] = self.conversations
        if bucket == MAIN:
            cluster.watchers.clear()  # this judge does more than what the cluster looks at without one
        cluster.watchers.append(self.touched)
        for name in cluster.nodes:
            self.touched(name)

    def _is_given_up(self, name: str) -> bool:
        member = self._cluster.orchestrator.members.get(name)
        return member is None or member.is_given_up

    def touched(self, name: str) -> None:
        """A node may have changed."""
        node = self._cluster.nodes.get(name)
        if node is None or name in self._cluster.silent:
            self.histories.forget_node(name)
            return
        bucket = node.engine.buckets.get(self._bucket)
        for vbid in self._vbuckets:
            self.histories.look(name, vbid, None if bucket is None else bucket.vbucket(vbid))

    def emptied(self) -> None:
        """The bucket was emptied: what was written to it is gone on purpose, and new histories begin."""
        self.durable.clear()
        self.histories.emptied()

    def leave(self) -> None:
        """The bucket is to be deleted: nothing is promised of it any more."""
        self._cluster.watchers.remove(self.touched)
        del self._cluster.lines.taps[self._bucket]
        for line in self._cluster.lines.all:
            if line.tap is self.conversations:
                line.tap = None

    def wrote(self, vbid: int, vbuuid: int, seqno: int, key: tuple[int, bytes], value: bytes | None) -> None:
        """A node acknowledged a write with this position: the history must have it there."""
        branch = self.histories.branches.get((vbid, vbuuid))
        found = next((item for item in reversed(branch.items) if item.seqno == seqno), None) if branch else None
        if found is None or found.key != key or found.value != value:
            raise Violation(f"an acknowledged write is in the history: {key} at {seqno} of vbucket {vbid} is {found}")

    def _map_sent(self, content: dict[str, Any]) -> None:
        """A map names a vbucket's active node only if it is active there, or was and has handed over since."""
        cluster = self._cluster
        unsettled = cluster.orchestrator.buckets[content["name"]].unsettled
        ports = [node["services"]["kv"] for node in content["nodesExt"]]
        for vbid, chain in enumerate(content["vBucketServerMap"]["vBucketMap"]):
            self._look_for_live(vbid, [cluster.name_at(ports[number]) for number in chain if number >= 0], chain)
            name = cluster.name_at(ports[chain[0]]) if chain[0] >= 0 else ""
            node = cluster.nodes.get(name)
            if node is None or name in cluster.hung or self._is_given_up(name) or vbid in unsettled:
                continue
            state = cluster.state(name, vbid, self._bucket)
            if state not in SERVING:
                raise Violation(
                    f"the map is true when it is sent: vbucket {vbid} is said to be active on {name}, where it is "
                    f"{'missing' if state is None else state.name.lower()}"
                )
            self._look_at_durable(vbid, [cluster.name_at(ports[number]) if number >= 0 else "" for number in chain])

    def _look_for_live(self, vbid: int, named: list[str], chain: list[int]) -> None:
        """A map says that a vbucket is nowhere only when no copy is left: many clients end its streams then.

        Args:
            named: the nodes that the map names for the vbucket.
            chain: as the map has it; its first entry is negative for a vbucket that is nowhere.
        """
        if chain[0] >= 0:
            self._named[vbid] = named
            return
        cluster = self._cluster
        live = [
            name
            for name in dict.fromkeys((*named, *self._named.get(vbid, ())))
            if name in cluster.nodes
            and name not in cluster.hung
            and not self._is_given_up(name)
            and cluster.state(name, vbid, self._bucket) is not None
        ]
        if live:
            raise Violation(
                f"a vbucket that has a live copy is somewhere: the map says that vbucket {vbid} is nowhere, while "
                f"{live} have copies"
            )

    def _look_at_durable(self, vbid: int, chain: list[str]) -> None:
        """Most copies of a whole chain in a map have all that was acknowledged before."""
        cluster = self._cluster
        if any(name not in cluster.nodes or name in self.recovering or self._is_given_up(name) for name in chain):
            return
        for write in self.durable:
            if write.vbid == vbid:
                lacking = [name for name in chain if not cluster.has(name, vbid, b"\0" + write.key, self._bucket)]
                if len(chain) - len(lacking) <= len(chain) // 2:
                    raise Violation(
                        f"most copies of a new chain have what was acknowledged: {write.key!r} of vbucket {vbid} is "
                        f"not on {lacking} of {chain}"
                    )

    def acknowledged(self, write: DurableWrite) -> None:
        """A node has acknowledged a durable write in this exchange: most copies of its chain must have it.

        What a node had that died meanwhile is not known, and counts as had. So does what one had only in memory when
        it lost its power, after it reported that it had it.
        """
        self.durable.append(write)
        cluster, vbid = self._cluster, write.vbid
        chain = cluster.orchestrator.buckets[self._bucket].chains[vbid]
        up = [
            name
            for name in chain
            if name is not None and name in cluster.nodes and (write.is_persisted or name not in self.recovering)
        ]
        lacking = [name for name in up if not cluster.has(name, vbid, b"\0" + write.key, self._bucket)]
        if write.is_persisted:
            lacking += [
                name
                for name in up
                if name not in lacking and not cluster.has_persisted(name, vbid, write.seqno, self._bucket)
            ]
        if len(chain) - len(lacking) <= len(chain) // 2:
            raise Violation(
                f"most copies have a durable write when it is acknowledged: {write.key!r} of vbucket {vbid} is "
                f"not {'persisted ' if write.is_persisted else ''}on {lacking} of {chain}"
            )

    def finish(self) -> None:
        """The cluster has come to rest with all its replicas: nothing is lost, and every copy is the same."""
        bucket = self._cluster.orchestrator.buckets[self._bucket]
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
                vbucket = self._cluster.held(name, vbid, self._bucket)
                if vbucket is None or replay(items_of(vbucket.log, 0), vbucket.log.high_seqno) != expected:
                    raise Violation(f"replicas equal their actives: vbucket {vbid} of {name} differs from {chain[0]}")
        for write in self.durable:
            documents = self.histories.newest[write.vbid].documents(self.histories.newest[write.vbid].high) or {}
            if documents.get((0, write.key)) != write.value:
                raise Violation(
                    f"no acknowledged durable write is lost: vbucket {write.vbid} has {write.key!r} no more"
                )
        try:
            self._cluster.check(self._bucket)
        except AssertionError as error:
            raise Violation(f"the cluster is at rest: {error}") from error
