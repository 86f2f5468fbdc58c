"""One vbucket of a reader: its range, its position, the state of its stream, and the rows that the user has.

Two tables hold its states. `TRANSITIONS` is that of its stream. `PARTS` says which part of the history the stream
reads: usually the range. A reader that lacks new collections puts its position to the node, and then reads them up to
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Stream, StreamOpened
from dcpstream.client.machine.nodes.retry import has_progressed
from dcpstream.client.machine.reader.recorded import Recorded, with_recorded
from dcpstream.client.machine.reader.selection import Wanted
from dcpstream.client.machine.tracker import Run
from dcpstream.client.machine.values import VbucketRange
from dcpstream.dcp.transitions import Transitions
from dcpstream.model import CollectionName, StreamOffset

GUARDED_STREAMS_MAX = 3
"""Guarded streams of a vbucket without a row in between, before its position counts as one without a purge limit: a
stream that ends before its first snapshot shows nothing."""


class State(Enum):
    """The state of a vbucket's stream."""

    __hash__ = object.__hash__  # that of Enum is a function in Python, and each step looks up a state and an event

    WAITING = "waiting"
    """There is no stream: the vbucket waits for a time, a node, or a map."""
    OPENING = "opening"
    """The stream was requested."""
    SUSPECT = "suspect"
    """The position was refused with a rollback to 0, for its branch or for purged deletions. There is no stream: the
    next request ignores purged deletions, to learn the reason."""
    PROBING = "probing"
    """The stream was requested with purged deletions ignored."""
    CONFIRMING = "confirming"
    """The node accepted that request of a position with a purge limit. Its first snapshot decides whether the stream
    is of use: nothing counts until it is known which deletions that snapshot may lack."""
    OPEN = "open"
    SETTLING = "settling"
    """The end was reached, but rows are held back until all copies have them (see `stability`)."""
    DONE = "done"
    VOID = "void"
    """The planned branch is lost, and the range ended without rows (`VbucketRange.keeps_start`)."""


NOT_OPEN = frozenset((State.WAITING, State.OPENING, State.SUSPECT, State.PROBING, State.CONFIRMING, State.VOID))
"""States in which rows that arrive do not count: they are those of an earlier stream."""


class Event(Enum):
    """The events of a vbucket's stream."""

    __hash__ = object.__hash__

    REQUESTED = "stream requested"
    POSTPONED = "no node for it yet"
    NOTHING_WANTED = "nothing is left to read"
    ACCEPTED = "request accepted"
    ACCEPTED_PURGED = "request accepted, deletions may be missing"
    CONFIRMED = "no deletion is missing"
    REFUSED = "request refused"
    ROLLED_BACK = "position refused"
    SUSPECTED = "position refused for unknown reasons"
    INTERRUPTED = "stream ended early or connection lost"
    LEFT = "rows may be void, read again"
    CAUGHT_UP = "part of new collections was read"
    REACHED_HELD = "end reached, rows may be held"
    REACHED = "end reached"
    SETTLED = "held rows were given out"
    GIVEN_UP = "planned branch is lost"


TRANSITIONS = Transitions(
    "stream of vbucket {}",
    State.WAITING,
    {
        State.WAITING: {
            Event.REQUESTED: State.OPENING,
            Event.POSTPONED: State.WAITING,
            Event.LEFT: State.WAITING,
            Event.REACHED_HELD: State.SETTLING,
            Event.NOTHING_WANTED: State.DONE,
        },
        State.OPENING: {
            Event.ACCEPTED: State.OPEN,
            Event.REFUSED: State.WAITING,
            Event.ROLLED_BACK: State.WAITING,
            Event.SUSPECTED: State.SUSPECT,
            Event.INTERRUPTED: State.WAITING,
            Event.LEFT: State.WAITING,
        },
        State.SUSPECT: {
            Event.REQUESTED: State.PROBING,
            Event.POSTPONED: State.SUSPECT,
            Event.LEFT: State.WAITING,
            Event.REACHED_HELD: State.SETTLING,
            Event.NOTHING_WANTED: State.DONE,
        },
        State.PROBING: {
            Event.ACCEPTED: State.OPEN,
            Event.ACCEPTED_PURGED: State.CONFIRMING,
            Event.REFUSED: State.SUSPECT,
            Event.ROLLED_BACK: State.WAITING,
            Event.INTERRUPTED: State.WAITING,
            Event.LEFT: State.WAITING,
        },
        State.CONFIRMING: {
            Event.CONFIRMED: State.OPEN,
            Event.ROLLED_BACK: State.WAITING,
            Event.SUSPECTED: State.SUSPECT,
            Event.INTERRUPTED: State.WAITING,
            Event.LEFT: State.WAITING,
        },
        State.OPEN: {
            Event.INTERRUPTED: State.WAITING,
            Event.LEFT: State.WAITING,
            Event.CAUGHT_UP: State.WAITING,
            Event.REACHED_HELD: State.SETTLING,
            Event.REACHED: State.DONE,
            Event.GIVEN_UP: State.VOID,
        },
        State.SETTLING: {
            Event.LEFT: State.WAITING,
            Event.SETTLED: State.DONE,
        },
        State.DONE: {},
        State.VOID: {},
    },
    peer_events=(
        Event.ACCEPTED,
        Event.ACCEPTED_PURGED,
        Event.CONFIRMED,
        Event.REFUSED,
        Event.ROLLED_BACK,
        Event.SUSPECTED,
    ),
)


