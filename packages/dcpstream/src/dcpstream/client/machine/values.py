"""Values that cross the client's surface: the ranges that a read is asked for, and everything that it gives.

All of them can be pickled, so that a planner can send them to workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from dcpstream.model import FailoverLog, Op, StreamOffset

R = TypeVar("R")
"""The rows of a reader's user: Arrow batches, changes or messages."""

UNKNOWN_BRANCH = -1
"""Stands for an unknown vbuuid: reading on any branch then counts as a rollback."""


@dataclass(frozen=True, slots=True)
class VbucketRange:
    """A part of one vbucket's history to read: after `start`, up to and including `end_seqno`.

    Attributes:
        vbid: the vbucket.
        start: the recorded position to begin at; an unknown snapshot end is sent as 2^64-1.
        end_seqno: the planned end. Rows above it are dropped: they come again in the next range.
        earlier: recorded positions to go back along if `start` is refused, in any order.
        end_vbuuid: the branch on which the end was planned, that is, the newest one when its high seqno was observed.
            With it a reader can distinguish an end that is still to come from one that a failover has made void. 0 =
            the branch of `start`.
        given_vbuuid: the branch on which rows above `start` may have been delivered before: by a run that went
            further than its last record, or by an attempt that failed. If another branch is read, those rows may be
            void, and a RollbackEvent says so. None = the branch of `start`; 0 = no rows were delivered;
            UNKNOWN_BRANCH = report a rollback whatever branch is read.
        keeps_start: the start is the lowest position that the user can go back to without a new plan. If it is refused
            because another branch is served, no row is read: a RollbackEvent to the start itself says that rows above
            it are void, and the vbucket is done.
    """

    vbid: int
    start: StreamOffset
    end_seqno: int
    earlier: tuple[StreamOffset, ...] = ()
    end_vbuuid: int = 0
    given_vbuuid: int | None = None
    keeps_start: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone, as positions do."""
        return VbucketRange, tuple(getattr(self, name) for name in VbucketRange.__slots__)

    @property
    def planned_vbuuid(self) -> int:
        """The branch that the end belongs to; 0 if it is unknown."""
        return self.end_vbuuid or self.start.vbuuid


@dataclass(frozen=True, slots=True)
class RowsRead(Generic[R]):
    """Rows of one or more vbuckets, and the positions after them.

    Attributes:
        rows: an Arrow batch with the requested columns, a tuple of changes, or a tuple of message runs; per vbucket in
            seqno order.
        offsets: vbucket → position after these rows, for every vbucket that moved. The positions are those of the
            messages that were read, with the bounds of their snapshots; a planned end is not among them.
    """

    rows: R
    offsets: Mapping[int, StreamOffset]


@dataclass(frozen=True, slots=True)
class RollbackEvent:
    """The producer's history differs from what was read: rows above `to_seqno` are void.

    The event also comes if the node accepts the recorded position on another branch than the recorded one: the user
    may have rows above it that were delivered after the last record, and they may be void. How far those rows go is
    not known, so `from_seqno` is no bound of what is void.

    Attributes:
        vbid: the vbucket.
        from_seqno: the position that the reader asked for; equal to `to_seqno` if the node accepted it.
        to_seqno: where reading continues. Remove all rows of this vbucket above it; the valid ones come again.
        old_vbuuid, new_vbuuid: the branch that was left, and the one that is read from now on.
        resumed_at: the whole position where reading continues.
    """

    vbid: int
    from_seqno: int
    to_seqno: int
    old_vbuuid: int
    new_vbuuid: int
    resumed_at: StreamOffset

    @property
    def offsets(self) -> dict[int, StreamOffset]:
        """Vbucket → position after the rollback."""
        return {self.vbid: self.resumed_at}

    def details(self) -> dict[str, str]:
        """The fields of the JSON in a control row or change: decimal texts, because no JSON number holds 64 bits."""
        names = ("from_seqno", "to_seqno", "old_vbuuid", "new_vbuuid")
        return {name: str(getattr(self, name)) for name in names}


@dataclass(frozen=True, slots=True)
class ManifestEvent:
    """A scope or collection was created, dropped, flushed or modified, according to one vbucket's history.

    Each vbucket reports it once for itself. Creating, dropping or flushing a collection ends its rows of this vbucket
    at or below `seqno`: a copy of the documents must remove them. A later collection of the same name has other rows,
    all above `seqno`.

    Attributes:
        op: what happened.
        vbid, vbuuid, seqno: where in which branch. For a drop that the history no longer contains, `seqno` lies above
            all rows of the collection and below those of a later one of that name.
        scope, collection: names; `collection` is empty for an event of a scope.
        scope_id, collection_id: their ids; None where there is none, or it is not known.
        manifest_uid: of the bucket's collections, as the event says; of several events of one change, only the last
            has it.
        offset: the vbucket's position after it.
        max_ttl: for a collection that was created or modified, the longest life of its documents in seconds; 0 if the
            bucket's limit holds, -1 for none. Otherwise None.
    """

    op: Op
    vbid: int
    vbuuid: int
    seqno: int
    scope: str
    collection: str
    scope_id: int | None
    collection_id: int | None
    manifest_uid: int
    offset: StreamOffset
    max_ttl: int | None = None

    def details(self) -> dict[str, object]:
        """The JSON of a control row: ids as numbers, the uid as decimal text."""
        found = {"scope_id": self.scope_id, "collection_id": self.collection_id, "max_ttl": self.max_ttl}
        known: dict[str, object] = {name: value for name, value in found.items() if value is not None}
        return {**known, "manifest_uid": str(self.manifest_uid)}


@dataclass(frozen=True, slots=True)
class HistoryGap:
    """A read of every version meets a snapshot with the newest version of each document alone.

    The bucket's change history begins later, or the bucket keeps none of these documents. The newest versions up to
    `to_seqno` arrive; versions that they replaced within the gap do not.

    Attributes:
        vbid, vbuuid: the vbucket, and its branch.
        seqno: the reader's position; the gap begins above it.
        to_seqno: the end of the gap.
        offset: the position before the gap.
    """

    vbid: int
    vbuuid: int
    seqno: int
    to_seqno: int
    offset: StreamOffset
    op: ClassVar[Op] = Op.HISTORY_GAP
    scope: ClassVar[str] = ""
    collection: ClassVar[str] = ""

    def details(self) -> dict[str, object]:
        """The JSON of a control row: both seqnos as decimal texts."""
        return {"from_seqno": str(self.seqno), "to_seqno": str(self.to_seqno)}


VbucketEvent: TypeAlias = ManifestEvent | HistoryGap
"""An event in a vbucket's history that is no change of a document."""


