"""The JSON value of STREAM_REQ: which collections, which stream id.

Source: kv_engine engines/ep/src/collections/vbucket_filter.cc, checked against recordings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dcpstream.model import Manifest
from dcpstream.protocol.refusals import Refusal, unknown_place
from dcpstream.wire import Status, SystemEventId
from dcpstream.wire.system_events import CollectionEvent, events_of_scope

__all__ = ["LiveFilter", "StreamFilter", "read_filter", "refusal_on_connection"]

DEFAULT_COLLECTION_ONLY = frozenset((0,))

_KEYS = frozenset(("collections", "scope", "sid", "uid"))
"""What a 7.2 server knows, and of which there must be one. What `uid` says is ignored, as is everything else."""

MAX_NUMBER = 0xFFFFFFFFFFFFFFFF
"""A larger number of a JSON value is no whole number to the server."""

_RESERVED_SCOPES, _RESERVED_COLLECTIONS = range(1, 8), range(2, 8)
"""Ids that no scope or collection can have; the server takes 1 for its system's collection, which nobody knows."""

_BEGIN = SystemEventId.CREATE_COLLECTION
_END, _DROP_SCOPE = SystemEventId.DROP_COLLECTION, SystemEventId.DROP_SCOPE


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """What a stream is to carry.

    Attributes:
        collection_ids: only these, or None for everything. There may be none; such a stream ends before it sends
            anything from memory.
        scope_id: the scope they were taken from, if the request named one.
        stream_id: u16, or None.
        has_value: the request had a value, whatever it said; for statistics only.
    """

    collection_ids: frozenset[int] | None = None
    scope_id: int | None = None
    stream_id: int | None = None
    has_value: bool = field(default=False, compare=False)


def read_filter(value: bytes, manifest: Manifest, *, has_collections: bool) -> StreamFilter | Refusal:
    """Read the value of a STREAM_REQ, or say why it is refused.

    Whether the connection may use what the value asks for is the matter of `refusal_on_connection`.

    Args:
        value: as it came.
        manifest: the bucket's.
        has_collections: the connection's keys carry collection ids; without, only the default collection is streamed.
    """
    if not has_collections:
        # The status UNKNOWN_COLLECTION means nothing to such a client.
        has_default = any(item.collection_id == 0 for _, item in manifest.collections())
        return StreamFilter(DEFAULT_COLLECTION_ONLY) if has_default else Refusal(Status.EINVAL)
    if not value:
        return StreamFilter()
    try:
        document = json.loads(value.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return Refusal(Status.EINVAL)
    if not isinstance(document, dict):
        return Refusal(Status.EINVAL)
    return _read(document, manifest)


def refusal_on_connection(
    wanted: StreamFilter, *, has_collections: bool, has_stream_ids: bool, has_sync_writes: bool
) -> Refusal | None:
    """Why a connection cannot have a stream that may be had otherwise, or None.

    Args:
        wanted: the request's filter.
        has_collections: collections were negotiated; without, the filter is not the client's.
        has_stream_ids: `enable_stream_id` was accepted: every stream needs an id then, and none has one otherwise.
        has_sync_writes: `enable_sync_writes` was accepted; such a stream takes no filter.
    """
    if (wanted.stream_id is not None) != has_stream_ids:
        return Refusal(Status.DCP_STREAMID_INVALID)
    is_filtered = has_collections and wanted.collection_ids is not None
    return Refusal(Status.NOT_SUPPORTED) if has_sync_writes and is_filtered else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read(document: dict[str, Any], manifest: Manifest) -> StreamFilter | Refusal:
    """The members in the server's order: the first one that is wrong decides."""
    stream_id = _stream_id(document)
    if isinstance(stream_id, Refusal):
        return stream_id
    if "collections" in document and "scope" in document:
        return Refusal(Status.EINVAL)
    collection_ids, scope_id = _wanted_collections(document, manifest)
    if isinstance(collection_ids, Refusal):
        return collection_ids
    if not _KEYS & document.keys():
        return Refusal(Status.EINVAL)
    return StreamFilter(collection_ids, scope_id, stream_id, has_value=True)


def _wanted_collections(
    document: dict[str, Any], manifest: Manifest
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
    """The filter of one stream.

    Args:
        wanted: of the request.
        manifest: the bucket's when the stream was made.

    Attributes:
        collection_ids: of all that was ever wanted; None for a stream of everything.
        is_over: nothing that it wants is left.
    """

    __slots__ = ("_living", "_manifest", "_scope_id", "collection_ids", "is_over")

    def __init__(self, wanted: StreamFilter, manifest: Manifest) -> None:
        self.collection_ids = wanted.collection_ids
        self.is_over = False
        self._scope_id = wanted.scope_id
        self._living = set(wanted.collection_ids or ())
        self._manifest = manifest

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever wanted."""
        return self._scope_id is None and self.collection_ids is not None and not self.collection_ids

    def coming(self, events: Iterable[CollectionEvent]) -> None:
        """Events that are about to be sent: what begins in the wanted scope is wanted."""
        if self._scope_id is None or self.collection_ids is None:
            return
        begun = {item.collection_id for item in events if item.event == _BEGIN and item.scope_id == self._scope_id}
        if not begun <= self.collection_ids:
            self.collection_ids |= begun

    def passed(self, events: Iterable[CollectionEvent]) -> None:
        """Events that were passed over or sent: the last end is the end of the stream."""
        if self.collection_ids is None:
            return
        for item in events:
            if item.event == _DROP_SCOPE and item.scope_id == self._scope_id:
                self.is_over = True
            elif item.event == _END and self._scope_id is None and item.collection_id in self._living:
                self._living.discard(item.collection_id)
                self.is_over = not self._living

    def numbers(self, manifest: Manifest) -> frozenset[int] | None:
        """Under which numbers the wanted items and events are found in a history; None for everything.

        Args:
            manifest: the bucket's now: it knows collections of the scope whose beginning is still to come.
        """
        if self.collection_ids is None or self._scope_id is None:
            return self.collection_ids
        if manifest is not self._manifest:
            self._manifest = manifest
            for scope in manifest.scopes:
                if scope.scope_id == self._scope_id:
                    self.collection_ids |= {item.collection_id for item in scope.collections}
        return self.collection_ids | {events_of_scope(self._scope_id)}
