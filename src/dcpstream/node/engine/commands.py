"""The table of commands: per opcode what its request looks like, who may send it, and which function answers.

`Command` states the shape once. `fault` refuses what does not have it, with the texts of the real server and in its
order: lengths, CAS and datatype first, then the content of a compressed value and of extended attributes, then the
framing extras, then the key, then what a command alone asks for. The functions behind see only well-formed requests.

Source: kv_engine daemon/mcbp_validators.cc, mcbp_privileges.cc, utilities/durability_spec.cc, xattr/utils.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from dcpstream.errors import FieldError
from dcpstream.node.engine.access.roles import ALL_PRIVILEGES
from dcpstream.node.engine.subdocument import has_valid_xattrs
from dcpstream.wire import Datatype, Frame, FrameInfoId, Status
from dcpstream.wire.keys import decode_frame_infos, leb128_decode
from dcpstream.wire.values import snappy_uncompress

MAX_KEY_BYTES = 250
"""Longest key, and longest name in a key field, without a collection prefix."""
MAX_PREFIXED_KEY_BYTES = 251
"""Longest key field of a connection with collections."""
MAX_KEY_BYTES_ELSEWHERE = 246
"""Longest logical key outside of the default collection."""
FIRST_RESERVED, LAST_RESERVED = 1, 7
"""Ids that no collection of a client has."""
PREFIX_BYTES_MAX = 5

MAX_DURABILITY_LEVEL = 3
"""1 majority, 2 majority and persisted on the active copy, 3 persisted by a majority."""

_DATATYPES_KNOWN = 0x07


class Requester(Protocol):
    """The session that a request comes from.

    Attributes:
        datatypes: bits of the datatype that were negotiated.
        has_collections: whether keys have a collection prefix.
        frame_infos, payload: see `fault`.
    """

    datatypes: int
    has_collections: bool
    frame_infos: dict[int, bytes]
    payload: bytes


S = TypeVar("S", bound=Requester)


class Fault(NamedTuple):
    """Why a request is refused: the status, and the reason for the client, if there is one."""

    status: int
    context: str | None = None


class Part(Enum):
    """Whether a part of a request has to be there."""

    ABSENT = "absent"
    REQUIRED = "required"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Command(Generic[S]):
    """One opcode's request.

    Attributes:
        handler: answers a well-formed request.
        extras: allowed lengths of the extras, ascending; empty: any, the handler looks itself.
        checks_extras: whether `check` looks at the length of the extras, after the key, as it alone says what is wrong.
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
        is_durable: whether the framing extras may ask for durability.
        keeps_ttl: whether they may ask to keep the document's expiration.
        check: what this command alone asks of its requests, beyond their shape.
    """

    handler: Callable[[S, Frame], None]
    extras: tuple[int, ...] = (0,)
    checks_extras: bool = False
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
    is_durable: bool = False
    keeps_ttl: bool = False
    check: Callable[[S, Frame], Fault | None] | None = None


class CommandTable(Generic[S]):
    """Opcode → command; each opcode once."""

    def __init__(self) -> None:
        self._commands: dict[int, Command[S]] = {}

    def add(self, opcodes: int | Iterable[int], command: Command[S]) -> None:
        """Register a command under one or several opcodes."""
        for opcode in (opcodes,) if isinstance(opcodes, int) else opcodes:
            assert opcode not in self._commands, f"0x{opcode:02x} has two handlers"
            self._commands[opcode] = command

    def get(self, opcode: int) -> Command[S] | None:
        """The command of that opcode, or None."""
        return self._commands.get(opcode)

    def without(self, opcodes: Collection[int]) -> CommandTable[S]:
        """The same table without some opcodes."""
        found: CommandTable[S] = CommandTable()
        for opcode, command in self._commands.items():
            if opcode not in opcodes:
                found.add(opcode, command)
        return found

    def opcodes(self) -> list[int]:
        """What is answered, ascending."""
        return sorted(self._commands)


def fault(session: S, command: Command[S], frame: Frame) -> Fault | None:
    """What is wrong with a request, in the server's words; None if nothing is.

    What the framing extras ask for is left in the session's `frame_infos`, the value without compression in `payload`.
    """
    context = _shape_fault(command, frame, session.datatypes, has_collections=session.has_collections)
    if context is not None:
        return Fault(Status.EINVAL, context)
    session.payload = frame.value
    if frame.datatype:
        try:
            if frame.datatype & Datatype.SNAPPY:
                session.payload = snappy_uncompress(frame.value)
        except FieldError:
            return Fault(Status.EINVAL, "Failed to inflate payload")
        if frame.datatype & Datatype.XATTR and not has_valid_xattrs(session.payload):
            return Fault(Status.XATTR_EINVAL, "The provided xattr segment is not valid")
    if frame.framing:
        session.frame_infos, wrong = frame_infos(command, frame.framing)
        if wrong is not None:
            return wrong
    elif session.frame_infos:
        session.frame_infos = {}
    if command.is_document and session.has_collections:
        context = key_fault(frame.key)
        if context is not None:
            return Fault(Status.EINVAL, context)
    return None if command.check is None else command.check(session, frame)


def _shape_fault(  # noqa: PLR0911 - one line per rule
    command: Command[S], frame: Frame, datatypes: int, *, has_collections: bool
) -> str | None:
    """What is wrong with the header's fields.

    Args:
        datatypes: the bits that the connection negotiated.
    """
    if frame.datatype & ~_DATATYPES_KNOWN:
        return "Request datatype invalid"
    extras = len(frame.extras)
    if command.extras and not command.checks_extras and extras not in command.extras:
        if command.extras == (0,):
            return "Request must not include extras"
        if len(command.extras) == 1:
            return f"Request must include extras of length {command.extras[0]}"
        return f"Request extras must be of length {' or '.join(map(str, command.extras))}"
    if frame.key and command.key is Part.ABSENT:
        return "Request must not include key"
    if not frame.key and command.key is Part.REQUIRED:
        return "Request must include key"
    longest = MAX_PREFIXED_KEY_BYTES if has_collections else MAX_KEY_BYTES
    if len(frame.key) > longest:
        return f"Key length exceeds {longest}"
    if frame.value and command.value is Part.ABSENT:
        return "Request must not include value"
    if not frame.value and command.value is Part.REQUIRED:
        return "Request must include value"
    if frame.cas and not command.has_cas:
        return "Request CAS must not be set"
    if command.needs_cas and not frame.cas:
        return "Request CAS must be set"
    if frame.datatype & ~command.datatypes:
        return "Request datatype invalid"
    if frame.datatype & ~datatypes:
        return "Datatype not enabled for the connection"
    return None


def key_fault(key: bytes) -> str | None:
    """What is wrong with a document's key that has a collection prefix."""
    if len(key) <= 1:
        return "Key length must be >= 2"
    try:
        collection_id, prefix = leb128_decode(key[:PREFIX_BYTES_MAX])
    except FieldError:
        has_stop = any(byte < 0x80 for byte in key)
        return "Key contains non-canonical leb128" if has_stop else "No stop-byte found"
    if len(key) == prefix:
        return "No logical key found"
    if FIRST_RESERVED <= collection_id <= LAST_RESERVED:
        return f"Invalid collection-id:{collection_id}"
    longest = MAX_KEY_BYTES if collection_id == 0 else MAX_KEY_BYTES_ELSEWHERE
    return f"Logical key exceeds {longest}" if len(key) - prefix > longest else None


