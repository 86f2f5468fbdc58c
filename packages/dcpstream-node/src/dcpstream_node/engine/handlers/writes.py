"""Writing documents: SET, ADD, REPLACE, DELETE, counters, APPEND and PREPEND, each with its quiet form."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dcpstream.model.json_text import is_json
from dcpstream.wire import Datatype, Frame, FrameInfoId, Opcode, Status
from dcpstream.wire.messages import QUIET_FORMS, RESPONSES, kv, loud_form
from dcpstream.wire.server_bugs import ServerBug
from dcpstream.wire.stored.block import Version
from dcpstream.wire.values import decode_xattrs
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.durability import DEFAULT_TIMEOUT_S, UNDECIDED_MAX, Requirement
from dcpstream_node.engine.bucket.topology import is_possible, parse_topology
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.number_text import read_number
from dcpstream_node.engine.handlers.reads import parts_of
from dcpstream_node.engine.handlers.resolve import (
    Place,
    active_place,
    at_place,
    expiration_of,
    refuse_locked,
    refuse_recommit,
)
from dcpstream_node.engine.subdocument import SYSTEM_BYTES_MAX, system_bytes

if TYPE_CHECKING:
    from dcpstream.model import VbucketState
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import ItemMeta, StoredItem

_pack_token = kv.SetResponse.layout.extras.pack
_U64 = 1 << 64
_NEVER_CREATE = 0xFFFFFFFF
"""The expiration of a counter request that must not create the document."""

_SILENT = frozenset(QUIET_FORMS) - frozenset(RESPONSES)
"""Quiet forms whose success is never answered: no answer of theirs is declared."""


class Answer(NamedTuple):
    """The answer of a write that succeeds, other than its CAS and its mutation token."""

    value: bytes = b""
    datatype: int = 0
    status: int = Status.SUCCESS


PLAIN_ANSWER = Answer()


def written(
    session: Session, frame: Frame, vbucket: VBucket, result: documents.Written, answer: Answer = PLAIN_ANSWER
) -> None:
    """Answer a successful write, unless its form is quiet."""
    session.changed(vbucket)
    if is_silent(session, frame):
        return
    value, datatype, status = answer
    extras = token_of(session, vbucket, result)
    session.respond(frame, status, cas=result.cas, datatype=datatype, extras=extras, value=value)


def is_silent(session: Session, frame: Frame) -> bool:
    """Whether success is not answered. APPENDQ and PREPENDQ are answered if mutation tokens were negotiated."""
    return frame.opcode in _SILENT or (frame.opcode in QUIET_FORMS and not session.has_tokens)


def token_of(session: Session, vbucket: VBucket, result: documents.Written) -> bytes:
    """The extras of a write's answer: the mutation token, or nothing if tokens were not negotiated."""
    return _pack_token(vbucket.vbuuid, result.seqno) if session.has_tokens else b""


def target(session: Session, frame: Frame, *, states: frozenset[VbucketState] | None = None) -> Place | None:
    """The vbucket and the key of a write, or None if the write was refused.

    Args:
        states: the allowed states of the vbucket; None for active only.
    """
    place = active_place(session, frame, states=states)
    if place is None:
        return None
    vbucket, key = place
    if vbucket.is_backed_up:
        session.refuse(frame, Status.TMPFAIL, "The vbucket is being handed over to another node")
        return None
    store = session.selected.store
    is_deletion = loud_form(frame.opcode) == Opcode.DELETE
    if not (store.takes_deletions if is_deletion else store.has_room):
        session.refuse(frame, Status.TMPFAIL, store.why_full)
        return None
    return vbucket, key


def read_target(session: Session, frame: Frame) -> Place | None:
    """Like `target`, for a write that depends on the present document; see `refuse_recommit`."""
    place = target(session, frame)
    return None if place is None or refuse_recommit(session, frame, *place) else place


