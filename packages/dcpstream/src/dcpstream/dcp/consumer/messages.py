"""The producer's messages as a consumer reads them: markers, and changes in their stored form.

A stored row has more than most connections carry: its key gets a collection prefix, and a deletion gets a time. A
document's value stays compressed if it came compressed; a deletion's value is inflated. The checks here do not depend
on the stream.

Source: kv_engine daemon/mcbp_validators.cc, engines/ep/src/dcp/consumer.cc; texts and statuses as recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dcpstream.dcp.bucket import Change
from dcpstream.dcp.refusals import Refusal
from dcpstream.errors import FieldError, RemoteProtocolError
from dcpstream.wire import Datatype, Frame, Opcode, Status, SystemEventId
from dcpstream.wire.keys import FIRST_RESERVED, LAST_RESERVED, key_fault, leb128_decode
from dcpstream.wire.layout import Kind, classes_of
from dcpstream.wire.messages.dcp import (
    Abort,
    Commit,
    Deletion,
    DeletionV2,
    Expiration,
    Mutation,
    Prepare,
    SnapshotMarker,
    SystemEvent,
)
from dcpstream.wire.stored.block import (
    Version,
    encode_stored_deletion,
    encode_stored_expiration,
    encode_stored_mutation,
    frame_kinds,
)
from dcpstream.wire.stored.durable import StoredPrepare, encode_stored_abort, encode_stored_prepare
from dcpstream.wire.stored.form import COARSE_COUNTER
from dcpstream.wire.system_events import EVENT_VALUE_BYTES, VERSION_FLATBUFFERS, encode_stored_event, read_flatbuffer
from dcpstream.wire.values import decode_xattrs, snappy_uncompress, split_xattrs

# Plain ints: every row is looked at, and enum arithmetic is slow.
_SNAPPY, _XATTR = int(Datatype.SNAPPY), int(Datatype.XATTR)
_unpack_mutation = Mutation.layout.extras.unpack
_MARKERS = tuple(
    version for version in classes_of(SnapshotMarker.layout.opcode, Kind.REQUEST) if version.layout.refused is None
)
_DELETION_V1_BYTES = Deletion.layout.extras_bytes
_DELETION_BYTES = DeletionV2.layout.extras_bytes

_DELETION_DATATYPES = frozenset((0, 2, 4, 5, 6, 7))
"""Datatypes of a deletion's value: none, or xattrs with or without a body."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The negotiated form of a connection's rows.

    Attributes:
        has_collections: keys carry a collection prefix.
        has_delete_times: deletions carry their time.
        datatypes: the datatype bits that values may have.
    """

    has_collections: bool = False
    has_delete_times: bool = False
    datatypes: int = int(Datatype.JSON)


class Marker(NamedTuple):
    """A snapshot marker of any version; fields that its version lacks are None."""

    start_seqno: int
    end_seqno: int
    flags: int
    max_visible_seqno: int | None = None
    high_completed_seqno: int | None = None
    purge_seqno: int | None = None
    high_prepared_seqno: int | None = None


class PreparedChange(NamedTuple):
    """A prepare in stored form, and its durability level."""

    change: Change
    level: int


class Decision(NamedTuple):
    """A commit or an abort.

    Attributes:
        key: with collection prefix.
        prepared_seqno: the seqno of its prepare.
        seqno: its own seqno.
    """

    key: bytes
    prepared_seqno: int
    seqno: int
    is_abort: bool


def read_marker(frame: Frame) -> Marker:
    """Read a marker whose shape was checked."""
    fitting = next(version for version in _MARKERS if version.layout.mismatch(frame) is None)
    return Marker(*fitting.unpack(frame))


def read_change(frame: Frame, dialect: Dialect, unix_s: int) -> Change | Refusal:
    """Turn a mutation, deletion or expiration into its stored form, or refuse it."""
    content = _content(frame, dialect)
    if isinstance(content, Refusal):
        return content
    key, value, datatype = content
    if not any(frame.extras[:8]):
        kind = "mutation" if frame.opcode == Opcode.DCP_MUTATION else "deletion"
        return Refusal(Status.EINVAL, f"Invalid seqno(0) for DCP {kind}")
    if frame.opcode == Opcode.DCP_MUTATION:
        return _mutation(frame, key)
    if datatype & _XATTR:
        value, datatype = split_xattrs(value)[0], _XATTR  # a deletion keeps its xattrs and loses its body
    else:
        value, datatype = b"", 0
    return _deletion(frame, key, value, datatype, unix_s)


def _content(frame: Frame, dialect: Dialect) -> tuple[bytes, bytes, int] | Refusal:
    """Check key and value: (key with prefix, inflated value, its datatype), or a refusal."""
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


_COARSE_COUNTERS = bytes([3] * 4 + [COARSE_COUNTER] * 28 + [1] * 32 + [0] * 192)
"""The stored use counter by the exact one that came, as a server tells readers without `supports_hifi_MFU`: the more
often used, the lower. Hifi streams get the exact counter of a fresh document from it again."""


def _mutation(frame: Frame, key: bytes) -> Change | Refusal:
    """A mutation in stored form; a compressed value stays compressed."""
    datatype = frame.datatype
    seqno, rev_seqno, flags, expiration, _, meta_bytes, nru = _unpack_mutation(frame.extras)
    if meta_bytes:
        return Refusal(Status.EINVAL, "Extended metadata is not supported")
    # As `encode_stored_mutation`, without the Version, which takes half a microsecond for each row of a replica.
    stored = Mutation.pack(
        seqno, rev_seqno, flags, expiration, 0, 0, _COARSE_COUNTERS[nru],
        vbid=frame.vbid, cas=frame.cas, datatype=datatype, key=key, value=frame.value,
    )  # fmt: skip
    kinds = int(frame_kinds(frame.opcode, datatype, key)) if key[0] or datatype & (_XATTR | _SNAPPY) else 0
    return Change(stored, key, seqno, frame.cas, rev_seqno, kinds)


def _deletion(frame: Frame, key: bytes, value: bytes, datatype: int, unix_s: int) -> Change:
    delete_time, encode = unix_s, encode_stored_deletion
    if frame.opcode == Opcode.DCP_EXPIRATION:
        seqno, rev_seqno, delete_time = Expiration.unpack(frame)
        encode = encode_stored_expiration
    elif len(frame.extras) == _DELETION_V1_BYTES:
        seqno, rev_seqno, _ = Deletion.unpack(frame)
    else:
        seqno, rev_seqno, delete_time, _ = DeletionV2.unpack(frame)
    version = Version(key, value, rev_seqno, datatype, time=delete_time)
    stored = encode(version, vbid=frame.vbid, by_seqno=seqno, cas=frame.cas)
    kinds = int(frame_kinds(frame.opcode, datatype, key))
    return Change(stored, key, seqno, frame.cas, rev_seqno, kinds, is_deleted=True)


def _bad_datatype(frame: Frame, dialect: Dialect) -> Refusal | None:
    datatype = frame.datatype
    is_wrong = datatype & ~dialect.datatypes
    if frame.opcode in (Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION):
        is_wrong = is_wrong or datatype not in _DELETION_DATATYPES
        wanted = Expiration.layout.extras_bytes
        if frame.opcode == Opcode.DCP_DELETION:
            has_version_2 = dialect.has_delete_times or dialect.has_collections
            wanted = _DELETION_BYTES if has_version_2 else _DELETION_V1_BYTES
        if len(frame.extras) != wanted:
            return Refusal(Status.EINVAL, f"Request must include extras of length {wanted}")
        if wanted == _DELETION_V1_BYTES and Deletion.unpack(frame)[2]:
            return Refusal(Status.EINVAL, "Extended metadata is not supported")
    return Refusal(Status.EINVAL, "Request datatype invalid") if is_wrong else None


def _bad_key(key: bytes, dialect: Dialect) -> Refusal | None:
    if not dialect.has_collections:
        return None  # the check of the shape covers keys without a prefix
    context = key_fault(key)
    return None if context is None else Refusal(Status.EINVAL, context)


_NAMED = frozenset((SystemEventId.CREATE_COLLECTION, SystemEventId.CREATE_SCOPE))


def read_system_event(frame: Frame, *, has_flatbuffers: bool = False) -> Change | Refusal:
    """Turn a system event into its stored form, or refuse it.

    The version counts if flatbuffers were agreed on, and at the begin of a collection.

    Raises:
        RemoteProtocolError: the value has not the size of such an event.
    """
    seqno, event, version = SystemEvent.unpack(frame)
    if version > VERSION_FLATBUFFERS or (has_flatbuffers and version != VERSION_FLATBUFFERS):
        return Refusal(Status.EINVAL)
    if has_flatbuffers:
        is_known = event in tuple(SystemEventId)
        return _flatbuffer_event(frame, seqno, event) if is_known else Refusal(Status.EINVAL)
    lengths = EVENT_VALUE_BYTES.get(event, ())
    if not lengths or bool(frame.key) != (event in _NAMED):
        return Refusal(Status.EINVAL)
    version = version if event == SystemEventId.CREATE_COLLECTION else 0
    if version >= len(lengths) or len(frame.value) != lengths[version]:
        raise RemoteProtocolError(f"an event {event} of version {version} with a value of {len(frame.value)} bytes")
    stored = SystemEvent.pack(seqno, event, version, vbid=frame.vbid, key=frame.key, value=frame.value, cas=frame.cas)
    return Change(stored, frame.key, seqno, frame.cas, 0, int(frame_kinds(frame.opcode, 0, frame.key)))


def _flatbuffer_event(frame: Frame, seqno: int, event: int) -> Change | Refusal:
    """Turn an event of version 2 into the equivalent older version, in stored form."""
    try:
        found = read_flatbuffer(event, frame.value)
    except FieldError:
        return Refusal(Status.EINVAL)
    if bool(found.name) != (event in _NAMED or event == SystemEventId.MODIFY_COLLECTION):
        return Refusal(Status.EINVAL)
    stored = encode_stored_event(found, vbid=frame.vbid, by_seqno=seqno)
    key = found.name.encode()
    return Change(stored, key, seqno, 0, 0, int(frame_kinds(frame.opcode, 0, key)))


_LEVELS = (1, 2, 3)
PERSIST_TO_MAJORITY = 3
"""The level that counts a write as prepared only when it is on the copy's disk."""


