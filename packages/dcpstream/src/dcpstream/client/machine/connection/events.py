"""The events of a session: streams that open, end or are refused, rows, answers, newer cluster maps."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from dcpstream.client.machine.connection.rows import Rows, Slice
from dcpstream.client.machine.tracker import Offsets, PositionTracker, Run
from dcpstream.client.machine.values import CollectionEvents, VbucketEvent
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import CollectionName, FailoverLog, StreamOffset
from dcpstream.wire import Frame
from dcpstream.wire.system_events import CollectionEvent


class EventNames(Protocol):
    """Resolves the names that system events leave out."""

    def take_event(self, event: CollectionEvent) -> None:
        """A scope or collection was created, dropped, flushed or modified."""
        ...

    def scope_of(self, event: CollectionEvent) -> str:
        """The name of the event's scope."""
        ...

    def collection_of(self, event: CollectionEvent) -> CollectionName:
        """The event's collection."""
        ...


@dataclass(frozen=True, slots=True)
class RequestedRows:
    """The rows that a stream request names.

    Attributes:
        collection_ids: only these collections, None for all.
        scope_id: instead of `collection_ids`: a whole scope, with collections that are created in it later.
        may_be_of_replica: whether a replica may serve them.
    """

    collection_ids: tuple[int, ...] | None = None
    scope_id: int | None = None
    may_be_of_replica: bool = False

    @property
    def is_filtered(self) -> bool:
        """Whether the request names a scope or collections."""
        return self.scope_id is not None or self.collection_ids is not None


UNFILTERED = RequestedRows()
"""All rows of a vbucket."""


class Purged(Enum):
    """The treatment of deletions above the start of a stream request that the node has purged."""

    REFUSE = "refuse the position"
    IGNORE = "leave them out"
    GUARD = "leave them out, and find out which ones the first snapshot may lack"


@dataclass(slots=True, eq=False)
class Stream:
    """One stream of the connection.

    Attributes:
        opaque: u32 of its request.
        vbid: the vbucket.
        end_seqno: where to stop; MAX_SEQNO = never.
        tracker: its position.
        requested_end: where the node stops; `end_seqno` may be lowered afterwards.
        log: the failover log of the node's answer, once it is open.
        names: resolves the names in system events; None to ignore these events.
        is_filtered: whether the request named collections.
        is_of_disk: whether it brings only what is on disk; see `DcpSession.open_stream`.
        ignores_purged: whether the node sends it also if deletions after its start have been purged.
        is_of_replica: whether the node may serve it from a replica.
        is_guarded: whether its first snapshot decides if it is of use; see `purge_check`.
        value: of its request.
        held: its rows, and its end, while the answer is awaited; None if it is not.
    """

    opaque: int
    vbid: int
    end_seqno: int
    tracker: PositionTracker
    requested_end: int
    log: FailoverLog | None = None
    names: EventNames | None = None
    is_filtered: bool = False
    is_of_disk: bool = False
    ignores_purged: bool = False
    is_guarded: bool = False
    is_of_replica: bool = False
    value: bytes = b""
    held: list[RowsReceived | StreamDone | StreamStopped | StreamBroken] | None = None


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The node accepted the position: `offset`, now on the newest branch of `log`."""

    stream: Stream
    log: FailoverLog
    offset: StreamOffset


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """The node refused the request.

    Attributes:
        status: its status; for ROLLBACK `rollback_seqno` is set.
        value: the answer's value (a cluster map for NOT_MY_VBUCKET).
    """

    stream: Stream
    status: int
    rollback_seqno: int | None = None
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class PurgeChecked:
    """A guarded stream's first snapshot has begun; comes before its rows. See `purge_check`.

    Attributes:
        stream: the stream.
        purge_seqno: no deletion above it was purged from the copy when the snapshot was taken; None if it is not known.
    """

    stream: Stream
    purge_seqno: int | None


@dataclass(frozen=True, slots=True)
class StreamDone:
    """The stream's end was reached; it is closed."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """STREAM_END with its `reason`: the node will send nothing more.

    With OK, the node says that it has sent everything; see `reader` for when that is taken as true.
    """

    stream: Stream
    reason: int


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The node broke the protocol on this stream, which is closed; its position is that before the `error`."""

    stream: Stream
    error: RemoteProtocolError


