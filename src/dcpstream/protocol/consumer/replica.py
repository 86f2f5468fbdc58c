"""What a consumer needs of the place where its copies are kept.

A producer only reads its `HistorySource`. A consumer also writes: rows of snapshots, the failover log of its source,
roles, rollbacks. A node gives this for one of its buckets; every method is called on the consumer's thread and takes
effect at once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dcpstream.model import FailoverLog, SnapshotRange, VbucketState
from dcpstream.protocol.producer.source import HistorySource, VBucketView
from dcpstream.wire import StoredPrepare

__all__ = ["Change", "ReplicaBucket"]


class Change(NamedTuple):
    """One row of a received snapshot.

    Attributes:
        frame: in stored form (see `dcpstream.wire.stored.block`).
        key: with collection prefix; of a system event as it came.
        kinds: `BlockKind` bits.
    """

    frame: bytes
    key: bytes
    seqno: int
    cas: int = 0
    rev_seqno: int = 0
    kinds: int = 0
    is_deleted: bool = False


class ReplicaBucket(HistorySource, Protocol):
    """One bucket, as a consumer changes it. A `view` is one that `vbucket` gave."""

    @property
    def has_room(self) -> bool:
        """Whether more may be received; if not, what was received is not acknowledged for now."""
        ...

    @property
    def unix_s(self) -> int:
        """Seconds since 1970: the time of deletions that come without one."""
        ...

    def is_streamed_into(self, vbid: int) -> bool:
        """Whether some consumer connection of the bucket has a living stream into the vbucket."""
        ...

    def received_snapshot(self, view: VBucketView) -> SnapshotRange:
        """The bounds that the source gave for what was received last, as far as they are remembered."""
        ...

    def begin_snapshot(
        self, view: VBucketView, announced: SnapshotRange, consistent_seqno: int, *, is_initial_from_disk: bool
    ) -> None:
        """Rows stored from now on belong to this snapshot.

        Args:
            announced: the source's bounds.
            consistent_seqno: the last seqno before it at which this copy equalled its source.
            is_initial_from_disk: the copy was empty, and until the snapshot's end it is nobody's source.
        """
        ...

    def learn_purge_seqno(self, view: VBucketView, seqno: int) -> None:
        """The source has purged deletions up to `seqno`: what was purged there will never come here."""
        ...

    def end_snapshot(self, view: VBucketView) -> None:
        """All rows of the snapshot are there."""
        ...

    def store(self, view: VBucketView, change: Change) -> None:
        """Append a row; its seqno is above every other."""
        ...

    def prepare_of(self, view: VBucketView, key: bytes) -> StoredPrepare | None:
        """The undecided prepare of a document; None if there is none."""
        ...

    def last_undecided_seqno(self, view: VBucketView) -> int:
        """The seqno of the last prepare that is not decided; 0 if there is none."""
        ...

    def has_collection_of(self, view: VBucketView, key: bytes) -> bool:
        """Whether the history of the copy has the collection of that key."""
        ...

    def has_place_for(self, view: VBucketView, change: Change) -> bool:
        """Whether a system event may follow: its scope, or what it changes, is there, and a new scope is not."""
        ...

    def collections_uid(self, view: VBucketView) -> int:
        """The version of the manifest that the history of the copy has reached."""
        ...

    def high_prepared_seqno(self, view: VBucketView) -> int:
        """The seqno of the last prepare that the copy has, decided or not; 0 if there is none."""
        ...

    def adopt_failover_log(self, view: VBucketView, log: FailoverLog) -> None:
        """The vbucket continues its source's history: take the source's log over, durably."""
        ...

    def roll_back(self, view: VBucketView, seqno: int) -> int:
        """Forget everything above `seqno`, or above an older consistent point; returns the high seqno reached.

        Streams out of the vbucket end, branches that began above the point are forgotten. At 0 the vbucket is as new.
        """
        ...

    def set_state(self, view: VBucketView, state: VbucketState) -> None:
        """Change the role as a takeover does: history continues, no branch begins."""
        ...
