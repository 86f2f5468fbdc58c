"""Planning of a batch: pure functions from offsets and observations to an end offset and to tasks.

Uses no node, no Spark and no clock, so that every decision can be tested by itself.

Theory of operation. The end of a batch is logged before the batch is read. Three rules make that safe:

1. The end has conservative bounds (`resume.plan_end`). They are completed when a later batch is planned, from the
   answer of the vbucket's node (`resume.complete`), if the branch is still the one of the plan.
2. A position whose branch is no longer the newest is checked by the node before it is used (`suspects`). If the node
   refuses it, the batch begins at the position that the node accepts (`resume.land`). That position is written into the
   end offset, for a replay of the batch and for the bounds of its end.
3. If the branch changes between a plan and its reading, a task whose start is refused delivers no row
   (`VbucketRange.keeps_start`). So the rows that were delivered up to the start of a batch are always those of the
   recorded start, and the next plan goes back to that position, or lower.

A limit is shared out to whole vbuckets, those with the largest backlog first. A batch that ends inside a snapshot makes
the node send the rest of that snapshot in vain. With shares in proportion to the backlog, that would happen in every
vbucket of every batch, and a first load in ten steps would receive five times what it delivers. The backlog of a
waiting vbucket grows, so each gets its turn. No vbucket gets more than one task's share, so that all tasks have work.

A vbucket is not cut where the next batch could not begin. Nodes refuse positions below the purge seqno, so a first load
that is cut there would begin at 0 in every batch. The coordinator asks the nodes about the ends of `cut_vbuckets`; the
refused vbuckets are read as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpstream.client.machine.resume import RECORDED_POSITIONS, BranchState, complete, plan_end, remember
from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import OffsetError
from dcpstream.model import CollectionName, StreamOffset
from dcpstream_spark.source.offsets import Rewind, SourceOffset, VbucketOffset

ROWS_PER_TASK_MIN = 2_000
"""Least seqnos of a task: with fewer, a further task costs more (11 to 30 ms) than it saves."""

MAX_LANDING_STEPS = RECORDED_POSITIONS + 2
"""Limit of refusals of a vbucket in a row: the end, then the recorded positions. The beginning is never refused."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One vbucket's part of a batch.

    Attributes:
        range: the range to read, empty if there is only a rollback to report.
        rolled_back_from: the end of the previous batch, if this one begins with a rollback.
        new_vbuuid: the branch that is read then.
        collections: the planned collections; None if unknown.
        is_refill: whether collections that the start does not cover are read from their beginning.
        manifest_uid: of the manifest that the plan was made by.
    """

    range: VbucketRange
    rolled_back_from: StreamOffset | None = None
    new_vbuuid: int = 0
    collections: tuple[CollectionName, ...] | None = None
    is_refill: bool = False
    manifest_uid: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone, as positions do."""
        return PlannedRange, tuple(getattr(self, name) for name in PlannedRange.__slots__)

    @property
    def seqnos(self) -> int:
        """Seqnos to read, a bound of the rows."""
        return self.range.end_seqno if self.is_refill else self.range.end_seqno - self.range.start.seqno


def completed(start: SourceOffset, observed: Mapping[int, BranchState]) -> SourceOffset:
    """The offset with the ends of snapshots filled in from the observations.

    A vbucket that was not observed, or whose branch has changed, keeps its end unknown.
    """
    vbuckets = dict(start.vbuckets)
    for vbid, state in observed.items():
        entry = vbuckets.get(vbid)
        if entry is not None and entry.at.snapshot_end is None:
            at = complete(entry.at, state)
            vbuckets[vbid] = VbucketOffset(at, entry.earlier, entry.rewound, entry.refilled)
    return replace(start, vbuckets=vbuckets)


def suspects(
    start: SourceOffset, observed: Mapping[int, BranchState], *, is_all: bool = False
) -> dict[int, StreamOffset]:
    """Positions that the node must check: another branch is the newest, or it ends below the position.

    Args:
        start: `completed`.
        observed: branches now.
        is_all: whether the node must check every position that lies below its high seqno, too.
    """
    return {
        vbid: entry.at
        for vbid, entry in start.vbuckets.items()
        if entry.at.seqno
        and (state := observed.get(vbid)) is not None
        and (not state.continues(entry.at) or (is_all and entry.at.seqno < state.high_seqno))
    }


