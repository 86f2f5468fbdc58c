"""The message classes, one module for each family: `dcp`, `kv`, `subdoc`, `admin`.

A message is declared here once, with its fields, sender and limits; see `dcpstream.wire.layout`. Import a class from
its family. Importing this package makes `LAYOUTS` whole.
"""

from dcpstream.wire.layout import LAYOUTS, Kind, Phase
from dcpstream.wire.messages import admin, dcp, kv, subdoc

__all__ = ["DCP_OPCODES", "FLOW_CONTROLLED", "LAYOUTS", "QUIET_FORMS", "admin", "dcp", "kv", "subdoc"]

DCP_OPCODES = frozenset(
    layout.opcode for layout in LAYOUTS if layout.kind is Kind.REQUEST and layout.phase is Phase.DCP
) | {dcp.Open.layout.opcode}
"""The opcodes of DCP: DCP_OPEN, and what follows it on the connection."""

FLOW_CONTROLLED = frozenset(layout.opcode for layout in LAYOUTS if layout.flow_controlled)
"""The opcodes whose messages count against a consumer's buffer."""

QUIET_FORMS = {layout.opcode: int(layout.quiet_of) for layout in LAYOUTS if layout.quiet_of is not None}
"""Opcode of a quiet form → the opcode of the form that is always answered."""
