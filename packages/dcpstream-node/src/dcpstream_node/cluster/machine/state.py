"""The orchestrator's knowledge: the nodes, the buckets, and which node has which copy; and the map that clients get.

The map is the one truth about who serves a vbucket. It changes only after the node that is to serve has become active,
and only the orchestrator changes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dcpstream.model import Manifest, NodeAddress
from dcpstream_node.cluster.machine.layout import Chain


class Recovery(StrEnum):
    """The way in which a node that was failed over gets its copies back.

    DELTA: it keeps what it has, and gets what it lacks. FULL: it gets everything again.
    """

    DELTA = "delta"
    FULL = "full"


@dataclass(slots=True)
class Member:
    """A node of the cluster.

    Attributes:
        name: how the orchestrator and the topologies of durable writes call it.
        address: where it listens; without a host, clients take the address that they dialled.
        dial: the host at which the orchestrator reaches it.
        username, password: of its administrator.
        is_active: whether it may hold copies: from its first rebalance to its failover or removal.
        is_given_up: whether a failover has begun: it gets no more orders to change a copy.
        is_failed: whether it serves nothing any more, or is taken for dead; a rebalance removes it.
        recovery: how it comes back by the next rebalance, after it was failed over and added back; None for others.
    """

    name: str
    address: NodeAddress
    dial: str
    username: str
    password: str
    is_active: bool = False
    is_given_up: bool = False
    is_failed: bool = False
    recovery: Recovery | None = None


@dataclass(slots=True)
class Unsettled:
    """A move that failed, or an order to serve that is not answered.

    Attributes:
        old, wanted: the chain before and after.
        is_begun: whether the new chain rules: durable writes may have been acknowledged that the old one lacks, so
            the move can only be completed.
        is_in_doubt: whether the new active copy may serve already: its node does not say, and the old one does not
            serve. No other copy may become active before that node answers or is failed over.
    """

    old: Chain
    wanted: Chain
    is_begun: bool
    is_in_doubt: bool = False

    @property
    def is_role(self) -> bool:
        """Whether the copies stay, and only the active one may lack its role, or the chain as its topology."""
        return self.is_begun and self.old == self.wanted

    @property
    def decider(self) -> str | None:
        """The node without whose answers it stays: the one that may be active, or is to be."""
        return self.wanted[0] if self.is_begun or self.is_in_doubt else self.old[0]


@dataclass(slots=True)
class BucketState:
    """A bucket of the cluster.

    Attributes:
        name: of the bucket.
        uuid: its identity, the same on all nodes.
        replicas: copies of each vbucket in addition to the active one.
        chains: per vbucket the nodes of its copies, the active one first.
        manifest: its scopes and collections.
        rev: revision of the map that was sent last.
        informed: nodes that have had a map of this bucket. A node that had none shows a map of its own.
        fed: (vbucket, destination) → source: the streams that should be there.
        moving: vbuckets that a move is working on.
        unsettled: vbucket → a move that failed, until it is undone or completed, or a role that is not confirmed.
        handing: vbucket → the chain that it gets, from before its active copy hands over until the map says so.
        recovered: node that was added back → the vbuckets of which it still has a copy, until the next rebalance.
    """

    name: str
    uuid: str
    replicas: int
    chains: list[Chain]
    manifest: Manifest = Manifest.DEFAULT
    rev: int = 0
    informed: set[str] = field(default_factory=set)
    fed: dict[tuple[int, str], str] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    unsettled: dict[int, Unsettled] = field(default_factory=dict)
    handing: dict[int, Chain] = field(default_factory=dict)
    recovered: dict[str, set[int]] = field(default_factory=dict)

    def is_in_doubt(self, vbid: int) -> bool:
        """Whether nobody knows which copy of a vbucket is active."""
        failed = self.unsettled.get(vbid)
        return failed is not None and failed.is_in_doubt

    def vbuckets_of(self, node: str) -> list[int]:
        """The vbuckets whose active copy the node has."""
        return [vbid for vbid, chain in enumerate(self.chains) if chain and chain[0] == node]

    def holds(self, node: str) -> bool:
        """Whether the node has any copy."""
        return any(node in chain for chain in self.chains)


def topology(*chains: Sequence[str | None]) -> bytes:
    """The value of SET_VBUCKET that names the nodes of a vbucket: one chain, or two while it moves."""
    return json.dumps({"topology": [list(chain) for chain in chains]}, separators=(",", ":")).encode()


def map_json(
    bucket: BucketState | None, members: Iterable[Member], this_node: str, *, epoch: int, rev: int, cluster_uuid: str
) -> bytes:
    """The cluster map for one node, as SET_CLUSTER_CONFIG takes it.

    Args:
        bucket: None for the map without a bucket.
        members: all that clients may know, in the order of the map.
        this_node: the node that gets it.
    """
    nodes = list(members)
    content: dict[str, Any] = {
        "rev": rev,
        "revEpoch": epoch,
        "clusterUUID": cluster_uuid,
        "nodesExt": [_node(member, is_this=member.name == this_node) for member in nodes],
    }
    if bucket is not None:
        numbers = {member.name: number for number, member in enumerate(nodes)}
        content |= {
            "name": bucket.name,
            "uuid": bucket.uuid,
            "nodeLocator": "vbucket",
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": bucket.replicas,
                "vBucketMap": [
                    [-1 if node is None else numbers.get(node, -1) for node in chain] for chain in bucket.chains
                ],
            },
        }
    return json.dumps(content, separators=(",", ":")).encode()


def _node(member: Member, *, is_this: bool) -> dict[str, Any]:
    address = member.address
    ports = {"kv": address.kv_port, "mgmt": address.mgmt_port}
    ports |= {"kvSSL": address.kv_tls_port, "mgmtSSL": address.mgmt_tls_port} if address.kv_tls_port else {}
    entry: dict[str, Any] = {"services": ports}
    if address.host:
        entry["hostname"] = address.host
    if is_this:
        entry["thisNode"] = True
    return entry
