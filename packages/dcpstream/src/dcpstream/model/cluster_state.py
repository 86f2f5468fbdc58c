"""The cluster's state as its manager reports it: the nodes with their roles, and the operation under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dcpstream.model.cluster import NodeAddress


class Membership(StrEnum):
    """The role of a node in its cluster; the words are the server's."""

    ACTIVE = "active"
    ADDED = "inactiveAdded"
    FAILED = "inactiveFailed"


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node of a cluster.

    Attributes:
        name: unique in the cluster; REST calls it `otpNode`.
        address: where it listens; without a host, clients take the address that they dialled.
        membership: active: it may hold copies; added: from the next rebalance on; failed: it was failed over.
        is_healthy: whether it serves.
        recovery: how a node that was failed over comes back with the next rebalance: none, full or delta.
    """

    name: str
    address: NodeAddress
    membership: Membership = Membership.ACTIVE
    is_healthy: bool = True
    recovery: str = "none"


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """A rebalance or graceful failover that is under way.

    Attributes:
        kind: rebalance or gracefulFailover.
        progress: 0 to 1.
        ejected: names of the nodes that leave.
    """

    kind: str
    progress: float
    ejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AutoFailover:
    """Settings of the automatic failover, with the server's defaults, and how often it acted.

    Attributes:
        is_enabled: whether nodes are failed over without an order.
        timeout_s: how long a node must be silent.
        max_count: nodes that are failed over before an administrator sets `count` back to 0.
        count: nodes that were.
        can_abort_rebalance: whether it cancels a rebalance.
        on_disk_issues, disk_period_s: held and shown; this cluster does not act on them.
    """

    is_enabled: bool = False
    timeout_s: float = 120
    max_count: int = 1
    count: int = 0
    can_abort_rebalance: bool = False
    on_disk_issues: bool = False
    disk_period_s: int = 120


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster at one moment.

    Attributes:
        nodes: all that are in it, were added to it, or were failed over, in the order of the map.
        is_balanced: whether a rebalance would change nothing.
        task: what is under way.
        error: why the last task ended early; empty if it did not.
    """

    nodes: tuple[NodeState, ...]
    is_balanced: bool = True
    task: ClusterTask | None = None
    error: str = ""
    auto_failover: AutoFailover = field(default_factory=AutoFailover)
