"""One run of a stream, for both clients: its options, where each vbucket begins, and what the user gets.

No I/O: the clients ask the cluster, wait for sockets, load and save. A client makes a `StreamRun`, drives its reader,
and makes a batch (`StreamRun.batch`) or single changes (`Portion`) of each output of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, assert_never

from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.reader.batches import ArrowConverter, ValueFormat, manifest_batch, rollback_batch
from dcpstream.client.machine.reader.changes import (
    Change,
    ChangeConverter,
    manifest_change,
    positions_after,
    rollback_change,
)
from dcpstream.client.machine.reader.messages import MessageConverter
from dcpstream.client.machine.reader.output_queue import Converter
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.reader.selection import Selection
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.rollback_policy import (
    OnPurgeGap,
    PurgeGap,
    RewindTo,
    RollbackPolicy,
    check_purge_gap,
    check_rewind_to,
)
from dcpstream.client.machine.values import (
    UNKNOWN_BRANCH,
    CollectionEvents,
    ReaderOutput,
    RollbackEvent,
    RowsRead,
    VbucketRange,
)
from dcpstream.client.offsets import OffsetStore, SavedOffset
from dcpstream.client.positions import Positions
from dcpstream.client.settings.options import MAX_BATCH_ROWS, ConnectOptions, dcp_settings
from dcpstream.errors import ConfigError
from dcpstream.model import MAX_SEQNO, StreamOffset, VbucketMap
from dcpstream.runtime import Random

if TYPE_CHECKING:
    import pyarrow as pa

B = TypeVar("B")

Start = Literal["earliest", "latest"] | Mapping[int, StreamOffset] | OffsetStore
End = None | Literal["latest"] | Mapping[int, int]
OnRollback = Literal["fail", "rewind"] | Callable[[RollbackEvent], None]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream; see `Client.stream`, and `Client.messages` for `frames`.

    Raises:
        ConfigError: an option is not allowed.
    """

    start: Start
    end: End
    store: OffsetStore | None
    collections: Sequence[str] | None
    on_rollback: OnRollback
    members: tuple[int, int]
    arrow: bool
    value_format: ValueFormat = "binary"
    columns: Sequence[str] | None = None
    max_batch_rows: int = MAX_BATCH_ROWS
    read_stable: bool = False
    purge_gap: OnPurgeGap | None = None
    rewind_to: RewindTo = "recorded"
    frames: bool = False

    def __post_init__(self) -> None:
        """Check what can be checked without the cluster."""
        for name in ("collections", "columns"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.start, str) and self.start not in {"earliest", "latest"}:
            raise ConfigError("start", self.start, "'earliest', 'latest', {vbucket: StreamOffset} or an OffsetStore")
        if isinstance(self.end, str) and self.end != "latest":
            raise ConfigError("end", self.end, "None (never), 'latest' or {vbucket: seqno}")
        if isinstance(self.on_rollback, str) and self.on_rollback not in {"fail", "rewind"}:
            raise ConfigError("on_rollback", self.on_rollback, "'fail', 'rewind' or a function of a RollbackEvent")
        check_purge_gap(self.purge_gap, can_rewind=self.policy is not RollbackPolicy.FAIL)
        check_rewind_to(self.rewind_to)
        member, count = self.members
        if not 0 <= member < count:
            raise ConfigError("members", self.members, "(i, n) with 0 <= i < n: this is member i of n")
        if self.max_batch_rows < 1:
            raise ConfigError("max_batch_rows", self.max_batch_rows, "1 or more")

    @property
    def needs_observation(self) -> bool:
        """Whether high seqnos must be known before the stream begins."""
        return self.start == "latest" or self.end == "latest"

    @property
    def offset_store(self) -> OffsetStore | None:
        """The store that positions are loaded from and saved to."""
        return self.start if isinstance(self.start, OffsetStore) else self.store

    @property
    def policy(self) -> RollbackPolicy:
        """The reader's policy for rollbacks."""
        return RollbackPolicy.FAIL if self.on_rollback == "fail" else RollbackPolicy.REWIND

    @property
    def on_purge_gap(self) -> PurgeGap:
        """The reader's policy for purged deletions."""
        return check_purge_gap(self.purge_gap, can_rewind=self.policy is not RollbackPolicy.FAIL)

    def own_vbuckets(self, vbucket_count: int) -> list[int]:
        """The vbuckets of this member."""
        member, count = self.members
        return list(range(member, vbucket_count, count))

    def converter(self) -> Converter[Any]:
        """Makes the user's batches, changes or messages of rows."""
        if self.frames:
            return MessageConverter()
        if self.arrow:
            return ArrowConverter(self.value_format, self.columns, self.max_batch_rows)
        return ChangeConverter()

    def may_come_out_of_order(self, ranges: Iterable[VbucketRange]) -> bool:
        """Whether a node may send the first snapshot of a vbucket in any order.

        It does so for a single collection that is read from its beginning. A position within such a snapshot does not
        exist: after a cut its rows come again, so the user must be able to take back rows after a rollback.
        """
        return (
            self.policy is RollbackPolicy.REWIND
            and not (self.read_stable or self.frames)
            and Selection.of(self.collections).may_be_one_collection
            and any(not part.start.seqno for part in ranges)
        )

    def ranges(
        self, vbucket_count: int, saved: Mapping[int, SavedOffset], observed: Mapping[int, BranchState]
    ) -> list[VbucketRange]:
        """The ranges to read.

        Args:
            vbucket_count: of the bucket.
            saved: the records of the offset store.
            observed: branches and high seqnos, if `needs_observation`.

        Raises:
            ConfigError: the bucket lacks a vbucket that is named, or its node cannot be reached.
        """
        own = self.own_vbuckets(vbucket_count)
        named = {*saved, *(self.start if isinstance(self.start, Mapping) else ())}
        beyond = sorted(vbid for vbid in named if vbid >= vbucket_count)
        if beyond:
            raise ConfigError("start", beyond, f"the bucket has {vbucket_count} vbuckets: these are another bucket's")
        result = []
        for vbid in own:
            record = saved.get(vbid) or SavedOffset(self._first(vbid, observed))
            end = MAX_SEQNO
            if self.end == "latest":
                end = self._state(vbid, observed, "end").high_seqno
            elif isinstance(self.end, Mapping):
                if vbid not in self.end:
                    continue
                end = self.end[vbid]
            branch = observed[vbid].vbuuid if vbid in observed else 0
            # A start at or above the end is put to the node, too: only the node knows whether that history was rolled
            # back. The request costs no rows.
            if record.offset.seqno or record.is_rolling_back or end or self.end == "latest":
                given = UNKNOWN_BRANCH if record.is_rolling_back else None
                result.append(VbucketRange(vbid, record.offset, end, record.earlier, branch, given))
        return result

    def _first(self, vbid: int, observed: Mapping[int, BranchState]) -> StreamOffset:
        if self.start == "latest":
            state = self._state(vbid, observed, "start")
            return StreamOffset(state.vbuuid, state.high_seqno, state.high_seqno, state.high_seqno)
        if isinstance(self.start, Mapping):
            return self.start.get(vbid, StreamOffset.ZERO)
        return StreamOffset.ZERO

    @staticmethod
    def _state(vbid: int, observed: Mapping[int, BranchState], option: str) -> BranchState:
        state = observed.get(vbid)
        if state is None:
            why = f"the node of vbucket {vbid} cannot be reached, so its high seqno is not known"
            raise ConfigError(option, "latest", why)
        return state


