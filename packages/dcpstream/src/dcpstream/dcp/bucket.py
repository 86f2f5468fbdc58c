"""The bucket as the two machines see it: interfaces that a node implements and that tests replace by lists.

A producer only reads (`HistorySource`, `VBucketView`); a consumer also changes its copies (`ReplicaBucket`). Both call
these methods only inside their own calls, so a view may be a live object.

In memory or on disk: a server keeps the newest items of a vbucket in memory, in checkpoints, and its snapshot markers
say where a snapshot came from. Here both kinds come from one log, and `memory_start_seqno` draws the line. Recordings
of a server show where the line lies:
- a new vbucket: at 1, so its items go out in snapshots from memory, also after they were persisted;
- CREATE_CHECKPOINT, and every change of the vbucket's state: at high_seqno + 1;
- a restart: at high_seqno + 1;
- a write to a checkpoint that is five seconds old, a second prepare of a document, an abort, a commit after another
  version of the document, a version after a commit: at that write's seqno.
A stream whose next seqno is below the line begins with one snapshot from disk, up to `disk_seqno`. A stream at or above
the line gets snapshots from memory. A stream that already reads from memory stays there when the line moves past
it; its first snapshot behind the line carries the checkpoint flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from dcpstream.model import FailoverLog, Manifest, SnapshotRange, VbucketState
from dcpstream.wire.stored.block import FrameBlock
from dcpstream.wire.stored.durable import StoredPrepare


class VbucketFacts(Protocol):
    """The facts of a vbucket that decide about a stream request."""

    @property
    def state(self) -> VbucketState:
        """Its role on this node."""

    @property
    def high_seqno(self) -> int:
        """The last seqno written."""

    @property
    def persisted_seqno(self) -> int:
        """The last seqno that survives a crash."""

    @property
    def memory_start_seqno(self) -> int:
        """First seqno of the newest checkpoint, 1 in a new vbucket; see the module's docstring."""

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a purged deletion; 0 if none was purged."""

    @property
    def failover_log(self) -> FailoverLog:
        """Its branches."""


def disk_seqno(vbucket: VbucketFacts) -> int:
    """The last seqno that counts as being on disk: what lies below the line of memory does, persisted or not."""
    return max(vbucket.persisted_seqno, vbucket.memory_start_seqno - 1)


class DurableWrites(Protocol):
    """The durable writes of one vbucket.

    A durable write is prepared, then committed or aborted. Prepares and aborts have seqnos of their own, which only
    streams with sync writes show. A replica acknowledges how far it has prepared; the active copy decides from that.
    """

    @property
    def high_prepared_seqno(self) -> int:
        """The last prepare that this copy has made as durable as its level asks; 0 if none."""

    @property
    def high_completed_seqno(self) -> int:
        """The last prepare that was committed or aborted; 0 if none."""

    @property
    def commits(self) -> Mapping[int, int]:
        """Seqno of a commit in memory → seqno of its prepare."""

    def visible_seqno(self, seqno: int) -> int:
        """The last seqno at or below this one that is neither a prepare nor an abort; 0 if there is none."""

    def first_visible_after(self, seqno: int) -> int | None:
        """The first seqno above this one that is neither a prepare nor an abort; None if there is none yet."""

    def first_hidden_after(self, seqno: int) -> int | None:
        """The first seqno above this one that is a prepare or an abort; None if there is none yet."""

    def acknowledged(self, name: str, seqno: int) -> None:
        """The replica of this name has prepared everything up to `seqno`."""


class VBucketView(VbucketFacts, Protocol):
    """One vbucket's history and state, as a producer reads it."""

    @property
    def vbid(self) -> int:
        """Its number."""

    @property
    def evicted_seqno(self) -> int:
        """The last seqno that left memory to make room, read by every stream or not; 0 if none."""

    def checkpoint_at(self, seqno: int) -> int:
        """First seqno of the checkpoint that contains `seqno`; 0 if that is not remembered."""

    def checkpoint_after(self, seqno: int) -> int | None:
        """First seqno of the next checkpoint above `seqno`; None if there is none, or it is not remembered."""

    @property
    def durability(self) -> DurableWrites | None:
        """The vbucket's durable writes; None if there never was one."""

    @property
    def snapshot(self) -> SnapshotRange:
        """On a replica the snapshot that it receives now; on an active vbucket high_seqno to high_seqno."""

    @property
    def is_receiving_initial_snapshot(self) -> bool:
        """Whether this copy was empty and is being filled from its source's disk; until then no stream may begin."""

    def high_seqno_of(self, collection_ids: Iterable[int]) -> int:
        """The last seqno among some collections, deletions and the collections' own events included; 0 if none."""

    def numbers_without_system(self) -> frozenset[int]:
        """The numbers that a history has of collections and of the events of scopes, without those of the system's."""

    def hold(self, seqno: int) -> object:
        """Keep the state as of a seqno, for reads with that `snapshot_end`, while the result lives."""

    def read(self, after_seqno: int, end_seqno: int, *, snapshot_end: int | None, max_bytes: int) -> FrameBlock | None:
        """Stored messages with after_seqno < seqno <= end_seqno, oldest first.

        Only messages that are the newest version of their key as of `snapshot_end` (None: end_seqno). Whole messages
        of at most `max_bytes`, but at least one if there is any.

        Returns: an empty block if there is no such message; None while the messages are fetched: the vbucket
            counts as changed when they have arrived.
        """

    @property
    def history_start_seqno(self) -> int | None:
        """First seqno from which on every version is kept; None if the bucket keeps no history."""

    def read_history(self, after_seqno: int, end_seqno: int, *, max_bytes: int) -> FrameBlock:
        """As `read`, with all versions; only called from `history_start_seqno` on."""

    def first_repeated_seqno(self, after_seqno: int, end_seqno: int) -> int | None:
        """The lowest seqno up to `end_seqno` whose key has an older version above `after_seqno`; None if none."""


