"""Which answers of a client a producer lives with.

A client need not answer most of what a producer sends. If it does, an answer that says "I do not have that stream any
more" is no reason to part, one that says "I could not take this message" is.

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
"""Requests that a producer never makes, and NOOPs with another opaque: it goes by the status all the same."""
_WITH_ANY_STATUS = frozenset((Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE))
"""A takeover looks at them, and at nothing but their opaque."""

_ALWAYS = frozenset((Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH))


def is_tolerated(opcode: int, status: int, *, has_v7_codes: bool) -> bool:
    """Whether the connection goes on after this answer.

    Args:
        opcode: of the answer; a NOOP's only if it is not the one that was waited for.
        status: of the answer.
        has_v7_codes: the client said that it has codes of its own for "no such stream" and "another opaque".
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
