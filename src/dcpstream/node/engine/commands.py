"""The table of commands: per opcode what its request looks like, who may send it, and which function answers.

`Command` states the shape once; `check` refuses what does not have it with the texts of the real server, so that the
functions behind see only well-formed requests. Source: kv_engine daemon/mcbp_validators.cc, mcbp_privileges.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from dcpstream.errors import FieldError
from dcpstream.wire import Frame, FrameInfoId, decode_frame_infos

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session

Handler = Callable[["Session", Frame], None]

MAX_KEY_BYTES = 250
"""Longest key, and longest name in a key field."""


class Part(Enum):
    """Whether a part of a request has to be there."""

    ABSENT = "absent"
    REQUIRED = "required"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Command:
    """One opcode's request.

    Attributes:
        handler: answers a well-formed request.
        extras: allowed lengths of the extras, ascending; empty: any, the handler looks itself.
        key, value: which parts there are.
        datatypes: bits of the datatype that may be set (and must have been negotiated).
        has_cas: whether the header's CAS may be non-zero.
        needs_cas: whether it has to be.
        privilege: what the user needs, several with blanks between; "" for nothing. Of commands about a document it is
            enough to have it in the document's collection.
        needs_bucket: whether SELECT_BUCKET must come first.
        before_login: whether it is answered to a peer that has not logged in.
        is_document: the key is a document's, with a collection prefix where negotiated.
        is_anywhere: it is enough to have the privilege in one collection, whichever.
        frame_infos: ids allowed in the framing extras.
    """

    handler: Handler
    extras: tuple[int, ...] = (0,)
    key: Part = Part.ABSENT
    value: Part = Part.ABSENT
    datatypes: int = 0
    has_cas: bool = False
    needs_cas: bool = False
    privilege: str = ""
    needs_bucket: bool = True
    before_login: bool = False
    is_document: bool = False
    is_anywhere: bool = False
    frame_infos: frozenset[int] = frozenset((FrameInfoId.BARRIER,))


class CommandTable:
    """Opcode → command; each opcode once."""

    def __init__(self) -> None:
        self._commands: dict[int, Command] = {}

    def add(self, opcodes: int | Iterable[int], command: Command) -> None:
        """Register a command under one or several opcodes."""
        for opcode in (opcodes,) if isinstance(opcodes, int) else opcodes:
            assert opcode not in self._commands, f"0x{opcode:02x} has two handlers"
            self._commands[opcode] = command

    def get(self, opcode: int) -> Command | None:
        """The command of that opcode, or None."""
        return self._commands.get(opcode)

    def without(self, opcodes: Collection[int]) -> CommandTable:
        """The same table without some opcodes."""
        found = CommandTable()
        for opcode, command in self._commands.items():
            if opcode not in opcodes:
                found.add(opcode, command)
        return found

    def opcodes(self) -> list[int]:
        """What is answered, ascending."""
        return sorted(self._commands)


def fault(command: Command, frame: Frame, datatypes: int) -> str | None:  # noqa: PLR0911 - one line per rule
    """What is wrong with a request, in the server's words; None if nothing is.

    Args:
        datatypes: the bits that the connection negotiated.
    """
    extras = len(frame.extras)
    if command.extras and extras not in command.extras:
        if command.extras == (0,):
            return "Request must not include extras"
        if len(command.extras) == 1:
            return f"Request must include extras of length {command.extras[0]}"
        return f"Request extras must be of length {' or '.join(map(str, command.extras))}"
    if frame.key and command.key is Part.ABSENT:
        return "Request must not include key"
    if not frame.key and command.key is Part.REQUIRED:
        return "Request must include key"
    if len(frame.key) > MAX_KEY_BYTES and not command.is_document:
        return f"Key length exceeds {MAX_KEY_BYTES}"
    if frame.value and command.value is Part.ABSENT:
        return "Request must not include value"
    if not frame.value and command.value is Part.REQUIRED:
        return "Request must include value"
    if frame.datatype & ~(command.datatypes & datatypes):
        return "Request datatype invalid"
    if frame.cas and not command.has_cas:
        return "Request CAS must not be set"
    if command.needs_cas and not frame.cas:
        return "Request CAS must be set"
    return None


def frame_infos(command: Command, framing: bytes) -> tuple[dict[int, bytes], int, str | None]:
    """(id → data, status, context) of a request's framing extras; status 0 if all are known and allowed here."""
    found: dict[int, bytes] = {}
    try:
        for info_id, data in decode_frame_infos(framing):
            if info_id in _IMPERSONATION:
                if not data:
                    return found, 0x04, "Impersonated user must be set"
                return found, 0x24, "Impersonation requires the Impersonate privilege"
            if info_id not in _FRAME_INFO_LENGTHS:
                return found, 0x80, None
            if len(data) not in _FRAME_INFO_LENGTHS[info_id]:
                return found, 0x04, "Invalid frame info length"
            if info_id == FrameInfoId.PRESERVE_TTL and info_id not in command.frame_infos:
                return found, 0x83, "This command does not support PreserveTtl"
            if info_id not in command.frame_infos:
                return found, 0x04, "The frame info is not allowed on this command"
            found[info_id] = data
    except FieldError:
        return found, 0x04, "Invalid encoding of the frame info"
    return found, 0, None


_IMPERSONATION = frozenset(
    (FrameInfoId.IMPERSONATE_USER, FrameInfoId.IMPERSONATE_PRIVILEGE, FrameInfoId.IMPERSONATE_TOKEN)
)
"""For other services of a cluster, which act for their users; nobody has that privilege here."""

_FRAME_INFO_LENGTHS: dict[int, tuple[int, ...]] = {
    FrameInfoId.BARRIER: (0,),
    FrameInfoId.DURABILITY: (1, 3),
    FrameInfoId.DCP_STREAM_ID: (2,),
    FrameInfoId.PRESERVE_TTL: (0,),
}
