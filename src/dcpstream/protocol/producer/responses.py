"""Answers of the client that a producer tolerates; any other answer ends the connection.

A client need not answer most messages of a producer. If it does, the producer tolerates an answer which says that the
stream is gone, and ends the connection on an answer which says that the message was refused.

Source: kv_engine engines/ep/src/dcp/producer.cc (handleResponse), checked against recordings.
"""

from __future__ import annotations

from dcpstream.wire import Opcode, Status
from dcpstream.wire.messages import DCP_OPCODES

__all__ = ["is_tolerated"]

_WITH_ANY_STATUS = frozenset((Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE))
"""Answers to a takeover, which looks at their opaque only."""
_NOT_TOLERATED = frozenset(
    (Opcode.DCP_FLUSH, Opcode.DCP_SEQNO_ADVANCED, Opcode.DCP_OSO_SNAPSHOT, Opcode.DCP_SEQNO_ACKNOWLEDGED)
)
_BY_STATUS = DCP_OPCODES - _WITH_ANY_STATUS - _NOT_TOLERATED
"""Messages that need no answer, requests that a producer never sends, and NOOPs with a wrong opaque."""

_ALWAYS = frozenset((Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH))


def is_tolerated(opcode: int, status: int, *, has_v7_codes: bool) -> bool:
    """Whether the connection goes on after this answer.

    Args:
        opcode: of the answer; for a NOOP the caller has checked that its opaque is wrong.
        status: of the answer.
        has_v7_codes: the client negotiated status codes of their own for "no such stream" and "wrong opaque".
    """
    if opcode not in _BY_STATUS:
        return opcode in _WITH_ANY_STATUS
    if opcode == Opcode.DCP_NOOP and status == Status.SUCCESS:
        return False
    if status in _ALWAYS or (opcode, status) in (
        (Opcode.DCP_CACHE_TRANSFER, Status.ENOMEM),
        (Opcode.DCP_STREAM_END, Status.KEY_ENOENT),
    ):
        return True
    if has_v7_codes:
        return False
    if status == Status.KEY_ENOENT:
        return opcode not in (Opcode.DCP_COMMIT, Opcode.DCP_ABORT)
    return status == Status.KEY_EEXISTS
