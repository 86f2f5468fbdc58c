"""The resume rule: which position is recorded, how it is completed, and where a refused reader goes.

Plain functions and one small machine, without I/O, for every reader: the client's sessions, and a planner that fixes
the end of a batch before it is read.

Why a position is more than a seqno: a snapshot is deduplicated. A reader that stops inside one lacks the old versions
that the rest of the snapshot supersedes. If the producer then loses that rest, the reader cannot be repaired from its
seqno on, only from the snapshot's start, and the producer knows that only if it is told the bounds. So:

- A position is sent with the bounds that were recorded *for it*, and with its own vbuuid.
- A planned end is recorded before it is read, so nobody knows its snapshot yet. It carries conservative bounds: they
  begin where the batch begins, and end nowhere (`plan_end`). When the next batch is planned, the end becomes the
  node's high seqno if the branch is still the newest there (`complete`); else it stays unknown, which costs one
  rollback and never data.
- After ROLLBACK R a reader goes to the newest recorded position at or below R, with that position's own branch and
  bounds (`step_back`), and may be refused again there. (R, R, R) would claim that a snapshot ended at R.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dcpstream.client.machine.ranges import ManifestEvent
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import MAX_SEQNO, CollectionName, FailoverLog, StreamOffset

RECORDED_POSITIONS = 4
"""Recorded positions kept for each vbucket: a rollback below the oldest of them reads the vbucket again from 0."""


@dataclass(frozen=True, slots=True)
class BranchState:
    """What one node said about an active vbucket, in one observation.

    Attributes:
        vbuuid: u64, the branch that is written now.
        high_seqno: u64, the last seqno of that branch at that moment.
        failover_log: the branches the node knows; the first is `vbuuid`.
    """

    vbuuid: int
    high_seqno: int
    failover_log: FailoverLog


def observed(before: FailoverLog, high_seqno: int, after: FailoverLog) -> BranchState | None:
    """One observation out of three answers: log, high seqno, log again.

    Returns:
        None if the branch changed in between: then nobody knows to which branch the high seqno belongs.
    """
    if before.newest != after.newest:
        return None
    return BranchState(after.newest.vbuuid, high_seqno, after)


def plan_end(start: StreamOffset, end_seqno: int, vbuuid: int) -> StreamOffset:
    """The end offset of a batch that has not been read yet.

    Args:
        start: where the batch begins; for a start that the node refuses, the position that it accepts.
        end_seqno: the planned last seqno, at least `start.seqno`.
        vbuuid: the branch whose high seqno the end was taken from.

    Returns:
        An offset with conservative bounds; `start` itself if the vbucket does not move.
    """
    if end_seqno == start.seqno:
        return start
    return StreamOffset(vbuuid, end_seqno, start.seqno, None, start.manifest_uid, start.collections)


def complete(offset: StreamOffset, state: BranchState | None) -> StreamOffset:
    """A planned offset with the end of its snapshot filled in, at the time the next batch is planned.

    What the reader may lack at `offset` was superseded by something the node had sent by then, so by something at or
    below its high seqno now, provided that it is still the same branch: on any other branch that seqno means nothing.

    Args:
        offset: as recorded; returned as it is if its end is known.
        state: the observation of the node that serves the vbucket, or None if there is none.
    """
    if offset.snapshot_end is not None:
        return offset
    if state is not None and state.vbuuid == offset.vbuuid and state.high_seqno >= offset.seqno:
        return offset.with_snapshot_end(state.high_seqno)
    return offset.with_snapshot_end(MAX_SEQNO)


def remember(
    earlier: Iterable[StreamOffset], position: StreamOffset, limit: int = RECORDED_POSITIONS
) -> tuple[StreamOffset, ...]:
    """The recorded positions with one more, newest first.

    Positions at or above the new one belong to a history that was rolled back: they are dropped. Seqno 0 needs no
    record.
    """
    if position.seqno == 0:
        return ()
    kept = sorted((old for old in earlier if 0 < old.seqno < position.seqno), key=lambda old: -old.seqno)
    return (position, *kept)[:limit]


def spaced(earlier: Iterable[StreamOffset], position: StreamOffset) -> tuple[StreamOffset, ...]:
    """The recorded positions with one more, newest first, their distances growing: for a reader that records often.

    With n seqnos behind it a reader keeps about 2 log2(n) positions, and a rollback by k seqnos costs it at most about
    k more than is needed.
    """
    if position.seqno == 0:
        return ()
    older = sorted((old for old in earlier if 0 < old.seqno < position.seqno), key=lambda old: -old.seqno)
    kept = [position]
    for index, old in enumerate(older):
        next_seqno = older[index + 1].seqno if index + 1 < len(older) else 0
        # Without this one, a reader that goes back from beyond it loses no more than it had to anyway.
        if kept[-1].seqno - next_seqno > position.seqno - kept[-1].seqno:
            kept.append(old)
    return tuple(kept)


def step_back(refused: StreamOffset, rollback_seqno: int, earlier: Iterable[StreamOffset]) -> StreamOffset:
    """Where to ask next after the producer answered ROLLBACK.

    Args:
        refused: the position that was refused.
        rollback_seqno: the R of the answer.
        earlier: recorded positions, in any order.

    Returns:
        The recorded position with the largest seqno at or below R and below the refused one, with its own vbuuid and
        bounds; without one, the vbucket's beginning. It always lies lower, so going back comes to an end.
    """
    bound = min(rollback_seqno, refused.seqno - 1)
    best = max((old for old in earlier if old.seqno <= bound), key=lambda old: old.seqno, default=StreamOffset.ZERO)
    return best if best.seqno else StreamOffset.ZERO


def land(
    recorded: StreamOffset, refused: StreamOffset, rollback_seqno: int, earlier: Iterable[StreamOffset]
) -> StreamOffset:
    """`step_back` for a planner, whose reader may have gone back by itself without telling.

    Args:
        recorded: the end offset as it was written when its batch was planned, before `complete`.
        refused: the position that was refused: `recorded` when completed, or what an earlier call returned.
        rollback_seqno, earlier: as for `step_back`.

    Returns:
        If the end was never completed on its branch, its batch may have been read on another branch, from any of the
        recorded positions: none of them is known to be what the reader has. Then only the beginning is safe.
    """
    return StreamOffset.ZERO if recorded.snapshot_end is None else step_back(refused, rollback_seqno, earlier)


def reachable_end(end_seqno: int, planned_vbuuid: int, state: BranchState) -> int:
    """How far a task can read towards its planned end on the branch that it found.

    While the planned branch is the newest, the end will come, so the task waits for it. If the planned branch has
    ended below the end, those seqnos are void and the new branch may never reach them: the task reads what it holds.

    Args:
        end_seqno: the planned end.
        planned_vbuuid: the branch it was planned on; 0 if that is not known, which means: wait.
        state: log and high seqno of the node that serves the stream now.
    """
    if planned_vbuuid in {0, state.vbuuid}:
        return end_seqno
    upper = state.failover_log.upper(planned_vbuuid, state.high_seqno)
    if upper is not None and upper >= end_seqno:
        return end_seqno
    return min(end_seqno, state.high_seqno)


class Run(NamedTuple):
    """Rows of one stream in a row, and the position that goes with each of them.

    All rows of a run lie under one marker, so their positions differ only in the seqno. Inside an out-of-order snapshot
    they do not differ at all. A run without rows is a place where the position moved without one.

    Attributes:
        vbid: the vbucket.
        first, stop: number of the first row, and of the row after the last.
        vbuuid, seqno, snapshot_start, snapshot_end, manifest_uid: the position after the last row.
        unordered_high: inside an out-of-order snapshot the highest seqno received in it so far, else 0.
        collections: what the position covers.
        held: the position that counts instead, whatever the rows' seqnos.
        event: what a place without rows tells about a scope or collection.
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
        """The last seqno that counts."""
        return self._seqno

    @property
    def vbuuid(self) -> int:
        """The branch that is being read."""
        return self._vbuuid

    @property
    def offset(self) -> StreamOffset:
        """Where to resume, as it must be recorded and sent."""
        return self._held or self.reached_offset

    @property
    def reached_offset(self) -> StreamOffset:
        """Where this stream stands, also if another position is held meanwhile."""
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
        at the position or above it.

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
            self._has_items = True

    @property
    def is_held(self) -> bool:
        """Whether another position counts meanwhile."""
        return self._held is not None

    @property
    def collections(self) -> tuple[CollectionName, ...] | None:
        """What the position covers."""
        return self._collections

    def cover(self, collections: Iterable[CollectionName]) -> None:
        """A collection has begun or ended: from now on the position covers these."""
        self._collections = tuple(sorted(collections))

    def manifest(self, uid: int) -> None:
        """A system event named a newer collections manifest."""
        self._manifest_uid = max(self._manifest_uid, uid)

    def reached(self, end_seqno: int) -> bool:
        """The stream went past a wanted end: nothing up to it is still to come. Returns whether the position moved.

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
