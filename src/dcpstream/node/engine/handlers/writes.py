"""Writing documents: SET, ADD, REPLACE, DELETE, counters, APPEND and PREPEND, each with its quiet form."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.errors import FieldError
from dcpstream.node.engine import documents
from dcpstream.node.engine.bucket import Compression
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.node.engine.durability import DEFAULT_TIMEOUT_S, UNDECIDED_MAX
from dcpstream.node.engine.handlers.keys import active_place, expiration_of
from dcpstream.node.engine.handlers.reads import parts_of
from dcpstream.node.engine.topology import is_possible, parse_topology
from dcpstream.wire import Datatype, Frame, FrameInfoId, Opcode, Status, snappy_uncompress

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session
    from dcpstream.node.engine.vbucket import VBucket
    from dcpstream.store import ItemMeta

_STORE = struct.Struct(">II")
_COUNTER = struct.Struct(">QQI")
_TOKEN = struct.Struct(">QQ")
_U64 = 1 << 64
_NEVER_CREATE = 0xFFFFFFFF
"""A counter's expiration that means: do not create the document."""
MAX_COUNTER_DIGITS = 20

WRITE_INFOS = frozenset((FrameInfoId.BARRIER, FrameInfoId.DURABILITY, FrameInfoId.PRESERVE_TTL))
"""Frame infos that writes of documents may have."""

DURABLE_INFOS = WRITE_INFOS - {FrameInfoId.PRESERVE_TTL}
"""Those of writes that replace nothing."""

QUIET_OF = {
    Opcode.SETQ: Opcode.SET,
    Opcode.ADDQ: Opcode.ADD,
    Opcode.REPLACEQ: Opcode.REPLACE,
    Opcode.DELETEQ: Opcode.DELETE,
    Opcode.INCREMENTQ: Opcode.INCREMENT,
    Opcode.DECREMENTQ: Opcode.DECREMENT,
    Opcode.APPENDQ: Opcode.APPEND,
    Opcode.PREPENDQ: Opcode.PREPEND,
}

_ADDING = frozenset((Opcode.ADD, Opcode.ADDQ, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META))
"""What is refused already because the document is there, locked or not."""

MAX_DURABILITY_LEVEL = 3
"""1 majority, 2 majority and persisted on the active copy, 3 persisted by a majority."""


def written(
    session: Session,
    frame: Frame,
    vbucket: VBucket,
    result: documents.Written,
    value: bytes = b"",
    status: int = Status.SUCCESS,
    datatype: int = 0,
) -> None:
    """Answer a write that succeeded; the quiet forms say nothing."""
    session.changed(vbucket)
    if frame.opcode in QUIET_OF:
        return
    extras = token_of(session, vbucket, result)
    session.respond(frame, status, cas=result.cas, datatype=datatype, extras=extras, value=value)


def token_of(session: Session, vbucket: VBucket, result: documents.Written) -> bytes:
    """The mutation token of an answer; empty if it was not negotiated."""
    return _TOKEN.pack(vbucket.vbuuid, result.seqno) if session.has_tokens else b""


def target(session: Session, frame: Frame) -> tuple[VBucket, bytes] | None:
    """The vbucket and the key of a write; None if it was refused."""
    wish = session.frame_infos.get(FrameInfoId.DURABILITY)
    if wish is not None:
        if not 1 <= wish[0] <= MAX_DURABILITY_LEVEL or wish[1:] in (b"\0\0", b"\xff\xff"):
            session.refuse(frame, Status.DURABILITY_INVALID_LEVEL, "Durability is a level of 1 to 3, and a time-out")
            return None
        if frame.opcode in QUIET_OF:
            session.refuse(frame, Status.EINVAL, "The frame info is not allowed on this command")
            return None
    place = active_place(session, frame)
    if place is None:
        return None
    vbucket, key = place
    assert session.bucket is not None, "the table asks for a bucket"
    if vbucket.is_backed_up:
        session.refuse(frame, Status.TMPFAIL, "The vbucket is being handed over to another node")
        return None
    store = session.bucket.store
    is_deletion = frame.opcode in (Opcode.DELETE, Opcode.DELETEQ)
    if not (store.takes_deletions if is_deletion else store.has_room):
        session.refuse(frame, Status.TMPFAIL, store.why_full)
        return None
    if documents.is_undecided(vbucket, key):
        session.refuse(frame, Status.SYNC_WRITE_IN_PROGRESS)
        return None
    lock = documents.lock_of(vbucket, key, session.engine.unix_ns)
    if lock is not None and lock.cas != frame.cas and frame.opcode not in _ADDING:
        session.refuse(frame, Status.LOCKED)
        return None
    return vbucket, key


