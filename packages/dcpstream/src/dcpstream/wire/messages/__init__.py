"""The message classes, one module for each family: `dcp`, `kv`, `subdoc`, `admin`.

A message is declared here once, with its fields, sender, privilege and limits; see `dcpstream.wire.layout`. Import a
class from its family. Importing this package makes `LAYOUTS` whole. No other package keeps a list of opcodes: a list
that some part needs is derived here from an option of the declarations.
"""

from dcpstream.wire.layout import LAYOUTS, Answers, Group, Kind, Layout, Phase, Response, Side, classes_of
from dcpstream.wire.messages import admin, dcp, kv, subdoc

__all__ = [
    "ANSWERS",
    "DCP_OPCODES",
    "FLOW_CONTROLLED",
    "LAYOUTS",
    "QUIET_FORMS",
    "REQUESTS",
    "RESPONSES",
    "admin",
    "dcp",
    "kv",
    "loud_form",
    "opcodes_of",
    "quiet_forms_of",
    "sent_by",
    "subdoc",
]

REQUESTS: tuple[Layout, ...] = tuple(layout for layout in LAYOUTS if layout.kind is Kind.REQUEST)
"""The layouts of all requests."""

DCP_OPCODES = frozenset(layout.opcode for layout in REQUESTS if layout.phase is Phase.DCP) | {dcp.Open.layout.opcode}
"""The opcodes of DCP: DCP_OPEN, and what follows it on the connection."""

FLOW_CONTROLLED = frozenset(layout.opcode for layout in LAYOUTS if layout.flow_controlled)
"""The opcodes whose messages count against a consumer's buffer."""

QUIET_FORMS = {layout.opcode: int(layout.quiet_of) for layout in LAYOUTS if layout.quiet_of is not None}
"""Opcode of a quiet form → the opcode of the form that is always answered."""

ANSWERS: dict[int, Answers] = {layout.opcode: layout.answers for layout in REQUESTS if layout.answers is not None}
"""Opcode of a DCP request → the answers with which a producer goes on."""

RESPONSES: dict[int, type[Response]] = {
    layout.opcode: cls
    for layout in reversed(LAYOUTS)
    for cls in classes_of(layout.opcode, Kind.RESPONSE)
    if issubclass(cls, Response) and cls.layout is layout
}
"""Opcode → the class of the answer to its requests; of several the first that is declared."""


def opcodes_of(group: Group) -> frozenset[int]:
    """The opcodes of the requests of a group."""
    return frozenset(layout.opcode for layout in REQUESTS if layout.groups & group)


def loud_form(opcode: int) -> int:
    """The opcode that a quiet form is of; an opcode that is no quiet form itself."""
    return QUIET_FORMS.get(opcode, opcode)


def quiet_forms_of(opcode: int) -> tuple[int, ...]:
    """An opcode and its quiet form, if it has one."""
    return (opcode, *(quiet for quiet, loud in QUIET_FORMS.items() if loud == opcode))


def sent_by(side: Side) -> tuple[Layout, ...]:
    """The layouts of the requests that one side sends and the other one takes: none of them is always refused."""
    return tuple(layout for layout in REQUESTS if layout.sent_by & side and layout.refused is None)