class Part(Enum):
    """The part of the history that a vbucket's stream reads."""

    RANGE = "range"
    """The range, from the position on: the reader has the rows of all wanted collections up to there."""
    POSITION = "position"
    """Nothing: the position is put to the node. If its history was rolled back, reading new collections up to it is
    useless."""
    NEW_COLLECTIONS = "new collections"
    """New collections from their beginning up to the position, which the node has accepted."""


class PartEvent(Enum):
    """The events that change the part to read."""

    FOUND = "collections are missing"
    NONE_FOUND = "no collection is missing"
    ACCEPTED = "position accepted"
    READ = "missing part was read"
    INTERRUPTED = "stream was lost"
    WENT_BACK = "position went back"


PARTS = Transitions(
    "part of vbucket {}",
    Part.RANGE,
    {
        Part.RANGE: {
            PartEvent.FOUND: Part.POSITION,
            PartEvent.NONE_FOUND: Part.RANGE,
            PartEvent.INTERRUPTED: Part.RANGE,
            PartEvent.WENT_BACK: Part.RANGE,
        },
        Part.POSITION: {
            PartEvent.FOUND: Part.POSITION,
            PartEvent.NONE_FOUND: Part.RANGE,
            PartEvent.ACCEPTED: Part.NEW_COLLECTIONS,
            PartEvent.INTERRUPTED: Part.POSITION,
            PartEvent.WENT_BACK: Part.RANGE,
        },
        Part.NEW_COLLECTIONS: {
            PartEvent.FOUND: Part.POSITION,
            PartEvent.NONE_FOUND: Part.RANGE,
            PartEvent.READ: Part.RANGE,
            PartEvent.INTERRUPTED: Part.POSITION,
            PartEvent.WENT_BACK: Part.RANGE,
        },
    },
)


@dataclass(slots=True, eq=False)
class Attempts:
    """The attempts to read a vbucket: what went wrong since the last progress, and when to try again.

    Attributes:
        due: the time before which nothing is tried.
        failures: interruptions and refusals since the last row.
        faults: streams on which the node broke the protocol, or that it ended too early, since the last progress.
        faulty_at: the position at the first of them.
        ended_at: where the node last said OK, before the end or inside a snapshot; -1 if it did not.
        stuck_since: the time since when there is no stream that brings rows or lasts; None while there is one.
        trouble: why there is none, for messages.
        opened_at: when its stream was opened.
        opened_from: the position that the last stream was opened from.
        guarded: guarded streams that were requested since the last row.
    """

    due: float = 0.0
    failures: int = 0
    faults: int = 0
    faulty_at: StreamOffset = StreamOffset.ZERO
    ended_at: int = -1
    stuck_since: float | None = None
    trouble: str = ""
    opened_at: float = 0.0
    opened_from: StreamOffset | None = None
    guarded: int = 0

    def succeeded(self) -> None:
        """The stream brought rows, or its position moved."""
        self.failures, self.stuck_since, self.trouble = 0, None, ""
        self.guarded = 0

    def failed(self, trouble: str) -> None:
        """The request was refused, or the stream ended early."""
        self.failures += 1
        self.trouble = trouble

    def count_fault(self, at: StreamOffset) -> int:
        """Count a fault of the stream at this position; returns how many there were without progress in between."""
        if not self.faults or has_progressed(self.faulty_at, at):
            self.faults, self.faulty_at = 0, at
        self.faults += 1
        return self.faults


