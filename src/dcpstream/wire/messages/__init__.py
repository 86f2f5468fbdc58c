"""The message classes, one module for each family: `dcp`, `kv`, `subdoc`, `admin`.

A message is declared here once, with its fields, sender and limits; see `dcpstream.wire.layout`. Import a class from
its family. Importing this package makes `LAYOUTS` whole.
"""

from dcpstream.wire.layout import LAYOUTS, Kind, Phase
from dcpstream.wire.messages import admin, dcp, kv, subdoc

__all__ = ["DCP_OPCODES", "FLOW_CONTROLLED", "LAYOUTS", "admin", "dcp", "kv", "subdoc"]

DCP_OPCODES = frozenset(
    layout.opcode for layout in LAYOUTS if layout.kind is Kind.REQUEST and layout.phase is Phase.DCP
) | {dcp.Open.layout.opcode}
"""The opcodes of DCP: DCP_OPEN, and what follows it on the connection."""

FLOW_CONTROLLED = frozenset(layout.opcode for layout in LAYOUTS if layout.flow_controlled)
"""The opcodes whose messages count against a consumer's buffer."""
