"""What the store reads out of a stored frame: a document's fields, and the index key of a system event.

Stored form: a whole DCP frame in classic framing with opaque 0 (of a deletion or expiration the flags that the document
had); the key carries its collection prefix. Mutations have 31 bytes of extras, deletions 21 (with delete time),
expirations 20, system events 13.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from dcpstream.wire.codes import Opcode, SystemEventId

HEADER_BYTES = 24
META_BYTES = HEADER_BYTES + 31
"""Header and the longest extras of a document: enough for `read_meta`."""

SYSTEM_COLLECTION = 1
"""A reserved collection id, so index keys of system events, which begin with it, cannot meet a document's."""
COLLECTION_EVENT, SCOPE_EVENT = b"_collection", b"_scope"
PREPARE_NAMESPACE = 2
"""Another reserved collection id: index keys of prepares and aborts are this byte and the document's key, so that a
prepare does not hide the document that it may become, and an abort takes its prepare's place."""
SHARED_KEYS = 8192
"""Index keys of events that are remembered, so that all vbuckets refer to one: of all collections and scopes of a few
buckets."""

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


class ItemMeta(NamedTuple):
    """A document's fields without its value.

    Attributes:
        flags: of a tombstone those that the document had; its frame has them in place of an opaque.
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
    """A document or a tombstone as it is stored; `key` with its collection prefix, the rest as in `ItemMeta`.

    A tuple, because one is made for every document that is read, and a frozen dataclass takes five times as long.
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
    """The fields of the data frame at `at`; `META_BYTES` of it (or the whole frame) are enough."""
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


def prepare_key(key: bytes) -> bytes:
    """Under which index key the prepare of a document is, or its abort."""
    return bytes((PREPARE_NAMESPACE,)) + key


def prepares_of(collection_id: int) -> int:
    """What stands for the collection of prepares and aborts, which most do not see: a number that none has."""
    return -(1 << 33) - collection_id


def is_collection_end(data: Buffer) -> bool:
    """Whether a stored system event ends what a collection held: its end, or a beginning anew, as a flush does."""
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
    """The key under which a stored frame is in the index.

    A document is found by its key. Of system events the newest about a collection (or scope) supersedes the older
    ones, as in the server, so their key is the kind and the id: begin, modify and end of a collection share one.
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
    """The index key of events, the same object for all vbuckets."""
    return bytes((SYSTEM_COLLECTION,)) + kind + identity
