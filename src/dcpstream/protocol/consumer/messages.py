"""What a producer sends to a consumer, read and checked: markers, and rows turned into their stored form.

A stored row is richer than what most connections carry, so a key gets its collection prefix and a deletion its time.
The value of a document stays compressed if it came so; that of a deletion is inflated. What is refused here is refused
whatever stream it is for.

Source: kv_engine daemon/mcbp_validators.cc, engines/ep/src/dcp/consumer.cc; texts and statuses as recorded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from dcpstream.errors import FieldError
from dcpstream.protocol.answers import Refusal
from dcpstream.protocol.bucket import Change
from dcpstream.wire import Datatype, Frame, Opcode, Status, SystemEventId, encode_request
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.stored.block import (
    encode_stored_deletion,
    encode_stored_expiration,
    encode_stored_mutation,
    frame_kinds,
)
from dcpstream.wire.stored.durable import StoredPrepare, encode_stored_abort, encode_stored_prepare
from dcpstream.wire.stored.form import COARSE_COUNTER, EXACT_COUNTER
from dcpstream.wire.system_events import VERSION_FLATBUFFERS, encode_stored_event, read_flatbuffer
from dcpstream.wire.values import decode_xattrs, snappy_uncompress, split_xattrs

__all__ = [
    "PERSIST_TO_MAJORITY",
    "Decision",
    "Dialect",
    "Marker",
    "abort_of",
    "commit_of",
    "read_change",
    "read_decision",
    "read_marker",
    "read_prepare",
    "read_system_event",
]

# Plain ints: every row is looked at, and enum arithmetic is slow.
_SNAPPY, _XATTR = int(Datatype.SNAPPY), int(Datatype.XATTR)
_MARKER = struct.Struct(">QQI")
_MUTATION = struct.Struct(">QQIIIHB")
_DELETION = struct.Struct(">QQ")
_U64 = struct.Struct(">Q")
_EVENT = struct.Struct(">QIB")

MAX_KEY_BYTES = 250
MAX_KEY_BYTES_ELSEWHERE = 246
FIRST_RESERVED, LAST_RESERVED = 1, 7

_DELETION_V1_BYTES = 18

_DELETION_DATATYPES = frozenset((0, 2, 4, 5, 6, 7))
"""What a deletion's value may be: nothing, or xattrs with or without a body."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What was agreed for the rows of a connection.

    Attributes:
        has_collections: keys carry a collection prefix.
        has_delete_times: deletions are of the longer kind.
        datatypes: bits that values may have.
    """

    has_collections: bool = False
    has_delete_times: bool = False
    datatypes: int = int(Datatype.JSON)


class Marker(NamedTuple):
    """A snapshot marker of any version; None where its version has no such field."""

    start_seqno: int
    end_seqno: int
    flags: int
    max_visible_seqno: int | None = None
    high_completed_seqno: int | None = None
    purge_seqno: int | None = None
    high_prepared_seqno: int | None = None


class Decision(NamedTuple):
    """A commit or an abort.

    Attributes:
        key: with collection prefix.
        prepared_seqno: which prepare it decides.
        seqno: its own.
    """

    key: bytes
    prepared_seqno: int
    seqno: int
    is_abort: bool


def read_marker(frame: Frame) -> Marker:
    """A marker whose shape was checked."""
    if len(frame.extras) != 1:
        return Marker(*_MARKER.unpack(frame.extras))
    start, end, flags = _MARKER.unpack_from(frame.value)
    more = [_U64.unpack_from(frame.value, at)[0] for at in range(_MARKER.size, len(frame.value), _U64.size)]
    return Marker(start, end, flags, *more)


def read_change(frame: Frame, dialect: Dialect, unix_s: int) -> Change | Refusal:
    """A mutation, deletion or expiration in stored form, or why it is refused."""
    content = _content(frame, dialect)
    if isinstance(content, Refusal):
        return content
    key, value, datatype = content
    if not _U64.unpack_from(frame.extras)[0]:
        kind = "mutation" if frame.opcode == Opcode.DCP_MUTATION else "deletion"
        return Refusal(Status.EINVAL, f"Invalid seqno(0) for DCP {kind}")
    if frame.opcode == Opcode.DCP_MUTATION:
        return _mutation(frame, key, frame.value, frame.datatype)  # a compressed value stays as it came
    if datatype & _XATTR:
        value, datatype = split_xattrs(value)[0], _XATTR  # a body that is still there goes
    else:
        value, datatype = b"", 0
    return _deletion(frame, key, value, datatype, unix_s)


def _content(frame: Frame, dialect: Dialect) -> tuple[bytes, bytes, int] | Refusal:
    """(key with prefix, inflated value, its datatype), or why they are refused."""
    refusal = _bad_datatype(frame, dialect) or _bad_key(frame.key, dialect)
    if refusal is not None:
        return refusal
    value, datatype = frame.value, frame.datatype
    if datatype & _SNAPPY:
        try:
            value, datatype = snappy_uncompress(value), datatype & ~_SNAPPY
        except FieldError:
            return Refusal(Status.EINVAL, "Failed to inflate payload")
    if datatype & _XATTR:
        try:
            decode_xattrs(value)
        except FieldError:
            return Refusal(Status.XATTR_EINVAL, "The provided xattr segment is not valid")
    return frame.key if dialect.has_collections else b"\0" + frame.key, value, datatype


def _mutation(frame: Frame, key: bytes, value: bytes, datatype: int) -> Change | Refusal:
    seqno, rev_seqno, flags, expiration, _, meta_bytes, nru = _MUTATION.unpack(frame.extras)
    if nru == EXACT_COUNTER:
        nru = COARSE_COUNTER  # a fresh document, as it is stored; who asks for exact counters gets that one again
    if meta_bytes:
        return Refusal(Status.EINVAL, "Extended metadata is not supported")
    stored = encode_stored_mutation(
        vbid=frame.vbid,
        key=key,
        value=value,
        by_seqno=seqno,
        rev_seqno=rev_seqno,
        cas=frame.cas,
        datatype=datatype,
        flags=flags,
        expiration=expiration,
        nru=nru,
    )
    kinds = int(frame_kinds(frame.opcode, datatype, key)) if key[0] or datatype & (_XATTR | _SNAPPY) else 0
    return Change(stored, key, seqno, frame.cas, rev_seqno, kinds)


def _deletion(frame: Frame, key: bytes, value: bytes, datatype: int, unix_s: int) -> Change:
    seqno, rev_seqno = _DELETION.unpack_from(frame.extras)
    has_time = len(frame.extras) != _DELETION_V1_BYTES
    delete_time = int.from_bytes(frame.extras[16:20], "big") if has_time else unix_s
    encode = encode_stored_expiration if frame.opcode == Opcode.DCP_EXPIRATION else encode_stored_deletion
    stored = encode(
        vbid=frame.vbid,
        key=key,
        by_seqno=seqno,
        rev_seqno=rev_seqno,
        cas=frame.cas,
        delete_time=delete_time,
        value=value,
        datatype=datatype,
    )
    kinds = int(frame_kinds(frame.opcode, datatype, key))
    return Change(stored, key, seqno, frame.cas, rev_seqno, kinds, is_deleted=True)


def _bad_datatype(frame: Frame, dialect: Dialect) -> Refusal | None:
    datatype = frame.datatype
    is_wrong = datatype & ~dialect.datatypes
    if frame.opcode in (Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION):
        is_wrong = is_wrong or datatype not in _DELETION_DATATYPES
        wanted = 20
        if frame.opcode == Opcode.DCP_DELETION:
            wanted = 21 if dialect.has_delete_times or dialect.has_collections else _DELETION_V1_BYTES
        if len(frame.extras) != wanted:
            return Refusal(Status.EINVAL, f"Request must include extras of length {wanted}")
        if wanted == _DELETION_V1_BYTES and frame.extras[16:] != b"\0\0":
            return Refusal(Status.EINVAL, "Extended metadata is not supported")
    return Refusal(Status.EINVAL, "Request datatype invalid") if is_wrong else None


def _bad_key(key: bytes, dialect: Dialect) -> Refusal | None:
    if not dialect.has_collections:
        return None  # what is wrong with it was found with the packet's shape
    try:
        collection_id, prefix = leb128_decode(key)
    except FieldError:
        return Refusal(Status.EINVAL, "Key has no valid collection id")
    longest = MAX_KEY_BYTES if not collection_id else MAX_KEY_BYTES_ELSEWHERE
    if not 0 < len(key) - prefix <= longest:
        return Refusal(Status.EINVAL, f"Key length exceeds {longest}, or is 0")
    if FIRST_RESERVED <= collection_id <= LAST_RESERVED:
        return Refusal(Status.EINVAL, "Collection id is reserved")
    return None


_EVENT_VALUE_BYTES = {
    SystemEventId.CREATE_COLLECTION: (16, 20),
    SystemEventId.DROP_COLLECTION: (16,),
    SystemEventId.CREATE_SCOPE: (12,),
    SystemEventId.DROP_SCOPE: (12,),
}
"""Bytes of an event's value in version 0, and 1 where there is one."""
_NAMED = frozenset((SystemEventId.CREATE_COLLECTION, SystemEventId.CREATE_SCOPE))


