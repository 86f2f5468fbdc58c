"""Planning of a batch: pure functions from offsets and observations to an end offset and to tasks.

Uses no node, no Spark and no clock, so that every decision can be tested by itself.

Theory of operation. The end of a batch is logged before the batch is read. Three rules make that safe:

1. The end has conservative bounds (`resume.plan_end`). They are completed when a later batch is planned, from the
   answer of the vbucket's node (`resume.complete`), if the branch is still the one of the plan.
2. A position whose branch is no longer the newest is checked by the node before it is used (`suspects`). If the node
   refuses it, the batch begins at the position that the node accepts (`resume.land`). That position is written into the
   end offset, for a replay of the batch and for the bounds of its end.
3. If the branch changed between a plan and the next one, a task may have met the new branch and gone back to a position
   that no offset records. Recorded positions then no longer describe the delivered rows, so the vbucket is read from
   its beginning.

A limit is shared out to whole vbuckets, those with the largest backlog first. A batch that ends inside a snapshot makes
the node send the rest of that snapshot in vain. With shares in proportion to the backlog, that would happen in every
vbucket of every batch, and a first load in ten steps would receive five times what it delivers. The backlog of a
waiting vbucket grows, so none starves. No vbucket gets more than one task's share, so that all tasks have work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dcpstream.client.machine.resume import BranchState, complete, plan_end, remember
from dcpstream.client.machine.values import VbucketRange
from dcpstream.model import CollectionName, StreamOffset
from dcpstream.spark.offsets import Rewind, SourceOffset, VbucketOffset

ROWS_PER_TASK_MIN = 2_000
"""Least seqnos of a task: with fewer, a further task costs more (11 to 30 ms) than it saves."""

MAX_LANDING_STEPS = 8
"""Limit of refusals of a vbucket in a row: four recorded positions, then the beginning, which is never refused."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One vbucket's part of a batch.

    Attributes:
        range: the range to read, empty if there is only a rollback to report.
        rolled_back_from: the end of the previous batch, if this one begins with a rollback.
        new_vbuuid: the branch that is read then.
        collections: the planned collections; None if unknown.
    """

    range: VbucketRange
    rolled_back_from: StreamOffset | None = None
    new_vbuuid: int = 0
    collections: tuple[CollectionName, ...] | None = None

    @property
    def seqnos(self) -> int:
        """Seqnos to read, a bound of the rows."""
        return self.range.end_seqno - self.range.start.seqno


def completed(start: SourceOffset, observed: Mapping[int, BranchState]) -> SourceOffset:
    """The offset with the ends of snapshots filled in from the observations.

    A vbucket that was not observed, or whose branch has changed, keeps its end unknown.
    """
    vbuckets = {
        vbid: replace(entry, at=complete(entry.at, observed.get(vbid))) for vbid, entry in start.vbuckets.items()
    }
    return replace(start, vbuckets=vbuckets)


def suspects(start: SourceOffset, observed: Mapping[int, BranchState]) -> dict[int, StreamOffset]:
    """Positions that the node must check: another branch is the newest, or it ends below the position."""
    return {
        vbid: entry.at
        for vbid, entry in start.vbuckets.items()
        if entry.at.seqno and (state := observed.get(vbid)) is not None and not state.continues(entry.at)
    }


def plan_end_offset(
    start: SourceOffset,
    observed: Mapping[int, BranchState],
    landings: Mapping[int, StreamOffset],
    *,
    limit: int | None = None,
    target: Mapping[int, int] | None = None,
    tasks: int = 1,
    collections: Sequence[CollectionName] | None = None,
) -> SourceOffset:
    """The end of the next batch.

    Args:
        start: the end of the previous batch, `completed`.
        observed: branches and high seqnos now; a vbucket that is missing does not move.
        landings: for vbuckets whose position was refused, the one that was accepted.
        limit: largest number of seqnos; None = all.
        target: vbucket → upper limit of its seqno; None = no limit. A vbucket that is missing does not move.
        tasks: number of tasks of the batch.
        collections: those that the batch reads, and that vbuckets that move cover then. None if unknown.

    Returns:
        `start` itself if no vbucket moves.
    """
    begin: dict[int, StreamOffset] = {}
    backlog: dict[int, int] = {}
    for vbid, state in observed.items():
        if vbid not in start.vbuckets:
            continue
        begin[vbid] = landings.get(vbid, start.vbuckets[vbid].at)
        high = state.high_seqno if target is None else min(state.high_seqno, target.get(vbid, 0))
        if high > begin[vbid].seqno and (vbid in landings or _is_readable(begin[vbid], state)):
            backlog[vbid] = high - begin[vbid].seqno
    takes = share_out(backlog, limit, tasks)
    if not takes and not landings:
        return start
    vbuckets: dict[int, VbucketOffset] = {}
    for vbid, entry in start.vbuckets.items():
        take = takes.get(vbid, 0)
        if vbid in landings:
            vbuckets[vbid] = _rewound(entry, begin[vbid], observed[vbid].vbuuid, take, collections)
        elif take:
            at = _planned(begin[vbid], take, observed[vbid].vbuuid, collections)
            vbuckets[vbid] = VbucketOffset(at, remember(entry.earlier, begin[vbid]))
        else:
            vbuckets[vbid] = replace(entry, rewound=None)
    return SourceOffset(start.bucket, start.collections, vbuckets)


def share_out(backlog: Mapping[int, int], limit: int | None, tasks: int = 1) -> dict[int, int]:
    """The seqnos by which each vbucket may move; see the module's docstring.

    Args:
        backlog: vbucket → seqnos that it could move, above 0.
        limit: of their sum; None = all.
        tasks: number of tasks.
    Returns: vbucket → seqnos, only those above 0.
    """
    if limit is None or sum(backlog.values()) <= limit:
        return dict(backlog)
    most = max(1, -(-limit // max(1, tasks)))
    left = limit
    takes: dict[int, int] = {}
    # Backlogs of similar size are taken in the order of vbuckets, so that a batch holds neighbours and touches few
    # files of a table that is laid out by vbucket.
    for vbid in sorted(backlog, key=lambda vbid: (-backlog[vbid].bit_length(), vbid)):
        take = min(backlog[vbid], most, left)
        if take == 0:
            break
        takes[vbid] = take
        left -= take
    return takes


def planned_ranges(
    start: SourceOffset, end: SourceOffset, *, to_zero: bool, is_first: bool = False, is_replayed: bool = True
) -> list[PlannedRange]:
    """The ranges between two offsets, one for each vbucket that moves.

    Args:
        start: the logged end of the previous batch, possibly with unknown ends of snapshots.
        end: the end of this batch; its recorded positions hold the completed start.
        to_zero: tasks may not use recorded positions.
        is_first: the user gave `start`; a reader up to there may have read beyond it.
        is_replayed: the batch repeats a failed attempt. A sink may have rows of that attempt, which was read on the
            branch of the plan.
    """
    ranges: list[PlannedRange] = []
    for vbid, entry in end.vbuckets.items():
        before = start.vbuckets[vbid].at if vbid in start.vbuckets else StreamOffset.ZERO
        if same_place(before, entry.at):
            continue
        if entry.rewound is not None:
            begin, rolled_back_from, new_vbuuid = entry.rewound.to, before, entry.rewound.vbuuid
        else:
            begin, rolled_back_from, new_vbuuid = before, None, 0
            for old in entry.earlier:
                if same_place(old, before):
                    begin = old
        earlier = () if to_zero else tuple(old for old in entry.earlier if old.seqno < begin.seqno)
        # Nothing was read beyond the end of a committed batch, so only attempts of this one can have void rows.
        given = entry.at.vbuuid if is_replayed else 0
        if is_first and rolled_back_from is None:
            given = begin.vbuuid or given
        planned = VbucketRange(vbid, begin, entry.at.seqno, earlier, entry.at.vbuuid, given)
        ranges.append(PlannedRange(planned, rolled_back_from, new_vbuuid, entry.at.collections))
    return ranges


def balance(
    ranges: Sequence[PlannedRange], node_of: Mapping[int, str], tasks: int
) -> list[tuple[str, tuple[PlannedRange, ...]]]:
    """The ranges as tasks: each of one node, of about the same size, a vbucket never split.

    Args:
        ranges: of the batch.
        node_of: vbucket → a name for its node; vbuckets without one share the name "".
        tasks: largest number of tasks; each node gets at least one.
    Returns: (node, ranges) of each task.
    """
    per_node: dict[str, list[PlannedRange]] = {}
    for planned in ranges:
        per_node.setdefault(node_of.get(planned.range.vbid, ""), []).append(planned)
    total = sum(planned.seqnos for planned in ranges)
    tasks = max(1, min(tasks, -(-total // ROWS_PER_TASK_MIN)))
    result: list[tuple[str, tuple[PlannedRange, ...]]] = []
    for node, members in sorted(per_node.items()):
        weight = sum(planned.seqnos for planned in members)
        count = max(1, min(len(members), round(tasks * weight / total) if total else 1))
        bins: list[tuple[int, list[PlannedRange]]] = [(0, []) for _ in range(count)]
        for planned in sorted(members, key=lambda planned: (-planned.seqnos, planned.range.vbid)):
            lightest = min(range(count), key=lambda index: (bins[index][0], index))
            bins[lightest][1].append(planned)
            bins[lightest] = (bins[lightest][0] + planned.seqnos, bins[lightest][1])
        result.extend((node, tuple(members)) for _, members in bins if members)
    return result


def _is_readable(at: StreamOffset, state: BranchState) -> bool:
    """Whether a position that was not refused may be read from: it is complete, or was never suspect."""
    return at.snapshot_end is not None or state.continues(at)


def _planned(begin: StreamOffset, take: int, vbuuid: int, collections: Sequence[CollectionName] | None) -> StreamOffset:
    return plan_end(begin, begin.seqno + take, vbuuid).with_collections(collections)


def _rewound(
    entry: VbucketOffset, begin: StreamOffset, vbuuid: int, take: int, collections: Sequence[CollectionName] | None
) -> VbucketOffset:
    below = tuple(old for old in entry.earlier if old.seqno < begin.seqno)
    rewind = Rewind(begin, vbuuid)
    if not take:
        return VbucketOffset(begin, below, rewind)
    return VbucketOffset(_planned(begin, take, vbuuid, collections), remember(below, begin), rewind)


def same_place(one: StreamOffset, other: StreamOffset) -> bool:
    """The same position, whether or not its snapshot's end is known."""
    return (one.vbuuid, one.seqno, one.snapshot_start) == (other.vbuuid, other.seqno, other.snapshot_start)
