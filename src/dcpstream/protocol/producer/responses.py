"""Answers of the client that a producer tolerates; any other answer ends the connection.

A client need not answer most messages of a producer. If it does, the producer tolerates an answer which says that the
stream is gone, and ends the connection on an answer which says that the message was refused.

Source: kv_engine engines/ep/src/dcp/producer.cc (handleResponse), checked against recordings.
"""

from __future__ import annotations

from dcpstream.wire import Opcode, Status

__all__ = ["is_tolerated"]

_DATA = frozenset(
    (
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
        Opcode.DCP_CACHE_TRANSFER,
        Opcode.DCP_CACHE_TRANSFER_END,
        Opcode.DCP_STREAM_END,
    )
)
_OF_CLIENTS = frozenset(
    (
        Opcode.DCP_OPEN,
        Opcode.DCP_ADD_STREAM,
        Opcode.DCP_CLOSE_STREAM,
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_GET_FAILOVER_LOG,
        Opcode.DCP_BUFFER_ACK,
        Opcode.DCP_CONTROL,
        Opcode.DCP_NOOP,
    )
)
"""Requests that a producer never sends, and NOOPs with a wrong opaque: the status decides all the same."""
_WITH_ANY_STATUS = frozenset((Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE))
"""Answers to a takeover, which looks at their opaque only."""

_ALWAYS = frozenset((Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH))


def is_tolerated(opcode: int, status: int, *, has_v7_codes: bool) -> bool:
    """Whether the connection goes on after this answer.

    Args:
        opcode: of the answer; for a NOOP the caller has checked that its opaque is wrong.
        status: of the answer.
        has_v7_codes: the client negotiated status codes of their own for "no such stream" and "wrong opaque".
    """
    if opcode not in _DATA and opcode not in _OF_CLIENTS:
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