@dataclass(frozen=True, slots=True)
class BatchCollections:
    """The collections that a batch reads.

    Attributes:
        collections: those that vbuckets that move cover then; None if unknown.
        manifest_uid: of the manifest that they are from.
        is_filtered: whether others exist that are not read. A collection that a position does not cover is then read
            from its beginning; without a filter, its rows all come after the position.
    """

    collections: Sequence[CollectionName] | None = None
    manifest_uid: int = 0
    is_filtered: bool = False


UNKNOWN_COVERAGE = BatchCollections()


def plan_end_offset(
    start: SourceOffset,
    observed: Mapping[int, BranchState],
    landings: Mapping[int, StreamOffset],
    *,
    limit: int | None = None,
    target: Mapping[int, int] | None = None,
    tasks: int = 1,
    coverage: BatchCollections = UNKNOWN_COVERAGE,
    uncut: Collection[int] = (),
) -> SourceOffset:
    """The end of the next batch.

    Vbuckets that are pending first read what a change of the option `collections` added, up to their position, and move
    on in later batches. These reads come first within the limit; one vbucket is refilled even if it alone exceeds it.

    A vbucket that starts over after a purge (`starting_over`), and one of `uncut`, is read as a whole, one of them even
    if it alone exceeds the limit, and the others that exceed it do not move: nodes refuse every position below the
    purge, so a part would be read again and again.

    Args:
        start: the end of the previous batch, `completed`.
        observed: branches and high seqnos now; a vbucket that is missing does not move.
        landings: for vbuckets whose position was refused, the one that was accepted.
        limit: largest number of seqnos; None = all.
        target: vbucket → upper limit of its seqno; None = no limit. A vbucket that is missing does not move.
        tasks: number of tasks of the batch.
        coverage: the collections that the batch reads.
        uncut: vbuckets that move to the end of their backlog, or not at all.

    Returns:
        `start` itself if no vbucket moves.
    """
    collections = None if coverage.collections is None else tuple(sorted(coverage.collections))
    begin, backlog = backlog_of(start, observed, landings, target)
    refills: list[int] = []
    refilled_seqnos = 0
    for vbid in begin:
        if vbid in start.pending and vbid not in landings:
            cost = refilled_seqnos + begin[vbid].seqno
            if _is_readable(begin[vbid], observed[vbid]) and (limit is None or not refills or cost <= limit):
                refills.append(vbid)
                refilled_seqnos = cost
    whole: dict[int, int] = {}
    left = None if limit is None else max(0, limit - refilled_seqnos)
    restarted = starting_over(start, observed, landings)
    for vbid in (*restarted, *sorted(vbid for vbid in backlog if vbid in uncut and vbid not in restarted)):
        cost = backlog.pop(vbid, 0)
        if left is not None and whole and cost > left:
            landings = {other: at for other, at in landings.items() if other != vbid}
        else:
            whole[vbid] = cost
            left = None if left is None else max(0, left - cost)
    takes = {**share_out(backlog, left, tasks), **whole}
    if not takes and not landings and not refills:
        return start
    vbuckets: dict[int, VbucketOffset] = {}
    for vbid, entry in start.vbuckets.items():
        take = takes.get(vbid, 0)
        if vbid in landings:
            planned = _rewound(entry, begin[vbid], observed[vbid].vbuuid, take, collections)
        elif take:
            at = _planned(begin[vbid], take, observed[vbid].vbuuid, collections)
            planned = VbucketOffset(at, remember(entry.earlier, begin[vbid]))
        elif vbid not in refills:
            is_plain = entry.rewound is None and entry.refilled is None
            vbuckets[vbid] = entry if is_plain else VbucketOffset(entry.at, entry.earlier)
            continue
        else:
            planned = VbucketOffset(replace(begin[vbid], vbuuid=observed[vbid].vbuuid).with_collections(collections))
        if vbid in refills or (take and coverage.is_filtered and _grows(begin[vbid], collections)):
            planned = _refilled(planned, begin[vbid])
        if planned.at.manifest_uid < coverage.manifest_uid:
            planned = replace(planned, at=replace(planned.at, manifest_uid=coverage.manifest_uid))
        vbuckets[vbid] = planned
    # A rollback that leaves nothing for this batch to read leaves the refill to a later one.
    rolled_back = (vbid for vbid in landings if takes.get(vbid) or not begin[vbid].seqno)
    pending = start.pending.difference(refills, rolled_back)
    return SourceOffset(start.bucket, start.collections, vbuckets, bucket_uuid=start.bucket_uuid, pending=pending)


