"""The phases of a producer's stream, and the small state that it keeps between two messages.

Source: kv_engine engines/ep/src/dcp/active_stream.cc (transitionState, takeoverSendPhase), recordings of takeovers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dcpstream.dcp.producer.stream_filter import LiveFilter
from dcpstream.dcp.transitions import Symbol, Transitions
from dcpstream.wire import StreamEndReason
from dcpstream.wire.stored.form import StreamForm


class Phase(Symbol):
    """The phases of a stream. The first word of a value is the server's name of it, in stats.

    A takeover stream hands its vbucket over in the phases from TAKEOVER_SEND to ACTIVE_ASKED.
    """

    PENDING = "pending"
    BACKFILLING = "backfilling"
    IN_MEMORY = "in-memory"
    LAST_SNAPSHOT = "in-memory up to the end seqno"
    TAKEOVER_SEND = "takeover-send"
    PENDING_ASKED = "takeover-wait for pending"
    HANDING_OVER = "takeover-wait for the dead vbucket"
    LAST_WRITES = "takeover-send of a dead vbucket"
    ACTIVE_ASKED = "takeover-wait for active"
    CLOSING = "dead with a rest to send"
    DEAD = "dead"
    FINISHED = "dead and ended"

    @property
    def shown(self) -> str:
        """The server's name of the phase."""
        return self.value.partition(" ")[0]


class StreamEvent(Symbol):
    """The events of a stream."""

    DISK = "goes on from disk"
    MEMORY = "goes on from memory"
    LAST = "goes on from memory to its end"
    HANDOVER = "goes on from memory as a takeover"
    STATE_SENT = "SET_VBUCKET_STATE sent"
    STATE_ANSWERED = "SET_VBUCKET_STATE answered"
    MADE_DEAD = "the vbucket here made dead"
    CLOSED = "closed"
    ENDED = "end or failure"
    END_SENT = "STREAM_END sent"


_DIES = {StreamEvent.CLOSED: Phase.DEAD, StreamEvent.ENDED: Phase.DEAD}
_SENDS_THE_REST = {StreamEvent.CLOSED: Phase.CLOSING, StreamEvent.ENDED: Phase.DEAD}

STREAM = Transitions(
    "producer stream of vb {}",
    Phase.PENDING,
    {
        Phase.PENDING: {
            StreamEvent.DISK: Phase.BACKFILLING,
            StreamEvent.MEMORY: Phase.IN_MEMORY,
            StreamEvent.LAST: Phase.LAST_SNAPSHOT,
            StreamEvent.HANDOVER: Phase.TAKEOVER_SEND,
            **_DIES,
        },
        Phase.BACKFILLING: {
            StreamEvent.DISK: Phase.BACKFILLING,
            StreamEvent.MEMORY: Phase.IN_MEMORY,
            StreamEvent.HANDOVER: Phase.TAKEOVER_SEND,
            **_DIES,
        },
        Phase.IN_MEMORY: {
            StreamEvent.DISK: Phase.BACKFILLING,
            StreamEvent.LAST: Phase.LAST_SNAPSHOT,
            **_SENDS_THE_REST,
        },
        Phase.LAST_SNAPSHOT: {StreamEvent.MEMORY: Phase.IN_MEMORY, **_SENDS_THE_REST},
        Phase.TAKEOVER_SEND: {
            StreamEvent.HANDOVER: Phase.TAKEOVER_SEND,
            StreamEvent.STATE_SENT: Phase.PENDING_ASKED,
            **_SENDS_THE_REST,
        },
        Phase.PENDING_ASKED: {StreamEvent.STATE_ANSWERED: Phase.HANDING_OVER, **_DIES},
        Phase.HANDING_OVER: {StreamEvent.MADE_DEAD: Phase.LAST_WRITES},
        Phase.LAST_WRITES: {
            StreamEvent.HANDOVER: Phase.LAST_WRITES,
            StreamEvent.STATE_SENT: Phase.ACTIVE_ASKED,
            **_SENDS_THE_REST,
        },
        Phase.ACTIVE_ASKED: _DIES,
        Phase.CLOSING: {StreamEvent.ENDED: Phase.DEAD, StreamEvent.END_SENT: Phase.FINISHED},
        Phase.DEAD: {StreamEvent.ENDED: Phase.DEAD, StreamEvent.END_SENT: Phase.FINISHED},
        Phase.FINISHED: {},
    },
)

ROLLED_BACK = StreamEndReason.STATE_CHANGED
"""The reason when history was cut, or purged before the stream read it. The pages have 0x06, ROLLBACK, for it, which
servers do not send."""

OVER = frozenset((Phase.CLOSING, Phase.DEAD, Phase.FINISHED))
"""Phases in which the reason of the STREAM_END is known."""


class Marker(NamedTuple):
    """A snapshot marker, and the checkpoint that `Progress.checkpoint_seqno` becomes."""

    start: int
    end: int
    flags: int
    checkpoint_seqno: int | None


class Snapshot(NamedTuple):
    """A snapshot that is announced, and then sent.

    Attributes:
        marker: announces it; None if its messages come in any order, between two messages that say so.
        base: the position at which it began.
        end: its last seqno, as announced.
        limit: the seqno up to which the stream has read the history when it is over.
        held: keeps the history at `end` from being compacted.
        form: of its messages.
        event: of the stream when it begins; None if the phase stays.
        versions_from: the first seqno of which every version is sent; None: only the newest ones.
        is_prologue: it is older than the kept history, which follows from disk.
    """

    marker: Marker | None
    base: int
    end: int
    limit: int
    held: object
    form: StreamForm
    event: StreamEvent | None
    versions_from: int | None = None
    is_prologue: bool = False


@dataclass(slots=True, eq=False)
class Progress:
    """The state of a stream between two messages.

    Attributes:
        read_seqno: everything up to here was sent or left out.
        sent_seqno: seqno of the last message or SEQNO_ADVANCED.
        form: of the present messages.
        filter: the collections that the stream wants by now; None for everything.
        phase: see `STREAM`.
        snapshot: the one that is being sent.
        end_reason: of the STREAM_END, in the phases `OVER`.
        advanced_seqno: seqno of the last SEQNO_ADVANCED; 0 before the first.
        skipped: messages that were left out since the last one.
        has_announced: whether there was a snapshot.
        snapshot_end: end of the last announced snapshot; 0 before the first.
        checkpoint_seqno: the checkpoint of the last snapshot from memory; None if the next one carries the flag.
        unanswered_markers: markers that asked for an answer and have none yet.
        messages_sent: without markers and the end.
        events_sent: those of them about scopes and collections.
        prepares_sent: those of them that are prepares.
        messages_backfilled: those of them from disk.
    """

    read_seqno: int
    sent_seqno: int
    form: StreamForm
    filter: LiveFilter | None = None
    phase: Phase = STREAM.start
    snapshot: Snapshot | None = None
    end_reason: int | None = None
    advanced_seqno: int = 0
    skipped: int = 0
    has_announced: bool = False
    snapshot_end: int = 0
    checkpoint_seqno: int | None = None
    unanswered_markers: int = 0
    messages_sent: int = 0
    events_sent: int = 0
    prepares_sent: int = 0
    messages_backfilled: int = 0
