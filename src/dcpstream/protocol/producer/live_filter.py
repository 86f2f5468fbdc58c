"""Which collections a stream carries, followed through the events of its own history.

A request names collections, or a scope. Collections that begin in a wanted scope later belong to the stream from their
beginning on; when the last wanted collection, or the wanted scope, has ended, so has the stream. Both are decided by
the events as the stream comes by them, not by what the bucket's manifest says by now, which may be far ahead.

Source: kv_engine engines/ep/src/collections/vbucket_filter.cc (checkSystemEvent).
"""

from __future__ import annotations

from collections.abc import Iterable

from dcpstream.model import Manifest
from dcpstream.protocol.producer.stream_filter import StreamFilter
from dcpstream.wire import CollectionEvent, SystemEventId, events_of_scope

__all__ = ["LiveFilter"]

_BEGIN, _END, _DROP_SCOPE = SystemEventId.CREATE_COLLECTION, SystemEventId.DROP_COLLECTION, SystemEventId.DROP_SCOPE


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
