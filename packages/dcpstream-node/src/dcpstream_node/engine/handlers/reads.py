"""Reading documents: GET and its variants, TOUCH, GAT, GET_META."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dcpstream.model import VbucketState
from dcpstream.wire import Datatype, Feature, Frame, FrameInfoId, Opcode, Status
from dcpstream.wire.layout import Group, Part
from dcpstream.wire.messages import QUIET_FORMS, RESPONSES, kv, opcodes_of
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream.wire.stored.block import Version
from dcpstream.wire.values import decode_xattrs, encode_xattrs, is_system_xattr, split_xattrs
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.locks import Lock
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.resolve import (
    Place,
    active_place,
    at_place,
    expiration_of,
    readable_place,
    refuse_locked,
    shown_delete_time,
    stored_key,
)

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import StoredItem

# Plain integers: arithmetic with enum members costs more than all the rest of a GET.
_XATTR, _SNAPPY = int(Datatype.XATTR), int(Datatype.SNAPPY)
_ACTIVE_OR_PENDING = frozenset((VbucketState.ACTIVE, VbucketState.PENDING))
_WITH_DATATYPE = 2
"""The version of GET_META whose answer has the datatype."""
_GET_EX_NEEDS = (
    (Feature.XATTR, "Xattr"),
    (Feature.JSON, "JSON"),
    (Feature.SNAPPY_EVERYWHERE, "SnappyEverywhere"),
)
"""Features that a client needs for GET_EX, in the order in which they are asked for, and their names in the answer."""

_NEVER_DEGRADED = opcodes_of(Group.PLAIN_MISS)


def parts_of(item: StoredItem) -> tuple[bytes, bytes]:
    """(attribute section, body) of a document, inflated; the section is empty if there are no attributes."""
    value = documents.plain_value(item.value, item.datatype)
    return split_xattrs(value) if item.datatype & Datatype.XATTR else (b"", value)


def body_of(item: StoredItem, datatypes: int, *, keeps_xattrs: bool = False) -> tuple[bytes, int]:
    """(value, datatype) for an answer: without attributes unless asked for, compressed only if negotiated."""
    has_xattrs = item.datatype & _XATTR
    if (keeps_xattrs or not has_xattrs) and not item.datatype & ~datatypes & _SNAPPY:
        return item.value, item.datatype
    if keeps_xattrs:
        return documents.plain_value(item.value, item.datatype), item.datatype & ~_SNAPPY
    return parts_of(item)[1], item.datatype & ~(_XATTR | _SNAPPY)


def without_system(item: StoredItem) -> tuple[bytes, int]:
    """(value, datatype) of a document with attributes, inflated, without those of the system."""
    xattrs, body = decode_xattrs(documents.plain_value(item.value, item.datatype))
    shown = {name: text for name, text in xattrs.items() if not is_system_xattr(name)}
    return (encode_xattrs(shown) if shown else b"") + body, item.datatype & ~(_SNAPPY if shown else _SNAPPY | _XATTR)


def _missing(session: Session, frame: Frame) -> None:
    """Answer KEY_ENOENT without the key; the quiet forms get no answer.

    While the bucket takes no traffic the answer is TMPFAIL, also to the quiet forms.
    """
    if session.is_degraded and frame.opcode not in _NEVER_DEGRADED:
        session.refuse(frame, Status.TMPFAIL)
    elif frame.opcode not in QUIET_FORMS:
        session.respond(frame, Status.KEY_ENOENT)


def _found(session: Session, frame: Frame, item: StoredItem, cas: int) -> None:
    value, datatype = body_of(item, session.datatypes)
    response = RESPONSES[frame.opcode]
    repeats_key = response.layout.key is Part.REQUIRED or (
        frame.opcode == Opcode.GET_REPLICA and not session.engine.release.has(Rule.REPLICA_READ_WITHOUT_KEY)
    )
    session.reply(
        frame,
        response,
        item.flags,
        cas=cas,
        datatype=datatype & session.datatypes,
        key=frame.key if repeats_key else b"",
        value=value,
    )


def _decided_place(session: Session, frame: Frame) -> Place | None:
    """Like `active_place`; also refuses the request while a durable write of the document is under way."""
    place = active_place(session, frame)
    if place is not None and documents.is_undecided(*place):
        session.refuse(frame, Status.SYNC_WRITE_IN_PROGRESS)
        return None
    return place


def get(
    session: Session,
    frame: Frame,
    vbucket: VBucket,
    key: bytes,
    found: Callable[[Session, Frame, StoredItem, int], None] = _found,
) -> None:
    """GET, GETQ, GETK, GETKQ: the document; the quiet forms do not answer a miss, the K forms repeat the key."""
    before = vbucket.high_seqno
    item = documents.live_item(vbucket, key, session.engine.unix_ns)
    if vbucket.high_seqno != before:
        session.changed(vbucket)
    if item is None:
        _missing(session, frame)
    else:
        found(session, frame, item, documents.shown_cas(vbucket, key, item.cas, session.engine.unix_ns))


def _check_get_ex(session: Session, _frame: Frame) -> Fault | None:
    for feature, name in _GET_EX_NEEDS:
        if feature not in session.features:
            return Fault(Status.NOT_SUPPORTED, f"{name} support must be enabled")
    return None


def get_ex(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """GET_EX: the document as it is stored, with its extended attributes."""
    get(session, frame, vbucket, key, _found_whole)


def _found_whole(session: Session, frame: Frame, item: StoredItem, cas: int) -> None:
    """Answer with a document as it is stored, but for system attributes that the user may not read."""
    value, datatype = item.value, item.datatype
    if datatype & _XATTR and session.refusal_in("SystemXattrRead", documents.collection_of(item.key)):
        value, datatype = without_system(item)
    session.reply(frame, RESPONSES[frame.opcode], item.flags, cas=cas, datatype=datatype, value=value)


def get_replica(session: Session, frame: Frame) -> None:
    """GET_REPLICA, GET_EX_REPLICA: the document from a replica vbucket."""
    vbucket = session.selected.vbucket(frame.vbid)
    if vbucket is None or vbucket.state != VbucketState.REPLICA:
        session.refuse_vbucket(frame)
        return
    key = stored_key(session, frame)
    if key is None:
        return
    item = vbucket.log.get(key)
    if item is None or item.is_deleted or 0 < item.expiration <= session.engine.unix_s:
        _missing(session, frame)
    elif frame.opcode == Opcode.GET_EX_REPLICA:
        _found_whole(session, frame, item, item.cas)
    else:
        _found(session, frame, item, item.cas)


def _touched_place(session: Session, frame: Frame) -> Place | None:
    """Like `_decided_place`; like the server, also refuses durability requirements."""
    if FrameInfoId.DURABILITY in session.frame_infos:
        session.refuse(frame, Status.NOT_SUPPORTED)
        return None
    return _decided_place(session, frame)


def touch(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """TOUCH, GAT, GATQ: a new expiration; GAT also reads."""
    engine = session.engine
    if documents.lock_of(vbucket, key, engine.unix_ns) is not None:
        session.refuse(frame, Status.TMPFAIL if session.is_degraded else Status.LOCKED)
        return
    item = documents.live_item(vbucket, key, engine.unix_ns)
    session.changed(vbucket)
    if item is None:
        _missing(session, frame)
        return
    (asked,) = kv.Touch.unpack(frame)
    expiration = expiration_of(session, key, asked)
    cas = item.cas
    if expiration != item.expiration:
        version = Version(key, item.value, item.rev_seqno + 1, item.datatype, item.flags, expiration)
        cas, _ = documents.store(vbucket, version, engine.unix_ns)
    if frame.opcode == Opcode.TOUCH:
        session.respond(frame, cas=cas)
    else:
        _found(session, frame, item, cas)


def _check_get_meta(_session: Session, frame: Frame) -> Fault | None:
    (version,) = kv.GetMeta.unpack(frame)
    return Fault(Status.EINVAL, "Request extras invalid") if version and version > _WITH_DATATYPE else None


def _place_of_metadata(session: Session, frame: Frame) -> Place | None:
    """Like `readable_place`, also in a pending vbucket: the server answers GET_META from it and delays only GET."""
    return readable_place(session, frame, states=_ACTIVE_OR_PENDING)


def get_meta(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """GET_META, GETQ_META: metadata of a document or tombstone."""
    meta = vbucket.log.meta(key)
    if meta is None:
        _missing(session, frame)
        return
    unix_ns = session.engine.unix_ns
    # The metadata of an expired document stays as it is until the document is read or written.
    is_deleted = meta.is_deleted or 0 < meta.expiration <= unix_ns // 1_000_000_000
    expiration = meta.expiration
    if meta.is_deleted:
        expiration = shown_delete_time(session, vbucket, key, meta)
    (version,) = kv.GetMeta.unpack(frame)
    session.reply(
        frame,
        RESPONSES[frame.opcode],
        int(is_deleted),
        meta.flags,
        expiration,
        meta.rev_seqno,
        meta.datatype if version == _WITH_DATATYPE else None,
        cas=documents.shown_cas(vbucket, key, meta.cas, unix_ns),
    )


def get_locked(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """GET_LOCKED: the document, locked: until the lock ends, writes need the lock's CAS."""
    unix_ns = session.engine.unix_ns
    item = documents.live_item(vbucket, key, unix_ns)
    session.changed(vbucket)
    if item is None:
        _missing(session, frame)
        return
    if documents.lock_of(vbucket, key, unix_ns) is not None:
        refuse_locked(session, frame)
        return
    (seconds,) = kv.GetLocked.unpack(frame)
    parameters = session.selected.parameters
    if not seconds or seconds > parameters.lock_max_s:
        seconds = parameters.lock_default_s  # also for a time that is too long, like the server
    lock = Lock(vbucket.next_cas(unix_ns), unix_ns + seconds * 1_000_000_000, item.seqno, unix_ns)
    if vbucket.locks.take(key, lock, unix_ns):
        _found(session, frame, item, lock.cas)
    else:
        session.refuse(frame, Status.TMPFAIL, "Too many documents are locked")