@dataclass(frozen=True, slots=True)
class CollectionEvents:
    """Adjacent events of vbuckets: in order for each vbucket, with no row between them.

    Attributes:
        events: in order; empty if only positions have moved.
        moved: positions that are reached without an event, after the events.
    """

    events: tuple[VbucketEvent, ...]
    moved: Mapping[int, StreamOffset] = field(default_factory=dict)

    @property
    def offsets(self) -> dict[int, StreamOffset]:
        """Vbucket → position after its events."""
        return {**{event.vbid: event.offset for event in self.events}, **self.moved}

    def joined(self, other: CollectionEvents) -> CollectionEvents:
        """These events followed by the others."""
        return CollectionEvents((*self.events, *other.events), {**self.moved, **other.offsets})


ReaderOutput: TypeAlias = RowsRead[R] | RollbackEvent | CollectionEvents
"""Everything that a reader gives to its user. Each member has `offsets`, the positions after it.

Converters at the edge make batches, single changes, rows of Spark or a recording of it; every `match` on it ends in
`assert_never`, so that a new member is handled everywhere.
"""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The node accepts a position and answered with this failover log."""

    failover_log: FailoverLog


@dataclass(frozen=True, slots=True)
class RollbackTo:
    """The node refuses a position: nothing above `seqno` is common history."""

    seqno: int
