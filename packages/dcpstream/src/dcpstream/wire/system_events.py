"""Events of scopes and collections as messages: their stored form, and the flatbuffers form that newer clients want.

A stored event is a DCP_SYSTEM_EVENT in version 0, or 1 for a collection with a maximum time to live. An event that says
more than these versions can is stored with a longer value, and never sent like that (`old_form_of`). Clients that
requested flatbuffers get all facts as version 2. A flatbuffer is built from its end to its start; this module builds
the four tables in use, byte by byte as the reference implementation does.

Source: kv_engine docs/dcp/documentation/commands/system_event.md, engines/ep/src/collections/system_event_types.h;
flatbuffers' internals page; the bytes as in recordings of a server.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from dcpstream.errors import FieldError
from dcpstream.model.collections import NO_TTL, SYSTEM_PREFIX
from dcpstream.wire.codes import SystemEventId
from dcpstream.wire.fields import Record, record, u8, u32, u64
from dcpstream.wire.messages.dcp import SystemEvent

_OF_SCOPE = frozenset((int(SystemEventId.CREATE_SCOPE), int(SystemEventId.DROP_SCOPE)))
VERSION_FLATBUFFERS = 2
VERSION_STORED = 0x80
"""The version of events with a `StoredScopeValue` or a `StoredCollectionValue`: in the store alone."""
EVENT_VALUE_BYTES = {
    SystemEventId.CREATE_COLLECTION: (16, 20),
    SystemEventId.DROP_COLLECTION: (16,),
    SystemEventId.CREATE_SCOPE: (12,),
    SystemEventId.DROP_SCOPE: (12,),
}
"""Bytes of an event's value in version 0, and in version 1 if there is one."""
_HAS_TTL, _HISTORY, _METERED, _SYSTEM = 1, 2, 4, 8


@record
class ScopeValue(Record):
    """The value of a scope's event in version 0."""

    manifest_uid: int = u64()
    scope_id: int = u32()


@record
class CollectionValue(Record):
    """The value of a collection's event in version 0."""

    manifest_uid: int = u64()
    scope_id: int = u32()
    collection_id: int = u32()


@record
class CollectionValueWithTtl(CollectionValue):
    """The same in version 1."""

    max_ttl: int = u32()


@record
class StoredScopeValue(ScopeValue):
    """The value of a scope's event in the store, if version 0 cannot say everything."""

    flags: int = u8()


@record
class StoredCollectionValue(CollectionValueWithTtl):
    """The value of a collection's event in the store, if version 1 cannot say everything."""

    flags: int = u8()
    flush_uid: int = u64()


class CollectionEvent(NamedTuple):
    """One change of a scope or a collection.

    Attributes:
        event: see `SystemEventId`.
        manifest_uid: u64, the manifest's version once this is done.
        scope_id, collection_id: u32; the latter 0 for events of scopes.
        name: of a created or modified scope or collection; empty otherwise.
        max_ttl: seconds; 0 if the collection has no setting, `NO_TTL` (0 on the wire) if its setting is "no limit".
        flush_uid: u64, the manifest that flushed the collection; 0 if none did. Only in flatbuffers, as what follows.
        history, metered: see `Collection`.
        is_system: a dropped scope or collection had a name of the system's. Other events have the name itself.
    """

    event: int
    manifest_uid: int
    scope_id: int
    collection_id: int = 0
    name: str = ""
    max_ttl: int = 0
    flush_uid: int = 0
    history: bool = False
    metered: bool = False
    is_system: bool = False

    @property
    def is_of_scope(self) -> bool:
        """Whether it is about a scope."""
        return self.event in _OF_SCOPE

    @property
    def number(self) -> int:
        """The number of its collection in a history, or of the events of its scope; see `events_of_scope`."""
        return events_of_scope(self.scope_id) if self.is_of_scope else self.collection_id

    @property
    def is_plain(self) -> bool:
        """Whether version 0 or 1 says everything about it."""
        return not (self.flush_uid or self.history or self.metered or self.is_system)

    @property
    def is_hidden(self) -> bool:
        """Whether only users who may see system collections get it."""
        is_default = not (self.scope_id if self.is_of_scope else self.collection_id)
        return not is_default and (self.is_system or self.name.startswith(SYSTEM_PREFIX))


def events_of_scope(scope_id: int) -> int:
    """The number that stands for a collection in a scope's own events: no collection has it."""
    return -1 - scope_id