class HistorySource(Protocol):
    """One bucket, as a producer reads it."""

    @property
    def manifest(self) -> Manifest:
        """Its scopes and collections."""

    @property
    def compresses_values(self) -> bool:
        """Whether clients with Snappy get values compressed that are stored uncompressed."""

    @property
    def is_short_of_memory(self) -> bool:
        """Whether no stream may begin, because nothing more may be read into memory now."""

    @property
    def keeps_history(self) -> bool:
        """Whether superseded versions are kept, so that a connection may ask for streams of changes."""

    @property
    def collections_without_history(self) -> frozenset[int]:
        """Collections of which a stream of changes gets the newest versions only."""

    def chooses_out_of_order(self, vbid: int, collection_ids: frozenset[int]) -> bool:
        """Decide whether a first snapshot of these collections is sent in any order to a client that asked for it."""

    @property
    def has_cache_transfer(self) -> bool:
        """Whether streams that asked for a transfer of cached documents may get it."""

    @property
    def out_of_order_collections_max(self) -> int:
        """The most collections in the filter of a stream that gets an out-of-order snapshot."""

    def vbucket(self, vbid: int) -> VBucketView | None:
        """The vbucket, or None if this node does not have it."""


class Change(NamedTuple):
    """One row of a received snapshot.

    Attributes:
        frame: in stored form (see `dcpstream.wire.stored.block`).
        key: with collection prefix; the key of a system event as it came.
        kinds: `BlockKind` bits.
    """

    frame: bytes
    key: bytes
    seqno: int
    cas: int = 0
    rev_seqno: int = 0
    kinds: int = 0
    is_deleted: bool = False


class ReplicaBucket(Protocol):
    """One bucket, as a consumer changes it: rows, the failover log of the source, roles, rollbacks.

    A `view` is one that `vbucket` gave. Each change takes effect before the method returns.
    """

    def vbucket(self, vbid: int) -> VBucketView | None:
        """The vbucket, or None if this node does not have it."""

    @property
    def buffer_bytes(self) -> int:
        """The flow-control window of this consumer now: its share of the bucket's memory."""

    @property
    def has_room(self) -> bool:
        """Whether more may be received; while not, received bytes are not acknowledged."""

    @property
    def unix_s(self) -> int:
        """Seconds since 1970: the time of deletions that come without one."""

    def is_streamed_into(self, vbid: int) -> bool:
        """Whether some consumer connection of the bucket has a living stream into the vbucket."""

    def received_snapshot(self, view: VBucketView) -> SnapshotRange:
        """The source's bounds of the last snapshot that was received, as far as they are remembered."""

    def begin_snapshot(
        self, view: VBucketView, announced: SnapshotRange, consistent_seqno: int, *, is_initial_from_disk: bool
    ) -> None:
        """Rows that are stored from now on belong to this snapshot.

        Args:
            announced: the source's bounds.
            consistent_seqno: the last seqno before it at which this copy equalled its source.
            is_initial_from_disk: the copy was empty; until the snapshot's end no stream may begin from it.
        """

    def learn_purge_seqno(self, view: VBucketView, seqno: int) -> None:
        """The source has purged deletions up to `seqno`; those deletions will never come here."""

    def end_snapshot(self, view: VBucketView) -> None:
        """All rows of the snapshot were stored."""

    def store(self, view: VBucketView, change: Change) -> None:
        """Append a row; its seqno is above every other."""

    def prepare_of(self, view: VBucketView, key: bytes) -> StoredPrepare | None:
        """The undecided prepare of a document; None if there is none."""

    def version_seqno(self, view: VBucketView, key: bytes) -> int:
        """The seqno of a document's present version, tombstones included; 0 if there is none."""

    def last_undecided_seqno(self, view: VBucketView) -> int:
        """The seqno of the last undecided prepare; 0 if there is none."""

    def has_collection_of(self, view: VBucketView, key: bytes) -> bool:
        """Whether the copy's history has the collection of that key."""

    def has_place_for(self, view: VBucketView, change: Change) -> bool:
        """Whether the copy's history has what a system event changes, and does not have the scope that it creates."""

    def collections_uid(self, view: VBucketView) -> int:
        """The version of the manifest that the copy's history has reached."""

    def high_prepared_seqno(self, view: VBucketView) -> int:
        """The seqno of the last prepare that the copy has, decided or not; 0 if there is none."""

    def adopt_failover_log(self, view: VBucketView, log: FailoverLog) -> None:
        """The vbucket continues its source's history: take over the source's log, durably."""

    def roll_back(self, view: VBucketView, seqno: int) -> int:
        """Drop everything above `seqno`, or above an older consistent point.

        Streams out of the vbucket end, and branches that began above the point are dropped. A rollback to 0 leaves the
        vbucket as new.

        Returns: the high seqno that is left.
        """

    def set_state(self, view: VBucketView, state: VbucketState) -> None:
        """Change the role as a takeover does: history continues, no branch begins."""
