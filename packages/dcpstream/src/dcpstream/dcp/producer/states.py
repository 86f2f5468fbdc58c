"""The states of a producer's stream, and how far a takeover stream has handed its vbucket over.

Source: kv_engine engines/ep/src/dcp/active_stream.cc (transitionState, takeoverSendPhase), recordings of takeovers.
"""

from __future__ import annotations

from enum import Enum

from dcpstream.dcp.transitions import Symbol, Transitions

__all__ = ["STREAM", "TAKEOVER", "StreamEvent", "StreamState", "TakeoverEvent", "TakeoverState"]


class StreamState(Symbol):
    """The states of a stream; the values are those of the server's stats."""

    PENDING = "pending"
    BACKFILLING = "backfilling"
    IN_MEMORY = "in-memory"
    TAKEOVER_SEND = "takeover-send"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


class StreamEvent(Symbol):
    """The events of a stream."""

    DISK = "goes on from disk"
    MEMORY = "goes on from memory"
    HANDOVER = "goes on from memory, as a takeover"
    STATE_SENT = "SET_VBUCKET_STATE sent"
    STATE_ANSWERED = "SET_VBUCKET_STATE pending answered"
    ENDED = "end, close or failure"


STREAM = Transitions(
    "producer stream of vb {}",
    StreamState.PENDING,
    {
        StreamState.PENDING: {
            StreamEvent.DISK: StreamState.BACKFILLING,
            StreamEvent.MEMORY: StreamState.IN_MEMORY,
            StreamEvent.HANDOVER: StreamState.TAKEOVER_SEND,
            StreamEvent.ENDED: StreamState.DEAD,
        },
        StreamState.BACKFILLING: {
            StreamEvent.DISK: StreamState.BACKFILLING,
            StreamEvent.MEMORY: StreamState.IN_MEMORY,
            StreamEvent.HANDOVER: StreamState.TAKEOVER_SEND,
            StreamEvent.ENDED: StreamState.DEAD,
        },
        StreamState.IN_MEMORY: {
            StreamEvent.DISK: StreamState.BACKFILLING,
            StreamEvent.MEMORY: StreamState.IN_MEMORY,
            StreamEvent.ENDED: StreamState.DEAD,
        },
        StreamState.TAKEOVER_SEND: {
            StreamEvent.HANDOVER: StreamState.TAKEOVER_SEND,
            StreamEvent.STATE_SENT: StreamState.TAKEOVER_WAIT,
            StreamEvent.ENDED: StreamState.DEAD,
        },
        StreamState.TAKEOVER_WAIT: {
            StreamEvent.STATE_ANSWERED: StreamState.TAKEOVER_SEND,
            StreamEvent.ENDED: StreamState.DEAD,
        },
        StreamState.DEAD: {},
    },
)


class TakeoverState(Enum):
    """The states of a takeover: where the vbucket is served, and the request that is not answered yet."""

    SERVED = "served here"
    PENDING_ASKED = "pending asked"
    HANDING_OVER = "handing over"
    DEAD_HERE = "dead here"
    ACTIVE_ASKED = "active asked"
    OVER = "over"


class TakeoverEvent(Enum):
    """The events of a takeover."""

    ASKED = "SET_VBUCKET_STATE sent"
    ANSWERED = "SET_VBUCKET_STATE answered"
    MADE_DEAD = "the vbucket here made dead"
    ENDED = "end of the stream"


TAKEOVER = Transitions(
    "takeover of vb {}",
    TakeoverState.SERVED,
    {
        TakeoverState.SERVED: {
            TakeoverEvent.ASKED: TakeoverState.PENDING_ASKED,
            TakeoverEvent.ENDED: TakeoverState.OVER,
        },
        TakeoverState.PENDING_ASKED: {
            TakeoverEvent.ANSWERED: TakeoverState.HANDING_OVER,
            TakeoverEvent.ENDED: TakeoverState.OVER,
        },
        TakeoverState.HANDING_OVER: {
            TakeoverEvent.MADE_DEAD: TakeoverState.DEAD_HERE,
        },
        TakeoverState.DEAD_HERE: {
            TakeoverEvent.ASKED: TakeoverState.ACTIVE_ASKED,
            TakeoverEvent.ENDED: TakeoverState.OVER,
        },
        TakeoverState.ACTIVE_ASKED: {
            TakeoverEvent.ANSWERED: TakeoverState.OVER,
            TakeoverEvent.ENDED: TakeoverState.OVER,
        },
        TakeoverState.OVER: {},
    },
)
