"""MUTATE_WITH_META of 8.5: a version from another cluster whose metadata are JSON at the end of the value.

The server writes the version's own CAS and seqno into the extended attributes, at the offsets that the JSON names. The
rest is as for SET, ADD and DELETE_WITH_META (`dcpstream_node.engine.handlers.with_meta`).

No server was heard. Source: kv_engine docs/mutate-with-meta.md, and where that differs, on which members are required
and on the bit that forces a write, the server's daemon/protocol/mcbp/mutate_with_meta_context.cc and
protocol/mcbp/mutate_with_meta_payload.cc of August 2026.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from dcpstream.wire import Datatype, Frame, Opcode, Status
from dcpstream.wire.messages import kv
from dcpstream.wire.shape import Fault
from dcpstream.wire.values import decode_xattrs, is_system_xattr, split_xattrs
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.with_meta import (
    HEX_TEXT_BYTES,
    REGENERATE_CAS,
    Content,
    Meta,
    carry_out,
    checked,
    hex_text,
    is_by_time,
)
from dcpstream_node.engine.subdocument import has_valid_xattrs

if TYPE_CHECKING:
    from dcpstream_node.engine.session.session import Session

_COMMANDS: Mapping[str, Opcode] = MappingProxyType(
    {"add": Opcode.ADD_WITH_META, "set": Opcode.SET_WITH_META, "delete": Opcode.DELETE_WITH_META}
)
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_DECIMAL = re.compile(r"[0-9]+")
_U32, _U64 = 32, 64
_REV_OF_NONE = 1
"""The revision of a version that names none."""
_CAS_OF_NONE = 1
"""Stands for the CAS that the node chooses."""


class _Refused(ValueError):
    """The request contradicts itself; the text is the context of the answer."""


def write(session: Session, frame: Frame) -> None:
    """Write a version if it wins over the present one."""
    (meta_bytes,) = kv.MutateWithMeta.unpack(frame)
    payload = session.payload
    try:
        if meta_bytes > len(payload):
            raise _Refused("Invalid metadata length")
        at = len(payload) - meta_bytes
        meta, cas_offsets, seqno_offsets = _read(payload[at:])
        value, datatype = payload[:at], frame.datatype & ~Datatype.SNAPPY
        if value and datatype & Datatype.XATTR and not has_valid_xattrs(value):
            session.refuse(frame, Status.XATTR_EINVAL)  # its attributes reach into the metadata
            return
        _check_offsets(value, datatype, (*cas_offsets, *seqno_offsets))
        if meta.is_deletion:
            _check_deletion(value, datatype)
        if not meta.fits(is_by_time=is_by_time(session)):
            raise _Refused("The options contradict each other or the bucket's conflict resolution")
    except _Refused as error:
        session.refuse(frame, Status.EINVAL, str(error))
        return
    if session.is_degraded:
        session.refuse(frame, Status.TMPFAIL)
        return
    content = checked(session, frame, value, value, int(datatype)) if value else Content(b"", 0)
    if content is not None:
        content = content._replace(cas_offsets=cas_offsets, seqno_offsets=seqno_offsets)
        carry_out(session, frame, meta, content)


def _read(text: bytes) -> tuple[Meta, tuple[int, ...], tuple[int, ...]]:
    """The metadata, and the offsets of CAS and seqno.

    Raises:
        _Refused: a member is missing, of another kind, or contradicts another one.
    """
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"Failed to validate input: {error}") from None
    command = found.get("command") if isinstance(found, dict) else None
    if not isinstance(command, str) or command not in _COMMANDS:
        raise _Refused("Failed to validate input: command must be add, set or delete")
    flags, time, options = (_number(found, name, _U32) for name in ("flags", "expiration", "options"))
    rev_seqno = _number(found, "rev_seqno", _U64) if "rev_seqno" in found else _REV_OF_NONE
    cas = _number(found, "cas", _U64) if "cas" in found else None
    cas_offsets, seqno_offsets = (_offsets(found.get(name, [])) for name in ("cas_offsets", "seqno_offsets"))
    if options & REGENERATE_CAS:
        if cas is not None:
            raise _Refused("CAS cannot be specified when REGENERATE_CAS option is set")
    elif cas is None:
        raise _Refused("CAS must be specified unless options contains REGENERATE_CAS")
    elif cas_offsets or seqno_offsets:
        raise _Refused("cas_offsets and seqno_offsets cannot be specified when cas is set")
    chosen = _CAS_OF_NONE if cas is None else cas
    return Meta(_COMMANDS[command], flags, time, rev_seqno, chosen, options), cas_offsets, seqno_offsets


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _number(found: Mapping[str, object], name: str, bits: int) -> int:
    """A number, or a text with a decimal one or one that begins with 0x; the low bits of what is too large.

    A decimal text that is too large is refused; the server reads it so.
    """
    value = found.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value) % (1 << bits)
    if isinstance(value, str):
        if value.startswith("0x"):
            if _HEX.fullmatch(value):
                return int(value, 16) % (1 << bits)
        elif (digits := _DECIMAL.match(value)) and len(digits[0]) <= bits and int(digits[0]) < 1 << bits:
            return int(digits[0])
    raise _Refused(f"Failed to validate input: {name} must be a number of {bits} bits")


def _offsets(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise _Refused("Failed to validate input: offsets must be numbers")
    return tuple(value)


def _check_offsets(value: bytes, datatype: int, offsets: tuple[int, ...]) -> None:
    """Refuse offsets that are not inside the extended attributes, or whose texts would break these."""
    if not offsets:
        return
    if not value:
        raise _Refused("Cannot use offset replacements on empty documents")
    if not datatype & Datatype.XATTR:
        raise _Refused("Cannot use offset replacements on documents without xattr")
    section, _ = split_xattrs(value)
    patched = bytearray(section)
    for offset in offsets:
        if not 0 <= offset <= len(section) - HEX_TEXT_BYTES:
            raise _Refused(f"The offset {offset} is out of bounds of the xattr section [0, {len(section)}]")
        patched[offset : offset + HEX_TEXT_BYTES] = hex_text((1 << _U64) - 1)
    if not has_valid_xattrs(bytes(patched)):
        raise _Refused("Patching seqno and cas would garble the xattr section")


def _check_deletion(value: bytes, datatype: int) -> None:
    """Refuse a deletion with a body or with attributes that are not the system's."""
    if not value:
        return
    section, body = split_xattrs(value) if datatype & Datatype.XATTR else (b"", value)
    if body:
        raise _Refused("Delete with meta: Document cannot have a body")
    if not all(map(is_system_xattr, decode_xattrs(section)[0])):
        raise _Refused("Delete with meta: user-xattrs is not allowed")


def _check_extras(_session: Session, frame: Frame) -> Fault | None:
    is_sound = len(frame.extras) == kv.MutateWithMeta.layout.extras_bytes
    return None if is_sound else Fault(Status.EINVAL, "Invalid extras length")


def register(table: CommandTable) -> None:
    """Add the command of this module."""
    table.add(Opcode.MUTATE_WITH_META, write, check=_check_extras, own_extras=True)
