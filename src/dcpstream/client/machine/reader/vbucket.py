"""What a reader keeps for each vbucket, and rows on their way to the user."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import RowsReceived, Stream
from dcpstream.client.machine.reader.catalog import Branches, Names
from dcpstream.client.machine.reader.selection import Wanted
from dcpstream.client.machine.values import VbucketRange
from dcpstream.model import CollectionName, StreamOffset


class State(Enum):
    """Where a vbucket's reading stands."""

    WAITING = "waiting"
    OPENING = "opening"
    OPEN = "open"
    SETTLING = "settling"
    """Its end was reached, but rows are held back until all copies have them (see `stability`)."""
    DONE = "done"


@dataclass(slots=True, eq=False)
class CatchUp:
    """The part of a vbucket that a reader lacks of collections that are new to it: from their beginning to where it is.

    The position itself is put to the node first: if its history was rolled back, there is no point in reading up to it.

    Attributes:
        collections: which.
        offset: where to ask next for them.
        is_allowed: whether the node has accepted the vbucket's position on this connection.
    """

    collections: tuple[CollectionName, ...]
    offset: StreamOffset = StreamOffset.ZERO
    is_allowed: bool = False


@dataclass(slots=True, eq=False)
class Vbucket:
    """One vbucket's work.

    Attributes:
        range: what to read.
        offset: where to ask next, while there is no stream.
        earlier: recorded positions to go back along.
        released: the position after the last rows that were given to the user.
        due: before when nothing is tried.
        failures: interruptions and refusals in a row, without a row in between.
        stuck_since: since when it has been without a stream that brings rows or lasts; None while it has one.
        trouble: why it has none, for messages.
        opened_at: when its stream was opened.
        opened_from: the position that the last stream was opened from.
        has_rows: whether rows were given to the user.
        branch: the branch that rows were given out on, in this run or before.
        given_seqno: rows up to this seqno may have been given out, where that is more than the position says; 0 if it
            is not.
        unordered_seqno: the highest seqno that was given out of an out-of-order snapshot that has not ended, else 0.
        rolled_back_from: the position that was refused, until a stream is open.
        probes_purge: whether the next request leaves purged deletions out of account, to learn why one was refused.
        catch_up: what must be read before the vbucket is read on.
        emptied: a selection of which the node said that nothing of it is left in the vbucket.
        is_at_end: whether its range is empty: only what the manifest says is to be told, and caught up with.
    """

    range: VbucketRange
    offset: StreamOffset
    earlier: tuple[StreamOffset, ...]
    released: StreamOffset
    state: State = State.WAITING
    due: float = 0.0
    failures: int = 0
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


@dataclass(frozen=True, slots=True)
class Received:
    """Rows that wait for the user.

    Attributes:
        event: the rows.
        connection: where they came from, and are acknowledged.
        names, vbuuids: collections and branches at that moment.
    """

    event: RowsReceived
    connection: NodeConnection
    names: Names
    vbuuids: Branches
