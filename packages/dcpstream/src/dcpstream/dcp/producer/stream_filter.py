"""The filter of a stream: the JSON value of STREAM_REQ, and the collections that it selects as the stream goes on.

A request names collections, or a scope. A collection that is created in a wanted scope belongs to the stream from its
creation on. When the last wanted collection, or the wanted scope, is dropped, the stream ends. The events in the
history decide both when the stream passes them, not the bucket's manifest, which may be far ahead.

Source: kv_engine engines/ep/src/collections/vbucket_filter.cc (also checkSystemEvent), checked against recordings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dcpstream.dcp.producer.cache_transfer import NO_WISH, CacheTransferWish
from dcpstream.dcp.refusals import Refusal, unknown_place
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import Manifest
from dcpstream.wire import Status, StreamFlag, SystemEventId
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule
from dcpstream.wire.system_events import CollectionEvent, events_of_scope

DEFAULT_COLLECTION_ONLY = frozenset((0,))

_KEYS = frozenset(("collections", "scope", "sid", "uid"))
"""The members that every server knows; there must be one of them. The value of `uid` and other members are ignored."""

_PURGE_SEQNO = "purge_seqno"
_CACHE_TRANSFER = "cts"
_DIGITS = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
"""The part of a text that C's strtoull reads as a decimal number."""

MAX_NUMBER = 0xFFFFFFFFFFFFFFFF
"""Largest whole number of a JSON value; the server reads a larger one as a fraction."""

_RESERVED_SCOPES, _RESERVED_COLLECTIONS = range(1, 8), range(2, 8)
"""Ids that no scope or collection can have. The server accepts collection 1, its system collection, as unknown."""

_BEGIN = SystemEventId.CREATE_COLLECTION
_END, _DROP_SCOPE = SystemEventId.DROP_COLLECTION, SystemEventId.DROP_SCOPE


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The selection of a stream.

    Attributes:
        collection_ids: the wanted collections, or None for everything. A stream of no collections ends before it sends
            anything from memory.
        scope_id: the scope of these collections, if the request named one.
        stream_id: u16, or None.
        hides_system: the user may not see system collections: `collection_ids` are all others, not the client's choice.
        purge_seqno: the purge seqno that the client knows, if the request named one.
        cache_transfer: what the request says of a transfer of cached documents.
        has_value: the request had a value; for statistics only.
    """

    collection_ids: frozenset[int] | None = None
    scope_id: int | None = None
    stream_id: int | None = None
    hides_system: bool = False
    purge_seqno: int | None = None
    cache_transfer: CacheTransferWish = NO_WISH
    has_value: bool = field(default=False, compare=False)


EVERYTHING = StreamFilter()
"""The filter of a request without one."""


def read_filter(
    value: bytes, manifest: Manifest, *, has_collections: bool, release: Release = DEFAULT_RELEASE
) -> StreamFilter | Refusal:
    """Read the value of a STREAM_REQ, or refuse it. `refusal_on_connection` checks what the connection may use.

    Args:
        value: the bytes of the request's value.
        manifest: the bucket's.
        has_collections: the connection's keys carry collection ids; without them it gets the default collection only.
        release: that of the node.

    Raises:
        RemoteProtocolError: a value on which a server closes the connection.
    """
    if not has_collections:
        has_default = any(item.collection_id == 0 for _, item in manifest.collections())
        if not has_default:
            return unknown_place(Status.UNKNOWN_COLLECTION, manifest.uid)
        return StreamFilter(DEFAULT_COLLECTION_ONLY)
    if not value:
        return EVERYTHING
    try:
        document = json.loads(value.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return Refusal(Status.EINVAL)
    if not isinstance(document, dict):
        return Refusal(Status.EINVAL)
    return _read(document, manifest, release)


def without_system(wanted: StreamFilter, manifest: Manifest) -> StreamFilter:
    """The filter of a user who may not see system collections: a stream of everything leaves them out."""
    if wanted.collection_ids is not None:
        return wanted
    visible = frozenset(item.collection_id for _, item in manifest.collections() if not item.is_system)
    return replace(wanted, collection_ids=visible, hides_system=True)


def refusal_on_connection(
    wanted: StreamFilter,
    *,
    has_collections: bool,
    has_stream_ids: bool,
    has_sync_writes: bool,
    release: Release = DEFAULT_RELEASE,
) -> Refusal | None:
    """Refuse a filter that the connection's settings do not allow; None if they do.

    Args:
        wanted: the request's filter.
        has_collections: collections were negotiated; without them the client did not choose the filter.
        has_stream_ids: `enable_stream_id` was accepted: then every stream needs an id, and otherwise none may have one.
        has_sync_writes: `enable_sync_writes` was accepted; such a stream may not be filtered.
        release: that of the node.
    """
    if (wanted.stream_id is not None) != has_stream_ids:
        return Refusal(Status.DCP_STREAMID_INVALID)
    is_filtered = has_collections and wanted.collection_ids is not None
    if wanted.scope_id is not None and release.has(Rule.SCOPE_STREAMS_HAVE_SYNC_WRITES):
        is_filtered = False
    return Refusal(Status.NOT_SUPPORTED) if has_sync_writes and is_filtered else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read(document: dict[str, Any], manifest: Manifest, release: Release) -> StreamFilter | Refusal:
    """Check the members in the server's order; the first wrong one decides the refusal."""
    stream_id = _stream_id(document)
    if isinstance(stream_id, Refusal):
        return stream_id
    if "collections" in document and "scope" in document:
        return Refusal(Status.EINVAL)
    collection_ids, scope_id = _wanted_collections(document, manifest, release)
    if isinstance(collection_ids, Refusal):
        return collection_ids
    has_purge_seqno = release.has(Rule.PURGE_SEQNO_IN_REQUEST) and _PURGE_SEQNO in document
    purge_seqno = _purge_seqno(document[_PURGE_SEQNO]) if has_purge_seqno else None
    if isinstance(purge_seqno, Refusal):
        return purge_seqno
    has_cache = bool(release.stream_flags & StreamFlag.CACHE_TRANSFER) and _CACHE_TRANSFER in document
    cache = _cache_transfer(document[_CACHE_TRANSFER]) if has_cache else NO_WISH
    if isinstance(cache, Refusal):
        return cache
    if not _KEYS & document.keys() and purge_seqno is None and not has_cache:
        return Refusal(Status.EINVAL)
    return StreamFilter(
        collection_ids, scope_id, stream_id, purge_seqno=purge_seqno, cache_transfer=cache, has_value=True
    )


