"""A bucket's history on one node: every write in seqno order, per vbucket, in memory or on disk.

`MemoryBucketStore` and `DiskBucketStore` (interface: `base.BucketStore`) hold one `VBucketLog` per vbucket. A
`VBucketLog` joins an index (`index.rows`), a stream of frames (`log.frame_log`) and the snapshots that a copy received.

Writing: `append` adds a frame in stored form (the DCP message itself, see `items`) to the frame log's tail and a row to
the index. On disk, `commit` encodes the pending rows of all vbuckets as blocks (`log.blocks`) and appends them to the
last segment file (`log.segments`) with one write and one sync; the metadata is in SQLite (`metadata`).

Reading: by key through the index, in seqno order through `index.queries`; both get pieces of memory or files from the
frame log and verify pages of files. Sending history is copying it, because frames are kept in wire format.

Opening: `recovery` verifies the segments and fills the indexes. Compaction (`compact`) purges old deletions and frees
the space of superseded rows. `closed` checks stores that are not open.

Order of imports: `items`, `log`, `index`, `vbucket`, `compact`, `recovery`, `base`, `memory` and `disk`, `closed`.
"""

from dcpstream_node.store.base import MAX_PENDING_BYTES, MAX_VBUCKETS, BucketStore
from dcpstream_node.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream_node.store.disk import DiskBucketStore
from dcpstream_node.store.index.key_scan import finish
from dcpstream_node.store.items import ItemMeta, StoredItem, index_key, read_item
from dcpstream_node.store.log.segments import SEGMENT_BYTES
from dcpstream_node.store.memory import MemoryBucketStore
from dcpstream_node.store.vbucket import READ_BYTES, VBucketLog, View

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
