"""A bucket's history on one node: what was written, in seqno order, per vbucket; in memory or on disk.

`MemoryBucketStore` and `DiskBucketStore` hold a `VBucketLog` per vbucket and differ in what survives. Frames are kept
in wire format, so that sending history is copying it.
"""

from dcpstream.store.base import MAX_PENDING_BYTES, MAX_VBUCKETS, BucketStore
from dcpstream.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream.store.disk import DiskBucketStore
from dcpstream.store.index.walking import finish
from dcpstream.store.items import ItemMeta, StoredItem, index_key, read_item
from dcpstream.store.log.segments import SEGMENT_BYTES
from dcpstream.store.memory import MemoryBucketStore
from dcpstream.store.vbucket import READ_BYTES, VBucketLog, View

__all__ = [
    "MAX_PENDING_BYTES",
    "MAX_VBUCKETS",
    "READ_BYTES",
    "SEGMENT_BYTES",
    "BucketStore",
    "CompactionOrder",
    "CompactionReport",
    "DiskBucketStore",
    "ItemMeta",
    "MemoryBucketStore",
    "StoredItem",
    "VBucketLog",
    "View",
    "finish",
    "index_key",
    "read_item",
]
