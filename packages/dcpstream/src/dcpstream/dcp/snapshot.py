"""The snapshots of one stream, as its receiver follows them: which message fits now, and what is complete.

A client's reader and a node's replica both ask here, and nothing else decides it. Plain numbers go in; None or a
`Violation` comes out. The caller decides what a violation costs: a reader its stream, a replica an error answer.

Theory of operation:

- A marker announces bounds. An item is a row, a system event, a commit, an abort or a SEQNO_ADVANCED. Each item lies
  within the newest marker, and above the item before.
- The item at the end of the bounds completes the snapshot: then the receiver equals its source at that seqno.
- A position carries the bounds of the snapshot that it lies in. Only these say what the receiver lacks.
- Inside an out-of-order snapshot seqnos do not rise, and no marker comes. The position stands still until the end, and
  is then the highest seqno received.

`Receiver` names the real differences between the two ends.

Source: kv_engine engines/ep/src/dcp/passive_stream.cc; recordings of servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dcpstream.model import MAX_SEQNO

Bounds = tuple[int, int]
"""The first and the last seqno of a snapshot."""


class SnapshotFault(Enum):
    """The kinds of violations."""

    BACKWARDS = "a marker that ends before it starts"
    BEHIND = "a marker of changes that were received before"
    NESTED = "a marker inside an out-of-order snapshot"
    BORDER = "a border of an out-of-order snapshot where none can be"
    CLAIM = "a seqno in a marker that is above the marker's end"
    NOT_ABOVE = "an item that does not follow the item before"
    NO_MARKER = "an item without a marker"
    OUTSIDE = "an item outside its snapshot"
    ENDS_INSIDE = "the end of the stream inside a snapshot"
    ENDS_EARLY = "the end of the stream before the end that was asked for"


class Violation(NamedTuple):
    """A message that is not legal now, and the reason in words."""

    fault: SnapshotFault
    text: str


@dataclass(frozen=True, slots=True)
class Receiver:
    """The rules in which the receivers differ.

    Attributes:
        may_overlap: every marker may begin below the position, if it ends above it: a server's replica takes such a
            marker. Otherwise only the markers before the first item may, because a producer begins the first one where
            the request's snapshot began. It may repeat that begin after an out-of-order snapshot.
        begins_at_position: a marker from below a position that ends its snapshot counts from the position on, because
            nothing up to there is lacking. A replica keeps the source's bounds, as a server's replica does.
        records_at_marker: the bounds of a marker count at once. A replica stores them before the first row. A reader
            takes them over with the first item: a stream that is cut after a marker resumes with the bounds before it.
        keeps_requested_end: a request from inside a snapshot keeps that snapshot's bounds until the position has
            passed its end, also if the first marker ends earlier. A replica follows the marker.
    """

    may_overlap: bool
    begins_at_position: bool
    records_at_marker: bool
    keeps_requested_end: bool


READER = Receiver(may_overlap=False, begins_at_position=True, records_at_marker=False, keeps_requested_end=True)
"""A client, which records positions and resumes from them."""

REPLICA = Receiver(may_overlap=True, begins_at_position=False, records_at_marker=True, keeps_requested_end=False)
"""A vbucket's copy on a node, which stores rows and their snapshots."""


class PlainItems(NamedTuple):
    """Everything that decides about the next items and markers of a receiver, as long as they are plain.

    The kernel moves it on (`native/walk.c`), and `ReceivedSnapshots` takes it over again.

    Attributes:
        is_unordered: inside an out-of-order snapshot.
        has_items: whether an item has come.
        takes_markers: whether the bounds of a marker count alone.
        seqno: the position; inside an out-of-order snapshot the highest seqno so far.
        begin, end: the bounds of the snapshot that the position lies in.
        first, last: items lie within these bounds, which become those of the position; 1 and 0 before a marker.
        stop: the first seqno of an item that is more than a plain one.
        has_limit: whether `last` is the end of a first snapshot that has each document once.
    """

    is_unordered: bool
    has_items: bool
    takes_markers: bool
    seqno: int
    begin: int
    end: int
    first: int
    last: int
    stop: int
    has_limit: bool = False


