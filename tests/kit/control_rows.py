"""Control rows as the client makes them."""

from __future__ import annotations

from dcpstream.arrow import ControlRow
from dcpstream.client.machine.values import RollbackEvent
from dcpstream.model import Op, StreamOffset


def rollback_row(vbid: int, from_seqno: int, to_seqno: int, old_vbuuid: int, new_vbuuid: int) -> ControlRow:
    """The control row of a rollback: the rows of a vbucket above `to_seqno` are void."""
    event = RollbackEvent(vbid, from_seqno, to_seqno, old_vbuuid, new_vbuuid, StreamOffset.ZERO)
    return ControlRow(Op.ROLLBACK, vbid, to_seqno, new_vbuuid, event.details())