class _Durable(NamedTuple):
    """What a request wants to be sure of: the level, and for how long it waits."""

    level: int
    timeout_s: float


def _durable(session: Session, frame: Frame, vbucket: VBucket) -> _Durable | int | None:
    """The durability that a write asks for; None for none, or the status that it was refused with."""
    assert session.bucket is not None, "the table asks for a bucket"
    requirement = session.frame_infos.get(FrameInfoId.DURABILITY, b"\0")
    level = max(requirement[0], session.bucket.settings.durability_min_level)
    if not level:
        return None
    status: int = Status.SUCCESS
    if not is_possible(parse_topology(vbucket.topology)):
        status = Status.DURABILITY_IMPOSSIBLE
    elif vbucket.durability is not None and len(vbucket.durability.undecided) >= UNDECIDED_MAX:
        status = Status.TMPFAIL
    if status:
        session.refuse(frame, status)
        return status
    timeout_s = int.from_bytes(requirement[1:], "big") / 1000 or DEFAULT_TIMEOUT_S
    return _Durable(level, timeout_s)


def put(
    session: Session,
    frame: Frame,
    vbucket: VBucket,
    key: bytes,
    value: bytes,
    *,
    datatype: int,
    flags: int,
    expiration: int,
    rev_seqno: int,
    answer: bytes = b"",
    answer_datatype: int = 0,
    status: int = Status.SUCCESS,
    is_deleted: bool = False,
) -> None:
    """Write a document, durably if the request says so, and answer.

    Args:
        answer, answer_datatype, status: of the answer, if the write succeeds.
        is_deleted: it is a deletion; `value` is what stays with the tombstone, `expiration` its time.
    """
    durable = _durable(session, frame, vbucket)
    engine = session.engine
    if isinstance(durable, _Durable):
        assert session.bucket is not None, "the table asks for a bucket"
        is_quiet = frame.opcode in QUIET_OF
        session.wait_for_decision(frame, answer, status, datatype=answer_datatype, is_quiet=is_quiet)
        session.bucket.durability_of(vbucket).prepare(
            key,
            value,
            datatype=datatype,
            flags=flags,
            expiration=expiration,
            rev_seqno=rev_seqno,
            level=durable.level,
            timeout_s=durable.timeout_s,
            unix_ns=engine.unix_ns,
            now=engine.now,
            client=session,
            is_deleted=is_deleted,
        )
    elif durable is None and is_deleted:
        result = documents.store_version(
            vbucket,
            key,
            value,
            cas=vbucket.next_cas(engine.unix_ns),
            rev_seqno=rev_seqno,
            datatype=datatype,
            flags=flags,
            time=expiration,
            is_deleted=True,
            is_expiration=False,
        )
        written(session, frame, vbucket, result, answer, status, answer_datatype)
    elif durable is None:
        result = documents.store(
            vbucket,
            key,
            value,
            engine.unix_ns,
            datatype=datatype,
            flags=flags,
            expiration=expiration,
            rev_seqno=rev_seqno,
        )
        written(session, frame, vbucket, result, answer, status, answer_datatype)


def _value(session: Session, frame: Frame) -> tuple[bytes, int] | None:
    """The value, inflated, and its datatype; None if the request was refused."""
    value = frame.value
    if frame.datatype & Datatype.SNAPPY:
        try:
            value = snappy_uncompress(value, documents.MAX_VALUE_BYTES)
        except FieldError as error:
            session.refuse(frame, Status.EINVAL, f"Failed to inflate the value: {error}")
            return None
    if len(value) > documents.MAX_VALUE_BYTES:
        session.refuse(frame, Status.E2BIG, f"A value of {len(value)} bytes, more than {documents.MAX_VALUE_BYTES}")
        return None
    return value, int(Datatype.JSON) if documents.is_json(value) else 0


