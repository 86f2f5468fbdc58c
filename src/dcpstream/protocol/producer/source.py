"""What a producer needs of the place where the history is kept.

A node gives these views of its buckets; tests give lists. The producer only reads, and only inside its own calls, so a
view may be a live object.

In memory or on disk: a server keeps the newest items of a vbucket in memory, in checkpoints, and says in its snapshot
markers where a snapshot came from. Here both come from one log, and `memory_start_seqno` draws the line. Recordings of
a server show where it lies:
- a new vbucket: 1 (its items go out as memory snapshots, also after they were persisted);
- CREATE_CHECKPOINT, and every change of the vbucket's state: high_seqno + 1;
- a restart: high_seqno + 1;
- what is written when a checkpoint is five seconds old, a second prepare of a document, an abort: their seqno.
A stream whose next seqno is below the line starts with one disk snapshot up to the high seqno; one that is at or above
it gets memory snapshots. A stream that is already in memory stays there when the line moves over it, and its first
snapshot behind the line carries the checkpoint flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from dcpstream.model import Manifest, SnapshotRange
from dcpstream.protocol.producer.durability import DurableWrites
from dcpstream.protocol.producer.rollback import VbucketFacts
from dcpstream.wire import FrameBlock

__all__ = ["HistorySource", "VBucketView"]


@runtime_checkable
class VBucketView(VbucketFacts, Protocol):
    """One vbucket's history and state, as a producer reads it."""

    @property
    def vbid(self) -> int:
        """Its number."""
        ...

    @property
    def memory_start_seqno(self) -> int:
        """First seqno of the newest checkpoint, 1 in a new vbucket: see the module's text."""
        ...

    @property
    def evicted_seqno(self) -> int:
        """Everything up to here left memory to make room, whether or not every stream had read it; 0 if nothing."""
        ...

    def checkpoint_at(self, seqno: int) -> int:
        """First seqno of the checkpoint that `seqno` is in, as far as that is remembered; 0 if not."""
        ...

    def checkpoint_after(self, seqno: int) -> int | None:
        """First seqno of the next checkpoint above `seqno`; None if there is none, or it is not remembered."""
        ...

    @property
    def durability(self) -> DurableWrites | None:
        """The vbucket's durable writes; None if there never was one."""
        ...

    @property
    def snapshot(self) -> SnapshotRange:
        """On a replica the snapshot that it receives now; on an active vbucket high_seqno to high_seqno."""
        ...

    @property
    def is_receiving_initial_snapshot(self) -> bool:
        """Whether this copy was empty and is being filled from its source's disk: nobody's source until it is full."""
        ...

    def high_seqno_of(self, collection_ids: Iterable[int]) -> int:
        """The last seqno among some collections, deletions and the collections' own events included; 0 if none."""
        ...

    def hold(self, seqno: int) -> object:
        """Keep the state as of a seqno, for reads with that `snapshot_end`, as long as the result lives."""
        ...

    def read(self, after_seqno: int, end_seqno: int, *, snapshot_end: int | None, max_bytes: int) -> FrameBlock | None:
        """Stored messages with after_seqno < seqno <= end_seqno, oldest first.

        Only those that are the newest version of their key as of `snapshot_end` (None: end_seqno). Whole messages of
        at most `max_bytes`, but at least one if there is any; an empty block means that there is none. None: they
        are being fetched; the connection is told that the vbucket changed when they are at hand.
        """
        ...

    @property
    def history_start_seqno(self) -> int | None:
        """First seqno from which on every version is there; None if the bucket keeps no history."""
        ...

    def read_history(self, after_seqno: int, end_seqno: int, *, max_bytes: int) -> FrameBlock:
        """As `read`, with all versions; only asked for from `history_start_seqno` on."""
        ...

    def first_repeated_seqno(self, after_seqno: int, end_seqno: int) -> int | None:
        """The lowest seqno up to `end_seqno` that is another version of a key above `after_seqno`; None: no such."""
        ...


class HistorySource(Protocol):
    """One bucket, as a producer reads it."""

    @property
    def vbucket_count(self) -> int:
        """How many vbuckets the bucket has."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Its scopes and collections."""
        ...

    @property
    def compresses_values(self) -> bool:
        """Whether values go out compressed to clients that understand it, also if they are stored without."""
        ...

    @property
    def is_short_of_memory(self) -> bool:
        """Whether no stream may begin, because nothing more is to be read into memory now."""
        ...

    @property
    def keeps_history(self) -> bool:
        """Whether superseded versions are kept, so that a connection may ask for streams of changes."""
        ...

    @property
    def collections_without_history(self) -> frozenset[int]:
        """Collections of which a stream of changes gets the newest versions only."""
        ...

    @property
    def allows_out_of_order(self) -> bool:
        """Whether streams that asked for snapshots without order may get them."""
        ...

    def vbucket(self, vbid: int) -> VBucketView | None:
        """The vbucket, or None if this node does not have it."""
        ...
