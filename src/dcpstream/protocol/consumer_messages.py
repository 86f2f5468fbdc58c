"""What a producer sends to a consumer, read and checked: markers, and rows turned into their stored form.

A stored row is richer than what most connections carry, so a key gets its collection prefix, a deletion its time, and a
compressed value is inflated. What is refused here is refused whatever stream it is for.

Source: kv_engine daemon/mcbp_validators.cc, engines/ep/src/dcp/consumer.cc; texts and statuses as recorded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from dcpstream.errors import FieldError
from dcpstream.protocol.answers import Refusal
from dcpstream.protocol.replica import Change
from dcpstream.wire import (
    Datatype,
    Frame,
    Opcode,
    Status,
    SystemEventId,
    decode_xattrs,
    encode_request,
    encode_stored_deletion,
    encode_stored_expiration,
    encode_stored_mutation,
    leb128_decode,
    snappy_uncompress,
    split_xattrs,
)
from dcpstream.wire.block import frame_kinds

__all__ = ["Dialect", "Marker", "read_change", "read_marker", "read_system_event"]

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
        has_flatbuffers: system events may come in version 2.
    """

    has_collections: bool = False
    has_delete_times: bool = False
    datatypes: int = int(Datatype.JSON)
    has_flatbuffers: bool = False


class Marker(NamedTuple):
    """A snapshot marker of any version; None where its version has no such field."""

    start_seqno: int
    end_seqno: int
    flags: int
    max_visible_seqno: int | None = None
    high_completed_seqno: int | None = None
    purge_seqno: int | None = None
    high_prepared_seqno: int | None = None


def read_marker(frame: Frame) -> Marker:
    """A marker whose shape was checked."""
    if len(frame.extras) != 1:
        return Marker(*_MARKER.unpack(frame.extras))
    start, end, flags = _MARKER.unpack_from(frame.value)
    more = [_U64.unpack_from(frame.value, at)[0] for at in range(_MARKER.size, len(frame.value), _U64.size)]
    return Marker(start, end, flags, *more)


def read_change(frame: Frame, dialect: Dialect, unix_s: int) -> Change | Refusal:
    """A mutation, deletion or expiration in stored form, or why it is refused."""
    refusal = _bad_datatype(frame, dialect) or _bad_key(frame.key, dialect)
    if refusal is not None:
        return refusal
    seqno = _U64.unpack_from(frame.extras)[0]
    value, datatype = frame.value, frame.datatype
    if datatype & Datatype.SNAPPY:
        try:
            value, datatype = snappy_uncompress(value), datatype & ~int(Datatype.SNAPPY)
        except FieldError:
            return Refusal(Status.EINVAL, "Failed to inflate payload")
    if datatype & Datatype.XATTR:
        try:
            decode_xattrs(value)
        except FieldError:
            return Refusal(Status.XATTR_EINVAL, "The provided xattr segment is not valid")
    if not seqno:
        kind = "mutation" if frame.opcode == Opcode.DCP_MUTATION else "deletion"
        return Refusal(Status.EINVAL, f"Invalid seqno(0) for DCP {kind}")
    key = frame.key if dialect.has_collections else b"\0" + frame.key
    if frame.opcode == Opcode.DCP_MUTATION:
        return _mutation(frame, key, value, datatype)
    if datatype & Datatype.XATTR:
        value, datatype = split_xattrs(value)[0], int(Datatype.XATTR)  # a body that is still there goes
    else:
        value, datatype = b"", 0
    return _deletion(frame, key, value, datatype, unix_s)


def _mutation(frame: Frame, key: bytes, value: bytes, datatype: int) -> Change | Refusal:
    seqno, rev_seqno, flags, expiration, _, meta_bytes, nru = _MUTATION.unpack(frame.extras)
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
    return Change(stored, key, seqno, frame.cas, rev_seqno, int(frame_kinds(frame.opcode, datatype, key)))


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
    if frame.opcode != Opcode.DCP_MUTATION:
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


def read_system_event(frame: Frame, dialect: Dialect) -> Change | Refusal:
    """A system event in stored form, or why it cannot be applied."""
    seqno, event, version = _EVENT.unpack(frame.extras)
    lengths = _EVENT_VALUE_BYTES.get(event)
    is_sound = (
        dialect.has_collections
        and lengths is not None
        and version < len(lengths)
        and len(frame.value) == lengths[version]
        and bool(frame.key) == (event in _NAMED)
    )
    if not is_sound or not seqno:
        return Refusal(Status.EINVAL)
    stored = encode_request(
        Opcode.DCP_SYSTEM_EVENT, vbid=frame.vbid, extras=frame.extras, key=frame.key, value=frame.value, cas=frame.cas
    )
    return Change(stored, frame.key, seqno, frame.cas, 0, int(frame_kinds(frame.opcode, 0, frame.key)))