def _keeps_compressed(session: Session, frame: Frame, value: bytes) -> bool:
    """Whether the value is stored compressed as it came: the bucket allows it, and it saves something."""
    assert session.bucket is not None, "the table asks for a bucket"
    is_packed = bool(frame.datatype & Datatype.SNAPPY) and len(frame.value) < len(value)
    return is_packed and session.bucket.compression is not Compression.OFF


def with_kept_xattrs(
    vbucket: VBucket, key: bytes, old: ItemMeta | None, body: bytes, datatype: int | None = None
) -> tuple[bytes, int]:
    """(value, datatype) of a document whose body is replaced: its xattrs stay."""
    if datatype is None:
        datatype = int(Datatype.JSON) if documents.is_json(body) else 0
    if old is None or old.is_deleted or not old.datatype & Datatype.XATTR:
        return body, datatype
    item = vbucket.log.get(key)
    assert item is not None, "its meta data was there"
    return parts_of(item)[0] + body, datatype | int(Datatype.XATTR)


def conflict(opcode: int, cas: int, meta: ItemMeta | None) -> int:
    """The status that forbids a write, or 0. `meta` is of the document or its tombstone, None if there is neither."""
    exists = meta is not None and not meta.is_deleted
    if opcode == Opcode.ADD and exists:
        return Status.KEY_EEXISTS
    if not exists:
        return Status.KEY_ENOENT if cas or opcode in (Opcode.REPLACE, Opcode.DELETE) else Status.SUCCESS
    return Status.KEY_EEXISTS if cas and meta is not None and cas != meta.cas else Status.SUCCESS


def store(session: Session, frame: Frame) -> None:
    """SET, ADD, REPLACE and their quiet forms: write a document, whatever is there, only a new one, only over one."""
    opcode = QUIET_OF.get(frame.opcode, frame.opcode)  # type: ignore[call-overload]
    if opcode == Opcode.ADD and frame.cas:
        session.refuse(frame, Status.EINVAL, "Request CAS must not be set")
        return
    found = target(session, frame)
    content = _value(session, frame) if found is not None else None
    if found is None or content is None:
        return
    vbucket, key = found
    value, datatype = content
    engine = session.engine
    meta = documents.live_meta(vbucket, key, engine.unix_ns)
    status = conflict(opcode, frame.cas, meta)
    if status:
        session.changed(vbucket)
        session.respond(frame, status)
        return
    flags, expiration = _STORE.unpack(frame.extras)
    expiration = expiration_of(session, key, expiration)
    if meta is not None and not meta.is_deleted and FrameInfoId.PRESERVE_TTL in session.frame_infos:
        expiration = meta.expiration
    value, datatype = with_kept_xattrs(vbucket, key, meta, value, datatype)
    if not datatype & Datatype.XATTR and _keeps_compressed(session, frame, value):
        value, datatype = frame.value, datatype | Datatype.SNAPPY
    put(
        session,
        frame,
        vbucket,
        key,
        value,
        datatype=datatype,
        flags=flags,
        expiration=expiration,
        rev_seqno=documents.next_rev(vbucket, meta),
    )


def delete(session: Session, frame: Frame) -> None:
    """DELETE, DELETEQ: leave a tombstone, with the system xattrs."""
    found = target(session, frame)
    if found is None:
        return
    vbucket, key = found
    engine = session.engine
    meta = documents.live_meta(vbucket, key, engine.unix_ns)
    status = conflict(Opcode.DELETE, frame.cas, meta)
    if status or meta is None:
        session.changed(vbucket)
        session.respond(frame, status)
        return
    assert session.bucket is not None, "the table asks for a bucket"
    if FrameInfoId.DURABILITY in session.frame_infos or session.bucket.settings.durability_min_level:
        value, datatype = documents.remains(vbucket, key, meta)
        put(
            session,
            frame,
            vbucket,
            key,
            value,
            datatype=datatype,
            flags=0,
            expiration=engine.unix_s,
            rev_seqno=meta.rev_seqno + 1,
            is_deleted=True,
        )
        return
    written(session, frame, vbucket, documents.delete(vbucket, key, meta, engine.unix_ns))