def starting_over(
    start: SourceOffset, observed: Mapping[int, BranchState], landings: Mapping[int, StreamOffset]
) -> list[int]:
    """Vbuckets whose position was refused although their branch is unchanged: deletions after it were purged.

    The arguments are those of `plan_end_offset`.
    """
    return [vbid for vbid, at in landings.items() if not at.seqno and observed[vbid].continues(start.vbuckets[vbid].at)]


def cut_vbuckets(
    end: SourceOffset,
    begin: Mapping[int, StreamOffset],
    backlog: Mapping[int, int],
    observed: Mapping[int, BranchState],
) -> dict[int, StreamOffset]:
    """Vbuckets that a planned batch moves only a part of their way, with a position at that end that is complete.

    Args:
        end: of the batch.
        begin, backlog: of `backlog_of`.
        observed: branches of the plan.
    """
    return {
        vbid: StreamOffset(observed[vbid].vbuuid, seqno, seqno, seqno)
        for vbid, waiting in backlog.items()
        if begin[vbid].seqno < (seqno := end.vbuckets[vbid].at.seqno) < begin[vbid].seqno + waiting
    }


def backlog_of(
    start: SourceOffset,
    observed: Mapping[int, BranchState],
    landings: Mapping[int, StreamOffset],
    target: Mapping[int, int] | None,
) -> tuple[dict[int, StreamOffset], dict[int, int]]:
    """The beginning of each observed vbucket, and the seqnos by which those that can move could move.

    Pending vbuckets have no backlog: they are refilled first. The arguments are those of `plan_end_offset`.
    """
    begin: dict[int, StreamOffset] = {}
    backlog: dict[int, int] = {}
    for vbid, state in observed.items():
        if vbid not in start.vbuckets:
            continue
        begin[vbid] = landings.get(vbid, start.vbuckets[vbid].at)
        if vbid in start.pending and vbid not in landings:
            continue
        high = state.high_seqno if target is None else min(state.high_seqno, target.get(vbid, 0))
        if high > begin[vbid].seqno and (vbid in landings or _is_readable(begin[vbid], state)):
            backlog[vbid] = high - begin[vbid].seqno
    return begin, backlog


def _grows(begin: StreamOffset, collections: Sequence[CollectionName] | None) -> bool:
    """Whether a batch from here reads a collection that the position does not cover."""
    if not begin.seqno or begin.collections is None or collections is None:
        return False
    return not set(collections) <= set(begin.collections)


def _refilled(planned: VbucketOffset, begin: StreamOffset) -> VbucketOffset:
    """The end of a batch that reads new collections from their beginning.

    Their rows are deduplicated up to now, so the snapshot of the end begins at 0. Older recorded positions are given
    up: they do not cover the new collections, whose rows would be delivered a second time after a return to them.
    """
    at = replace(planned.at, snapshot_start=0, snapshot_end=None)
    return VbucketOffset(at, (), planned.rewound, None if planned.rewound is not None else begin)


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
    start: SourceOffset, end: SourceOffset, *, keeps_start: bool, is_first: bool = False, is_replayed: bool = True
) -> list[PlannedRange]:
    """The ranges between two offsets, one for each vbucket that moves.

    Args:
        start: the logged end of the previous batch, possibly with unknown ends of snapshots.
        end: the end of this batch; its recorded positions hold the completed start.
        keeps_start: tasks may not go below their starts, because a later plan takes care of a lost branch. False for a
            read without a later plan, and where a rollback reads the vbucket from zero anyway.
        is_first: the user gave `start`; a reader up to there may have read beyond it.
        is_replayed: the batch repeats a failed attempt. A sink may have rows of that attempt, which was read on the
            branch of the plan.

    Raises:
        OffsetError: an end lies below its start.
    """
    if end.is_reset:
        return _ranges_of_another_bucket(start, end, is_replayed=is_replayed)
    ranges: list[PlannedRange] = []
    for vbid, entry in end.vbuckets.items():
        before = start.vbuckets[vbid].at if vbid in start.vbuckets else StreamOffset.ZERO
        # Spark 4.0 and 4.1 also ask for the ranges between an offset and itself.
        is_refill = entry.refilled is not None and before.collections != entry.at.collections
        is_refill = is_refill or (entry.rewound is None and _is_other_filter(start, before, end, entry.at))
        is_same = entry == start.vbuckets.get(vbid) or (entry.rewound is None and same_place(before, entry.at))
        if is_same and not is_refill:
            continue
        if entry.refilled is not None:
            begin, rolled_back_from, new_vbuuid = entry.refilled, None, 0
        elif entry.rewound is not None:
            begin, rolled_back_from, new_vbuuid = entry.rewound.to, before, entry.rewound.vbuuid
        else:
            begin, rolled_back_from, new_vbuuid = before, None, 0
            if entry.earlier and same_place(entry.earlier[0], before):
                begin = entry.earlier[0]
        if entry.at.seqno < begin.seqno:
            raise OffsetError(
                f"vbucket {vbid}: the planned end, seqno {entry.at.seqno}, lies below the start, seqno {begin.seqno}: "
                "the two offsets of the checkpoint do not belong together. Restore the checkpoint, or start the query "
                "with another checkpointLocation (and empty tables)."
            )
        # Nothing was read beyond the end of a committed batch, so only attempts of this one can have void rows.
        given = entry.at.vbuuid if is_replayed else 0
        if is_first and rolled_back_from is None:
            given = begin.vbuuid or given
        planned = VbucketRange(
            vbid, begin, entry.at.seqno, end_vbuuid=entry.at.vbuuid, given_vbuuid=given, keeps_start=keeps_start
        )
        at, uid = entry.at, entry.at.manifest_uid
        ranges.append(PlannedRange(planned, rolled_back_from, new_vbuuid, at.collections, is_refill, uid))
    return ranges