def unlock(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """UNLOCK: end a lock, which the CAS names."""
    unix_ns = session.engine.unix_ns
    item = documents.live_item(vbucket, key, unix_ns)
    session.changed(vbucket)
    lock = documents.lock_of(vbucket, key, unix_ns)
    if item is None:
        _missing(session, frame)
    elif lock is None:
        session.refuse(frame, Status.NOT_LOCKED if session.engine.release.has(Rule.NOT_LOCKED) else Status.TMPFAIL)
    elif lock.cas != frame.cas:
        refuse_locked(session, frame)
    else:
        vbucket.locks.release(key)
        session.respond(frame)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add((Opcode.GET, Opcode.GETK), at_place(readable_place, get))
    table.add(Opcode.GET_REPLICA, get_replica)
    table.add(Opcode.GET_EX, at_place(readable_place, get_ex), check=_check_get_ex)
    table.add(Opcode.GET_EX_REPLICA, get_replica, check=_check_get_ex)
    touching = at_place(_touched_place, touch)
    table.add((Opcode.TOUCH, Opcode.GAT), touching)
    table.add(Opcode.GET_LOCKED, at_place(_decided_place, get_locked))
    table.add(Opcode.UNLOCK, at_place(_decided_place, unlock))
    table.add(Opcode.GET_META, at_place(_place_of_metadata, get_meta), check=_check_get_meta)
