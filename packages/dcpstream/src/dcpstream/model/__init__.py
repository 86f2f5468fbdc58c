"""Values of the domain: positions, branches, collections, cluster maps, bucket settings.

Frozen values without bytes, state, clock or I/O. The packages above import them from here. `position` has the place of
a reader in a vbucket, `position_text` the text in which positions are stored, `history` the branches of a vbucket,
`cluster` the map from vbuckets to nodes, `cluster_state` the nodes of a cluster with their roles, `collections` the
manifest, `operations` the kinds of changes, and `settings` those of a bucket.
"""

from dcpstream.model.cluster import NodeAddress, VbucketMap, VbucketState, vbucket_of_key
from dcpstream.model.cluster_state import AutoFailover, ClusterState, ClusterTask, Membership, NodeState
from dcpstream.model.collections import Collection, CollectionName, Manifest, Scope
from dcpstream.model.history import MAX_FAILOVER_ENTRIES, FailoverEntry, FailoverLog
from dcpstream.model.operations import Op
from dcpstream.model.position import MAX_SEQNO, SnapshotRange, StreamOffset
from dcpstream.model.settings import BucketSettings, ConflictResolution, Persist

__all__ = [
    "MAX_FAILOVER_ENTRIES",
    "MAX_SEQNO",
    "AutoFailover",
    "BucketSettings",
    "ClusterState",
    "ClusterTask",
    "Collection",
    "CollectionName",
    "ConflictResolution",
    "FailoverEntry",
    "FailoverLog",
    "Manifest",
    "Membership",
    "NodeAddress",
    "NodeState",
    "Op",
    "Persist",
    "Scope",
    "SnapshotRange",
    "StreamOffset",
    "VbucketMap",
    "VbucketState",
    "vbucket_of_key",
]
