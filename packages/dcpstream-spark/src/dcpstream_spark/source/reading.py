"""The reader of one task in an executor: its ranges, as RecordBatches for Spark.

A planned rollback begins with its control row. If a node requires a rollback only now, because a failover happened
between planning and reading, the client's reader yields an event before the first row of the vbucket.

A task also reports a failover after which its position is still valid. Spark repeats a failed batch, and a sink without
transactions keeps rows of the failed attempt; those above the task's position may be void on the new branch. Spark does
not say whether there was such an attempt, so the control row is sent whenever the branch that is read is not the branch
of the plan. After a committed batch no such row is needed, because nothing was read beyond its end.
"""

from __future__ import annotations

import logging
import pickle
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dcpstream.arrow import ControlRow, RowFilter, control_rows
from dcpstream.client.blocking.bucket_reader import BucketReader
from dcpstream.client.machine.reader.batches import events_batch, rollback_batch
from dcpstream.client.machine.reader.selection import FixedSelection, Selection
from dcpstream.client.machine.values import (
    CollectionEvents,
    ReaderOutput,
    RollbackEvent,
    RowsRead,
    VbucketEvent,
    VbucketRange,
)
from dcpstream.errors import BucketReset, RollbackRequired
from dcpstream.model import Op, StreamOffset
from dcpstream.runtime import Clock, SystemClock
from dcpstream_spark import pool
from dcpstream_spark.including import SNAPSHOT_MARKS
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.bucket_reset import reset_message
from dcpstream_spark.source.coordinator import branch_message, open_cluster, rollback_message
from dcpstream_spark.source.planner import PlannedRange
from dcpstream_spark.source.prefetch import prefetched
from dcpstream_spark.source.schema import Layout, default_schema
from dcpstream_spark.source.spool import SpoolFile
from dcpstream_spark.source.task_notes import TaskNotes

WINDOW_BYTES_PER_SEQNO = 64
"""Largest flow-control window per seqno of a task. When a range ends inside a snapshot, a node then sends in vain at
most a fifth of the delivered bytes, for rows of 250 bytes, also in small batches."""

WINDOW_BYTES_MIN = 128 * 1024
"""Smallest flow-control window, because every acknowledgement is a round trip."""

PREFETCH_SEQNOS_MIN = 5_000
"""Least seqnos of a task that reads ahead in a thread."""


_log = logging.getLogger(__name__)


@dataclass(eq=False)
class DcpPartition(InputPartition):
    """One task: ranges of vbuckets that one node holds.

    Attributes:
        node: its name, for display.
        ranges: at most one per vbucket.
        bucket_uuid: of the bucket that the batch was planned for; empty if it is not known.
        spool: the file of its rows, if they are kept for a replay.
        is_narrowed: whether the nodes send only the collections of the plan.
    """

    node: str
    ranges: tuple[PlannedRange, ...]
    bucket_uuid: str = ""
    spool: SpoolFile | None = None
    is_narrowed: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle compressed: Spark sends a task with every attempt, and logs large ones."""
        packed = zlib.compress(pickle.dumps(self.ranges, pickle.HIGHEST_PROTOCOL), 1)
        return _unpacked, (self.node, packed, self.bucket_uuid, self.spool, self.is_narrowed)

    def __repr__(self) -> str:
        """A short text, because Spark prints partitions."""
        return f"DcpPartition({self.node}, {len(self.ranges)} vbuckets)"


def _unpacked(node: str, packed: bytes, bucket_uuid: str, spool: SpoolFile | None, is_narrowed: bool) -> DcpPartition:
    ranges = pickle.loads(zlib.decompress(packed))  # noqa: S301 - within Spark's own pickle
    return DcpPartition(node, ranges, bucket_uuid, spool, is_narrowed)


def read_partition(
    options: SourceOptions,
    partition: DcpPartition,
    *,
    layout: Layout | None = None,
    connect: Callable[[SourceOptions], BucketReader] = open_cluster,
    clock: Clock | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, as batches with exactly the declared schema.

    Per vbucket in seqno order, after a control row if there was a rollback.

    Args:
        options: of the query.
        partition: the task.
        layout: the declared schema; by default the source's own.
        connect: makes the cluster.
        clock: for the times of control rows.

    Raises:
        BucketReset: the bucket is another one than that of the plan, and onBucketReset is fail.
        FieldError: a document does not fit the schema, and mode is FAILFAST.
        HistoryPurged: deletions were purged before they were read, and purgeGap is fail.
        RollbackRequired: a node requires a rollback, and onRollback is fail or rows were already read.
        ConnectionLost: a node stays away for longer than idleTimeout.
    """
    layout = layout or Layout(default_schema(options), options)
    clock = clock or SystemClock()
    controls = _ControlRows(layout, options.row_filter, clock)
    for planned in partition.ranges:
        if planned.rolled_back_from is not None:
            start = planned.range.start
            event = RollbackEvent(
                vbid=planned.range.vbid,
                from_seqno=planned.rolled_back_from.seqno,
                to_seqno=start.seqno,
                old_vbuuid=planned.rolled_back_from.vbuuid,
                new_vbuuid=planned.new_vbuuid,
                resumed_at=start,
            )
            yield from controls.of_rollback(event)
    for is_refill in (True, False):
        members = [planned for planned in partition.ranges if planned.seqnos > 0 and planned.is_refill is is_refill]
        if members:
            yield from _read_members(options, partition, members, layout, controls, connect)


