"""A Couchbase-compatible node and clusters of it, in this process or as a command.

The rooms, each importing only from those below it:

- `commands`: `dcpstream node` and others. `pytest_plugin`: fixtures for tests, made of `testing`, the test kit.
- `recording`: a bucket's changes in one file, and a node that plays them back.
- `cluster`: `Cluster`, several nodes and their orchestrator.
- `embedded`: `Node`, all of a node as one object with a thread and a loop of its own: `with Node() as node: …`.
- `process`: a node's own process, as its parent sees it. `fork_server`: that process. `channel`: calls between both.
- `rest`: the management port. `prometheus`: the metrics that it shows.
- `bucket_host`: makes, opens and deletes the buckets of a running node.
- `tasks`: commits, compaction, expiry and read-ahead, one set for each bucket. `summary`: numbers of a running node.
- `directory`: the files of the data directory other than the buckets' stores.
- `shell`: the sockets of the key-value port. `dcp`: the protocol machines of DCP sessions.
- `engine`: buckets, users and sessions without sockets, clocks and threads. `faults`: what goes wrong on demand.
- `store`: the history of a bucket, every write in seqno order, in memory or on disk.

Bytes arrive at `shell.connection`, which hands them to a session of the engine. The session answers from its bucket's
vbuckets, whose logs belong to `store`. A write marks its vbucket as changed; at the end of the turn the
bucket notifies its DCP connections, and the shell sends what they have. Meanwhile `tasks.flusher` commits the store.

The names below are loaded when they are first used, so that importing one room does not load the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.lazy import lazy_names

if TYPE_CHECKING:
    from dcpstream_node.cluster.cluster import Cluster, ClusterNode
    from dcpstream_node.embedded import Node
    from dcpstream_node.faults.fault import Fault
    from dcpstream_node.testing.faults import NodeFaults

__version__ = "0.1.0"

__all__ = ["Cluster", "ClusterNode", "Fault", "Node", "NodeFaults", "__version__"]

_NAMES_IN = {
    "dcpstream_node.cluster.cluster": ("Cluster", "ClusterNode"),
    "dcpstream_node.embedded": ("Node",),
    "dcpstream_node.faults.fault": ("Fault",),
    "dcpstream_node.testing.faults": ("NodeFaults",),
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES_IN)
