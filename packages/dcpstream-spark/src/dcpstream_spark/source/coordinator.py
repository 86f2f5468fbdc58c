"""The driver's side of the source: it asks the cluster and plans batches by the planner's rules.

Holds one `BucketReader` for the life of a query. Does not use Spark's classes.

It caches the ends of snapshots that were completed while a query was idle (`_completed`), so that a failover of an idle
vbucket costs no rollback. The cache never changes a result.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dcpstream.arrow import RowFilter
from dcpstream.client.blocking.bucket_reader import BucketReader
from dcpstream.client.machine.reader.selection import Selection, unknown_names
from dcpstream.client.machine.resume import BranchState, step_back
from dcpstream.client.machine.rollback_policy import OnPurgeGap
from dcpstream.client.machine.values import Accepted, ReaderOutput, RollbackTo, RowsRead, VbucketRange
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import AuthenticationFailed, BucketReset, ConnectionLost, RollbackRequired
from dcpstream.model import CollectionName, Manifest, StreamOffset, VbucketMap
from dcpstream.runtime import Clock, SystemClock
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source import planner
from dcpstream_spark.source.admission import Limits, SizeEstimate
from dcpstream_spark.source.bucket_reset import another_bucket, flushed, may_be_flushed, reset_message
from dcpstream_spark.source.lag import Lag
from dcpstream_spark.source.narrowing import last_seqno, wanted_collections
from dcpstream_spark.source.offsets import SourceOffset, VbucketOffset, is_start_marker, start_marker
from dcpstream_spark.source.planner import PlannedRange
from dcpstream_spark.source.starting import end_seqnos, require_all, start_positions
from dcpstream_spark.source.task_notes import Notes, TaskNotes

if TYPE_CHECKING:
    import pyarrow as pa

RETRY_INTERVAL_S = 0.2
"""Pause between two requests to a cluster that does not answer."""

FULL_OBSERVATION_INTERVAL_S = 5.0
"""Longest time between two requests for the branches of all vbuckets, not only of those whose high seqno moved: a
failover may leave a vbucket at the same seqno."""

SAMPLE_WINDOW_BYTES = 128 * 1024
"""Flow-control window of the reads that sample sizes: what a node may send in vain at the end of each."""

PARSED_OFFSETS = 3
"""Offsets whose texts are not parsed again: start and end of the batch that is read, and the next end."""

MAX_CUT_CHECKS = 4
"""Times that a batch is planned again because nodes refuse ends at which the limit cuts vbuckets. Each time reads some
of them as a whole, which leaves less room for others. An end that is not checked costs a second reading, and no row."""

MAX_NAMES = 2_000
"""Limit of collection names in an offset; the newest are kept. A bucket holds up to 1,200 collections."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


