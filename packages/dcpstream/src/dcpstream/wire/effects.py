"""`changes`: whether a request leaves a server as it was, derived from the table of messages."""

from __future__ import annotations

from functools import cache

from dcpstream.wire.layout import Group, Kind, Layout, Side
from dcpstream.wire.messages import LAYOUTS

_READERS = frozenset({"DcpProducer", "RangeScan", "Read"})
"""Privileges that a server demands of requests that read. What needs another one is taken for a change."""


@cache
def changes(opcode: int) -> bool:
    """Whether a request may change documents, vbuckets or settings of a server, or its other connections.

    An opcode that is not in the table may do anything. So may one that a node refuses whatever its shape, since the
    table does not say what another server does at it.
    """
    layouts = [layout for layout in LAYOUTS if layout.opcode == opcode and layout.kind is Kind.REQUEST]
    return not layouts or any(_acts(layout) for layout in layouts)


def _acts(layout: Layout) -> bool:
    if layout.refused is not None or layout.privilege is None or Group.ACTS in layout.groups:
        return True
    if layout.sent_by is Side.PRODUCER and layout.privilege:
        return True  # its peer keeps what it says
    return not set(layout.privilege.replace("|", " ").split()) <= _READERS