@dataclass(frozen=True, slots=True)
class RowsReceived:
    """Rows for the user.

    Attributes:
        rows: all rows of one receive.
        runs: the streams and positions of the rows, in order of arrival; a row in no run does not count.
        flow_bytes: the argument of `consumed` once the user has consumed them.
        keep: the slices of rows that count, ascending.
        offsets: vbucket → position after these rows, for every stream that moved.
        has_events: whether there are events between the rows.
    """

    rows: Rows
    runs: Sequence[Run]
    flow_bytes: int
    keep: Sequence[Slice] = field(init=False)
    offsets: Offsets = field(init=False)
    has_events: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Derive the other attributes."""
        keep: list[Slice] = []
        begin = end = 0
        for _, first, stop, *_, event in self.runs:
            if first == stop:
                if event is not None:
                    object.__setattr__(self, "has_events", True)
                continue
            if first != end:
                if begin < end:
                    keep.append((begin, end))
                begin = first
            end = stop
        if begin < end:
            keep.append((begin, end))
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "offsets", Offsets(self.runs))

    def without(self, vbids: Container[int]) -> RowsReceived:
        """The same rows without those of some vbuckets."""
        return RowsReceived(self.rows, [run for run in self.runs if run.vbid not in vbids], self.flow_bytes)

    def parts(self) -> Iterator[RowsReceived | CollectionEvents]:
        """Rows without events and events without rows, in an order that is right for each vbucket.

        Vbuckets do not depend on each other. The rows of all of them before their first events form one part, and so
        on, so that a receive has few parts.
        """
        if not self.has_events:
            yield self
            return
        rows: list[list[Run]] = [[]]
        events: list[list[VbucketEvent]] = [[]]
        level: dict[int, int] = {}
        is_past_rows: dict[int, bool] = {}
        for run in self.runs:
            at = level.get(run.vbid, 0)
            if run.event is None:
                rows[at].append(run)
                is_past_rows[run.vbid] = True
                continue
            # A further event with no row in between belongs to the same part.
            if at == 0 or is_past_rows[run.vbid]:
                at += 1
            if at == len(rows):
                rows.append([])
                events.append([])
            level[run.vbid] = at
            is_past_rows[run.vbid] = False
            events[at].append(run.event)
        for group, runs in zip(events, rows, strict=True):
            if group:
                yield CollectionEvents(tuple(group))
            if runs:
                yield RowsReceived(self.rows, runs, 0)

    def pieces(self, size: int) -> Iterator[tuple[int, int, dict[int, StreamOffset]]]:
        """The rows that count, in pieces of at most `size` rows.

        Yields: (number of the first row among those that count, number after the last, position of each vbucket that
            moved, after the piece).
        """
        begin = at = 0
        moved: dict[int, tuple[Run, int]] = {}
        for run in self.runs:
            row = run.first
            while row < run.stop:
                if at - begin == size:
                    yield begin, at, self._positions(moved)
                    begin, moved = at, {}
                step = min(run.stop - row, size - (at - begin))
                row += step
                at += step
                moved[run.vbid] = (run, row)
            if run.first == run.stop:
                moved[run.vbid] = (run, row)
        yield begin, at, self._positions(moved)

    def _positions(self, moved: dict[int, tuple[Run, int]]) -> dict[int, StreamOffset]:
        seqno = self.rows.seqno
        return {vbid: run.offset(None if row == run.stop else seqno(row - 1)) for vbid, (run, row) in moved.items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to `request`."""

    opaque: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class ConfigPushed:
    """The node reports a newer cluster map without being asked.

    Attributes:
        bucket: its name.
        version: (epoch, rev) of it; None if the node did not say.
        config: the map's JSON; empty if it has to be asked for.
    """

    bucket: str
    version: tuple[int, int] | None
    config: bytes


Event = (
    ConfigPushed
    | StreamOpened
    | StreamRefused
    | PurgeChecked
    | StreamDone
    | StreamStopped
    | StreamBroken
    | RowsReceived
    | Answer
)