def concatenate(session: Session, frame: Frame) -> None:
    """APPEND, PREPEND and their quiet forms: more bytes at the end or at the start of a document."""
    found = target(session, frame)
    content = _value(session, frame) if found is not None else None
    if found is None or content is None:
        return
    vbucket, key = found
    engine = session.engine
    item = documents.live_item(vbucket, key, engine.unix_ns)
    if item is None or (frame.cas and frame.cas != item.cas):
        session.changed(vbucket)
        session.respond(frame, Status.NOT_STORED if item is None else Status.KEY_EEXISTS)
        return
    section, body = parts_of(item)
    is_append = QUIET_OF.get(frame.opcode, frame.opcode) == Opcode.APPEND  # type: ignore[call-overload]
    body = body + content[0] if is_append else content[0] + body
    if len(body) > documents.MAX_VALUE_BYTES:
        session.respond(frame, Status.E2BIG)
        return
    put(
        session,
        frame,
        vbucket,
        key,
        section + body,
        datatype=(Datatype.JSON if documents.is_json(body) else 0) | (item.datatype & Datatype.XATTR),
        flags=item.flags,
        expiration=item.expiration,
        rev_seqno=item.rev_seqno + 1,
    )


def count(session: Session, frame: Frame) -> None:
    """INCREMENT, DECREMENT and their quiet forms: count in a document that is a number in decimal text."""
    found = target(session, frame)
    if found is None:
        return
    vbucket, key = found
    engine = session.engine
    delta, initial, expiration = _COUNTER.unpack(frame.extras)
    meta = documents.live_meta(vbucket, key, engine.unix_ns)
    item = vbucket.log.get(key) if meta is not None and not meta.is_deleted else None
    section, flags = b"", 0
    if item is None:
        if expiration == _NEVER_CREATE:
            session.changed(vbucket)
            session.respond(frame, Status.KEY_ENOENT)
            return
        number = initial
        expiration = expiration_of(session, key, expiration)
    else:
        section, body = parts_of(item)
        flags, expiration = item.flags, item.expiration
        text = body.strip()
        if not text.isdigit() or len(text) > MAX_COUNTER_DIGITS or int(text) >= _U64:
            session.respond(frame, Status.DELTA_BADVAL)
            return
        is_increment = QUIET_OF.get(frame.opcode, frame.opcode) == Opcode.INCREMENT  # type: ignore[call-overload]
        number = (int(text) + delta) % _U64 if is_increment else max(0, int(text) - delta)
    put(
        session,
        frame,
        vbucket,
        key,
        section + str(number).encode(),
        datatype=Datatype.JSON | (Datatype.XATTR if section else 0),
        flags=flags,
        expiration=expiration,
        rev_seqno=documents.next_rev(vbucket, meta),
        answer=number.to_bytes(8, "big"),
    )


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    packed = int(Datatype.JSON | Datatype.SNAPPY)
    bare = partial(Command, key=Part.REQUIRED, is_document=True, has_cas=True, frame_infos=WRITE_INFOS)
    valued = partial(bare, value=Part.OPTIONAL, datatypes=packed)
    table.add((Opcode.SET, Opcode.SETQ), valued(store, extras=(8,), privilege="Upsert"))
    table.add((Opcode.ADD, Opcode.ADDQ), valued(store, extras=(8,), privilege="Insert", frame_infos=DURABLE_INFOS))
    table.add((Opcode.REPLACE, Opcode.REPLACEQ), valued(store, extras=(8,), privilege="Upsert"))
    table.add((Opcode.DELETE, Opcode.DELETEQ), bare(delete, privilege="Delete", frame_infos=DURABLE_INFOS))
    joining = (Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ)
    table.add(joining, valued(concatenate, privilege="Upsert"))
    counting = (Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT, Opcode.DECREMENTQ)
    table.add(counting, bare(count, extras=(20,), has_cas=False, privilege="Read Upsert"))
