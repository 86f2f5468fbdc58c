"""The JSON value of STREAM_REQ: which collections, which stream id.

Source: kv_engine engines/ep/src/collections/vbucket_filter.cc, checked against recordings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dcpstream.model import MAX_SEQNO, Manifest
from dcpstream.protocol.answers import Refusal
from dcpstream.wire import Status

__all__ = ["StreamFilter", "read_filter"]

DEFAULT_COLLECTION_ONLY = frozenset((0,))

_KEYS = frozenset(("collections", "scope", "sid", "uid", "purge_seqno", "cts"))
_UNKNOWN = "Unknown scope or collection in operation"


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """What a stream is to carry.

    Attributes:
        collection_ids: only these, or None for everything.
        scope_id: the scope they were taken from, if the request named one.
        stream_id: u16, or None.
        client_purge_seqno: the purge seqno that the client knows; 0 if it did not say.
        drops: the server closes the connection on this request.
    """

    collection_ids: frozenset[int] | None = None
    scope_id: int | None = None
    stream_id: int | None = None
    client_purge_seqno: int = 0
    drops: bool = False


def read_filter(
    value: bytes, manifest: Manifest, *, has_collections: bool, has_stream_ids: bool, has_sync_writes: bool
) -> StreamFilter | Refusal:
    """Read the value of a STREAM_REQ, or say why it is refused.

    Args:
        value: as it came.
        manifest: the bucket's.
        has_collections: the connection's keys carry collection ids; without, only the default collection is streamed.
        has_stream_ids: `enable_stream_id` was accepted.
        has_sync_writes: `enable_sync_writes` was accepted; such a stream takes no filter.
    """
    if not has_collections:
        # Such a connection can neither name a collection nor a stream.
        has_default = any(item.collection_id == 0 for _, item in manifest.collections())
        return Refusal(Status.EINVAL) if value or not has_default else StreamFilter(DEFAULT_COLLECTION_ONLY)
    if not value:
        return Refusal(Status.DCP_STREAMID_INVALID) if has_stream_ids else StreamFilter()
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return Refusal(Status.EINVAL)
    if not isinstance(document, dict) or not _KEYS & document.keys():
        return Refusal(Status.EINVAL)
    return _read(document, manifest, has_stream_ids=has_stream_ids, has_sync_writes=has_sync_writes)


def _read(
    document: dict[str, Any], manifest: Manifest, *, has_stream_ids: bool, has_sync_writes: bool
) -> StreamFilter | Refusal:
    if "collections" in document and "scope" in document:
        return Refusal(Status.EINVAL)
    collection_ids, scope_id = _wanted_collections(document, manifest)
    if isinstance(collection_ids, Refusal):
        return collection_ids
    if collection_ids is not None and has_sync_writes:
        return Refusal(Status.NOT_SUPPORTED)
    stream_id = _stream_id(document, has_stream_ids=has_stream_ids)
    if isinstance(stream_id, Refusal):
        return stream_id
    if not _is_cache_options(document.get("cts", {})):
        return Refusal(Status.EINVAL)
    purge_text = document.get("purge_seqno", "0")
    if not isinstance(purge_text, str) or not (purge_text.isascii() and purge_text.isdigit()):
        return Refusal(Status.EINVAL)
    purge_seqno = int(purge_text)
    return StreamFilter(collection_ids, scope_id, stream_id, purge_seqno, drops=purge_seqno > MAX_SEQNO)


def _is_cache_options(options: object) -> bool:
    """Whether `cts` is what newer servers take; here it has no effect."""
    if not isinstance(options, dict):
        return False
    free_memory, all_keys = options.get("free_memory", 0), options.get("all_keys", False)
    is_number = isinstance(free_memory, int) and not isinstance(free_memory, bool) and free_memory >= 0
    return is_number and isinstance(all_keys, bool)


def _wanted_collections(
    document: dict[str, Any], manifest: Manifest
) -> tuple[frozenset[int] | Refusal | None, int | None]:
    if "scope" in document:
        scope_id = _hexadecimal(document["scope"])
        if scope_id is None:
            return Refusal(Status.EINVAL), None
        found = next((scope for scope in manifest.scopes if scope.scope_id == scope_id), None)
        if found is None:
            return Refusal(Status.UNKNOWN_SCOPE, _UNKNOWN, manifest.uid), None
        return frozenset(item.collection_id for item in found.collections), scope_id
    if "collections" not in document:
        return None, None
    names = document["collections"]
    if not isinstance(names, list) or not names:
        return Refusal(Status.EINVAL), None
    wanted = [_hexadecimal(name) for name in names]
    known = {item.collection_id for _, item in manifest.collections()}
    ids = {number for number in wanted if number is not None}
    if None in wanted:
        return Refusal(Status.EINVAL), None
    if ids - known:
        return Refusal(Status.UNKNOWN_COLLECTION, _UNKNOWN, manifest.uid), None
    return frozenset(ids), None


def _hexadecimal(text: object) -> int | None:
    """A collection or scope id, or None."""
    if not isinstance(text, str):
        return None
    if not 0 < len(text) <= 8 or any(digit not in "0123456789abcdefABCDEF" for digit in text):
        return None
    return int(text, 16)


def _stream_id(document: dict[str, Any], *, has_stream_ids: bool) -> int | Refusal | None:
    if "sid" not in document:
        return Refusal(Status.DCP_STREAMID_INVALID) if has_stream_ids else None
    number = document["sid"]
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        return Refusal(Status.EINVAL)
    stream_id = number & 0xFFFF  # the server keeps 16 bits, so that 65536 is 0
    return stream_id if has_stream_ids and stream_id else Refusal(Status.DCP_STREAMID_INVALID)