def _read_members(
    options: SourceOptions,
    partition: DcpPartition,
    members: Sequence[PlannedRange],
    layout: Layout,
    controls: _ControlRows,
    connect: Callable[[SourceOptions], BucketReader],
) -> Iterator[pa.RecordBatch]:
    """The rows of ranges that are read with one selection of collections."""
    ranges = [planned.range for planned in members]
    seqnos = sum(planned.seqnos for planned in members)
    selection = fixed_selection(options, members, is_narrowed=partition.is_narrowed)
    window = window_bytes(seqnos, options.flow_control_buffer_bytes)
    items = _read(options, layout, selection, ranges, window, connect, partition.bucket_uuid)
    ahead = prefetched(items) if seqnos >= PREFETCH_SEQNOS_MIN else items
    has_marks = SNAPSHOT_MARKS in options.include
    reached: dict[int, StreamOffset] = {}
    notes = TaskNotes.of(options.checkpoint_location)
    kept_starts = {one.vbid: one.start.seqno for one in ranges if one.keeps_start}
    for item in _explained(ahead, options, ranges):
        match item:
            case RowsRead():
                if has_marks:  # positions are made when they are asked for
                    reached.update(item.offsets)
                if item.rows.num_rows and (batch := layout.batch(item.rows)).num_rows:
                    yield batch
            case RollbackEvent():
                if options.on_rollback == "fail":
                    if item.from_seqno == item.to_seqno:
                        raise RollbackRequired(item.vbid, item.to_seqno, branch_message(item.vbid, item.to_seqno))
                    raise _refused(item.vbid, item.to_seqno, ranges)
                if notes is not None and item.to_seqno < kept_starts.get(item.vbid, 0):
                    notes.went_below(item.vbid, kept_starts[item.vbid])
                yield from controls.of_rollback(item)
            case CollectionEvents():
                yield from controls.of_events(item.events)
            case _:
                assert_never(item)
    if has_marks and reached:
        yield from controls.of_snapshots(reached)