class StreamRun:
    """One run of a stream: its reader, its connections, and its positions.

    Args:
        options: of the stream.
        found: the cluster map.
        saved: the records of the offset store.
        observed: branches and high seqnos, if `options.needs_observation`.
        connect_options: of connections for questions.
        name: of the connections.
        buffer_bytes: the flow-control window.
        idle_timeout_s, patience_s: as for `StreamReader`.
        random: for nonces and pauses.
        now: seconds of a monotonic clock.

    Raises:
        ConfigError: see `StreamOptions.ranges`.
    """

    def __init__(
        self,
        options: StreamOptions,
        found: VbucketMap,
        saved: Mapping[int, SavedOffset],
        observed: Mapping[int, BranchState],
        connect_options: ConnectOptions,
        *,
        name: str,
        buffer_bytes: int,
        idle_timeout_s: float | None,
        patience_s: float,
        random: Random,
        now: float,
    ) -> None:
        self._options = options
        ranges = options.ranges(found.vbucket_count, saved, observed)
        settings = dcp_settings(name, buffer_bytes, options.columns, out_of_order=options.may_come_out_of_order(ranges))
        self.nodes = Nodes(
            replace(connect_options, arrow=options.arrow, frames=options.frames, settings=settings), random
        )
        self.nodes.map = found
        self.reader = StreamReader(
            ranges,
            self.nodes,
            random,
            options.converter(),
            policy=options.policy,
            collections=options.collections,
            idle_timeout_s=idle_timeout_s,
            patience_s=patience_s,
            now=now,
            purge_gap=options.on_purge_gap,
            is_stable=options.read_stable,
            to_zero=options.rewind_to == "zero",
        )
        self.positions = Positions(ranges, options.offset_store, saved)
        self.positions.branches = self.reader.branches

    def beginnings(self) -> dict[int, SavedOffset]:
        """The records to save before the first delivery: the next run would find another "latest"."""
        return self.positions.beginnings() if self._options.start == "latest" else {}

    def due(self, output: ReaderOutput[Any]) -> dict[int, SavedOffset]:
        """The records to save before the output is given to the user; see `Positions.due`."""
        return self.positions.due(output.offsets, output if isinstance(output, RollbackEvent) else None)

    def batch(self, make: Callable[..., B], output: ReaderOutput[pa.RecordBatch], time_ns: int) -> B | None:
        """The output as a batch; None if the user's function has taken the rollback.

        Args:
            make: the class of the batch: (rows, offsets, rollback, positions, number, events).
            output: the output of the reader.
            time_ns: now, for control rows.
        """
        options = self._options
        form, columns, positions = options.value_format, options.columns, self.positions
        offsets = output.offsets
        number = positions.give(offsets)
        match output:
            case RowsRead(rows):
                return make(rows, offsets, None, positions, number, ())
            case CollectionEvents(events):
                return make(manifest_batch(events, form, columns, time_ns), offsets, None, positions, number, events)
            case RollbackEvent():
                if callable(options.on_rollback):
                    options.on_rollback(output)
                    return None
                return make(rollback_batch(output, form, columns, time_ns), offsets, output, positions, number, ())
            case _:
                assert_never(output)

    def portion(self, output: ReaderOutput[tuple[Change, ...]]) -> Portion:
        """The output as single changes."""
        return Portion(output, self._options.on_rollback)


class Portion:
    """The single changes of one output, and how many of them the user has processed.

    Asking for the next change means that the user has processed the one before.
    """

    def __init__(self, output: ReaderOutput[tuple[Change, ...]], on_rollback: OnRollback) -> None:
        self._output = output
        self._on_rollback = on_rollback
        self._changes: tuple[Change, ...] = ()
        self._processed = 0
        self._is_complete = False

    def __iter__(self) -> Iterator[Change]:
        """The changes; a function of the user takes a rollback instead."""
        match self._output:
            case RowsRead(rows):
                self._changes = rows
            case CollectionEvents(events):
                self._changes = tuple(manifest_change(event) for event in events)
            case RollbackEvent() as rollback:
                if callable(self._on_rollback):
                    self._on_rollback(rollback)
                else:
                    yield rollback_change(rollback)
            case _:
                assert_never(self._output)
        for change in self._changes:
            yield change
            self._processed += 1
        self._is_complete = True

    def processed(self) -> Mapping[int, StreamOffset]:
        """The positions after the changes that the user has processed; empty if there are none."""
        return self._output.offsets if self._is_complete else positions_after(self._changes[: self._processed])
