"""Range scans of a bucket: a snapshot of one vbucket's keys in a range, or a sample of them, read in steps.

A scan is made with the keys that are there at that moment, each with the seqno of its version; documents are read when
they are sent, as they were at that moment. So writes that come after do not show, and what a scan holds in memory is
two words a key. Knows no frames of requests and no sockets.

Source: kv_engine docs/range_scans/*, engines/ep/src/range_scans/range_scan.cc, range_scan_owner.cc.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dcpstream.wire.keys import leb128_encode
from dcpstream_node.store import read_item

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.store import StoredItem
    from dcpstream_node.store.vbucket import View

SCANS_MAX = 256
"""Scans of a bucket at a time, with some room above what a client library opens at once."""
SCANNED_KEYS_MAX = 10_000_000
"""Keys that all scans of a bucket hold together: 16 bytes each, and more for the keys of documents that are gone by
then."""

SAMPLED_A_STEP = 4_000
"""Keys that one step gives their chance: about 2 ms."""

_U64_MASK = (1 << 64) - 1


@dataclass(eq=False, slots=True)
class RangeScan:
    """One scan.

    Attributes:
        vbucket: whose keys.
        collection_id: where in it.
        keys, seqnos: of the documents to send, ascending by key.
        view_end: the high seqno when the scan was made: documents are read as of it.
        is_keys_only: whether documents' keys are sent alone.
        has_xattrs: whether documents are sent with their xattrs.
        deadline: monotonic seconds, when it is over.
        view: keeps that state of the history readable; None if no document is read.
        next: place of the key that is sent next.
        is_continuing: a connection is being answered out of it.
        is_cancelled: it came to an end while it was.
        prefix_length: bytes of the collection before each key.
    """

    vbucket: VBucket
    collection_id: int
    keys: list[bytes]
    seqnos: array[int]
    view_end: int
    is_keys_only: bool
    has_xattrs: bool
    deadline: float
    view: View | None = None
    next: int = 0
    is_continuing: bool = False
    is_cancelled: bool = False
    prefix_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prefix_length = len(leb128_encode(self.collection_id))

    @property
    def is_complete(self) -> bool:
        """Whether all was sent."""
        return self.next >= len(self.keys)

    def document(self, place: int) -> StoredItem | None:
        """The version of a document that was there when the scan was made; None if it is not kept any more."""
        key, seqno = self.keys[place], self.seqnos[place]
        item = self.vbucket.log.get(key)
        if item is not None and item.seqno == seqno:
            return item
        block = self.vbucket.log.read(seqno - 1, seqno, snapshot_end=self.view_end, max_bytes=1)
        return read_item(block.data, int(block.starts[0])) if block.count else None


class RangeScans:
    """The scans of one bucket.

    Attributes:
        by_id: the scans that were made and are not over.
    """

    def __init__(self) -> None:
        self.by_id: dict[bytes, RangeScan] = {}
        self._key_count = 0

    def has_room(self, key_count: int = 0) -> bool:
        """Whether another scan of so many keys may be made."""
        return len(self.by_id) < SCANS_MAX and self._key_count + key_count <= SCANNED_KEYS_MAX

    def add(self, scan_id: bytes, scan: RangeScan) -> None:
        """Keep a scan; there is room."""
        self.by_id[scan_id] = scan
        self._key_count += len(scan.keys)

    def find(self, scan_id: bytes, vbid: int) -> RangeScan | None:
        """The scan of that id in that vbucket."""
        scan = self.by_id.get(scan_id)
        return scan if scan is not None and scan.vbucket.vbid == vbid else None

    def remove(self, scan_id: bytes) -> None:
        """Forget a scan; its running answer ends with RANGE_SCAN_CANCELLED."""
        scan = self.by_id.pop(scan_id, None)
        if scan is not None:
            scan.is_cancelled = True
            self._key_count -= len(scan.keys)
            scan.view = None

    def drop_vbucket(self, vbid: int) -> None:
        """A vbucket is not active any more, or gone: so are its scans."""
        for scan_id in [scan_id for scan_id, scan in self.by_id.items() if scan.vbucket.vbid == vbid]:
            self.remove(scan_id)

    def next_timeout(self) -> float | None:
        """When the oldest scan is over, monotonic seconds."""
        return min((scan.deadline for scan in self.by_id.values()), default=None)

    def handle_timeout(self, now: float) -> None:
        """Cancel the scans that are too old."""
        for scan_id in [scan_id for scan_id, scan in self.by_id.items() if scan.deadline <= now]:
            self.remove(scan_id)


def walk_sample(count: int, samples: int, seed: int) -> Generator[None, None, Sequence[int]]:
    """About `samples` places below `count`, each with the same chance, in steps; all if there are no more than that."""
    if count <= samples:
        return range(count)
    limit = (samples << 64) // count
    chosen, state = [], seed
    for place in range(count):
        if place and not place % SAMPLED_A_STEP:
            yield
        # splitmix64: one step of a counter, mixed.
        state = state + 0x9E3779B97F4A7C15 & _U64_MASK
        mixed = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _U64_MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _U64_MASK
        if mixed ^ mixed >> 31 < limit:
            chosen.append(place)
    return chosen