class _ControlRows:
    """Control rows in the declared schema, if the filter keeps them."""

    def __init__(self, layout: Layout, row_filter: RowFilter | None, clock: Clock) -> None:
        self._layout = layout
        self._filter = row_filter
        self._clock = clock
        self._columns = layout.columns if row_filter is None else (*layout.columns, *row_filter.control_columns)

    def of_rollback(self, event: RollbackEvent) -> Iterator[pa.RecordBatch]:
        yield from self._shown(rollback_batch(event, self._layout.value_format, self._columns, self._clock.time_ns()))

    def of_events(self, events: Sequence[VbucketEvent]) -> Iterator[pa.RecordBatch]:
        yield from self._shown(events_batch(events, self._layout.value_format, self._columns, self._clock.time_ns()))

    def of_snapshots(self, reached: Mapping[int, StreamOffset]) -> Iterator[pa.RecordBatch]:
        rows = [
            ControlRow(
                Op.SNAPSHOT,
                vbid,
                at.seqno,
                at.vbuuid,
                {
                    "snapshot_start": str(at.snapshot_start),
                    "snapshot_end": None if at.snapshot_end is None else str(at.snapshot_end),
                    "is_whole": not at.is_inside_snapshot,
                },
            )
            for vbid, at in sorted(reached.items())
        ]
        time_s = self._clock.time_ns() / 1e9
        yield from self._shown(
            control_rows(rows, time=time_s, value_format=self._layout.value_format, columns=self._columns)
        )

    def _shown(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._filter is not None:
            batch = self._filter.control_rows(batch)
        if batch.num_rows:
            yield self._layout.batch(batch)


def fixed_selection(
    options: SourceOptions, members: Sequence[PlannedRange], *, is_narrowed: bool = False
) -> Selection | FixedSelection:
    """The collections of a task: those of its plan, without later ones.

    Args:
        options: of the query.
        members: the ranges; a refill names its collections also if the query reads all.
        is_narrowed: the plan has only the collections that the filter names.
    """
    if any(planned.collections is None for planned in members):
        return Selection(options.collections)
    if options.collections is None and not is_narrowed and not any(planned.is_refill for planned in members):
        return FixedSelection(None)
    names = tuple(sorted({name for planned in members for name in planned.collections or ()}))
    return FixedSelection(names, max((planned.manifest_uid for planned in members), default=0))


def _explained(
    items: Iterator[ReaderOutput[pa.RecordBatch]], options: SourceOptions, ranges: list[VbucketRange]
) -> Iterator[ReaderOutput[pa.RecordBatch]]:
    """The items; a rollback in the middle of a vbucket gets a message for users of Spark."""
    try:
        yield from items
    except RollbackRequired as error:
        if options.on_rollback == "fail":
            raise _refused(error.vbid, error.seqno, ranges) from error
        raise RollbackRequired(error.vbid, error.seqno, repeat_message(error.vbid, error.seqno)) from error
    except BucketReset as error:
        cause = str(error).partition(":")[0]
        if options.on_bucket_reset == "fail":
            raise BucketReset(reset_message(cause)) from error
        # The next batch is planned for the new bucket. It takes back all rows of the old one.
        _log.warning("%s: its rows of this batch are left out", cause)


def _refused(vbid: int, seqno: int, ranges: list[VbucketRange]) -> RollbackRequired:
    refused = next(one.start for one in ranges if one.vbid == vbid)
    return RollbackRequired(vbid, seqno, rollback_message(vbid, refused, seqno))


def repeat_message(vbid: int, seqno: int) -> str:
    """The message for a task that must be repeated because rows that it has yielded are void."""
    return (
        f"vbucket {vbid}: a node lost changes above seqno {seqno} while this task was reading them, and some of them "
        "were given to Spark already. Nothing is wrong with the options: when the task is run again, it goes back by "
        "itself. Spark runs a failed task again up to spark.task.maxFailures times, but never with the master "
        "local[N]. There a streaming query goes back by itself only if the task reads no more than 1 GiB: give "
        "maxOffsetsPerTrigger, or use local[N,4], as dcpstream_spark.build_session does."
    )


def _read(
    options: SourceOptions,
    layout: Layout,
    selection: Selection | FixedSelection,
    ranges: list[VbucketRange],
    window: int,
    connect: Callable[[SourceOptions], BucketReader],
    bucket_uuid: str,
) -> Generator[ReaderOutput[pa.RecordBatch], None, None]:
    with pool.borrowed(options, connect) as cluster:
        yield from cluster.read_ranges(
            ranges,
            options.stream_options(layout.value_format, layout.columns),
            selection=selection,
            buffer_bytes=window,
            bucket_uuid=bucket_uuid,
            row_filter=options.row_filter,
            missing="drop",
        )


def window_bytes(seqnos: int, most: int) -> int:
    """The flow-control window of a task.

    There are few sizes, because a pooled connection keeps the window of its opening.

    Args:
        seqnos: number of seqnos of the task.
        most: the user's limit.
    """
    window = WINDOW_BYTES_MIN
    while window * 4 <= WINDOW_BYTES_PER_SEQNO * seqnos:
        window *= 4
    return most if window * 4 > most else window
