"""The table of commands: for each opcode the handler, and a check of its own.

The message table (`dcpstream.wire.messages`) declares the shape of an opcode's requests and the privilege that they
need. `fault` refuses a request with the texts of the real server and in its order: first the shape, then the content of
a compressed value and of extended attributes, then the framing extras, then the document's key, then the command's own
check. Handlers see only well-formed requests.

Source: kv_engine daemon/mcbp_validators.cc, mcbp_privileges.cc, xattr/utils.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from dcpstream.errors import FieldError
from dcpstream.wire import Datatype, Frame, Status
from dcpstream.wire.keys import key_fault
from dcpstream.wire.layout import Phase
from dcpstream.wire.messages import quiet_forms_of
from dcpstream.wire.release import NEWEST, Release, Rule
from dcpstream.wire.shape import Fault, Shape, read_frame_infos, shape_of
from dcpstream.wire.values import snappy_uncompress
from dcpstream_node.engine.access.roles import KNOWN_PRIVILEGES
from dcpstream_node.engine.subdocument import has_valid_xattrs

if TYPE_CHECKING:
    from dcpstream_node.engine.session.session import Session

Handler: TypeAlias = "Callable[[Session, Frame], None]"
Check: TypeAlias = "Callable[[Session, Frame], Fault | None]"


@dataclass(frozen=True, slots=True)
class Command:
    """The node's side of an opcode.

    Attributes:
        handler: answers a well-formed request.
        shape: the shape of the opcode's requests, from the message table.
        check: the command's own check of a request, after the shape.
        own_extras: whether `check` or the handler, not the shape, refuses wrong lengths of the extras.
        privilege: the privileges that the user needs, see `Layout`. For a request about a document, a privilege in the
            document's collection is enough.
        is_anywhere: whether a privilege in any one collection is enough.
        is_document: whether the key is a document's, with a collection prefix where negotiated.
        needs_bucket: whether SELECT_BUCKET must come first.
        before_login: whether a client that has not logged in may send it.
    """

    handler: Handler
    shape: Shape
    check: Check | None
    own_extras: bool
    privilege: str = field(init=False)
    is_anywhere: bool = field(init=False)
    is_document: bool = field(init=False)
    needs_bucket: bool = field(init=False)
    before_login: bool = field(init=False)

    def __post_init__(self) -> None:
        """Take from the shape what is looked up for every request."""
        assert self.shape.privilege is not None, "a command whose privilege is not declared is refused"
        object.__setattr__(self, "privilege", self.shape.privilege)
        object.__setattr__(self, "is_anywhere", self.shape.anywhere)
        object.__setattr__(self, "is_document", self.shape.document_key)
        object.__setattr__(self, "needs_bucket", self.shape.phase is Phase.BUCKET)
        object.__setattr__(self, "before_login", self.shape.phase is Phase.CONNECTED)


class CommandTable:
    """Opcode → command; each opcode once."""

    def __init__(self) -> None:
        self._commands: dict[int, Command] = {}

    def add(
        self,
        opcodes: int | Iterable[int],
        handler: Handler,
        *,
        check: Check | None = None,
        own_extras: bool = False,
    ) -> None:
        """Register the command of one or several opcodes and of their quiet forms; arguments as for `Command`."""
        for opcode in chain.from_iterable(map(quiet_forms_of, (opcodes,) if isinstance(opcodes, int) else opcodes)):
            shape = shape_of(opcode, release=NEWEST)
            assert shape is not None, f"no message is declared for 0x{opcode:02x}"
            assert opcode not in self._commands, f"0x{opcode:02x} has two handlers"
            self._commands[opcode] = Command(handler, shape, check, own_extras)

    def get(self, opcode: int) -> Command | None:
        """The command of that opcode, or None."""
        return self._commands.get(opcode)

    def known_to(self, release: Release) -> CommandTable:
        """The commands that a release has, with the shapes of its requests."""
        found: CommandTable = CommandTable()
        for opcode, command in self._commands.items():
            shape = shape_of(opcode, release=release)
            if shape is not None:
                found._commands[opcode] = Command(command.handler, shape, command.check, command.own_extras)
        return found

    def opcodes(self) -> list[int]:
        """The opcodes of the table, ascending."""
        return sorted(self._commands)


def fault(session: Session, command: Command, frame: Frame) -> Fault | None:
    """The fault of a request, in the server's words, or None.

    The elements of the framing extras are left in `session.frame_infos`, the inflated value in `session.payload`.
    """
    shape, has_collections = command.shape, session.has_collections
    if shape.refused is not None:
        return Fault(shape.refused)
    context = shape.fault(frame, session.datatypes, has_prefix=has_collections, checks_extras=not command.own_extras)
    if context is not None:
        return Fault(Status.EINVAL, context)
    session.payload = frame.value
    if frame.datatype:
        try:
            if frame.datatype & Datatype.SNAPPY:
                session.payload = snappy_uncompress(frame.value)
        except FieldError:
            return Fault(Status.EINVAL, "Failed to inflate payload")
        limits_system = session.engine.release.has(Rule.SYSTEM_XATTRS_ARE_CHECKED)
        if frame.datatype & Datatype.XATTR and not has_valid_xattrs(session.payload, limits_system=limits_system):
            return Fault(Status.XATTR_EINVAL, "The provided xattr segment is not valid")
    if frame.framing:
        session.frame_infos, wrong = read_frame_infos(shape, frame.framing, KNOWN_PRIVILEGES)
        if wrong is not None:
            return wrong
    elif session.frame_infos:
        session.frame_infos = {}
    if shape.document_key and has_collections:
        context = key_fault(frame.key)
        if context is not None:
            return Fault(Status.EINVAL, context)
    return None if command.check is None else command.check(session, frame)
