"""A cluster on one machine: several nodes, replicas fed by DCP, rebalance and failover.

- `machine`: the orchestrator without sockets, clocks and threads.
- `shell`: its sockets and its thread.
- `cluster`: `Cluster`, the nodes and their orchestrator as one object: `with Cluster(nodes=3) as cluster: …`.

A client writes to the node that has the active copy. The orchestrator passes what that node sends by DCP to the nodes
that have the replicas. When it moves a vbucket or promotes a replica, it sends every node the new map, and clients get
it from any of them.
"""

from dcpstream_node.cluster.cluster import Cluster, ClusterNode

__all__ = ["Cluster", "ClusterNode"]
