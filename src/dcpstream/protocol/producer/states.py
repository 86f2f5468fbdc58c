"""The states of a producer's stream.

Source: kv_engine engines/ep/src/dcp/active_stream.cc (transitionState).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

__all__ = ["TAKEOVER_STATES", "TRANSITIONS", "StreamState"]


class StreamState(Enum):
    """Where a stream is; the values are those of the server's stats."""

    PENDING = "pending"
    BACKFILLING = "backfilling"
    IN_MEMORY = "in-memory"
    TAKEOVER_SEND = "takeover-send"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


TRANSITIONS: Mapping[StreamState, frozenset[StreamState]] = MappingProxyType(
    {
        StreamState.PENDING: frozenset(
            (StreamState.BACKFILLING, StreamState.IN_MEMORY, StreamState.TAKEOVER_SEND, StreamState.DEAD)
        ),
        StreamState.BACKFILLING: frozenset((StreamState.IN_MEMORY, StreamState.TAKEOVER_SEND, StreamState.DEAD)),
        StreamState.IN_MEMORY: frozenset((StreamState.BACKFILLING, StreamState.DEAD)),
        StreamState.TAKEOVER_SEND: frozenset((StreamState.TAKEOVER_WAIT, StreamState.DEAD)),
        StreamState.TAKEOVER_WAIT: frozenset((StreamState.TAKEOVER_SEND, StreamState.DEAD)),
        StreamState.DEAD: frozenset(),
    }
)
"""Which state may follow which, as in kv_engine."""

TAKEOVER_STATES = frozenset((StreamState.TAKEOVER_SEND, StreamState.TAKEOVER_WAIT))
"""In which a vbucket is being handed over."""