def read_prepare(frame: Frame, dialect: Dialect) -> PreparedChange | Refusal:
    """Turn a prepare into its stored form and its level, or refuse it."""
    content = _content(frame, dialect)
    if isinstance(content, Refusal):
        return content
    key, value, datatype = content
    seqno, rev_seqno, flags, expiration, _, nru, deleted, level = Prepare.unpack(frame)
    if not (seqno and frame.cas and level in _LEVELS):
        return Refusal(Status.EINVAL, "Request must have a seqno, a CAS and a durability level")
    if not deleted:
        value, datatype = frame.value, frame.datatype
    stored = encode_stored_prepare(
        Version(key, value, rev_seqno, datatype, flags, expiration),
        vbid=frame.vbid,
        by_seqno=seqno,
        cas=frame.cas,
        level=level,
        nru=_COARSE_COUNTERS[nru],
        is_deleted=bool(deleted),
    )
    kinds = int(frame_kinds(Opcode.DCP_PREPARE, datatype, key))
    return PreparedChange(Change(stored, key, seqno, frame.cas, rev_seqno, kinds), level)


def _check_names_collection(key: bytes) -> None:
    try:
        collection_id, _ = leb128_decode(key)
    except FieldError as error:
        raise RemoteProtocolError(f"a decision whose key names no collection: {error}") from None
    if FIRST_RESERVED <= collection_id <= LAST_RESERVED:
        raise RemoteProtocolError(f"a decision about the collection {collection_id}, which cannot be")