def _cache_transfer(wish: object) -> CacheTransferWish | Refusal:
    """The wish in the member `cts`."""
    if not isinstance(wish, dict):
        return Refusal(Status.EINVAL)
    free_memory, all_keys = wish.get("free_memory", 0), wish.get("all_keys", False)
    is_number = isinstance(free_memory, int) and not isinstance(free_memory, bool) and 0 <= free_memory <= MAX_NUMBER
    if not is_number or not isinstance(all_keys, bool):
        return Refusal(Status.EINVAL)
    return CacheTransferWish(free_memory, all_keys)


def _purge_seqno(text: object) -> int | Refusal:
    """The number that a text begins with. A server reads it with strtoull, which takes a sign and drops the rest."""
    found = _DIGITS.match(text) if isinstance(text, str) else None
    if found is None:
        return Refusal(Status.EINVAL)
    sign, digits = found[1], found[2].lstrip("0") or "0"
    if len(digits) > len(str(MAX_NUMBER)) or int(digits) > MAX_NUMBER:
        raise RemoteProtocolError(f"the client sent a STREAM_REQ with a {_PURGE_SEQNO} of more than 64 bits")
    return -int(digits) & MAX_NUMBER if sign == "-" else int(digits)


def _wanted_collections(
    document: dict[str, Any], manifest: Manifest, release: Release
) -> tuple[frozenset[int] | Refusal | None, int | None]:
    if "scope" in document:
        scope_id = _hexadecimal(document["scope"])
        if scope_id is None or scope_id in _RESERVED_SCOPES:
            return Refusal(Status.EINVAL), None
        found = next((scope for scope in manifest.scopes if scope.scope_id == scope_id), None)
        if found is None:
            return unknown_place(Status.UNKNOWN_SCOPE, manifest.uid), None
        return frozenset(item.collection_id for item in found.collections), scope_id
    if "collections" not in document:
        return None, None
    names = document["collections"]
    if not isinstance(names, list):
        return Refusal(Status.EINVAL), None
    known = {item.collection_id for _, item in manifest.collections()}
    ids = set()
    for name in names:
        number = _hexadecimal(name)
        if number is None or number in _RESERVED_COLLECTIONS:
            return Refusal(Status.EINVAL), None
        if number not in known:
            return unknown_place(Status.UNKNOWN_COLLECTION, manifest.uid), None
        if number in ids and release.has(Rule.REFUSES_NAMED_TWICE):
            raise RemoteProtocolError(f"the client sent a STREAM_REQ that names collection {number:#x} twice")
        ids.add(number)
    return frozenset(ids), None