def encode_stored_event(event: CollectionEvent, *, vbid: int, by_seqno: int) -> bytes:
    """The event in stored form. A new manifest gives each vbucket the same events, mostly at the same seqnos."""
    of_vbucket_0 = _encode_stored_event(event, by_seqno)
    return of_vbucket_0[:6] + vbid.to_bytes(2, "big") + of_vbucket_0[8:] if vbid else of_vbucket_0


@lru_cache(maxsize=64)
def _encode_stored_event(event: CollectionEvent, by_seqno: int) -> bytes:
    """The event in the stored form that it has in vbucket 0."""
    version, value = old_form_of(event)
    if not event.is_plain:
        version = VERSION_STORED
        flags = _HAS_TTL * bool(event.max_ttl) | _HISTORY * event.history
        flags |= _METERED * event.metered | _SYSTEM * event.is_system
        uid, scope_id, number, ttl = event.manifest_uid, event.scope_id, event.collection_id, max(0, event.max_ttl)
        if event.is_of_scope:
            value = StoredScopeValue(uid, scope_id, flags).pack()
        else:
            value = StoredCollectionValue(uid, scope_id, number, ttl, flags, event.flush_uid).pack()
    return SystemEvent.pack(by_seqno, event.event, version, vbid=0, key=event.name.encode(), value=value)


def old_form_of(event: CollectionEvent) -> tuple[int, bytes]:
    """Version and value for clients without flatbuffers, as far as version 0 or 1 can say it."""
    if event.is_of_scope:
        return 0, ScopeValue(event.manifest_uid, event.scope_id).pack()
    if not event.max_ttl:
        return 0, CollectionValue(event.manifest_uid, event.scope_id, event.collection_id).pack()
    ttl = max(0, event.max_ttl)
    return 1, CollectionValueWithTtl(event.manifest_uid, event.scope_id, event.collection_id, ttl).pack()


def read_event(extras: bytes, key: bytes, value: bytes) -> CollectionEvent:
    """The event of a message in version 0 or 1, or in stored form."""
    _, event, version = SystemEvent.layout.extras.unpack(extras)
    name = key.decode("utf-8", "replace")
    if event in _OF_SCOPE:
        of_scope = ScopeValue.unpack_from(value)
        found = CollectionEvent(event, of_scope.manifest_uid, of_scope.scope_id, 0, name)
        return found._replace(is_system=True) if version == VERSION_STORED else found
    if version == VERSION_STORED:
        uid, scope_id, number, ttl, flags, flush_uid = StoredCollectionValue.struct.unpack_from(value)
        max_ttl = (ttl or NO_TTL) if flags & _HAS_TTL else 0
        history, metered, is_system = (bool(flags & bit) for bit in (_HISTORY, _METERED, _SYSTEM))
        return CollectionEvent(event, uid, scope_id, number, name, max_ttl, flush_uid, history, metered, is_system)
    of_collection = CollectionValue.unpack_from(value)
    max_ttl = 0
    if len(value) >= CollectionValueWithTtl.size:
        max_ttl = CollectionValueWithTtl.unpack_from(value).max_ttl or NO_TTL
    uid, scope_id, number = of_collection.manifest_uid, of_collection.scope_id, of_collection.collection_id
    return CollectionEvent(event, uid, scope_id, number, name, max_ttl)


def flatbuffer_of(event: CollectionEvent) -> bytes:
    """The event's value in version 2."""
    fields: list[tuple[int, int | str]]
    if event.event == SystemEventId.CREATE_SCOPE:
        fields = [(8, event.manifest_uid), (4, event.scope_id), (0, event.name)]
    elif event.event == SystemEventId.DROP_SCOPE:
        fields = [(8, event.manifest_uid), (4, event.scope_id), (1, int(event.is_system))]
    elif event.event == SystemEventId.DROP_COLLECTION:
        fields = [(8, event.manifest_uid), (4, event.scope_id), (4, event.collection_id), (1, int(event.is_system))]
    else:
        fields = [(8, event.manifest_uid), (4, event.scope_id), (4, event.collection_id), (1, int(event.max_ttl != 0))]
        fields += [(4, max(0, event.max_ttl)), (0, event.name), (1, int(event.history)), (8, 0)]
        fields += [(1, int(event.metered)), (8, event.flush_uid)]
    return _build(fields)