def read_decision(frame: Frame, dialect: Dialect) -> Decision | Refusal:
    """Read a commit or an abort, or refuse it.

    Its key is not checked as that of a document. Raises: RemoteProtocolError: it names no collection.
    """
    if dialect.has_collections:
        _check_names_collection(frame.key)
    prepared, seqno = (Abort if frame.opcode == Opcode.DCP_ABORT else Commit).unpack(frame)
    if frame.cas or not 0 < prepared < seqno:
        return Refusal(Status.EINVAL, "Request must have a prepared seqno below its own, and no CAS")
    key = frame.key if dialect.has_collections else b"\0" + frame.key
    return Decision(key, prepared, seqno, frame.opcode == Opcode.DCP_ABORT)


def abort_of(decision: Decision, vbid: int) -> Change:
    """An abort in stored form."""
    stored = encode_stored_abort(
        vbid=vbid, key=decision.key, by_seqno=decision.seqno, prepared_seqno=decision.prepared_seqno
    )
    return Change(stored, decision.key, decision.seqno, kinds=int(frame_kinds(Opcode.DCP_ABORT, 0, decision.key)))


def commit_of(decision: Decision, prepare: StoredPrepare, vbid: int) -> Change:
    """The committed document in stored form: the prepared mutation or deletion, with the commit's seqno."""
    seqno, key = decision.seqno, prepare.key
    encode = encode_stored_deletion if prepare.is_deleted else encode_stored_mutation
    stored = encode(prepare.version, vbid=vbid, by_seqno=seqno, cas=prepare.cas)
    opcode = Opcode.DCP_DELETION if prepare.is_deleted else Opcode.DCP_MUTATION
    kinds = int(frame_kinds(opcode, prepare.datatype, key))
    return Change(stored, key, seqno, prepare.cas, prepare.rev_seqno, kinds, is_deleted=prepare.is_deleted)
