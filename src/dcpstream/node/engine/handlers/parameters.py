"""SET_PARAM: what can be changed of a bucket while it runs.

Source: kv_engine engines/ep/management, docs/BinaryProtocol.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.node.engine.bucket import Compression
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.wire import Frame, Opcode, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session

FLUSH, REPLICATION, DCP = 1, 2, 4
COMPRESSION_MODE = b"compression_mode"
OSO_BACKFILL = b"dcp_oso_backfill"
OSO_MODES = (b"enabled", b"auto", b"disabled")
"""Here `auto` is the same as `enabled`."""


def set_param(session: Session, frame: Frame) -> None:
    """SET_PARAM: `compression_mode` and `dcp_oso_backfill`; others are not known."""
    assert session.bucket is not None, "the table asks for a bucket"
    group = int.from_bytes(frame.extras, "big")
    if group == REPLICATION:
        session.respond(frame, Status.KEY_ENOENT)
        return
    if group == DCP and frame.key == OSO_BACKFILL and frame.value in OSO_MODES:
        session.bucket.allows_out_of_order = frame.value != b"disabled"
        session.respond(frame)
        return
    modes = {mode.value.encode(): mode for mode in Compression}
    if group != FLUSH or frame.key != COMPRESSION_MODE or frame.value not in modes:
        session.respond(frame, Status.EINVAL)
        return
    session.bucket.compression = modes[frame.value]
    session.respond(frame)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(
        Opcode.SET_PARAM,
        Command(set_param, extras=(4,), key=Part.REQUIRED, value=Part.REQUIRED, privilege="NodeSupervisor"),
    )
