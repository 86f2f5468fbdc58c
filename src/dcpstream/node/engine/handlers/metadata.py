"""Documents as another cluster has them: SET, ADD and DELETE_WITH_META, each with its quiet form.

The request brings the revision and the CAS that the document is to have; which of two versions stays is decided as on
a bucket that resolves conflicts by revision.

Source: kv_engine docs/BinaryProtocol.md, engines/ep/src/ep_engine.cc (setWithMeta), conflict_resolution.cc.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.errors import FieldError
from dcpstream.node.engine import documents
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.node.engine.handlers.writes import target, token_of
from dcpstream.wire import Datatype, Frame, Opcode, Status, decode_xattrs, snappy_uncompress, split_xattrs

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session
    from dcpstream.store import ItemMeta

_META = struct.Struct(">IIQQ")
_LENGTHS = (24, 26, 28, 30)
"""Bytes of the extras: the fields alone, with the length of further meta data, with options, with both."""

FORCE, ACCEPT_TIMESTAMPS, REGENERATE_CAS, SKIP_RESOLUTION, IS_EXPIRATION = 0x01, 0x02, 0x04, 0x08, 0x10
_KNOWN_OPTIONS = FORCE | ACCEPT_TIMESTAMPS | REGENERATE_CAS | SKIP_RESOLUTION | IS_EXPIRATION
_IMPOSSIBLE_CAS = (0, (1 << 64) - 1)

_ADDING = frozenset((int(Opcode.ADD_WITH_META), int(Opcode.ADDQ_WITH_META)))
_DELETING = frozenset((int(Opcode.DELETE_WITH_META), int(Opcode.DELETEQ_WITH_META)))
_QUIET = frozenset((int(Opcode.SETQ_WITH_META), int(Opcode.ADDQ_WITH_META), int(Opcode.DELETEQ_WITH_META)))


class _Meta(NamedTuple):
    """What the extras say; `time` is the expiration, of a deletion its time."""

    flags: int
    time: int
    rev_seqno: int
    cas: int
    options: int = 0
    meta_bytes: int = 0


def _read(frame: Frame) -> _Meta | None:
    """The extras; None if the options contradict each other."""
    extras = frame.extras
    options = int.from_bytes(extras[24:28], "big") if len(extras) >= 28 else 0
    meta_bytes = int.from_bytes(extras[-2:], "big") if len(extras) in (26, 30) else 0
    is_wrong = (
        options & ~_KNOWN_OPTIONS
        or options & ACCEPT_TIMESTAMPS
        or (options & REGENERATE_CAS and not options & SKIP_RESOLUTION)
        or (options & IS_EXPIRATION and frame.opcode not in _DELETING)
        or meta_bytes > len(frame.value)
    )
    if is_wrong:
        return None
    flags, time, rev_seqno, cas = _META.unpack_from(extras)
    return _Meta(flags, time, rev_seqno, cas, options, meta_bytes)


def write(session: Session, frame: Frame) -> None:
    """A version of a document from elsewhere; it stays if it wins over what is there."""
    meta = _read(frame)
    if meta is None or meta.cas in _IMPOSSIBLE_CAS:
        session.respond(frame, Status.EINVAL)
        return
    found = target(session, frame)
    content = _content(session, frame, meta) if found is not None else None
    if found is None or content is None:
        return
    vbucket, key = found
    value, datatype = content
    unix_ns = session.engine.unix_ns
    existing = documents.live_meta(vbucket, key, unix_ns)
    status = _conflict(frame, meta, existing)
    if status:
        session.changed(vbucket)
        session.respond(frame, status)
        return
    result = documents.store_version(
        vbucket,
        key,
        value,
        cas=vbucket.next_cas(unix_ns) if meta.options & REGENERATE_CAS else meta.cas,
        rev_seqno=meta.rev_seqno,
        datatype=datatype,
        flags=meta.flags,
        time=meta.time or (unix_ns // 1_000_000_000 if frame.opcode in _DELETING else 0),
        is_deleted=frame.opcode in _DELETING,
        is_expiration=bool(meta.options & IS_EXPIRATION),
    )
    session.changed(vbucket)
    if frame.opcode not in _QUIET:
        session.respond(frame, cas=result.cas, extras=token_of(session, vbucket, result))


def _content(session: Session, frame: Frame, meta: _Meta) -> tuple[bytes, int] | None:
    """The value as it is stored and its datatype; None if the request was refused."""
    value = frame.value[: len(frame.value) - meta.meta_bytes]
    datatype = frame.datatype & Datatype.XATTR
    try:
        if frame.datatype & Datatype.SNAPPY:
            value = snappy_uncompress(value, documents.MAX_VALUE_BYTES)
    except FieldError as error:
        session.refuse(frame, Status.EINVAL, f"Failed to inflate the value: {error}")
        return None
    section, body = b"", value
    if datatype:
        try:
            decode_xattrs(value)
        except FieldError:
            session.respond(frame, Status.XATTR_EINVAL)
            return None
        section, body = split_xattrs(value)
    if len(value) > documents.MAX_VALUE_BYTES:
        session.respond(frame, Status.E2BIG)
        return None
    if frame.opcode in _DELETING:
        if body:
            session.refuse(frame, Status.EINVAL, "A deletion has no body")
            return None
        return section, int(datatype)
    # What came without the datatype stays without, unlike in a SET: the other cluster has looked. As recorded.
    is_json = frame.datatype & Datatype.JSON and documents.is_json(body)
    return value, int(datatype | (Datatype.JSON if is_json else 0))


def _conflict(frame: Frame, new: _Meta, old: ItemMeta | None) -> int:
    """The status that forbids the write, or 0."""
    exists = old is not None and not old.is_deleted
    if frame.opcode in _ADDING and exists:
        return Status.KEY_EEXISTS
    if frame.cas:
        if not exists or old is None:
            return Status.KEY_ENOENT
        if frame.cas != old.cas:
            return Status.KEY_EEXISTS
    if old is None or new.options & SKIP_RESOLUTION:
        return Status.SUCCESS
    if frame.opcode in _DELETING:
        wins = (new.rev_seqno, new.cas) > (old.rev_seqno, old.cas)
    else:
        time = old.delete_time if old.is_deleted else old.expiration
        wins = (new.rev_seqno, new.cas, new.time, new.flags) > (old.rev_seqno, old.cas, time, old.flags)
    return Status.SUCCESS if wins else Status.KEY_EEXISTS


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    datatypes = int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR)
    command = partial(
        Command,
        write,
        extras=_LENGTHS,
        key=Part.REQUIRED,
        value=Part.OPTIONAL,
        datatypes=datatypes,
        has_cas=True,
        is_document=True,
        privilege="MetaWrite",
    )
    opcodes = (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META)
    table.add((*opcodes, Opcode.DELETE_WITH_META, Opcode.DELETEQ_WITH_META), command())