def read_system_event(frame: Frame, dialect: Dialect, *, has_flatbuffers: bool = False) -> Change | Refusal:
    """A system event in stored form, or why it cannot be applied; version 2 only where it was agreed."""
    seqno, event, version = _EVENT.unpack(frame.extras)
    if not seqno or not dialect.has_collections:
        return Refusal(Status.EINVAL)
    if version == VERSION_FLATBUFFERS:
        is_known = has_flatbuffers and event in tuple(SystemEventId)
        return _flatbuffer_event(frame, seqno, event) if is_known else Refusal(Status.EINVAL)
    lengths = _EVENT_VALUE_BYTES.get(event, ())
    is_sound = version < len(lengths) and len(frame.value) == lengths[version] and bool(frame.key) == (event in _NAMED)
    if not is_sound:
        return Refusal(Status.EINVAL)
    stored = encode_request(
        Opcode.DCP_SYSTEM_EVENT, vbid=frame.vbid, extras=frame.extras, key=frame.key, value=frame.value, cas=frame.cas
    )
    return Change(stored, frame.key, seqno, frame.cas, 0, int(frame_kinds(frame.opcode, 0, frame.key)))


def _flatbuffer_event(frame: Frame, seqno: int, event: int) -> Change | Refusal:
    """An event in version 2, which is stored as one of the older versions that says the same."""
    try:
        found = read_flatbuffer(event, frame.value)
    except FieldError:
        return Refusal(Status.EINVAL)
    if bool(found.name) != (event in _NAMED or event == SystemEventId.MODIFY_COLLECTION):
        return Refusal(Status.EINVAL)
    stored = encode_stored_event(found, vbid=frame.vbid, by_seqno=seqno)
    key = found.name.encode()
    return Change(stored, key, seqno, 0, 0, int(frame_kinds(frame.opcode, 0, key)))


