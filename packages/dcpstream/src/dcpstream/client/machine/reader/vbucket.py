"""One vbucket of a reader: its range, its position, and the state of its stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Stream
from dcpstream.client.machine.nodes.retry import has_progressed
from dcpstream.client.machine.reader.selection import Wanted
from dcpstream.client.machine.tracker import Run
from dcpstream.client.machine.values import VbucketRange
from dcpstream.dcp.transitions import Transitions
from dcpstream.model import CollectionName, StreamOffset


class State(Enum):
    """The state of a vbucket's stream."""

    __hash__ = object.__hash__  # that of Enum is a function in Python, and each step looks up a state and an event

    WAITING = "waiting"
    """There is no stream: the vbucket waits for a time, a node, or a map."""
    OPENING = "opening"
    """The stream was requested."""
    OPEN = "open"
    SETTLING = "settling"
    """The end was reached, but rows are held back until all copies have them (see `stability`)."""
    DONE = "done"
    VOID = "void"
    """The planned branch is lost, and the range ended without rows (`VbucketRange.keeps_start`)."""


NOT_OPEN = frozenset((State.WAITING, State.OPENING, State.VOID))
"""States in which rows that arrive do not count: they are those of an earlier stream."""


class Event(Enum):
    """The events of a vbucket's stream."""

    __hash__ = object.__hash__

    REQUESTED = "stream requested"
    POSTPONED = "no node for it yet"
    NOTHING_WANTED = "nothing is left to read"
    ACCEPTED = "request accepted"
    REFUSED = "request refused"
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
    peer_events=(Event.ACCEPTED, Event.REFUSED),
)


@dataclass(slots=True, eq=False)
class CatchUp:
    """The part of new collections that a reader lacks in a vbucket: from their beginning to its position.

    The reader puts the position itself to the node first: if its history was rolled back, reading up to it is useless.

    Attributes:
        collections: the new ones.
        offset: where to ask next for them.
        is_allowed: whether the node has accepted the vbucket's position on this connection.
    """

    collections: tuple[CollectionName, ...]
    offset: StreamOffset = StreamOffset.ZERO
    is_allowed: bool = False


@dataclass(slots=True, eq=False)
class Vbucket:
    """One vbucket of a reader.

    Attributes:
        range: what to read.
        offset: where to ask next, while there is no stream.
        earlier: recorded positions to go back along.
        released: the last rows that were given to the user, with the position after them.
        state: changed by `happen` alone.
        due: the time before which nothing is tried.
        failures: interruptions and refusals since the last row.
        faults: streams on which the node broke the protocol, or that it ended too early, since the last progress.
        faulty_at: the position at the first of them.
        ended_at: where the node last said OK, before the end or inside a snapshot; -1 if it did not.
        stuck_since: the time since when there is no stream that brings rows or lasts; None while there is one.
        trouble: why there is none, for messages.
        opened_at: when its stream was opened.
        opened_from: the position that the last stream was opened from.
        has_rows: whether rows were given to the user.
        branch: the branch of the rows that were given out, in this run or before.
        given_seqno: rows up to this seqno may have been given out, where that is more than the position says; else 0.
        unordered_seqno: the highest seqno that was given out of an out-of-order snapshot that has not ended, else 0.
        rolled_back_from: the position that was refused, until a stream is open.
        probes_purge: whether the next request ignores purged deletions, to learn why the last one was refused.
        catch_up: the part to read before the vbucket is read on.
        emptied: a selection of which the node said that nothing is left in the vbucket.
        is_at_end: whether its range is empty: only events of the manifest are reported, and new collections read.
    """

    range: VbucketRange
    offset: StreamOffset
    earlier: tuple[StreamOffset, ...]
    released: Run
    state: State = TRANSITIONS.start
    due: float = 0.0
    failures: int = 0
    faults: int = 0
    faulty_at: StreamOffset = StreamOffset.ZERO
    ended_at: int = -1
    stuck_since: float | None = None
    trouble: str = ""
    opened_at: float = 0.0
    opened_from: StreamOffset | None = None
    has_rows: bool = False
    branch: int = 0
    given_seqno: int = 0
    unordered_seqno: int = 0
    rolled_back_from: StreamOffset | None = None
    probes_purge: bool = False
    catch_up: CatchUp | None = None
    emptied: Wanted | None = None
    is_at_end: bool = False
    connection: NodeConnection | None = None
    stream: Stream | None = None

    @property
    def position(self) -> StreamOffset:
        """The stream's position; without a stream, the position to ask for next."""
        return self.offset if self.stream is None else self.stream.tracker.offset

    def release_at(self, at: StreamOffset) -> None:
        """The user has, or needs, the rows up to this position."""
        self.released = Run.standing(self.range.vbid, at)

    def count_fault(self, at: StreamOffset) -> int:
        """Count a fault of the stream at this position; returns how many there were without progress in between."""
        if not self.faults or has_progressed(self.faulty_at, at):
            self.faults, self.faulty_at = 0, at
        self.faults += 1
        return self.faults

    def happen(self, event: Event) -> None:
        """Move to the state that follows."""
        self.state = TRANSITIONS.after(self.state, event, self.range.vbid)

    def drop_stream(self, event: Event, due: float, now: float) -> None:
        """Wait without a stream until the time `due`."""
        self.happen(event)
        if self.stuck_since is None:
            self.stuck_since = now
        self.stream = self.connection = None
        self.due = due
