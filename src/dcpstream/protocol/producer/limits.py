"""The bounds of a producer connection, and what a client's priority makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dcpstream.protocol.noop import DEFAULT_IDLE_TIMEOUT_S

__all__ = ["DEFAULT_LIMITS", "TURN_FACTORS", "ProducerLimits"]


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """Bounds of one producer connection.

    Attributes:
        turn_bytes: what a stream may send before the next one has its turn: large enough that a block is copied
            at memory speed, small enough that 1,024 streams share a connection.
        streams_max: streams of all vbuckets and stream ids: 64 stream ids for each of 1,024 vbuckets.
        idle_timeout_s: silence after which a peer with NOOPs enabled is given up.
        takeover_s: how long a takeover may follow a vbucket that is written to; then writes are put off until it has
            come to its end: the server's dcp_takeover_max_time.
        stuck_timeout_s: how long a window may stay full without an acknowledgement, on connections named as follows.
        stuck_names: a regular expression found in the names of the connections that are dropped then: by default those
            of index projectors, which answer NOOPs in one thread while another that should read hangs.
    """

    turn_bytes: int = 1024 * 1024
    streams_max: int = 64 * 1024
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S
    takeover_s: float = 60.0
    stuck_timeout_s: float = 720.0
    stuck_names: str = "^secidx"


DEFAULT_LIMITS = ProducerLimits()

TURN_FACTORS: Mapping[str, float] = MappingProxyType({"high": 10.0, "medium": 1.0, "low": 0.2})
"""What `set_priority` does to a stream's turn: 50, 5 and 1 in the server, which counts messages."""
