"""The resume rule: which position is recorded, how it is completed, and where a refused reader goes.

Pure functions over positions, for every reader: the client's streams, and a planner that fixes the end of a batch
before it is read. A random model of producers and readers runs these very functions (`tests/simulation`).

Why a position is more than a seqno: a snapshot is deduplicated. A reader that stops inside one lacks the old versions
that the rest of the snapshot supersedes. If the producer then loses that rest, the reader cannot be repaired from its
seqno on, only from the snapshot's start, and the producer knows that only if the request holds the bounds. So:

- A position is sent with the bounds that were recorded *for it*, and with its own vbuuid.
- A planned end is recorded before it is read, so its snapshot is not known yet. It carries conservative bounds: they
  begin where the batch begins, and have no end (`plan_end`). When the next batch is planned, the end becomes the
  node's high seqno if the branch is still the newest there (`complete`). Otherwise it stays unknown and is sent as
  2^64-1, which costs one rollback and never data.
- After ROLLBACK R a reader goes to the newest recorded position at or below R, with that position's own branch and
  bounds (`step_back`), and may be refused again there. (R, R, R) would claim that a snapshot ended at R.
- A task that reads a planned range never goes below the range's start when it meets another branch than the planned
  one, because nobody would record where it went. It delivers nothing instead. So whatever was active while the task
  ran, the delivered rows up to the range's start are those of the recorded start, and the next plan goes back to it or
  lower.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dcpstream.model import MAX_SEQNO, CollectionName, FailoverLog, StreamOffset

RECORDED_POSITIONS = 6
"""Recorded positions kept for each vbucket by a planner. Their distances grow, so that six reach back over thousands of
batches: a rollback by k batches reads about 2 k batches again, and 10 k at worst. Each costs an offset 4 bytes."""


@dataclass(frozen=True, slots=True)
class BranchState:
    """One observation of an active vbucket at its node.

    Attributes:
        vbuuid: u64, the branch that is written now.
        high_seqno: u64, the last seqno of that branch at that moment.
        failover_log: the branches the node knows; the first is `vbuuid`.
    """

    vbuuid: int
    high_seqno: int
    failover_log: FailoverLog

    def continues(self, at: StreamOffset) -> bool:
        """Whether a position lies on the branch that is written now."""
        return at.seqno == 0 or (at.vbuuid == self.vbuuid and at.seqno <= self.high_seqno)


def observed(before: FailoverLog, high_seqno: int, after: FailoverLog) -> BranchState | None:
    """One observation out of three answers: log, high seqno, log again.

    Returns:
        None if the branch changed in between: the high seqno may then belong to either branch.
    """
    if before.newest != after.newest:
        return None
    return BranchState(after.newest.vbuuid, high_seqno, after)


def plan_end(
    start: StreamOffset, end_seqno: int, vbuuid: int, collections: tuple[CollectionName, ...] | None = None
) -> StreamOffset:
    """The end offset of a batch that has not been read yet.

    Args:
        start: where the batch begins; for a start that the node refuses, the position that it accepts.
        end_seqno: the planned last seqno, at least `start.seqno`.
        vbuuid: the branch whose high seqno the end was taken from.
        collections: those that the batch reads, by ascending id; None if unknown.

    Returns:
        An offset with conservative bounds; `start` itself if the vbucket does not move.
    """
    if end_seqno == start.seqno:
        return start
    return StreamOffset(vbuuid, end_seqno, start.seqno, None, start.manifest_uid, collections)


def complete(offset: StreamOffset, state: BranchState | None) -> StreamOffset:
    """A planned offset with the end of its snapshot filled in, at the time the next batch is planned.

    What the reader may lack at `offset` was superseded by something the node had sent by then, so by something at or
    below its high seqno now, provided that it is still the same branch: on any other branch that seqno means nothing.

    Args:
        offset: as recorded; returned as it is if its end is known.
        state: the observation of the node that serves the vbucket, or None if there is none.

    Returns:
        `offset` itself, with an unknown end, if the branch is another one or there is no observation.
    """
    if offset.snapshot_end is None and state is not None and state.continues(offset):
        return offset.with_snapshot_end(state.high_seqno)
    return offset


def remember(
    earlier: tuple[StreamOffset, ...], position: StreamOffset, limit: int = RECORDED_POSITIONS
) -> tuple[StreamOffset, ...]:
    """The recorded positions with one more, newest first, their distances growing.

    Positions at or above the new one belong to a history that was rolled back: they are dropped. Seqno 0 needs no
    record, as every reader can begin there. Above the limit, the position is dropped without which a rollback costs the
    least more, in proportion to its size.

    The bounds of older positions are widened to short numbers: the snapshot starts at the next older position, and ends
    at the next newer one, or a power of two above the seqno. A wider snapshot claims less, so it is always safe. It may
    only cost a further step back. The start has no cost at all, because between two recorded positions there is nowhere
    to go back to.

    Args:
        earlier: what an earlier call returned.
        position: the start of the batch that is planned.
        limit: number of positions.
    """
    if position.seqno == 0:
        return ()
    kept = [position, *(old for old in earlier if 0 < old.seqno < position.seqno)]
    if len(kept) > limit:
        # Distances from the end of the planned batch, which is taken to be as large as the one before.
        end = 2 * position.seqno - kept[1].seqno
        far = [end - old.seqno for old in kept]
        far.append(end)
        least = min(range(1, len(kept)), key=lambda index: far[index + 1] / far[index - 1])
        del kept[least]
    older = 0
    for index in range(len(kept) - 1, 0, -1):
        kept[index] = _widened(kept[index], older, kept[index - 1].seqno)
        older = kept[index].seqno
    return tuple(kept)


def _widened(position: StreamOffset, older: int, newer: int) -> StreamOffset:
    """A position with bounds that are short to write; `older` and `newer` are the seqnos next to it."""
    start, end = min(older, position.snapshot_start), position.snapshot_end
    if position.seqno == position.snapshot_start:
        return position  # nothing of its snapshot was read, so that the bounds do not matter to a node
    if end is not None and end > position.seqno:
        power = min(position.seqno + (1 << (end - position.seqno - 1).bit_length()), MAX_SEQNO)
        end = min(power, newer) if newer >= end else power
    if start == position.snapshot_start and end == position.snapshot_end:
        return position
    return StreamOffset(position.vbuuid, position.seqno, start, end, position.manifest_uid, position.collections)


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
    """The position to ask for next after the producer answered ROLLBACK.

    Args:
        refused: the position that was refused.
        rollback_seqno: the R of the answer.
        earlier: recorded positions, in any order.

    Returns:
        The recorded position with the largest seqno at or below R and below the refused one, with its own vbuuid and
        bounds; without one, the vbucket's beginning. It always lies lower, so going back comes to an end. R = 0 says
        that the branch is not known there, which says nothing about positions of other branches.
    """
    candidates = [
        old
        for old in earlier
        if old.seqno < refused.seqno
        and (old.seqno <= rollback_seqno or (rollback_seqno == 0 and old.vbuuid != refused.vbuuid))
    ]
    best = max(candidates, key=lambda old: old.seqno, default=StreamOffset.ZERO)
    return best if best.seqno else StreamOffset.ZERO


def reachable_end(end_seqno: int, planned_vbuuid: int, state: BranchState) -> int:
    """The seqno up to which a task reads towards its planned end on the branch that it found.

    While the planned branch is the newest, the end will come, so the task waits for it. If the planned branch has
    ended below the end, those seqnos are void and the new branch may never reach them: the task reads what the new
    branch holds.

    Args:
        end_seqno: the planned end.
        planned_vbuuid: the branch it was planned on; 0 if that is not known: the task then waits.
        state: log and high seqno of the node that serves the stream now.
    """
    if planned_vbuuid in {0, state.vbuuid}:
        return end_seqno
    upper = state.failover_log.upper(planned_vbuuid, state.high_seqno)
    if upper is not None and upper >= end_seqno:
        return end_seqno
    return min(end_seqno, state.high_seqno)