_PREPARE = struct.Struct(">QQIIIBBB")
_PAIR = struct.Struct(">QQ")
_LEVELS = (1, 2, 3)
PERSIST_TO_MAJORITY = 3
"""The level at which a copy has prepared a write only once it is on its disk."""


def read_prepare(frame: Frame, dialect: Dialect) -> tuple[Change, int] | Refusal:
    """A prepare in stored form and its level, or why it is refused."""
    content = _content(frame, dialect)
    if isinstance(content, Refusal):
        return content
    key, value, datatype = content
    seqno, rev_seqno, flags, expiration, _, nru, deleted, level = _PREPARE.unpack(frame.extras)
    if not (seqno and frame.cas and level in _LEVELS and deleted <= 1):
        return Refusal(Status.EINVAL, "Request must have a seqno, a CAS, a durability level and a deleted flag")
    if not deleted:
        value, datatype = frame.value, frame.datatype
    stored = encode_stored_prepare(
        vbid=frame.vbid,
        key=key,
        value=value,
        by_seqno=seqno,
        rev_seqno=rev_seqno,
        cas=frame.cas,
        level=level,
        datatype=datatype,
        flags=flags,
        expiration=expiration,
        nru=COARSE_COUNTER if nru == EXACT_COUNTER else nru,
        is_deleted=bool(deleted),
    )
    kinds = int(frame_kinds(Opcode.DCP_PREPARE, datatype, key))
    return Change(stored, key, seqno, frame.cas, rev_seqno, kinds), level


def read_decision(frame: Frame, dialect: Dialect) -> Decision | Refusal:
    """A commit or an abort, or why it is refused."""
    refusal = _bad_key(frame.key, dialect)
    if refusal is not None:
        return refusal
    prepared, seqno = _PAIR.unpack(frame.extras)
    if frame.cas or not 0 < prepared < seqno:
        return Refusal(Status.EINVAL, "Request must have a prepared seqno below its own, and no CAS")
    key = frame.key if dialect.has_collections else b"\0" + frame.key
    return Decision(key, prepared, seqno, frame.opcode == Opcode.DCP_ABORT)


def abort_of(decision: Decision, vbid: int) -> Change:
    """An abort as it is stored."""
    stored = encode_stored_abort(
        vbid=vbid, key=decision.key, by_seqno=decision.seqno, prepared_seqno=decision.prepared_seqno
    )
    return Change(stored, decision.key, decision.seqno, kinds=int(frame_kinds(Opcode.DCP_ABORT, 0, decision.key)))


def commit_of(decision: Decision, prepare: StoredPrepare, vbid: int) -> Change:
    """What a commit makes of its document: the prepared mutation or deletion, at the commit's seqno."""
    seqno, key = decision.seqno, decision.key
    if prepare.is_deleted:
        stored = encode_stored_deletion(
            vbid=vbid,
            key=key,
            by_seqno=seqno,
            rev_seqno=prepare.rev_seqno,
            cas=prepare.cas,
            delete_time=prepare.expiration,
            value=prepare.value,
            datatype=prepare.datatype,
        )
    else:
        stored = encode_stored_mutation(
            vbid=vbid,
            key=key,
            value=prepare.value,
            by_seqno=seqno,
            rev_seqno=prepare.rev_seqno,
            cas=prepare.cas,
            datatype=prepare.datatype,
            flags=prepare.flags,
            expiration=prepare.expiration,
        )
    opcode = Opcode.DCP_DELETION if prepare.is_deleted else Opcode.DCP_MUTATION
    kinds = int(frame_kinds(opcode, prepare.datatype, key))
    return Change(stored, key, seqno, prepare.cas, prepare.rev_seqno, kinds, is_deleted=prepare.is_deleted)