def _ranges_of_another_bucket(start: SourceOffset, end: SourceOffset, *, is_replayed: bool) -> list[PlannedRange]:
    """The ranges of a batch that starts over: all rows of the old vbuckets are void, also of those that are gone."""
    if start == end:
        return []
    ranges: list[PlannedRange] = []
    for vbid in sorted({*start.vbuckets, *end.vbuckets}):
        before = start.vbuckets[vbid].at if vbid in start.vbuckets else StreamOffset.ZERO
        at = end.vbuckets[vbid].at if vbid in end.vbuckets else StreamOffset.ZERO
        if not before.seqno and not at.seqno:
            continue
        planned = VbucketRange(vbid, StreamOffset.ZERO, at.seqno, (), at.vbuuid, at.vbuuid if is_replayed else 0)
        ranges.append(
            PlannedRange(planned, before if before.seqno else None, at.vbuuid, at.collections, False, at.manifest_uid)
        )
    return ranges


def _is_other_filter(start: SourceOffset, before: StreamOffset, end: SourceOffset, at: StreamOffset) -> bool:
    """Whether the filter changed between two offsets, the second of which was planned without the first."""
    if start.collections == end.collections or end.pending or not before.seqno:
        return False
    return None not in {before.collections, at.collections} and before.collections != at.collections


def balance(
    ranges: Sequence[PlannedRange], node_of: Mapping[int, str], tasks: int, least: int = 1
) -> list[tuple[str, tuple[PlannedRange, ...]]]:
    """The ranges as tasks: each of one node, of about the same size, a vbucket never split.

    Args:
        ranges: of the batch.
        node_of: vbucket → a name for its node; vbuckets without one share the name "".
        tasks: largest number of tasks; each node gets at least one.
        least: number of tasks also for small batches, if there are as many ranges.
    Returns: (node, ranges) of each task.
    """
    per_node: dict[str, list[PlannedRange]] = {}
    for planned in ranges:
        per_node.setdefault(node_of.get(planned.range.vbid, ""), []).append(planned)
    total = sum(planned.seqnos for planned in ranges)
    tasks = max(1, least, min(tasks, -(-total // ROWS_PER_TASK_MIN)))
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


def _planned(
    begin: StreamOffset, take: int, vbuuid: int, collections: tuple[CollectionName, ...] | None
) -> StreamOffset:
    return plan_end(begin, begin.seqno + take, vbuuid, collections)


def _rewound(
    entry: VbucketOffset, begin: StreamOffset, vbuuid: int, take: int, collections: tuple[CollectionName, ...] | None
) -> VbucketOffset:
    below = tuple(old for old in entry.earlier if old.seqno < begin.seqno)
    rewind = Rewind(begin, vbuuid)
    if not take:
        return VbucketOffset(begin, below, rewind)
    return VbucketOffset(_planned(begin, take, vbuuid, collections), remember(below, begin), rewind)


def same_place(one: StreamOffset, other: StreamOffset) -> bool:
    """The same position, whether or not its snapshot's end is known."""
    return (one.vbuuid, one.seqno, one.snapshot_start) == (other.vbuuid, other.seqno, other.snapshot_start)
