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

from dcpstream.wire.buffers import Buffer
from dcpstream.wire.codes import Opcode, SystemEventId
from dcpstream.wire.frames import HEADER, HEADER_BYTES
from dcpstream.wire.layout import Group
from dcpstream.wire.messages import opcodes_of
from dcpstream.wire.messages.dcp import Expiration, Mutation, SystemEvent
from dcpstream.wire.stored.block import BlockKind

META_BYTES = Mutation.layout.head.size
"""Header and the longest extras of a document: enough for `read_meta`."""

SEQNO_AT = Mutation.layout.offset("by_seqno")
REVISION_AT = Mutation.layout.offset("rev_seqno")
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
COLLECTION_EVENT, MODIFY_EVENT, SCOPE_EVENT = b"_collection", b"_modified", b"_scope"
PREPARE_NAMESPACE = 2
"""Another reserved collection id: index keys of prepares and aborts are this byte and the document's key. So a prepare
does not hide the document, and an abort takes its prepare's place."""
SHARED_KEYS = 8192
"""Size of the caches of event keys, which all vbuckets share: enough for the collections of a few buckets."""

_unpack_mutation = Mutation.layout.head.unpack_from
_unpack_tombstone = Expiration.layout.head.unpack_from
"""For deletions too: their extras begin with the same fields."""
_mutation_extras = Mutation.layout.extras.unpack_from
_tombstone_extras = Expiration.layout.extras.unpack_from
_unpack_seqno = struct.Struct(">Q").unpack_from
_unpack_event = SystemEvent.layout.extras.unpack_from
_MUTATION_OPCODE = int(Opcode.DCP_MUTATION)
_EMPTYING = frozenset((int(SystemEventId.DROP_COLLECTION), int(SystemEventId.CREATE_COLLECTION)))
_ENDS = frozenset((int(SystemEventId.DROP_COLLECTION), int(SystemEventId.DROP_SCOPE)))
_SCOPE_EVENTS = frozenset((int(SystemEventId.CREATE_SCOPE), int(SystemEventId.DROP_SCOPE)))

_PREPARES = opcodes_of(Group.UNDECIDED)

U32s: TypeAlias = npt.NDArray[np.uint32]

document_halves = struct.Struct(">IIII").unpack_from
"""A mutation's fields from `REVISION_AT` on: both halves of the revision, flags, expiration. For `VBucketLog.append`:
the revision fits the index if the upper half is 0."""


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
    if data[at + 1] == _MUTATION_OPCODE:
        fields = _unpack_mutation(data, at)
        _, _, _, _, datatype, _, _, _, cas, seqno, rev_seqno, flags, expiration, _, _, _ = fields
        return _new_tuple(ItemMeta, (cas, rev_seqno, seqno, flags, expiration, datatype, False, 0))
    _, _, _, _, datatype, _, _, flags, cas, seqno, rev_seqno, delete_time = _unpack_tombstone(data, at)
    return _new_tuple(ItemMeta, (cas, rev_seqno, seqno, flags, 0, datatype, True, delete_time))


def read_item(data: Buffer, at: int = 0) -> StoredItem:
    """The document in the whole stored data frame at `at`."""
    if data[at + 1] == _MUTATION_OPCODE:
        fields = _unpack_mutation(data, at)
        _, _, key_length, extras_length, datatype, _, body, _, cas, seqno, rev_seqno, flags, expiration, _, _, _ = (
            fields
        )
        is_deleted, delete_time = False, 0
    else:
        tombstone = _unpack_tombstone(data, at)
        _, _, key_length, extras_length, datatype, _, body, flags, cas, seqno, rev_seqno, delete_time = tombstone
        is_deleted, expiration = True, 0
    key_start = at + HEADER_BYTES + extras_length
    value_start = key_start + key_length
    key = bytes(data[key_start:value_start])
    value = bytes(data[value_start : at + HEADER_BYTES + body])
    item = (key, value, datatype, flags, expiration, cas, rev_seqno, seqno, is_deleted, delete_time)
    return _new_tuple(StoredItem, item)


def fields_of(frame: Buffer, kinds: int) -> tuple[int, int]:
    """Revision and time (expiration or delete time) of a stored frame, as the index keeps them."""
    if not kinds & NOT_A_DOCUMENT:
        _, revision, _, time, _, _, _ = _mutation_extras(frame, HEADER_BYTES)
    elif kinds & (SYSTEM | PREPARE):
        return UNTOLD_REVISION, 0
    else:
        _, revision, time = _tombstone_extras(frame, HEADER_BYTES)
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
    return data[1] == Opcode.DCP_SYSTEM_EVENT and _unpack_event(data, HEADER_BYTES)[1] in _EMPTYING


def is_end_event(data: Buffer) -> bool:
    """Whether a stored system event is the end of a collection or of a scope."""
    return data[1] == Opcode.DCP_SYSTEM_EVENT and _unpack_event(data, HEADER_BYTES)[1] in _ENDS


def seqno_of(data: Buffer, at: int = 0) -> int:
    """The seqno of the stored frame at `at`."""
    return int(_unpack_seqno(data, at + SEQNO_AT)[0])


def cas_of(data: Buffer) -> int:
    """The CAS in a stored frame's header."""
    return int(HEADER.unpack_from(data)[-1])


def tombstone_revision(data: Buffer) -> int:
    """The revision in a stored deletion or expiration."""
    return int(_tombstone_extras(data, HEADER_BYTES)[1])


def index_key(data: Buffer) -> bytes:
    """The index key of a stored frame.

    Documents have their own key. Of the system events of one collection (or scope) the newest supersedes the older
    ones, as in the server, so begin and end of a collection share one key: the kind and the id. Modifications have
    another one: clients that do not get them need the beginning. An end ends them, too.
    """
    opcode, key_length, extras_length = data[1], data[2] << 8 | data[3], data[4]
    key_start = HEADER_BYTES + extras_length
    if opcode != Opcode.DCP_SYSTEM_EVENT:
        key = bytes(data[key_start : key_start + key_length])
        return prepare_key(key) if opcode in _PREPARES else key
    _, event, _ = _unpack_event(data, HEADER_BYTES)
    value = bytes(data[key_start + key_length :])
    if event in _SCOPE_EVENTS:
        return _event_key(SCOPE_EVENT, value[8:12])
    return _event_key(MODIFY_EVENT if event == SystemEventId.MODIFY_COLLECTION else COLLECTION_EVENT, value[12:16])


def modify_key(collection_id: int) -> bytes:
    """The index key of a collection's modifications."""
    return _event_key(MODIFY_EVENT, collection_id.to_bytes(4, "big"))


@lru_cache(SHARED_KEYS)
def _event_key(kind: bytes, identity: bytes) -> bytes:
    """The index key of a system event; all vbuckets share the object."""
    return bytes((SYSTEM_COLLECTION,)) + kind + identity