def frame_infos(command: Command[S], framing: bytes) -> tuple[dict[int, bytes], Fault | None]:
    """(id → data, what is wrong) of a request's framing extras."""
    found: dict[int, bytes] = {}
    try:
        for info_id, data in decode_frame_infos(framing):
            check = _INFO_CHECKS.get(info_id)
            if check is None:
                return found, Fault(Status.UNKNOWN_FRAME_INFO)
            wrong = check(command, data)
            if wrong is not None:
                return found, wrong
            found[info_id] = data
    except FieldError:
        return found, Fault(Status.EINVAL, "Invalid encoding in FrameExtras")
    return found, None


def _barrier_fault(_command: Command[Any], data: bytes) -> Fault | None:
    return Fault(Status.EINVAL, "Barrier should not contain value") if data else None


def _durability_fault(command: Command[Any], data: bytes) -> Fault | None:
    if len(data) not in (1, 3):
        return Fault(Status.EINVAL, f"Invalid sized buffer provided: {len(data)}")
    if not 1 <= data[0] <= MAX_DURABILITY_LEVEL or data[1:] in (b"\0\0", b"\xff\xff"):
        context = "Content represents an invalid requirement specification"
        return Fault(Status.DURABILITY_INVALID_LEVEL, context)
    if not command.is_durable:
        return Fault(Status.EINVAL, "The requested command does not support durability requirements")
    return None


def _stream_id_fault(_command: Command[Any], data: bytes) -> Fault | None:
    return None if len(data) == 2 else Fault(Status.EINVAL, f"DcpStreamId invalid size:{len(data)}")


def _tracing_fault(_command: Command[Any], data: bytes) -> Fault | None:
    return None if data else Fault(Status.EINVAL, "OpenTracingContext cannot be empty")


def _user_fault(_command: Command[Any], data: bytes) -> Fault | None:
    if not data:
        return Fault(Status.EINVAL, "Impersonated user must be set")
    return Fault(Status.EINVAL, "Username must be at least one character") if data == b"^" else None


def _ttl_fault(command: Command[Any], data: bytes) -> Fault | None:
    if data:
        return Fault(Status.EINVAL, "PreserveTtl should not contain value")
    return None if command.keeps_ttl else Fault(Status.NOT_SUPPORTED, "This command does not support PreserveTtl")


def _privilege_fault(_command: Command[Any], data: bytes) -> Fault | None:
    if not data:
        return Fault(Status.EINVAL, "Privilege name must be set")
    is_known = data.decode(errors="replace") in _KNOWN_PRIVILEGES
    return None if is_known else Fault(Status.EINVAL, "Failed to look up the privilege")


_KNOWN_PRIVILEGES = ALL_PRIVILEGES | {
    "Audit",
    "AuditManagement",
    "BucketManagement",
    "Impersonate",
    "NodeManagement",
    "SecurityManagement",
    "SessionManagement",
    "SystemSettings",
}
"""What may be lent to the user that a request is made for."""

_INFO_CHECKS: dict[int, Callable[[Command[Any], bytes], Fault | None]] = {
    FrameInfoId.BARRIER: _barrier_fault,
    FrameInfoId.DURABILITY: _durability_fault,
    FrameInfoId.DCP_STREAM_ID: _stream_id_fault,
    FrameInfoId.TRACING_CONTEXT: _tracing_fault,
    FrameInfoId.IMPERSONATE_USER: _user_fault,
    FrameInfoId.PRESERVE_TTL: _ttl_fault,
    FrameInfoId.IMPERSONATE_PRIVILEGE: _privilege_fault,
}
"""Elements of the framing extras that a request may have. Some say nothing to this node: the barrier, because requests
are answered in order anyway, and the id of a trace, because nobody collects traces here."""