class BucketView(Protocol):
    """The part of `dcpstream.client.blocking.bucket_reader.BucketReader` that the coordinator uses."""

    @property
    def map(self) -> VbucketMap:
        """The newest cluster map."""
        ...

    def high_seqnos(self) -> dict[int, int]:
        """Vbucket → high seqno."""
        ...

    def observe(
        self, vbids: Iterable[int] | None = None, *, high_seqnos: Mapping[int, int] | None = None
    ) -> dict[int, BranchState]:
        """Branch and high seqno of vbuckets, each as one observation."""
        ...

    def check_positions(
        self, positions: Mapping[int, StreamOffset], *, purge_gap: OnPurgeGap | None = None
    ) -> dict[int, Accepted | RollbackTo]:
        """The nodes' answers to positions."""
        ...

    def manifest(self, least_uid: int = 0) -> Manifest:
        """The bucket's scopes and collections, in this version or a newer one."""
        ...

    def read_ranges(
        self,
        ranges: Sequence[VbucketRange],
        options: StreamOptions,
        *,
        selection: Selection,
        buffer_bytes: int,
    ) -> Iterator[ReaderOutput[pa.RecordBatch]]:
        """The rows of ranges, for a sample."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def open_cluster(options: SourceOptions) -> BucketReader:
    """A cluster for these options; connects when it is first used."""
    return BucketReader(
        options.connection_string,
        username=options.username,
        password=options.password,
        bucket=options.bucket,
        options=options.client_options,
    )


class Coordinator:
    """Plans batches of one query or of one batch read.

    Args:
        options: checked.
        connect: makes the cluster.
        clock: for the time that a cluster may stay away.
        default_start: startingOffsets without a value of the user.
        notes: of tasks; by default those in the option checkpointLocation.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        default_start: OffsetSpec,
        connect: Callable[[SourceOptions], BucketView] = open_cluster,
        clock: Clock | None = None,
        notes: Notes | None = None,
    ) -> None:
        self._options = options
        self._notes = notes or TaskNotes.of(options.checkpoint_location)
        self._selection = Selection(options.collections)
        self._start = options.starting_offsets or default_start
        self._connect = connect
        self._clock = clock or SystemClock()
        self._cluster_or_none: BucketView | None = None
        self._completed: dict[int, StreamOffset] = {}
        self._target: dict[int, int] | None = None
        self._planned: SourceOffset | None = None
        self._sizes = SizeEstimate()
        self._last_batch_at: float | None = None
        self._missing_since: float | None = None
        self._parsed: deque[tuple[Any, SourceOffset]] = deque(maxlen=PARSED_OFFSETS)
        self._away_since: float | None = None
        self._observed_all: tuple[float, tuple[int, int]] | None = None
        self._has_asked = False
        self._narrowed: tuple[CollectionName, ...] | None = None
        self._uncut: set[int] = set()

    @property
    def tasks(self) -> int:
        """The largest number of tasks of a batch."""
        return self._options.num_partitions or os.cpu_count() or 1

    @property
    def is_narrowed(self) -> bool:
        """Whether the batch reads only the collections that its filter names: those of its plan."""
        return self._narrowed is not None

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        cluster, self._cluster_or_none = self._cluster_or_none, None
        if cluster is not None:
            cluster.close()

    def start_marker(self) -> dict[str, Any]:
        """The JSON of the first offset of the query: a constant, without a request."""
        return start_marker(self._start)

    def parse(self, data: Any) -> SourceOffset:
        """An offset from Spark's log.

        Raises:
            OffsetError: see `SourceOffset.from_json`.
        """
        for known, offset in self._parsed:
            if known == data:
                return offset
        offset = SourceOffset.from_json(data, bucket=self._options.bucket)
        self._parsed.append((data, offset))
        return offset

    def _logged(self, offset: SourceOffset) -> dict[str, Any]:
        """The JSON of an offset. Its text need not be parsed when Spark returns it."""
        data = offset.to_json()
        self._parsed.append((data, offset))
        return data

    def freeze_target(self) -> None:
        """Keep the current high seqnos as the end of the run.

        Raises:
            ConnectionLost: a vbucket has no active node for as long as idleTimeout says.
        """

        def ask() -> dict[int, int]:
            high_seqnos = self._cluster.high_seqnos()
            require_all(high_seqnos, self._cluster.map.vbucket_count)
            return high_seqnos

        self._target = self._patiently(ask)

    def report(self) -> Lag | None:
        """The distance from the planned end to the current high seqnos.

        Returns: None before a batch was planned, and if the cluster does not answer.
        """
        if self._planned is None:
            return None
        try:
            high_seqnos = self._cluster.high_seqnos()
        except ConnectionLost:
            return None
        planned = {vbid: entry.at for vbid, entry in self._planned.vbuckets.items()}
        return Lag.between(self._wanted(planned), self._wanted(high_seqnos))

    def next_offset(self, data: Any, limit: Limits | int | None) -> dict[str, Any]:
        """The end of the next batch.

        Args:
            data: parsed JSON of the end of the previous batch, or of the start marker.
            limit: of the batch; a number is one of seqnos, None is no limit.

        Returns:
            The JSON of the end; `data` itself, unchanged, if there is nothing to do.

        Raises:
            RollbackRequired: a rollback is needed and onRollback is fail.
            OffsetError: `data` cannot be used.
            ConnectionLost: the cluster stays away for longer than idleTimeout.
        """
        if is_start_marker(data):
            start = self._patiently(self._first_start)
            self._planned = self._patiently(lambda: self._plan(start, limit)).based_on(start)
            return self._logged(self._planned)
        start = self.parse(data)
        if self._target is not None:
            end = self._patiently(lambda: self._plan(start, limit))
        else:
            began = self._clock.monotonic()
            try:
                end = self._plan(start, limit)
                self._away_since = None
            except AuthenticationFailed:
                raise
            except ConnectionLost as error:
                # A running query outlives a node's restart: no new offset now, and Spark asks again.
                self._note_away(error, began)
                end = start
        self._planned = end
        return data if end is start else self._logged(end)

    def unanchored_offset(self) -> dict[str, Any]:
        """The current high seqnos as an end of a batch whose start is unknown.

        Its bounds begin at 0, so they are valid for every start, and it has no recorded positions.
        """

        def ask() -> dict[int, BranchState]:
            states = self._cluster.observe(None)
            require_all(states, self._cluster.map.vbucket_count)
            return states

        states = self._patiently(ask)
        positions = {
            vbid: StreamOffset(states[vbid].vbuuid, states[vbid].high_seqno, 0, None)
            if states[vbid].high_seqno
            else StreamOffset.ZERO
            for vbid in states
        }
        end = SourceOffset.starting_at(self._options.bucket, self._options.collections, positions)
        end = replace(end, bucket_uuid=self._cluster.map.uuid or None)
        return end.based_on(self._patiently(self.resolve_start)).to_json()

    def batch(self, limit: int | None = None) -> tuple[SourceOffset, SourceOffset]:
        """Start and end of a batch read, by startingOffsets and endingOffsets, and as far as the filter needs it.

        Args:
            limit: largest number of seqnos; None = all.

        Raises:
            ConnectionLost: a vbucket has no active node for as long as idleTimeout says.
        """
        start = self._patiently(self._first_start)
        self.freeze_target()
        assert self._target is not None
        begin = {vbid: entry.at for vbid, entry in start.vbuckets.items()}
        self._target = end_seqnos(self._options.ending_offsets, self._target, begin)
        if self._options.row_filter is not None and self._options.row_filter.columns:
            self._target = self._narrow(self._options.row_filter, start, self._target)
        target = self._wanted(self._target)

        def plan() -> SourceOffset:
            end = self._plan(start, limit)
            if limit is None:
                reached = {vbid for vbid, entry in end.vbuckets.items() if entry.at.seqno >= target.get(vbid, 0)}
                require_all(dict.fromkeys(reached), len(end.vbuckets))
            return end

        return start, self._patiently(plan)

    def _narrow(self, row_filter: RowFilter, start: SourceOffset, target: dict[int, int]) -> dict[int, int]:
        """Read only the collections that the filter names; returns the ends that it needs."""
        # Requested after the high seqnos, so that it has all collections that begin before the ends.
        positions = [entry.at for entry in start.vbuckets.values()]
        manifest = self._patiently(lambda: self._manifest(positions))
        named = manifest.named_collections()
        wanted = self._selection.resolve(manifest).collections
        known = {item for entry in start.vbuckets.values() for item in entry.at.collections or ()}
        living = named if wanted is None else wanted.values()
        self._narrowed = wanted_collections(row_filter, living, known.difference(named))
        last = 0 if self._narrowed == () else last_seqno(row_filter)
        return target if last is None else {vbid: max(0, min(seqno, last)) for vbid, seqno in target.items()}

    def ranges(self, start_data: Any, end_data: Any) -> list[PlannedRange]:
        """The ranges between two offsets from Spark's log.

        Raises:
            OffsetError: one of them cannot be used.
            BucketReset: they are of different buckets, and onBucketReset is fail.
        """
        end = self.parse(end_data)
        is_first = is_start_marker(start_data)
        start = end.base_offset() if is_first else self.parse(start_data)
        cause = None if end.is_reset else another_bucket(start, end.bucket_uuid or "", len(end.vbuckets))
        if cause is not None:
            # Only an unanchored end was planned without a look at the start.
            if self._options.on_bucket_reset == "fail":
                raise BucketReset(reset_message(cause))
            end = replace(end, is_reset=True)
        ranges = self.ranges_between(start, end, is_first=is_first)
        unknown = [planned.range.vbid for planned in ranges if planned.range.start.is_planned]
        if not unknown:
            return ranges
        # Only an unanchored end does not hold its completed start. The previous batch has been read, so the current
        # observation serves as well.
        observed = self._patiently(lambda: self._cluster.observe(unknown))
        return self.ranges_between(planner.completed(start, observed), end, is_first=is_first)

    def ranges_between(
        self,
        start: SourceOffset,
        end: SourceOffset,
        *,
        is_first: bool = False,
        is_replayed: bool = True,
        has_next_plan: bool = True,
    ) -> list[PlannedRange]:
        """The ranges between two offsets; see `planner.planned_ranges`."""
        keeps_start = has_next_plan and self._options.rewind_to != "zero"
        ranges = planner.planned_ranges(start, end, keeps_start=keeps_start, is_first=is_first, is_replayed=is_replayed)
        wanted = self._wanted({planned.range.vbid: planned for planned in ranges})
        return list(wanted.values())

    def tasks_of(self, ranges: list[PlannedRange]) -> list[tuple[str, tuple[PlannedRange, ...]]]:
        """The ranges as (node, ranges) of each task."""
        if not ranges:
            return []
        cluster_map = self._patiently(lambda: self._cluster.map)
        nodes = {
            vbid: str(node)
            for vbid in (planned.range.vbid for planned in ranges)
            if vbid < cluster_map.vbucket_count and (node := cluster_map.active_node(vbid)) is not None
        }
        return planner.balance(ranges, nodes, self.tasks, self._options.min_partitions)

    def resolve_start(self) -> SourceOffset:
        """Positions for the start marker."""
        spec = self._start
        observed: dict[int, BranchState] = {}
        if spec.kind != "earliest":
            observed = self._cluster.observe(spec.positions or None)
        positions = start_positions(spec, self._cluster.map.vbucket_count, observed)
        return SourceOffset.starting_at(self._options.bucket, self._options.collections, positions)

    def _first_start(self) -> SourceOffset:
        """The start of a query that has read nothing.

        Raises:
            ConfigError: see `_refuse_unknown`.
        """
        start = self.resolve_start()
        self._refuse_unknown(start)
        return start

    def _refuse_unknown(self, start: SourceOffset, had: Iterable[str] = ()) -> None:
        """Refuse names of collections that the bucket does not have.

        Args:
            start: its positions name the collections that they cover, which may have been dropped since.
            had: names that the query has read before.

        Raises:
            ConfigError: the option `collections` has such a name.
        """
        if self._options.collections is None:
            return
        positions = [entry.at for entry in start.vbuckets.values()]
        manifest = self._manifest(positions)
        covered = {item for at in positions for item in at.collections or ()}
        names = {name for item in covered for name in (item.path, item.collection, item.scope, f"{item.scope}.*")}
        unknown = [name for name in self._selection.resolve(manifest).missing if name not in names.union(had)]
        if unknown:
            raise unknown_names(unknown, manifest)

    @property
    def _cluster(self) -> BucketView:
        if self._cluster_or_none is None:
            self._cluster_or_none = self._connect(self._options)
        return self._cluster_or_none

    def _plan(self, logged: SourceOffset, limit: Limits | int | None) -> SourceOffset:
        """The next end; `logged` itself if no vbucket moves."""
        try:
            return self._plan_once(logged, limit)
        except BucketReset:
            # The connections belong to a bucket that is gone. New ones show what there is now.
            self.close()
            return self._plan_once(logged, limit)

    def _plan_once(self, logged: SourceOffset, limit: Limits | int | None) -> SourceOffset:
        cluster_map = self._cluster.map
        cause = another_bucket(logged, cluster_map.uuid, cluster_map.vbucket_count)
        if cause is not None:
            return self._start_over(cause, limit)
        start = self._with_learnt(logged)
        if start.bucket_uuid is None and cluster_map.uuid:
            start = replace(start, bucket_uuid=cluster_map.uuid)
        if start.collections != self._options.collections:
            start = self._with_filter(start)
        observed = self._wanted(self._observe_interesting(start))
        if not observed:
            return logged
        if may_be_flushed(start, observed) and (cause := flushed(start, self._cluster.observe(None))) is not None:
            return self._start_over(cause, limit)
        start = planner.completed(start, observed)
        self._learn(start)
        landings = self._landings(start, observed)
        limits = limit if isinstance(limit, Limits) else Limits(limit)
        begin, backlog = planner.backlog_of(start, observed, landings, self._target)
        if not landings and not start.pending and self._may_wait(sum(backlog.values()), limits.least):
            return logged
        seqnos = self._seqnos_within(limits, begin, backlog, observed)
        end = self._end_of_batch(start, observed, landings, begin, backlog, seqnos)
        if end is start:
            return logged
        # A vbucket that starts over and had no room in this batch is asked for again.
        restarted = planner.starting_over(start, observed, landings)
        self._has_asked = all(end.vbuckets[vbid].rewound is not None for vbid in restarted)
        self._last_batch_at = self._clock.monotonic()
        return end

    def _end_of_batch(
        self,
        start: SourceOffset,
        observed: Mapping[int, BranchState],
        landings: Mapping[int, StreamOffset],
        begin: Mapping[int, StreamOffset],
        backlog: Mapping[int, int],
        limit: int | None,
    ) -> SourceOffset:
        """The end of the next batch; the limit cuts no vbucket where the node would refuse to begin the batch after."""
        collections, manifest_uid = self._collections_after(start, begin)
        plan = partial(
            planner.plan_end_offset,
            start,
            observed,
            landings,
            limit=limit,
            target=self._target,
            tasks=self.tasks,
            coverage=planner.BatchCollections(
                collections, manifest_uid, is_filtered=self._options.collections is not None
            ),
        )
        end = plan(uncut=self._uncut)
        for _ in range(MAX_CUT_CHECKS):
            cuts = planner.cut_vbuckets(end, begin, backlog, observed)
            if not cuts or self._options.effective_purge_gap == "ignore":
                break
            answers = self._cluster.check_positions(cuts, purge_gap="reconcile")
            refused = {vbid for vbid, answer in answers.items() if isinstance(answer, RollbackTo)}
            if not refused:
                break
            self._uncut |= refused
            end = plan(uncut=self._uncut)
        self._uncut -= {vbid for vbid, at in begin.items() if end.vbuckets[vbid].at.seqno > at.seqno}
        return end

    def _may_wait(self, backlog: int, least: int) -> bool:
        """Whether a batch is too small to be worth it yet. The first one after a start never waits."""
        if backlog >= least or self._target is not None or self._last_batch_at is None:
            return False
        return self._clock.monotonic() < self._last_batch_at + self._options.max_trigger_delay_s

    def _seqnos_within(
        self,
        limits: Limits,
        begin: Mapping[int, StreamOffset],
        backlog: Mapping[int, int],
        observed: Mapping[int, BranchState],
    ) -> int | None:
        """The limit of seqnos of a batch, so that its rows are expected to keep the limit of bytes."""
        if limits.size is None:
            return limits.seqnos
        takes = planner.share_out(backlog, limits.seqnos, self.tasks)
        branches = {vbid: state.vbuuid for vbid, state in observed.items()}
        return self._sizes.seqnos_within(limits, begin, takes, branches, self._sampled_bytes)

    def _sampled_bytes(self, ranges: Sequence[VbucketRange]) -> int:
        """The bytes of the rows of these ranges."""
        items = self._cluster.read_ranges(
            ranges,
            StreamOptions(
                value_format="string" if self._options.value_format == "string" else "binary",
                columns=self._options.columns,
                on_rollback="rewind",
                idle_timeout_s=self._options.connect_timeout_s,
            ),
            selection=self._selection,
            buffer_bytes=SAMPLE_WINDOW_BYTES,
        )
        return sum(item.rows.nbytes for item in items if isinstance(item, RowsRead))

    def wait_for_all(self) -> None:
        """Wait until every vbucket has an active node.

        Raises:
            ConnectionLost: one has none for as long as idleTimeout says.
        """
        self._patiently(lambda: require_all(self._cluster.high_seqnos(), self._cluster.map.vbucket_count))

    def _start_over(self, cause: str, limit: Limits | int | None) -> SourceOffset:
        """The end of a batch that takes back all rows and begins the bucket from its beginning.

        Raises:
            BucketReset: onBucketReset is fail.
        """
        if self._options.on_bucket_reset == "fail":
            raise BucketReset(reset_message(cause))
        _log.warning("%s: all rows are taken back, and the bucket is read from its beginning", cause)
        self._completed, self._observed_all = {}, None
        cluster_map = self._cluster.map
        zero = dict.fromkeys(range(cluster_map.vbucket_count), StreamOffset.ZERO)
        start = SourceOffset.starting_at(self._options.bucket, self._options.collections, zero)
        start = replace(start, bucket_uuid=cluster_map.uuid or None)
        self._refuse_unknown(start)
        self._uncut.clear()
        observed = self._wanted(self._cluster.observe(None))
        begin, backlog = planner.backlog_of(start, observed, {}, self._target)
        seqnos = limit.seqnos if isinstance(limit, Limits) else limit
        end = self._end_of_batch(start, observed, {}, begin, backlog, seqnos)
        return replace(end, is_reset=True)

    def _with_filter(self, start: SourceOffset) -> SourceOffset:
        """An offset of another filter, with the vbuckets that do not follow the query's filter yet.

        Raises:
            ConfigError: the option names a collection that the bucket does not have, and that was not named before.
        """
        self._refuse_unknown(start, start.collections or ())
        manifest = self._manifest(entry.at for entry in start.vbuckets.values())
        wanted = self._selection.resolve(manifest)
        living = {item.collection_id: item for item in manifest.named_collections()}
        before = Selection(start.collections).resolve(manifest).collections
        had_before = living if before is None else before
        now = living if wanted.collections is None else wanted.collections
        vbuckets: dict[int, VbucketOffset] = {}
        pending: set[int] = set()
        for vbid, entry in start.vbuckets.items():
            at = entry.at
            if at.seqno and at.collections is None:
                at = at.with_collections(had_before.values())
            vbuckets[vbid] = replace(entry, at=at)
            covered = {item.collection_id for item in at.collections or ()}
            if at.seqno and covered & living.keys() != set(now):
                pending.add(vbid)
        return replace(start, collections=self._options.collections, vbuckets=vbuckets, pending=frozenset(pending))

    def _manifest(self, positions: Iterable[StreamOffset]) -> Manifest:
        """The bucket's collections now.

        Raises:
            ConnectTimeout: the nodes only have a version that is older than what the positions know.
        """
        return self._cluster.manifest(max((at.least_manifest_uid for at in positions), default=0))

    def _collections_after(
        self, start: SourceOffset, begin: Mapping[int, StreamOffset]
    ) -> tuple[tuple[CollectionName, ...], int]:
        """The collections that a batch from here reads, by the current manifest, and the version of that.

        Requested after the high seqnos, so that it has all collections that begin before the planned end. A batch of
        all collections keeps the names of dropped ones, because the history has their ends without names.
        """
        manifest = self._manifest(begin.values())
        wanted = self._selection.resolve(manifest)
        if self._narrowed is not None:
            return self._narrowed, manifest.uid
        if wanted.collections is not None:
            return tuple(sorted(wanted.collections.values())), manifest.uid
        found = {item for entry in start.vbuckets.values() for item in entry.at.collections or ()}
        found.update(manifest.named_collections())
        return tuple(sorted(found)[-MAX_NAMES:]), manifest.uid

    def _wanted(self, by_vbucket: dict[int, T]) -> dict[int, T]:
        """Those of the vbuckets that can have rows which the option `where` lets through; the others do not move."""
        wanted = self._options.wanted_vbuckets
        if wanted is None:
            return by_vbucket
        return {vbid: value for vbid, value in by_vbucket.items() if vbid in wanted}

    def _observe_interesting(self, start: SourceOffset) -> dict[int, BranchState]:
        """Observations of the vbuckets that may have changed.

        Most vbuckets of an idle bucket have not moved. Only the others cost two requests each, except at intervals and
        when the cluster map has changed.
        """
        now = self._clock.monotonic()
        version = self._cluster.map.version
        last = self._observed_all
        if last is None or last[1] != version or now - last[0] >= FULL_OBSERVATION_INTERVAL_S:
            observed = self._cluster.observe(None)
            self._observed_all = (now, version)
            self._note_missing(observed)
            return observed
        high_seqnos = self._cluster.high_seqnos()
        self._note_missing(high_seqnos)
        interesting = [
            vbid
            for vbid, entry in start.vbuckets.items()
            if vbid in high_seqnos
            and (high_seqnos[vbid] != entry.at.seqno or entry.at.snapshot_end is None or vbid in start.pending)
        ]
        return self._cluster.observe(interesting, high_seqnos=high_seqnos) if interesting else {}

    def _landings(self, start: SourceOffset, observed: dict[int, BranchState]) -> dict[int, StreamOffset]:
        """Positions that replace refused ones. Vbuckets without an answer are removed from `observed`."""
        # A query that was away for long may have missed deletions that were purged meanwhile, on the same branch.
        asked = planner.suspects(start, observed, is_all=not self._has_asked)
        landings: dict[int, StreamOffset] = {}
        to_zero = self._options.rewind_to == "zero"
        noted: Mapping[int, int] | None = None
        for _ in range(planner.MAX_LANDING_STEPS):
            if not asked:
                break
            answers = self._cluster.check_positions(asked, purge_gap=self._options.effective_purge_gap)
            again: dict[int, StreamOffset] = {}
            for vbid, position in asked.items():
                answer = answers.get(vbid)
                if isinstance(answer, RollbackTo):
                    if self._options.on_rollback == "fail":
                        raise RollbackRequired(vbid, answer.seqno, rollback_message(vbid, position, answer.seqno))
                    entry = start.vbuckets[vbid]
                    if noted is None:
                        noted = {} if self._notes is None else self._notes.starts_left()
                    # A task that went below a start has replaced the rows of all positions up to it.
                    kept = tuple(old for old in entry.earlier if old.seqno > noted.get(vbid, 0))
                    earlier = () if to_zero else kept
                    landings[vbid] = step_back(position, answer.seqno, earlier)
                    if vbid in start.pending and self._options.collections is None:
                        # A read of all collections takes each from the same position on.
                        landings[vbid] = StreamOffset.ZERO
                    if landings[vbid].seqno:
                        again[vbid] = landings[vbid]
                elif not isinstance(answer, Accepted):
                    # Its node is away; the vbucket is planned when the node is back.
                    observed.pop(vbid, None)
                    landings.pop(vbid, None)
            asked = again
        landings.update(dict.fromkeys(asked, StreamOffset.ZERO))
        self._has_asked = True
        return landings

    def _with_learnt(self, logged: SourceOffset) -> SourceOffset:
        """The logged offset with the ends of snapshots that an earlier planning without a batch has completed."""
        vbuckets: dict[int, VbucketOffset] = {}
        for vbid, entry in logged.vbuckets.items():
            learnt = self._completed.get(vbid)
            # A batch that only added collections ends at the same place, and its snapshot's end is another one.
            is_same = learnt is not None and planner.same_place(learnt, entry.at)
            if learnt is not None and is_same and learnt.collections == entry.at.collections and entry.at.is_planned:
                vbuckets[vbid] = replace(entry, at=learnt)
            else:
                vbuckets[vbid] = entry
        return replace(logged, vbuckets=vbuckets)

    def _learn(self, start: SourceOffset) -> None:
        self._completed = {
            vbid: entry.at for vbid, entry in start.vbuckets.items() if entry.at.snapshot_end is not None
        }

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Repeat a request until there is an answer, up to idleTimeout."""
        while True:
            began = self._clock.monotonic()
            try:
                answer = ask()
            except AuthenticationFailed:
                raise
            except ConnectionLost as error:
                self._note_away(error, began)
                threading.Event().wait(RETRY_INTERVAL_S)
            else:
                self._away_since = None
                return answer

    def _note_missing(self, known: Mapping[int, object]) -> None:
        """Raise if some vbuckets have had no active node for too long; the others go on until then."""
        now = self._clock.monotonic()
        try:
            require_all(known, self._cluster.map.vbucket_count)
            self._missing_since = None
        except ConnectionLost as error:
            if self._missing_since is None:
                self._missing_since = now
                _log.warning("the other vbuckets are read on: %s", error)
            if now - self._missing_since >= self._options.idle_timeout_s:
                raise

    def _note_away(self, error: ConnectionLost, began: float) -> None:
        """Raise the error if the cluster has been away for too long.

        Args:
            error: of a request.
            began: the time of the request.
        """
        if self._away_since is None:
            self._away_since = began
            _log.warning("the cluster is asked again until it answers: %s", error)
        away_s = self._clock.monotonic() - self._away_since
        if away_s >= self._options.idle_timeout_s:
            error.args = (f"{error} The cluster was asked for {away_s:.0f} s, the time of idleTimeout.",)
            raise error


def branch_message(vbid: int, seqno: int) -> str:
    """The message for a failover after a batch was planned, with onRollback fail."""
    return (
        f"vbucket {vbid}: the bucket's history went on in another branch after this batch was planned (there was a "
        f"failover, or a node lost changes). Rows above seqno {seqno} that a failed attempt of the batch, or an "
        "earlier reader, gave to a sink may be void. Set onRollback=rewindAndMark to get a control row "
        "(op = 'rollback') followed by the rows of the new history, or start with another "
        "checkpointLocation and empty tables."
    )


def rollback_message(vbid: int, position: StreamOffset, seqno: int) -> str:
    """The message for a rollback with onRollback fail."""
    return (
        f"vbucket {vbid}: the bucket's history no longer contains what was read up to seqno {position.seqno} (branch "
        f"{position.vbuuid}); the node asks to roll back to {seqno}. Rows above that may be void. Set "
        "onRollback=rewindAndMark to get a control row (op = 'rollback') followed by the rows of the new history, or "
        "start with another checkpointLocation and empty tables."
    )
