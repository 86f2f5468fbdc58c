"""Commands of former servers: a request that is well formed is answered NOT_SUPPORTED.

Source: kv_engine include/mcbp/protocol/opcode.h, daemon/mcbp_validators.cc (not_supported_validator).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.wire import Frame, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.session.session import Session

RANGE_FIRST, RANGE_LAST = 0x30, 0x3C
TAP_FIRST, TAP_LAST = 0x40, 0x47
OTHERS = (0x9E, 0x9F, 0xA6, 0xA7, 0xAC, 0xB0, 0xB1, 0xC1, 0xC2)
"""DEREGISTER_TAP_CLIENT, RESET_REPLICATION_CHAIN, SNAPSHOT_VB_STATES, VBUCKET_BATCH_COUNT, NOTIFY_VBUCKET_UPDATE,
CHANGE_VB_FILTER, CHECKPOINT_PERSISTENCE, SET_DRIFT_COUNTER_STATE, GET_ADJUSTED_TIME."""


def refuse(session: Session, frame: Frame) -> None:
    """Answer that this is not done any more."""
    session.refuse(frame, Status.NOT_SUPPORTED)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    opcodes = (*range(RANGE_FIRST, RANGE_LAST + 1), *range(TAP_FIRST, TAP_LAST + 1), *OTHERS)
    any_shape = Command(refuse, extras=(), key=Part.OPTIONAL, value=Part.OPTIONAL, has_cas=True, needs_bucket=False)
    table.add(opcodes, any_shape)