class ReceivedSnapshots:
    """The place of one receiver in the snapshots of its stream.

    Args:
        receiver: its rules.
        seqno: its position.
        bounds: those of the snapshot that the position lies in.

    Attributes:
        seqno: the last seqno that was reached.
        bounds: those of the snapshot that `seqno` lies in; for a replica those of the last marker.
        announced: the bounds of the newest marker, or None before the first one and after an out-of-order snapshot.
        unordered_high: the highest seqno received inside the out-of-order snapshot under way, else None.
    """

    __slots__ = ("_has_items", "_limits", "_receiver", "_recorded", "_requested", "announced", "bounds", "seqno",
                 "unordered_high")  # fmt: skip

    def __init__(self, receiver: Receiver, seqno: int, bounds: Bounds) -> None:
        self._receiver = receiver
        self.restart(seqno, bounds)

    def restart(self, seqno: int, bounds: Bounds) -> None:
        """Begin at another position; nothing of the stream has arrived."""
        self.seqno = seqno
        self.bounds = self._recorded = bounds
        self._requested: Bounds | None = None
        self._forget_marker()

    def _forget_marker(self) -> None:
        self.announced: Bounds | None = None
        self.unordered_high: int | None = None
        self._limits: Bounds | None = None
        self._has_items = False

    def opened(self) -> None:
        """The producer accepted the position and its bounds.

        At the start of a snapshot nothing of it was received, and the producer ignores the end that was sent.
        """
        seqno, (start, end) = self.seqno, self.bounds
        is_inside = start < seqno < end < MAX_SEQNO
        self._requested = self.bounds if is_inside and self._receiver.keeps_requested_end else None
        if seqno in {0, start}:
            self.bounds = start, seqno
        self._forget_marker()

    # ------------------------------------------------------------------------------------------------------- markers

    def marker_violation(self, start: int, end: int) -> Violation | None:
        """Whether a marker with these bounds may not come now."""
        if start > end:
            return Violation(SnapshotFault.BACKWARDS, f"snapshot marker {start}..{end} ends before it starts")
        if self.unordered_high is not None:
            return Violation(SnapshotFault.NESTED, f"snapshot marker {start}..{end} inside an out-of-order snapshot")
        seqno = self.seqno
        if start < seqno and (end <= seqno if self._receiver.may_overlap else end < seqno or self._has_items):
            return Violation(SnapshotFault.BEHIND, f"snapshot marker {start}..{end} goes back behind {seqno}")
        return None

    def begin(self, start: int, end: int, *, is_continued: bool = False) -> None:
        """A marker has come that is no violation.

        Args:
            start: its first seqno.
            end: its last seqno.
            is_continued: it belongs to the same checkpoint of the source as the marker before, whose snapshot goes on.
        """
        receiver = self._receiver
        if receiver.begins_at_position and start < self.seqno and self.bounds == (self.seqno, self.seqno):
            start = self.seqno
        self.announced = self._limits = self._recorded = start, end
        requested = self._requested
        if requested is not None:
            self._limits = self._recorded = min(start, requested[0]), max(end, requested[1])
        if receiver.records_at_marker:
            self.bounds = self._recorded = min(start, self.bounds[0]) if is_continued else start, end

    def marker(self, start: int, end: int) -> Violation | None:
        """Take a marker, if it fits."""
        violation = self.marker_violation(start, end)
        if violation is None:
            self.begin(start, end)
        return violation

    def out_of_order(self, *, is_start: bool) -> Violation | None:
        """An out-of-order snapshot begins or ends, if it can."""
        if is_start is (self.unordered_high is not None):
            what = "begins" if is_start else "ends"
            return Violation(SnapshotFault.BORDER, f"an out-of-order snapshot {what} where none can")
        if is_start:
            self.unordered_high = self.seqno
            self._limits = None
        elif self.unordered_high is not None:
            self.restart(self.unordered_high, (self.unordered_high, self.unordered_high))
        return None

    # --------------------------------------------------------------------------------------------------------- items

    @property
    def limit(self) -> int | None:
        """The last seqno of an item that fits the markers so far; None if there is no such bound."""
        return None if self._limits is None else self._limits[1]

    @property
    def requested_end(self) -> int | None:
        """The end of the snapshot that was asked for: its bounds count up to an item there. None if they do not."""
        return None if self._requested is None else self._requested[1]

    def item_violation(self, first: int, last: int) -> Violation | None:
        """Whether items may not come now, whose seqnos rise from `first` to `last`.

        Inside an out-of-order snapshot every seqno may come.
        """
        limits, seqno = self._limits, self.seqno
        if self.unordered_high is not None:
            return None
        if first <= seqno:
            return not_above(seqno, first)
        if limits is None:
            return Violation(SnapshotFault.NO_MARKER, f"seqno {first} without a snapshot marker before it")
        if limits[0] <= first and last <= limits[1]:
            return None
        outside = first if first < limits[0] else last
        text = f"seqno {outside} after {seqno} is outside its snapshot {limits[0]}..{limits[1]}"
        return Violation(SnapshotFault.OUTSIDE, text)

    def move(self, seqno: int) -> None:
        """The items up to `seqno` were taken, which are no violation. Outside of an out-of-order snapshot only."""
        self.seqno = seqno
        self.bounds = self._recorded
        self._has_items = True
        requested = self._requested
        if requested is not None and seqno >= requested[1] and self.announced is not None:
            self._requested = None
            self._limits = self._recorded = self.announced

    def items(self, first: int, last: int) -> Violation | None:
        """Take items whose seqnos rise from `first` to `last`, if they fit.

        Inside an out-of-order snapshot only the highest of their seqnos counts, which is `last`.
        """
        limits = self._limits
        # Nearly all of them fit a marker; inside an out-of-order snapshot there is none.
        fits = limits is not None and self.seqno < first and limits[0] <= first and last <= limits[1]
        if not fits and (violation := self.item_violation(first, last)) is not None:
            return violation
        if self.unordered_high is None:
            self.move(last)
        elif last > self.unordered_high:
            self.unordered_high = last
        return None

    def finish_at(self, end: int) -> bool:
        """Everything up to an end inside the snapshots has arrived, because an item above it has.

        If the next snapshot begins above the end, the position stays where the last one put it. Otherwise the end
        itself is the position, inside its snapshot.

        Returns: whether the position moved.
        """
        before, announced = self.seqno, self.announced
        if self.unordered_high is not None or announced is None:
            return False
        if before >= end or not announced[0] <= end <= announced[1]:
            return False
        self.move(end)
        # A snapshot may begin at the end itself, whose item it has left out for a newer one. A position at the start of
        # its snapshot would claim that nothing up to there is lacking.
        self.bounds = min(before, self.bounds[0]), self.bounds[1]
        return True

    # ----------------------------------------------------------------------------------------------- plain messages

    def plain_items(self) -> PlainItems | None:
        """The facts that decide about the next items; None if they need more. For a reader."""
        if self.unordered_high is not None:
            return PlainItems(True, self._has_items, False, self.unordered_high, 0, 0, 0, 0, MAX_SEQNO)
        if self._limits is None:
            if self._requested is not None:
                return None
            return PlainItems(False, self._has_items, True, self.seqno, *self.bounds, 1, 0, MAX_SEQNO)
        # The item at the end of the snapshot that was asked for changes the bounds.
        stop = MAX_SEQNO if self._requested is None else self._requested[1]
        is_alone = self._requested is None
        return PlainItems(False, self._has_items, is_alone, self.seqno, *self.bounds, *self._limits, stop)

    def follow(self, items: PlainItems) -> None:
        """Plain items and markers were taken since `plain_items`."""
        if items.is_unordered:
            self.unordered_high = items.seqno
            return
        self.seqno, self.bounds, self._has_items = items.seqno, (items.begin, items.end), items.has_items
        if items.takes_markers and items.first <= items.last:
            self.announced = self._limits = self._recorded = items.first, items.last

    # ---------------------------------------------------------------------------------------------- what is complete

    @property
    def is_complete(self) -> bool:
        """Whether the position is the end of a snapshot: what was read is the vbucket's state at that seqno."""
        return self.unordered_high is None and self.seqno == self.bounds[1]

    @property
    def is_whole(self) -> bool:
        """Whether all of the announced snapshot has come."""
        return self.announced is not None and self.seqno == self.announced[1]

    @property
    def pending_end(self) -> int | None:
        """The end of a snapshot that the producer has announced and not finished; None if there is none.

        A producer finishes each snapshot with an item at its end.
        """
        if self.unordered_high is not None:
            return MAX_SEQNO
        announced = self.announced
        return announced[1] if announced is not None and self.seqno < announced[1] else None

    def end_violation(self, end_seqno: int, *, is_filtered: bool, ended_at: int) -> Violation | None:
        """Whether a STREAM_END that says OK leaves something out.

        Servers end streams early once at a position, so a reader asks again from there.

        Args:
            end_seqno: the end that was asked for.
            is_filtered: the stream is of some collections: what comes after its last item is not for it.
            ended_at: the position at which the stream before ended in the same way.
        """
        if self.pending_end is not None:
            where, fault = "in the middle of a snapshot", SnapshotFault.ENDS_INSIDE
        elif self.seqno >= end_seqno or is_filtered or self.seqno == ended_at:
            return None
        else:
            where, fault = f"before {end_seqno}", SnapshotFault.ENDS_EARLY
        return Violation(fault, f"the stream ends with OK at seqno {self.seqno}, {where}")


def not_above(before: int, seqno: int) -> Violation:
    """The violation of an item whose seqno is not above that of the item before."""
    return Violation(SnapshotFault.NOT_ABOVE, f"seqno {seqno} comes after {before}")


def claim_violation(
    end: int, *, max_visible: int | None, purged: int | None, high_prepared: int | None
) -> Violation | None:
    """Whether a marker claims a seqno above its own end.

    A high completed seqno may lie above the end: the decision came later than the snapshot.

    Args:
        end: its end.
        max_visible, purged, high_prepared: the seqnos of its later versions; None if it does not have them.
    """
    claims = {"max visible seqno": max_visible, "purge seqno": purged, "high prepared seqno": high_prepared}
    for name, seqno in claims.items():
        if seqno is not None and seqno > end:
            return Violation(SnapshotFault.CLAIM, f"a marker's {name} {seqno} is above its end")
    return None