@dataclass(slots=True, eq=False)
class Given:
    """The rows of a vbucket that the user has.

    Attributes:
        last: the last rows that were given to the user, with the position after them.
        has_rows: whether rows were given to the user in this run.
        branch: the branch of the rows that were given out, in this run or before.
        seqno: rows up to this seqno may have been given out, where that is more than the position says; else 0.
        unordered_seqno: the highest seqno that was given out of an out-of-order snapshot that has not ended, else 0.
    """

    last: Run
    has_rows: bool = False
    branch: int = 0
    seqno: int = 0
    unordered_seqno: int = 0

    def add(self, run: Run) -> None:
        """The user gets these rows."""
        self.last = run
        self.has_rows = self.has_rows or run.first < run.stop or run.event is not None
        if run.unordered_high or self.unordered_seqno:
            self.seqno = max(self.seqno, run.unordered_high)
            self.unordered_seqno = run.unordered_high


@dataclass(slots=True, eq=False)
class Vbucket:
    """One vbucket of a reader.

    Attributes:
        range: what to read.
        offset: where to ask next, while there is no stream.
        known_earlier: recorded positions to go back along, but for those in `recorded`; see `earlier`.
        given: the rows that the user has.
        state: of its stream; changed by `happen` alone.
        part: of the history that its stream reads; changed by `turn` alone.
        new_collections: those that the position does not cover.
        new_offset: where to ask next for them.
        rewound_from: the position that was refused, until a stream is open.
        opened: the node's answer to a guarded stream, until it is confirmed.
        is_guarded: whether the stream that probes a suspect position is a guarded one.
        emptied: a selection of which the node said that nothing is left in the vbucket.
        is_at_end: whether its range is empty: only events of the manifest are reported, and new collections read.
        attempts: to read it.
        recorded: positions that the user has recorded, of all vbuckets.
    """

    range: VbucketRange
    offset: StreamOffset
    known_earlier: tuple[StreamOffset, ...]
    given: Given
    state: State = TRANSITIONS.start
    part: Part = PARTS.start
    new_collections: tuple[CollectionName, ...] = ()
    new_offset: StreamOffset = StreamOffset.ZERO
    rewound_from: StreamOffset | None = None
    opened: StreamOpened | None = None
    is_guarded: bool = False
    emptied: Wanted | None = None
    is_at_end: bool = False
    attempts: Attempts = field(default_factory=Attempts)
    connection: NodeConnection | None = None
    stream: Stream | None = None
    recorded: Recorded = field(default_factory=Recorded)

    @property
    def earlier(self) -> tuple[StreamOffset, ...]:
        """Recorded positions to go back along, newest first."""
        self.known_earlier = with_recorded(self.known_earlier, self.recorded.take(self.range.vbid))
        return self.known_earlier

    @property
    def can_be_guarded(self) -> bool:
        """Whether a guarded stream can show that no deletion after the position is missing."""
        return (
            self.offset.purge_limit is not None
            and self.offset.seqno < self.range.end_seqno
            and self.part is Part.RANGE
            and self.attempts.guarded < GUARDED_STREAMS_MAX
        )

    @property
    def position(self) -> StreamOffset:
        """The stream's position; without a stream, the position to ask for next."""
        return self.offset if self.stream is None else self.stream.tracker.offset

    def release_at(self, at: StreamOffset) -> None:
        """The user has, or needs, the rows up to this position."""
        self.given.last = Run.standing(self.range.vbid, at)

    def happen(self, event: Event) -> None:
        """Move to the state that follows."""
        self.state = TRANSITIONS.after(self.state, event, self.range.vbid)

    def turn(self, event: PartEvent) -> None:
        """Turn to the part that is read next."""
        self.part = PARTS.after(self.part, event, self.range.vbid)

    def find(self, new_collections: tuple[CollectionName, ...]) -> None:
        """Take the collections that the position does not cover: they are read first, up to the position."""
        if not new_collections:
            self.turn(PartEvent.NONE_FOUND)
        elif self.part is Part.RANGE or self.new_collections != new_collections:
            self.put_position(new_collections)

    def put_position(self, new_collections: tuple[CollectionName, ...] = ()) -> None:
        """Put the position to the node, before these collections are read up to it."""
        self.turn(PartEvent.FOUND)
        self.new_collections, self.new_offset = new_collections, StreamOffset.ZERO

    def rewind(self, before: StreamOffset, to: StreamOffset, earlier: tuple[StreamOffset, ...] = ()) -> None:
        """Go back: rows above the position are void, up to `before`."""
        self.turn(PartEvent.WENT_BACK)
        self.rewound_from, self.offset, self.known_earlier = before, to, earlier
        self.recorded.take(self.range.vbid)

    def drop_stream(self, event: Event, due: float, now: float) -> None:
        """Wait without a stream until the time `due`."""
        self.happen(event)
        if self.attempts.stuck_since is None:
            self.attempts.stuck_since = now
        self.stream = self.connection = self.opened = None
        self.attempts.due = due
