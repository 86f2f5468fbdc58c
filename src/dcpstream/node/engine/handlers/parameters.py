"""SET_PARAM: what can be changed of a bucket while it runs. Source: kv_engine docs/BinaryProtocol.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.errors import DcpstreamError
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.node.engine.parameters import CONFIG, FLUSH, REPLICATION, set_parameter
from dcpstream.wire import Frame, Opcode, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session


def set_param(session: Session, frame: Frame) -> None:
    """SET_PARAM: a parameter of a group; one that is not known, or has no effect here, is refused."""
    assert session.bucket is not None, "the table asks for a bucket"
    group = int.from_bytes(frame.extras, "big")
    if group == REPLICATION:
        session.respond(frame, Status.KEY_ENOENT)
        return
    if not FLUSH <= group <= CONFIG:
        session.refuse(frame, Status.EINVAL, "Invalid param type specified")
        return
    try:
        why = set_parameter(session.bucket, group, frame.key.decode(), frame.value.decode())
    except UnicodeDecodeError:
        why = "names and values are UTF-8"
    except DcpstreamError as error:
        why = str(error)
    if why is None:
        session.respond(frame)
    else:
        session.refuse(frame, Status.EINVAL, why)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(
        Opcode.SET_PARAM,
        Command(
            set_param, extras=(4,), key=Part.REQUIRED, value=Part.REQUIRED, has_cas=True, privilege="NodeSupervisor"
        ),
    )
