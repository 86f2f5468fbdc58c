"""SET_PARAM: what can be changed of a bucket while it runs. Source: kv_engine docs/BinaryProtocol.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.errors import DcpstreamError
from dcpstream.node.engine.bucket.parameters import CONFIG, FLUSH, VBUCKET, is_name_of, set_parameter
from dcpstream.node.engine.bucket.vbucket import MAX_TRUSTED_CAS
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.node.engine.handlers.keys import holds_token
from dcpstream.wire import Frame, Opcode, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.session.session import Session

MAX_CAS_DIGITS = 20


def set_param(session: Session, frame: Frame) -> None:
    """SET_PARAM: a parameter of a group; one that is not known, or has no effect here, is refused."""
    assert session.bucket is not None, "the table asks for a bucket"
    group = int.from_bytes(frame.extras, "big")
    if not FLUSH <= group <= CONFIG:
        session.refuse(frame, Status.EINVAL, "Invalid param type specified")
        return
    if not holds_token(session, frame):
        return
    name, text = frame.key.decode(errors="replace"), frame.value.decode(errors="replace")
    if not is_name_of(group, name):
        session.refuse(frame, Status.KEY_ENOENT, "Unknown config param")
        return
    if (group, name) == (VBUCKET, "max_cas"):
        _set_max_cas(session, frame, text)
        return
    try:
        why = set_parameter(session.bucket, group, name, text)
    except DcpstreamError as error:
        why = str(error)
    if why is None:
        session.respond(frame, cas=frame.cas)
    else:
        session.refuse(frame, Status.EINVAL, why)


def _set_max_cas(session: Session, frame: Frame, text: str) -> None:
    """Set the highest CAS that was given in a vbucket: those that follow are above it."""
    assert session.bucket is not None, "the table asks for a bucket"
    vbucket = session.bucket.vbucket(frame.vbid)
    if not text.isascii() or not text.isdecimal() or len(text) > MAX_CAS_DIGITS:
        session.refuse(frame, Status.EINVAL, "Value out of range.")
    elif vbucket is None:
        session.refuse(frame, Status.NOT_MY_VBUCKET, "Not my vbucket")
    else:
        vbucket.max_cas = min(max(1, int(text)), MAX_TRUSTED_CAS)  # 0 would mean that it is not known
        session.respond(frame, cas=frame.cas)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(
        Opcode.SET_PARAM,
        Command(
            set_param, extras=(4,), key=Part.REQUIRED, value=Part.REQUIRED, has_cas=True, privilege="NodeSupervisor"
        ),
    )