def _hexadecimal(text: object) -> int | None:
    """A collection or scope id, or None."""
    if not isinstance(text, str):
        return None
    if not 0 < len(text) <= 8 or any(digit not in "0123456789abcdefABCDEF" for digit in text):
        return None
    return int(text, 16)


def _stream_id(document: dict[str, Any]) -> int | Refusal | None:
    if "sid" not in document:
        return None
    number = document["sid"]
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_NUMBER:
        return Refusal(Status.EINVAL)
    stream_id = number & 0xFFFF  # the server keeps 16 bits, so that 65536 is 0
    return stream_id or Refusal(Status.DCP_STREAMID_INVALID)


class LiveFilter:
    """The filter of one stream, as it follows the events of the history.

    Args:
        wanted: the filter of the request.
        manifest: the bucket's when the stream began.

    Attributes:
        collection_ids: every collection that was ever wanted; None for a stream of everything.
        is_over: every wanted collection, or the wanted scope, was dropped.
    """

    __slots__ = ("_hides_system", "_living", "_manifest", "_scope_id", "collection_ids", "is_over")

    def __init__(self, wanted: StreamFilter, manifest: Manifest) -> None:
        self.collection_ids = wanted.collection_ids
        self.is_over = False
        self._scope_id = wanted.scope_id
        self._hides_system = wanted.hides_system
        self._living = set(wanted.collection_ids or ())
        self._manifest = manifest

    @property
    def is_empty(self) -> bool:
        """Whether the filter selects no collection and no scope."""
        if self._hides_system or self._scope_id is not None:
            return False
        return self.collection_ids is not None and not self.collection_ids

    def coming(self, events: Iterable[CollectionEvent]) -> None:
        """Take events that are about to be sent: collections created in the wanted scope are wanted."""
        if self.collection_ids is None:
            return
        begun = {item.collection_id for item in events if item.event == _BEGIN and self._comes_in(item)}
        if not begun <= self.collection_ids:
            self.collection_ids |= begun

    def _comes_in(self, event: CollectionEvent) -> bool:
        """Whether the collection that an event creates is wanted from now on."""
        return not event.is_hidden if self._hides_system else event.scope_id == self._scope_id

    def passed(self, events: Iterable[CollectionEvent]) -> None:
        """Take events that were sent or left out: dropping the last wanted collection ends the stream."""
        if self.collection_ids is None:
            return
        for item in events:
            if item.event == _DROP_SCOPE and item.scope_id == self._scope_id:
                self.is_over = True
            elif (
                item.event == _END
                and not self._hides_system
                and self._scope_id is None
                and item.collection_id in self._living
            ):
                self._living.discard(item.collection_id)
                self.is_over = not self._living

    def numbers(self, manifest: Manifest) -> frozenset[int] | None:
        """The numbers of the wanted collections, and of the scope's events, in a history; None for everything.

        Args:
            manifest: the bucket's now; it may have collections of the scope whose creation the stream has not reached.
        """
        if self.collection_ids is None or self._scope_id is None:
            return self.collection_ids
        if manifest is not self._manifest:
            self._manifest = manifest
            for scope in manifest.scopes:
                if scope.scope_id == self._scope_id:
                    self.collection_ids |= {item.collection_id for item in scope.collections}
        return self.collection_ids | {events_of_scope(self._scope_id)}