def read_flatbuffer(event: int, value: bytes) -> CollectionEvent:
    """The event of a message in version 2.

    Args:
        event: see `SystemEventId`; it determines which of the four tables the value holds.
        value: the message's value.

    Raises:
        FieldError: not such a table.
    """
    table = _Table(value)
    if event in _OF_SCOPE:
        found = CollectionEvent(event, table.number(0, 8), table.number(1, 4))
        if event == SystemEventId.CREATE_SCOPE:
            return found._replace(name=table.text(2))
        return found._replace(is_system=bool(table.number(2, 1)))
    found = CollectionEvent(event, table.number(0, 8), table.number(1, 4), table.number(2, 4))
    if event == SystemEventId.DROP_COLLECTION:
        return found._replace(is_system=bool(table.number(3, 1)))
    return found._replace(
        name=table.text(5),
        max_ttl=(table.number(4, 4) or NO_TTL) if table.number(3, 1) else 0,
        flush_uid=table.number(9, 8),
        history=bool(table.number(6, 1)),
        metered=bool(table.number(8, 1)),
    )


class _Table:
    """The fields of a flatbuffer's root table. Every access is checked against the end of the buffer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = self._number(0, 4)
        distance = self._number(self._at, 4)
        self._list = self._at - (distance - (1 << 32) if distance >> 31 else distance)
        self._list_bytes = self._number(self._list, 2)

    def _number(self, at: int, size: int) -> int:
        if not 0 <= at <= len(self._data) - size:
            raise FieldError(f"a flatbuffer of {len(self._data)} bytes that refers to {at}")
        return int.from_bytes(self._data[at : at + size], "little")

    def _place(self, index: int) -> int | None:
        at = 4 + 2 * index
        offset = self._number(self._list + at, 2) if at + 2 <= self._list_bytes else 0
        return self._at + offset if offset else None

    def number(self, index: int, size: int) -> int:
        """A number; 0 if it was left out."""
        at = self._place(index)
        return 0 if at is None else self._number(at, size)

    def text(self, index: int) -> str:
        """A text; empty if it was left out."""
        at = self._place(index)
        if at is None:
            return ""
        start = at + self._number(at, 4)
        length = self._number(start, 4)
        if length:
            self._number(start + 4 + length - 1, 1)
        return self._data[start + 4 : start + 4 + length].decode("utf-8", "replace")


class _Builder:
    """Bytes of a flatbuffer, written from the end; positions count from the end too."""

    def __init__(self) -> None:
        self.data = b""
        self.alignment = 1

    def align(self, size: int, *, ahead: int = 0) -> None:
        """Pad so that the position is a multiple of `size` once `ahead` more bytes were written."""
        self.alignment = max(self.alignment, size)
        self.data = bytes(-(len(self.data) + ahead) % size) + self.data

    def push(self, number: int, size: int) -> int:
        """An aligned number; its position."""
        self.align(size)
        self.data = number.to_bytes(size, "little") + self.data
        return len(self.data)

    def push_text(self, text: str) -> int:
        """A string with its length in front; its position."""
        encoded = text.encode() + b"\0"
        self.align(4, ahead=len(encoded))
        self.data = encoded + self.data
        return self.push(len(encoded) - 1, 4)

    def push_offset(self, target: int) -> int:
        """The position of the content that the reference at a position points to."""
        self.align(4)
        return self.push(len(self.data) - target + 4, 4)


def _build(fields: list[tuple[int, int | str]]) -> bytes:
    """A flatbuffer of one table.

    Args:
        fields: (size in bytes, number) in order of declaration, or (0, text); numbers that are 0 are left out.
    """
    builder = _Builder()
    texts = {index: builder.push_text(value) for index, (_, value) in enumerate(fields) if isinstance(value, str)}
    start = len(builder.data)
    places: dict[int, int] = {}
    # The reference implementation writes the widest fields first, those of one width in reverse order.
    for index in sorted(range(len(fields)), key=lambda index: (-(fields[index][0] or 4), -index)):
        size, value = fields[index]
        if isinstance(value, str):
            places[index] = builder.push_offset(texts[index])
        elif value:
            places[index] = builder.push(value, size)
    table = builder.push(0, 4)  # the table's own offset to its list of fields is filled in below
    count = max(places, default=-1) + 1
    listed = [table - places[index] if index in places else 0 for index in range(count)]
    numbers = (4 + 2 * count, table - start, *listed)
    offset = 2 * len(numbers)
    builder.data = struct.pack(f"<{len(numbers)}H", *numbers) + offset.to_bytes(4, "little") + builder.data[4:]
    builder.align(builder.alignment, ahead=4)
    builder.push_offset(table)
    return builder.data
