"""The position of one vbucket's reader while the messages of its stream arrive.

`PositionTracker` follows the messages; a `Run` holds the position of a run of rows. Both follow the resume rule (see
`resume`): a position always carries the bounds of the snapshot that it lies in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dcpstream.client.machine.values import ManifestEvent
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import MAX_SEQNO, CollectionName, FailoverLog, StreamOffset


class Run(NamedTuple):
    """Adjacent rows of one stream, and the position after each of them.

    All rows of a run lie under one marker, so their positions differ only in the seqno. Inside an out-of-order snapshot
    they do not differ at all. A run without rows is a place where the position moved without one.

    Attributes:
        vbid: the vbucket.
        first, stop: number of the first row, and of the row after the last.
        vbuuid, seqno, snapshot_start, snapshot_end, manifest_uid: the position after the last row.
        unordered_high: inside an out-of-order snapshot the highest seqno received in it so far, else 0.
        collections: what the position covers.
        held: the position that counts instead, whatever the rows' seqnos.
        event: the event of a scope or collection, for a run without rows.
    """

    vbid: int
    first: int
    stop: int
    vbuuid: int
    seqno: int
    snapshot_start: int
    snapshot_end: int | None
    manifest_uid: int
    unordered_high: int = 0
    collections: tuple[CollectionName, ...] | None = None
    held: StreamOffset | None = None
    event: ManifestEvent | None = None

    @classmethod
    def standing(cls, vbid: int, at: StreamOffset) -> Run:
        """A position without rows."""
        return cls(vbid, 0, 0, at.vbuuid, at.seqno, at.snapshot_start, at.snapshot_end, at.manifest_uid, held=at)

    def offset(self, seqno: int | None = None) -> StreamOffset:
        """The position after the row with this seqno; after the last one for None."""
        if self.held is not None:
            return self.held
        if seqno is None or self.unordered_high:
            seqno = self.seqno
        return StreamOffset(
            self.vbuuid, seqno, self.snapshot_start, self.snapshot_end, self.manifest_uid, self.collections
        )


class PositionTracker:
    """The position of one vbucket's reader as the messages of its stream arrive.

    Theory of operation: a marker announces bounds but changes nothing until the first item within it, so a stream
    that is cut after a marker resumes with the bounds before it. A reader that resumed inside a snapshot keeps the end
    it was promised until it has passed it, even if the producer's first marker ends earlier. Inside an out-of-order
    snapshot the position stands still until the snapshot's end. Seqno-advanced counts as an item.
    """

    def __init__(self, offset: StreamOffset, *, held: StreamOffset | None = None) -> None:
        self._held = held
        self._collections = offset.collections
        self._vbuuid = offset.vbuuid
        self._seqno = offset.seqno
        self._bounds = (offset.snapshot_start, offset.request_bounds()[2])
        self._manifest_uid = offset.manifest_uid
        self._carried: tuple[int, int] | None = None
        self._marker: tuple[int, int] | None = None
        self._oso_high: int | None = None
        self._has_items = False

    @property
    def seqno(self) -> int:
        """The last seqno that was reached."""
        return self._seqno

    @property
    def vbuuid(self) -> int:
        """The branch that is being read."""
        return self._vbuuid

    @property
    def offset(self) -> StreamOffset:
        """The position to record, and to resume from."""
        return self._held or self.reached_offset

    @property
    def reached_offset(self) -> StreamOffset:
        """The position of this stream, also if another position is held meanwhile."""
        start, end = self._bounds
        return StreamOffset(self._vbuuid, self._seqno, start, end, self._manifest_uid, self._collections)

    def run(self, vbid: int, first: int, stop: int) -> Run:
        """The rows from `first` up to `stop`, the last of which was the last `item`."""
        start, end = self._bounds
        return Run(
            vbid,
            first,
            stop,
            self._vbuuid,
            self._seqno,
            start,
            end,
            self._manifest_uid,
            self._oso_high or 0,
            self._collections,
            self._held,
        )

    @property
    def is_out_of_order(self) -> bool:
        """Whether the reader is inside an out-of-order snapshot: the seqnos there do not rise."""
        return self._oso_high is not None

    @property
    def is_complete(self) -> bool:
        """Whether the position is the end of a snapshot: what was read is the vbucket's state at that seqno."""
        return self._oso_high is None and self._seqno == self._bounds[1]

    @property
    def pending_end(self) -> int | None:
        """The end of a snapshot that the producer has announced and not finished; None if there is none.

        A producer finishes each snapshot with an item, a system event or a seqno-advanced at its end.
        """
        if self._oso_high is not None:
            return MAX_SEQNO
        return self._marker[1] if self._marker is not None and self._seqno < self._marker[1] else None

    def opened(self, log: FailoverLog) -> None:
        """The producer accepted the position: from now on it belongs to the newest branch."""
        self._vbuuid = log.newest.vbuuid
        start, end = self._bounds
        # At the start of a snapshot nothing of it was received, and the producer ignores the end that was sent.
        self._carried = (start, end) if start < self._seqno < end < MAX_SEQNO else None
        if self._seqno in {0, start}:
            self._bounds = (start, self._seqno)
        self._marker = None
        self._oso_high = None
        self._has_items = False

    def marker(self, start_seqno: int, end_seqno: int) -> None:
        """A snapshot marker arrived: what follows lies within these bounds.

        Until the first item, a marker begins where the request's snapshot began, below the position. Later ones begin
        at the position or above it. After an out-of-order snapshot, a server may repeat the begin of the request once
        more, which is 0; but nothing up to the position is lacking, so the bounds begin there.

        Raises:
            RemoteProtocolError: it ends before it starts or below the position, overlaps what was received, or
                stands inside an out-of-order snapshot.
        """
        if start_seqno > end_seqno:
            raise RemoteProtocolError(f"snapshot marker {start_seqno}..{end_seqno} ends before it starts")
        if self._oso_high is not None:
            raise RemoteProtocolError(f"snapshot marker {start_seqno}..{end_seqno} inside an out-of-order snapshot")
        if end_seqno < self._seqno or (self._has_items and start_seqno < self._seqno):
            raise RemoteProtocolError(f"snapshot marker {start_seqno}..{end_seqno} goes back behind {self._seqno}")
        if self._bounds == (self._seqno, self._seqno):
            start_seqno = max(start_seqno, self._seqno)
        self._marker = (start_seqno, end_seqno)

    def oso(self, is_start: bool) -> None:
        """An out-of-order snapshot begins or ends.

        Raises:
            RemoteProtocolError: a second one begins inside it, or one ends that did not begin.
        """
        if is_start is (self._oso_high is not None):
            raise RemoteProtocolError(f"an out-of-order snapshot {'begins' if is_start else 'ends'} where none can")
        if is_start:
            self._oso_high = self._seqno
        elif self._oso_high is not None:
            high = self._oso_high
            self._seqno, self._bounds, self._oso_high = high, (high, high), None
            self._carried = self._marker = None
            self._has_items = False

    @property
    def is_held(self) -> bool:
        """Whether another position counts meanwhile."""
        return self._held is not None

    @property
    def collections(self) -> tuple[CollectionName, ...] | None:
        """The collections that the position covers."""
        return self._collections

    def cover(self, collections: Iterable[CollectionName]) -> None:
        """A collection has begun or ended: from now on the position covers these."""
        self._collections = tuple(sorted(collections))

    def manifest(self, uid: int) -> None:
        """A system event named a newer collections manifest."""
        self._manifest_uid = max(self._manifest_uid, uid)

    def reached(self, end_seqno: int) -> bool:
        """The stream went past a wanted end: everything up to it has arrived. Returns whether the position moved.

        If the next snapshot begins above the end, the position stays where the last one put it; otherwise the end
        itself is the position, inside its snapshot.
        """
        if self._oso_high is not None or self._seqno >= end_seqno:
            return False
        if self._marker is None or not self._marker[0] <= end_seqno <= self._marker[1]:
            return False
        before = self._seqno
        self.item(end_seqno)
        # A snapshot may begin at the end itself, whose item it has left out for a newer one. A position at the start of
        # its snapshot would claim that nothing up to there is lacking.
        self._bounds = (min(before, self._bounds[0]), self._bounds[1])
        return True

    def item(self, seqno: int) -> None:
        """An item, system event or seqno-advanced arrived.

        Raises:
            RemoteProtocolError: see `items`.
        """
        self.items(seqno, seqno)

    def items(self, first_seqno: int, last_seqno: int) -> None:
        """Items arrived under one marker, their seqnos rising from the first to the last.

        Inside an out-of-order snapshot: the smallest and the largest of them.

        Raises:
            RemoteProtocolError: see `check`.
        """
        marker = self._marker
        if marker is None or self._carried is not None or self._oso_high is not None:
            marker = self.check(first_seqno, last_seqno)
            if marker is None:
                self._oso_high = max(self._oso_high or 0, last_seqno)
                return
        elif not (self._seqno < first_seqno and marker[0] <= first_seqno and last_seqno <= marker[1]):
            self.check(first_seqno, last_seqno)
        self._bounds = marker
        self._seqno = last_seqno
        self._has_items = True
        if self._carried is not None and last_seqno >= self._carried[1]:
            self._carried = None

    def check(self, first_seqno: int, last_seqno: int) -> tuple[int, int] | None:
        """The bounds of the snapshot that items lie in; None inside an out-of-order snapshot, where there are none.

        Raises:
            RemoteProtocolError: there is no marker, they lie outside of it, or were received before.
        """
        if self._oso_high is not None:
            return None
        if self._marker is None:
            raise RemoteProtocolError(f"seqno {first_seqno} without a snapshot marker before it", event="item")
        start, end = self._marker
        if self._carried is not None:
            start, end = min(start, self._carried[0]), max(end, self._carried[1])
        if first_seqno <= self._seqno:
            raise RemoteProtocolError(f"seqno {first_seqno} comes after {self._seqno}", event="item")
        if first_seqno < start or last_seqno > end:
            outside = first_seqno if first_seqno < start else last_seqno
            raise RemoteProtocolError(
                f"seqno {outside} after {self._seqno} is outside its snapshot {start}..{end}", event="item"
            )
        return start, end
