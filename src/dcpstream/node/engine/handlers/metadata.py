"""Documents as another cluster has them: SET, ADD and DELETE_WITH_META, each with its quiet form.

The request brings the revision and the CAS that the document is to have; which of two versions stays is decided by the
revision, or by the CAS, as the bucket's `conflict_resolution` says. RETURN_META writes here, and tells the metadata.

Source: kv_engine docs/BinaryProtocol.md, engines/ep/src/ep_engine.cc (setWithMeta), conflict_resolution.cc.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.errors import FieldError
from dcpstream.model import ConflictResolution
from dcpstream.node.engine import documents
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.node.engine.handlers.keys import expiration_of, max_ttl_of
from dcpstream.node.engine.handlers.writes import conflict, target, token_of, with_kept_xattrs
from dcpstream.wire import Datatype, Frame, Opcode, Status, decode_xattrs, snappy_uncompress, split_xattrs

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session
    from dcpstream.store import ItemMeta

_META = struct.Struct(">IIQQ")
_RETURN = struct.Struct(">III")
_RETURNED = struct.Struct(">IIQ")
_RETURNING = {1: Opcode.SET, 2: Opcode.ADD, 3: Opcode.DELETE}
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


def _read(frame: Frame, *, is_by_time: bool) -> _Meta | None:
    """The extras; None if the options contradict each other, or the way in which the bucket resolves conflicts.

    Where conflicts are resolved by time who writes has to say that the times can be compared, or leave the CAS to us.
    """
    extras = frame.extras
    options = int.from_bytes(extras[24:28], "big") if len(extras) >= 28 else 0
    meta_bytes = int.from_bytes(extras[-2:], "big") if len(extras) in (26, 30) else 0
    is_wrong = (
        options & ~_KNOWN_OPTIONS
        or (options & ACCEPT_TIMESTAMPS and not is_by_time)
        or (is_by_time and not options & (ACCEPT_TIMESTAMPS | REGENERATE_CAS))
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
    assert session.bucket is not None, "the table asks for a bucket"
    is_by_time = session.bucket.settings.conflict_resolution is ConflictResolution.LWW
    meta = _read(frame, is_by_time=is_by_time)
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
    if frame.opcode not in _DELETING:
        time = documents.limited_expiration(meta.time, session.engine.unix_s, max_ttl_of(session, key))
        meta = meta._replace(time=time)
    status = _conflict(frame, meta, existing, is_by_time=is_by_time)
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
            value = snappy_uncompress(value, documents.MAX_VALUE_BYTES + documents.MAX_XATTR_BYTES)
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
    if len(section) > documents.MAX_XATTR_BYTES or len(body) > documents.MAX_VALUE_BYTES:
        session.respond(frame, Status.E2BIG)
        return None
    if frame.opcode in _DELETING:
        assert session.bucket is not None, "the table asks for a bucket"
        if body and not session.bucket.parameters.strips_deletions:
            why = "It is only possible to specify Xattrs as a value to DeleteWithMeta"
            session.refuse(frame, Status.EINVAL, why)
            return None
        return section, int(datatype)
    # What came without the datatype stays without, unlike in a SET: the other cluster has looked. As recorded.
    is_json = frame.datatype & Datatype.JSON and documents.is_json(body)
    return value, int(datatype | (Datatype.JSON if is_json else 0))


def _conflict(frame: Frame, new: _Meta, old: ItemMeta | None, *, is_by_time: bool) -> int:
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
    mine, theirs = (new.rev_seqno, new.cas), (old.rev_seqno, old.cas)
    if is_by_time:
        mine, theirs = mine[::-1], theirs[::-1]
    if frame.opcode in _DELETING:
        wins = mine > theirs
    else:
        time = old.delete_time if old.is_deleted else old.expiration
        wins = (*mine, new.time, new.flags) > (*theirs, time, old.flags)
    return Status.SUCCESS if wins else Status.KEY_EEXISTS


def return_meta(session: Session, frame: Frame) -> None:
    """RETURN_META: SET, ADD or DELETE that tells flags, expiration and revision of what it made."""
    kind, flags, expiration = _RETURN.unpack(frame.extras)
    if kind not in _RETURNING:
        session.refuse(frame, Status.EINVAL, "Invalid mode")
        return
    found = target(session, frame)
    if found is None:
        return
    vbucket, key = found
    unix_ns = session.engine.unix_ns
    old = documents.live_meta(vbucket, key, unix_ns)
    status = conflict(_RETURNING[kind], frame.cas, old)
    if not status and len(frame.value) > documents.MAX_VALUE_BYTES:
        status = Status.E2BIG
    if status:
        session.changed(vbucket)
        session.respond(frame, status)
        return
    if _RETURNING[kind] == Opcode.DELETE:
        assert old is not None, "there is no conflict"
        result, datatype = documents.delete(vbucket, key, old, unix_ns), 0
    else:
        value, datatype = with_kept_xattrs(vbucket, key, old, frame.value)
        result = documents.store(
            vbucket,
            key,
            value,
            unix_ns,
            datatype=datatype,
            flags=flags,
            expiration=expiration_of(session, key, expiration),
            rev_seqno=documents.next_rev(vbucket, old),
        )
    new = vbucket.log.meta(key)
    assert new is not None, "it was written a line ago"
    session.changed(vbucket)
    extras = _RETURNED.pack(new.flags, new.delete_time or new.expiration, new.rev_seqno)
    session.respond(frame, cas=result.cas, datatype=datatype & Datatype.JSON & session.datatypes, extras=extras)


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
    table.add(Opcode.RETURN_META, replace(command(), handler=return_meta, extras=(12,), datatypes=0))
