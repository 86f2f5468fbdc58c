"""Reading stored frames: a document's fields, the index's columns, and the index key of a frame.

Stored form: a whole DCP frame in classic framing with opaque 0; the key carries its collection prefix. A deletion or
expiration has the document's flags in place of the opaque. Mutations have 31 bytes of extras, deletions 21 (with delete
time), expirations 20, system events 13.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dcpstream.wire.codes import Opcode, SystemEventId
from dcpstream.wire.stored.block import BlockKind

HEADER_BYTES = 24
META_BYTES = HEADER_BYTES + 31
"""Header and the longest extras of a document: enough for `read_meta`."""

SEQNO_AT = HEADER_BYTES
REVISION_AT = HEADER_BYTES + 8
"""Offsets in the frame of a document or tombstone: its seqno, its revision."""

DELETED = int(BlockKind.DELETION | BlockKind.EXPIRATION)
SYSTEM = int(BlockKind.SYSTEM_EVENT)
PREPARE = int(BlockKind.PREPARE)
NOT_A_DOCUMENT = DELETED | SYSTEM | PREPARE
"""Masks of `BlockKind` bits, as plain numbers for the index."""

UNTOLD_REVISION = 0xFFFFFFFF
"""In the index's u32 revisions: the revision does not fit, or the row is no document; read its frame."""

SYSTEM_COLLECTION = 1
"""A reserved collection id. Index keys of system events begin with it, so no document has the same key."""
COLLECTION_EVENT, SCOPE_EVENT = b"_collection", b"_scope"
PREPARE_NAMESPACE = 2
"""Another reserved collection id: index keys of prepares and aborts are this byte and the document's key. So a prepare
does not hide the document, and an abort takes its prepare's place."""
SHARED_KEYS = 8192
"""Size of the caches of event keys, which all vbuckets share: enough for the collections of a few buckets."""

_HEADER = struct.Struct(">BBHBBHIIQ")
_MUTATION = struct.Struct(">QQII")
_DELETION = struct.Struct(">QQI")
_SYSTEM_EVENT = struct.Struct(">QIB")
_MUTATION_OPCODE = int(Opcode.DCP_MUTATION)
_EMPTYING = frozenset((int(SystemEventId.DROP_COLLECTION), int(SystemEventId.CREATE_COLLECTION)))
_ENDS = frozenset((int(SystemEventId.DROP_COLLECTION), int(SystemEventId.DROP_SCOPE)))
_SCOPE_EVENTS = frozenset((int(SystemEventId.CREATE_SCOPE), int(SystemEventId.DROP_SCOPE)))

_PREPARES = frozenset((int(Opcode.DCP_PREPARE), int(Opcode.DCP_ABORT)))

Buffer = bytes | bytearray | memoryview
U32s: TypeAlias = npt.NDArray[np.uint32]

_document_fields = struct.Struct(">QII").unpack_from
"""Revision, flags and expiration of a mutation, at `REVISION_AT`."""
document_halves = struct.Struct(">IIII").unpack_from
"""The same, with the revision in two halves."""
_tombstone_fields = struct.Struct(">QI").unpack_from
"""Revision and delete time of a deletion or expiration, at `REVISION_AT`."""


class ItemMeta(NamedTuple):
    """A document's fields without its value.

    Attributes:
        flags: of a tombstone the flags that the document had.
        expiration: of a mutation, epoch seconds, 0 none; 0 for a tombstone.
        delete_time: of a tombstone, epoch seconds; 0 for a mutation.
    """

    cas: int
    rev_seqno: int
    seqno: int
    flags: int
    expiration: int
    datatype: int
    is_deleted: bool
    delete_time: int


class StoredItem(NamedTuple):
    """A stored document or tombstone; `key` with its collection prefix, the rest as in `ItemMeta`.

    A tuple, because every read makes one, and making a frozen dataclass takes five times as long.
    """

    key: bytes
    value: bytes
    datatype: int
    flags: int
    expiration: int
    cas: int
    rev_seqno: int
    seqno: int
    is_deleted: bool
    delete_time: int


_new_tuple = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""


def read_meta(data: Buffer, at: int = 0) -> ItemMeta:
    """The fields of the data frame at `at`; needs its first `META_BYTES`, or all of a shorter frame."""
    _, opcode, _, _, datatype, _, _, opaque, cas = _HEADER.unpack_from(data, at)
    if opcode == _MUTATION_OPCODE:
        seqno, rev_seqno, flags, expiration = _MUTATION.unpack_from(data, at + HEADER_BYTES)
        return _new_tuple(ItemMeta, (cas, rev_seqno, seqno, flags, expiration, datatype, False, 0))
    seqno, rev_seqno, delete_time = _DELETION.unpack_from(data, at + HEADER_BYTES)
    return _new_tuple(ItemMeta, (cas, rev_seqno, seqno, opaque, 0, datatype, True, delete_time))


