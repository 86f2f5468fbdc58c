"""The events of a session: streams that open, end or are refused, rows, answers, newer cluster maps."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from dcpstream.client.machine.connection.rows import Rows, Slice
from dcpstream.client.machine.tracker import Moves, Offsets, PositionTracker, Run
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

    def ended_names(self, event: CollectionEvent, *, is_resumed: bool) -> list[CollectionName]:
        """The names that rows of a dropped collection may have, of a vbucket whose position does not cover it."""
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
        is_resumed: whether it begins above 0.
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
    is_resumed: bool = False
    is_of_disk: bool = False
    ignores_purged: bool = False
    is_guarded: bool = False
    is_of_replica: bool = False
    value: bytes = b""
    held: list[RowsReceived | StreamDone | StreamStopped | StreamBroken] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its rows go to the user as they come: it is open, and nothing is to be found out first."""
        return self.log is not None and not self.is_guarded and self.held is None

    def stop_at(self, end_seqno: int) -> None:
        """Lower the end, of which the kernel learns when it gets the stream again."""
        self.tracker.take_back()
        self.end_seqno = end_seqno


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

    The positions of a stream that the kernel has moved come before those of its runs.

    Attributes:
        rows: all rows of one receive.
        handled: the streams and positions of the rows that were handled in Python, in order of arrival.
        flow_bytes: the argument of `consumed` once the user has consumed them.
        moves: the positions that the kernel has moved, with its rows. A row in no move and no run does not count.
        forgotten: the session's count of streams that were over when this was received.
        keep: the slices of rows that count, ascending.
        offsets: vbucket → position after these rows, for every stream that moved.
        has_events: whether there are events between the rows.
    """

    rows: Rows
    handled: Sequence[Run]
    flow_bytes: int
    moves: Moves | None = None
    forgotten: int = 0
    keep: Sequence[Slice] = field(init=False)
    offsets: Offsets = field(init=False)
    has_events: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Derive the other attributes."""
        slices = [] if self.moves is None else _others(self.moves.handed, self.rows.count)
        is_mixed = bool(slices)
        for _, first, stop, *_, event in self.handled:
            if first < stop:
                slices.append((first, stop))
            elif event is not None:
                object.__setattr__(self, "has_events", True)
        if is_mixed:
            slices.sort()
        object.__setattr__(self, "keep", _joined(slices))
        object.__setattr__(self, "offsets", Offsets(self.handled, self.moves))

    @property
    def runs(self) -> Sequence[Run]:
        """The streams and positions of all rows, in an order that is right for each vbucket."""
        if self.moves is None:
            return self.handled
        runs = list(_runs_of(self.moves, self.rows))
        runs += self.handled
        runs.sort(key=_place_of)  # stable: the moves of a stream stay before its runs
        return runs

    @property
    def owned(self) -> Moves | None:
        """The moves of all rows that count, if the kernel has handled some; not in an order for each vbucket."""
        return self.moves.joined(self.handled) if self.moves is not None and self.handled else self.moves

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
        for run in self.handled:
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
        moves = self.moves
        for group, runs in zip(events, rows, strict=True):
            if group:
                yield CollectionEvents(tuple(group))
            if runs or moves is not None:
                yield RowsReceived(self.rows, runs, 0, moves)
            moves = None

    def pieces(self, size: int) -> Iterator[tuple[int, int, Mapping[int, StreamOffset]]]:
        """The rows that count, in pieces of at most `size` rows.

        Yields: (number of the first row among those that count, number after the last, position of each vbucket that
            moved, after the piece).
        """
        owned = self.owned
        if owned is not None:
            yield from self._pieces_of(owned, size)
            return
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

    def _pieces_of(self, owned: Moves, size: int) -> Iterator[tuple[int, int, Mapping[int, StreamOffset]]]:
        count = sum(stop - first for first, stop in self.keep)
        begin = row = 0
        while count - begin > size:
            after = self._row_at(begin + size)
            yield begin, begin + size, Offsets((), owned.reached(row, after), has_all=False)
            begin, row = begin + size, after
        yield begin, count, self.offsets

    def _row_at(self, number: int) -> int:
        """The row with a number among those that count."""
        for first, stop in self.keep:
            if number < stop - first:
                return first + number
            number -= stop - first
        raise IndexError(number)

    def _positions(self, moved: dict[int, tuple[Run, int]]) -> dict[int, StreamOffset]:
        seqno = self.rows.seqno
        return {vbid: run.offset(None if row == run.stop else seqno(row - 1)) for vbid, (run, row) in moved.items()}


def _others(slices: Iterable[Slice], count: int) -> list[Slice]:
    """The rows that lie in none of some slices, which are ascending."""
    others = []
    at = 0
    for first, stop in slices:
        if at < first:
            others.append((at, first))
        at = stop
    if at < count:
        others.append((at, count))
    return others


def _joined(slices: Iterable[Slice]) -> list[Slice]:
    """The same rows in slices that do not touch each other."""
    joined: list[Slice] = []
    for first, stop in slices:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((first, stop))
    return joined


def _place_of(run: Run) -> tuple[int, int]:
    return run.first, run.stop


def _runs_of(moves: Moves, rows: Rows) -> Iterator[Run]:
    """The runs of rows in moves, and what moved after the last row of a move, or without one."""
    owners = memoryview(moves.owners).cast("I")
    ends = [0] * len(moves.runs)
    reached = [-1] * len(moves.runs)
    first = 0
    for stop in range(1, len(owners) + 1):
        move = owners[first]
        if stop < len(owners) and owners[stop] == move:
            continue
        if move < len(ends):
            highest = rows.highest(first, stop)
            ends[move], reached[move] = stop, max(reached[move], highest)
            yield moves.run_at(move, first, stop, reached[move])
        first = stop
    last: dict[int, int] = {}
    for move, run in enumerate(moves.runs):
        end = last[run.vbid] = max(ends[move], last.get(run.vbid, 0))
        after = moves.run(move)
        if (after.unordered_high or after.seqno) > reached[move]:
            yield after._replace(first=end, stop=end)


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
