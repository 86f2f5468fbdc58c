"""Answers of the client that a producer tolerates; any other answer ends the connection.

A client need not answer most messages of a producer. If it does, the producer tolerates an answer which says that the
stream is gone, and ends the connection on an answer which says that the message was refused. The message's declaration
names the statuses (`Answers`).

Source: kv_engine engines/ep/src/dcp/producer.cc (handleResponse), checked against recordings.
"""

from __future__ import annotations

from dcpstream.wire.messages import ANSWERS, REQUESTS
from dcpstream.wire.release import Release

_SINCE = {layout.opcode: layout.since for layout in REQUESTS if layout.answers is not None}


def is_tolerated(opcode: int, status: int, *, has_v7_codes: bool, release: Release) -> bool:
    """Whether the connection goes on after this answer.

    Args:
        opcode: of the answer; for a NOOP the caller has checked that its opaque is wrong.
        status: of the answer.
        has_v7_codes: the client negotiated status codes of their own for "no such stream" and "wrong opaque".
        release: of the producer, which knows no answers to later messages.
    """
    answers = ANSWERS.get(opcode)
    if answers is None or not release.knows(_SINCE[opcode]):
        return False
    if answers.are_awaited or status in answers.tolerated:
        return True
    return not has_v7_codes and status in answers.before_v7
