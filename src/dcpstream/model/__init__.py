"""Values of the domain: what a position, a branch, a collection and a cluster map are.

Frozen values without bytes, state, clock or I/O. Everything above imports them from here.
"""

from dcpstream.model.cluster import NodeAddress, VbucketMap, VbucketState, vbucket_of_key
from dcpstream.model.collections import Collection, CollectionName, Manifest, Scope
from dcpstream.model.history import MAX_FAILOVER_ENTRIES, FailoverEntry, FailoverLog
from dcpstream.model.operations import Op
from dcpstream.model.position import MAX_SEQNO, SnapshotRange, StreamOffset
from dcpstream.model.settings import BucketSettings, ConflictResolution, Persist

__all__ = [
    "MAX_FAILOVER_ENTRIES",
    "MAX_SEQNO",
    "BucketSettings",
    "Collection",
    "CollectionName",
    "ConflictResolution",
    "FailoverEntry",
    "FailoverLog",
    "Manifest",
    "NodeAddress",
    "Op",
    "Persist",
    "Scope",
    "SnapshotRange",
    "StreamOffset",
    "VbucketMap",
    "VbucketState",
    "vbucket_of_key",
]