def is_under_way(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> bool:
    """Refuse a write while a durable write of the document is under way; False if there is none.

    Each command checks this at the same point as the server. Commands that read the document first have by then
    refused requests that do not fit the committed version.
    """
    if not documents.is_undecided(vbucket, key):
        return False
    session.refuse(frame, Status.SYNC_WRITE_IN_PROGRESS)
    return True


def is_kept_out(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> bool:
    """Whether the document is locked and the request does not have the lock's CAS."""
    lock = documents.lock_of(vbucket, key, session.engine.unix_ns)
    return lock is not None and lock.cas != frame.cas


def _durable(
    session: Session, frame: Frame, vbucket: VBucket, *, heeds_request: bool = True
) -> Requirement | int | None:
    """The durability requirement of a write, None for none, or the status with which the write was refused.

    Args:
        heeds_request: whether the request's requirement counts; else only the bucket's minimum does.
    """
    requirement = session.frame_infos.get(FrameInfoId.DURABILITY, b"\0") if heeds_request else b"\0"
    level = max(requirement[0], session.selected.settings.durability_min_level)
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
    return Requirement(level, timeout_s)


def put(
    session: Session,
    frame: Frame,
    vbucket: VBucket,
    version: Version,
    answer: Answer = PLAIN_ANSWER,
    *,
    is_deleted: bool = False,
    fresh_time: int = 0,
    heeds_durability: bool = True,
) -> None:
    """Write a document, durably if the request or the bucket requires it, and answer.

    Args:
        is_deleted: whether the version is a tombstone.
        fresh_time: the time that answers show for the tombstone until it is persisted.
        heeds_durability: whether the request's durability requirement counts; else only the bucket's minimum does.
    """
    durable = _durable(session, frame, vbucket, heeds_request=heeds_durability)
    engine = session.engine
    if isinstance(durable, int) or is_under_way(session, frame, vbucket, version.key):
        return
    if isinstance(durable, Requirement):

        def decided(outcome: int, cas: int, seqno: int, vbuuid: int) -> None:
            if outcome:
                session.refuse(frame, outcome)
                return
            session.output.has_written = True
            if not is_silent(session, frame):
                token = _pack_token(vbuuid, seqno) if session.has_tokens else b""
                value, datatype, status = answer
                session.respond(frame, status, cas=cas, datatype=datatype, extras=token, value=value)

        session.wait(frame, decided)
        session.selected.durability_of(vbucket).prepare(
            version, durable, session, unix_ns=engine.unix_ns, now=engine.now, is_deleted=is_deleted
        )
        return
    if is_deleted:
        result = documents.store_version(vbucket, version, cas=vbucket.next_cas(engine.unix_ns), is_deleted=True)
        vbucket.note_deletion(version.key, result.seqno, fresh_time, engine.unix_ns)
    else:
        result = documents.store(vbucket, version, engine.unix_ns)
    written(session, frame, vbucket, result, answer)


def is_too_large(value: bytes, datatype: int) -> bool:
    """Whether an inflated value with its attributes exceeds the limits.

    System attributes have a limit of their own; other attributes count with the body.
    """
    system = 0
    if datatype & Datatype.XATTR:
        system = system_bytes(decode_xattrs(value)[0])
    return system > SYSTEM_BYTES_MAX or len(value) - system > documents.MAX_VALUE_BYTES


def _keeps_compressed(session: Session, frame: Frame, value: bytes) -> bool:
    """Whether to store the value compressed as it came: the bucket allows that and it saves enough."""
    if not frame.datatype & Datatype.SNAPPY or not session.selected.keeps_compressed:
        return False
    return len(value) >= len(frame.value) * session.selected.parameters.compression_ratio_min


def with_kept_xattrs(vbucket: VBucket, key: bytes, old: ItemMeta | None, body: bytes) -> tuple[bytes, int]:
    """(value, datatype) of a document with a new body: its attributes stay."""
    datatype = int(Datatype.JSON) if is_json(body) else 0
    if old is None or old.is_deleted or not old.datatype & Datatype.XATTR:
        return body, datatype
    item = vbucket.log.get(key)
    assert item is not None, "its metadata was found"
    return parts_of(item)[0] + body, datatype | int(Datatype.XATTR)


def conflict(opcode: int, cas: int, meta: ItemMeta | None) -> int:
    """The status that forbids a write, or 0; `meta` belongs to the document or its tombstone."""
    exists = meta is not None and not meta.is_deleted
    if opcode == Opcode.ADD and exists:
        return Status.KEY_EEXISTS
    if not exists:
        return Status.KEY_ENOENT if cas or opcode in (Opcode.REPLACE, Opcode.DELETE) else Status.SUCCESS
    return Status.KEY_EEXISTS if cas and meta is not None and cas != meta.cas else Status.SUCCESS


def store(session: Session, frame: Frame) -> None:
    """SET, ADD, REPLACE and their quiet forms: write a document; ADD only a new one, REPLACE only an existing one."""
    opcode = loud_form(frame.opcode)
    body = session.payload
    if not body and frame.value and session.engine.release.has_bug(ServerBug.EMPTY_COMPRESSED):
        body = frame.value
    if len(body) > documents.MAX_VALUE_BYTES:
        session.refuse(frame, Status.E2BIG)
        return
    if session.is_degraded:
        session.refuse(frame, Status.TMPFAIL)
        return
    found = target(session, frame)
    if found is None:
        return
    vbucket, key = found
    engine = session.engine
    if isinstance(_durable(session, frame, vbucket), int):
        return
    meta = documents.live_meta(vbucket, key, engine.unix_ns)
    status = conflict(opcode, frame.cas, meta)
    is_missing = status == Status.KEY_ENOENT and opcode == Opcode.REPLACE and not frame.cas
    if not is_missing and is_under_way(session, frame, vbucket, key):
        return
    if meta is not None and not meta.is_deleted and opcode != Opcode.ADD and is_kept_out(session, frame, vbucket, key):
        status = Status.LOCKED
    if status:
        session.changed(vbucket)
        session.refuse(frame, status)
        return
    flags, expiration = kv.Set.unpack(frame)
    expiration = expiration_of(session, key, expiration)
    if meta is not None and not meta.is_deleted and FrameInfoId.PRESERVE_TTL in session.frame_infos:
        expiration = meta.expiration
    value, datatype = with_kept_xattrs(vbucket, key, meta, body)
    if is_too_large(value, datatype):
        session.refuse(frame, Status.E2BIG)
        return
    if not datatype & Datatype.XATTR and session.payload and _keeps_compressed(session, frame, value):
        value, datatype = frame.value, datatype | Datatype.SNAPPY
    version = Version(key, value, documents.next_rev(vbucket, meta), datatype, flags, expiration)
    put(session, frame, vbucket, version)


def delete(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """DELETE, DELETEQ: leave a tombstone with the system attributes.

    Like the server, the deletion of a document with system attributes ignores the request's durability requirement.
    """
    engine = session.engine
    meta = documents.live_meta(vbucket, key, engine.unix_ns)
    status = conflict(Opcode.DELETE, frame.cas, meta)
    is_there = meta is not None and not meta.is_deleted
    if session.is_degraded and (meta is None or not is_there or documents.remains(vbucket, key, meta)[0]):
        status = Status.TMPFAIL
    elif is_there and is_kept_out(session, frame, vbucket, key):
        status = Status.LOCKED
    if status or meta is None:
        session.changed(vbucket)
        if status == Status.LOCKED and frame.cas and meta is not None and not documents.remains(vbucket, key, meta)[0]:
            refuse_locked(session, frame)
        else:
            session.refuse(frame, status)
        return
    value, datatype = documents.remains(vbucket, key, meta)
    heeds_durability = not value
    is_asked = heeds_durability and FrameInfoId.DURABILITY in session.frame_infos
    if is_asked or session.selected.settings.durability_min_level:
        version = Version(key, value, meta.rev_seqno + 1, datatype, time=engine.unix_s)
        put(session, frame, vbucket, version, is_deleted=True, heeds_durability=heeds_durability)
        return
    if not is_under_way(session, frame, vbucket, key):
        written(session, frame, vbucket, documents.delete(vbucket, key, meta, engine.unix_ns))


def concatenate(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """APPEND, PREPEND and their quiet forms: add bytes to the end or the start of a document."""
    engine = session.engine
    item = documents.live_item(vbucket, key, engine.unix_ns)
    status = _joining_status(session, frame, vbucket, key, item)
    if status:
        session.changed(vbucket)
        session.refuse(frame, status)
        return
    assert item is not None, "a missing document was refused"
    section, body = parts_of(item)
    is_append = loud_form(frame.opcode) == Opcode.APPEND
    body = body + session.payload if is_append else session.payload + body
    datatype = (Datatype.JSON if is_json(body) else 0) | (item.datatype & Datatype.XATTR)
    if is_too_large(section + body, datatype):
        session.refuse(frame, Status.E2BIG)
        return
    version = Version(key, section + body, item.rev_seqno + 1, datatype, item.flags, item.expiration)
    put(session, frame, vbucket, version)


def _joining_status(session: Session, frame: Frame, vbucket: VBucket, key: bytes, item: StoredItem | None) -> int:
    """The status that forbids APPEND and PREPEND, or 0."""
    if session.is_degraded:
        return Status.TMPFAIL
    if item is None:
        return Status.NOT_STORED
    if is_kept_out(session, frame, vbucket, key):
        return Status.LOCKED
    return Status.KEY_EEXISTS if frame.cas and frame.cas != item.cas else Status.SUCCESS


def count(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """INCREMENT, DECREMENT and their quiet forms: change a document that is a number in decimal text."""
    engine = session.engine
    delta, initial, expiration = kv.Increment.unpack(frame)
    meta = documents.live_meta(vbucket, key, engine.unix_ns)
    item = vbucket.log.get(key) if meta is not None and not meta.is_deleted else None
    section, flags = b"", 0
    if item is None:
        if session.is_degraded:
            session.refuse(frame, Status.TMPFAIL)
            return
        if expiration == _NEVER_CREATE:
            session.changed(vbucket)
            session.refuse(frame, Status.KEY_ENOENT)
            return
        number = initial
        expiration = expiration_of(session, key, expiration)
    else:
        section, body = parts_of(item)
        flags, expiration = item.flags, item.expiration
        old = read_number(body, engine.release)
        # DELTA_BADVAL takes precedence over LOCKED.
        if old is None or session.is_degraded or is_kept_out(session, frame, vbucket, key):
            session.changed(vbucket)
            status = Status.TMPFAIL if session.is_degraded else Status.LOCKED
            session.refuse(frame, Status.DELTA_BADVAL if old is None else status)
            return
        is_increment = loud_form(frame.opcode) == Opcode.INCREMENT
        number = (old + delta) % _U64 if is_increment else max(0, old - delta)
    value, datatype = section + str(number).encode(), Datatype.JSON | (Datatype.XATTR if section else 0)
    version = Version(key, value, documents.next_rev(vbucket, meta), datatype, flags, expiration)
    put(session, frame, vbucket, version, Answer(kv.IncrementResponse.layout.value.pack(number)))


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add((Opcode.SET, Opcode.ADD, Opcode.REPLACE), store)
    table.add(Opcode.DELETE, at_place(read_target, delete))
    table.add((Opcode.APPEND, Opcode.PREPEND), at_place(read_target, concatenate))
    table.add((Opcode.INCREMENT, Opcode.DECREMENT), at_place(read_target, count))