def read_item(data: Buffer, at: int = 0) -> StoredItem:
    """The document in the whole stored data frame at `at`."""
    _, opcode, key_length, extras_length, datatype, _, body, opaque, cas = _HEADER.unpack_from(data, at)
    key_start = at + HEADER_BYTES + extras_length
    value_start = key_start + key_length
    key = bytes(data[key_start:value_start])
    value = bytes(data[value_start : at + HEADER_BYTES + body])
    if opcode == _MUTATION_OPCODE:
        seqno, rev_seqno, flags, expiration = _MUTATION.unpack_from(data, at + HEADER_BYTES)
        return _new_tuple(StoredItem, (key, value, datatype, flags, expiration, cas, rev_seqno, seqno, False, 0))
    seqno, rev_seqno, delete_time = _DELETION.unpack_from(data, at + HEADER_BYTES)
    return _new_tuple(StoredItem, (key, value, datatype, opaque, 0, cas, rev_seqno, seqno, True, delete_time))


def fields_of(frame: Buffer, kinds: int) -> tuple[int, int]:
    """Revision and time (expiration or delete time) of a stored frame, as the index keeps them."""
    if not kinds & NOT_A_DOCUMENT:
        revision, _, time = _document_fields(frame, REVISION_AT)
    elif kinds & (SYSTEM | PREPARE):
        return UNTOLD_REVISION, 0
    else:
        revision, time = _tombstone_fields(frame, REVISION_AT)
    return min(UNTOLD_REVISION, revision), time


def columns_of(data: bytes | bytearray, sizes: Sequence[int]) -> tuple[npt.NDArray[np.int64], U32s, U32s]:
    """Columns of documents' frames that follow each other: where each begins, expirations, revisions."""
    lengths = np.fromiter(sizes, np.int64, len(sizes))
    starts = lengths.cumsum()
    starts -= lengths
    whole: npt.NDArray[np.uint64] = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
    times = whole[starts + (REVISION_AT + 8)].astype(np.uint32)  # the lower half: the flags are above it
    return starts, times, np.minimum(whole[starts + REVISION_AT], UNTOLD_REVISION).astype(np.uint32)


def prepare_key(key: bytes) -> bytes:
    """The index key of a document's prepare or abort."""
    return bytes((PREPARE_NAMESPACE,)) + key


def prepares_of(collection_id: int) -> int:
    """A number that no collection has, for the collection of prepares and aborts, which most streams do not see."""
    return -(1 << 33) - collection_id


def is_collection_end(data: Buffer) -> bool:
    """Whether a stored system event empties a collection: its end, or a new beginning (a flush)."""
    return data[1] == Opcode.DCP_SYSTEM_EVENT and _SYSTEM_EVENT.unpack_from(data, HEADER_BYTES)[1] in _EMPTYING


def is_end_event(data: Buffer) -> bool:
    """Whether a stored system event is the end of a collection or of a scope."""
    return data[1] == Opcode.DCP_SYSTEM_EVENT and _SYSTEM_EVENT.unpack_from(data, HEADER_BYTES)[1] in _ENDS


def cas_of(data: Buffer) -> int:
    """The CAS in a stored frame's header."""
    return int(_HEADER.unpack_from(data)[-1])


def tombstone_revision(data: Buffer) -> int:
    """The revision in a stored deletion or expiration."""
    return int(_DELETION.unpack_from(data, HEADER_BYTES)[1])


def index_key(data: Buffer) -> bytes:
    """The index key of a stored frame.

    Documents have their own key. Of the system events of one collection (or scope) the newest supersedes the older
    ones, as in the server, so begin, modify and end of a collection share one key: the kind and the id.
    """
    opcode, key_length, extras_length = data[1], data[2] << 8 | data[3], data[4]
    key_start = HEADER_BYTES + extras_length
    if opcode != Opcode.DCP_SYSTEM_EVENT:
        key = bytes(data[key_start : key_start + key_length])
        return prepare_key(key) if opcode in _PREPARES else key
    _, event, _ = _SYSTEM_EVENT.unpack_from(data, HEADER_BYTES)
    value = bytes(data[key_start + key_length :])
    kind, identity = (SCOPE_EVENT, value[8:12]) if event in _SCOPE_EVENTS else (COLLECTION_EVENT, value[12:16])
    return _event_key(kind, identity)


@lru_cache(SHARED_KEYS)
def _event_key(kind: bytes, identity: bytes) -> bytes:
    """The index key of a system event; all vbuckets share the object."""
    return bytes((SYSTEM_COLLECTION,)) + kind + identity
