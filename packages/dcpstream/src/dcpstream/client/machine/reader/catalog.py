"""The bucket's collections as one reader knows them: names for rows, the filter of streams, and missing parts.

For each stream request, the reader compares the newest manifest with the collections that its position covers
(`coverage`). It so reports a drop that happened while it was away, even if the history no longer holds the event, and
it reads a collection that is new to it from that collection's beginning.

A node may know an older manifest than the reader does: it has not got the newest one yet, or it has restarted
and waits for the cluster's manager (a server then shows the default collection alone, in version 0, and serves all
data). Such an answer does not count: what it lacks was not dropped. The reader waits for another answer.

Rows may come before their collection has a name here. They wait for a manifest that names it, or for the event of its
end. The rows of a collection that is known to be gone, and whose name nobody knows, get its id as their name, and no
scope. So does the event of its end.

The event of an end has no name. On disk it supersedes the event of the beginning, which may still be in the memory of
another vbucket. So a name by id lasts only until an event or a manifest has the real one. The event of the end is then
reported under both names where rows may have had either, and no row is left behind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dcpstream.client.machine.reader.selection import EVERYTHING, FixedSelection, Selection, Wanted, unknown_names
from dcpstream.model import CollectionName, Manifest, StreamOffset
from dcpstream.model.collections import DEFAULT_COLLECTION_ID, DEFAULT_NAME
from dcpstream.wire import SystemEventId
from dcpstream.wire.system_events import CollectionEvent

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SharedMapping(Generic[T]):
    """A mapping by number that is copied on the first change after it was shared: a shared one never changes."""

    def __init__(self) -> None:
        self._items: dict[int, T] = {}
        self._is_shared = False

    def share(self) -> Mapping[int, T]:
        """The items; the same object as long as nothing changes."""
        self._is_shared = True
        return self._items

    def get(self, number: int) -> T | None:
        """One item, or None."""
        return self._items.get(number)

    def put(self, number: int, item: T) -> None:
        """Add or replace one item."""
        if self._items.get(number) == item:
            return
        if self._is_shared:
            self._items, self._is_shared = dict(self._items), False
        self._items[number] = item


@dataclass(frozen=True, slots=True)
class Coverage:
    """The bucket's collections compared with those of a position.

    Attributes:
        kept: the collections that the position covers.
        dropped: collections that it covered and that are gone, with no other of their name. To be reported.
        fresh: wanted collections that the position does not cover: to be read from 0 up to the position.
        excluded: collections that it covered and that exist, but that the plan leaves out. To be reported.
    """

    kept: tuple[CollectionName, ...] = ()
    dropped: tuple[CollectionName, ...] = ()
    fresh: tuple[CollectionName, ...] = ()
    excluded: tuple[CollectionName, ...] = ()


class Catalog:
    """Scopes and collections by the newest manifest and the events of streams.

    Args:
        collections: what to read, None for all.
        is_resumed: whether a position says which collections were read before. Names that the bucket does not have are
            then those of dropped collections; otherwise they are mistakes.

    Attributes:
        is_known: whether `wanted` is up to date.
        wanted: what to read.
        least_uid: an older manifest than this says nothing; see `require`.
        older: the last answer that did not count: (who gave it, its version); None if there was none.
        unnamed: collections of rows that wait for their names.
        names: collection id → (scope name, collection name).
    """

    def __init__(
        self, collections: Sequence[str] | Selection | FixedSelection | None, *, is_resumed: bool = False
    ) -> None:
        self.is_known = False
        self.wanted: Wanted = EVERYTHING
        self.least_uid = 0
        self.older: tuple[str, int] | None = None
        self.unnamed: frozenset[int] = frozenset()
        self.names: SharedMapping[tuple[str, str]] = SharedMapping()
        self._selection = Selection.of(collections)
        self._is_strict = not is_resumed and isinstance(self._selection, Selection)
        self._manifest = Manifest(0, ())
        self._living: dict[int, CollectionName] = {}
        self._scopes: dict[int, str] = {}
        self._ended: set[int] = set()
        self._given_by_id: set[int] = set()
        self._has_warned = False
        self.names.put(DEFAULT_COLLECTION_ID, (DEFAULT_NAME, DEFAULT_NAME))

    @property
    def manifest_uid(self) -> int:
        """The uid of the newest manifest that is known."""
        return self._manifest.uid

    @property
    def needs_polling(self) -> bool:
        """Whether the reader must ask for the manifest at intervals: a wanted collection or a name is missing."""
        return bool(self.wanted.missing or self.unnamed) or (
            isinstance(self._selection, Selection) and self.wanted.scope_id is None and self._selection.has_scopes
        )

    @property
    def is_plan(self) -> bool:
        """Whether a plan resolved the names. No row above a recorded position was then delivered."""
        return isinstance(self._selection, FixedSelection)

    def require(self, uid: int) -> None:
        """The positions to read on from know this version of the manifest: an older one does not count.

        Nor does one that is older than that of a plan, which read what the plan names as if it had been dropped.
        """
        planned = self._selection.manifest_uid if isinstance(self._selection, FixedSelection) else 0
        self.least_uid = max(uid, planned)
        if self._manifest.uid < self.least_uid:
            self.is_known = False

    def learn(self, collections: Iterable[CollectionName]) -> None:
        """Take the names in a position."""
        for item in collections:
            self.names.put(item.collection_id, (item.scope, item.collection))

    def take_manifest(self, manifest: Manifest, node: str = "the node") -> None:
        """Take a node's answer about the bucket's collections; one that is older than what is known changes nothing.

        Raises:
            ConfigError: a wanted collection does not exist, or a name means two things.
        """
        if manifest.uid < max(self._manifest.uid, self.least_uid):
            self.older = node, manifest.uid
            if not self._has_warned:
                self._has_warned = True
                logger.warning("%s. Waiting for it", self.complaint())
            return
        self.is_known, self.older = True, None
        wanted = self._selection.resolve(manifest)
        if wanted.missing and self._is_strict:
            raise unknown_names(wanted.missing, manifest)
        for name in wanted.missing:
            if name not in self.wanted.missing:
                logger.warning("collection or scope %r is not in the bucket any more; the others are read on", name)
        self._is_strict = False
        self._manifest = manifest
        self._living = {item.collection_id: item for item in manifest.named_collections()}
        self.wanted = wanted
        for collection_id, place in manifest.collection_names().items():
            self.names.put(collection_id, place)
        self._scopes.update({scope.scope_id: scope.name for scope in manifest.scopes})

    def complaint(self) -> str:
        """The message for an answer that is too old, with what to do; empty if the last answer is current."""
        if self.older is None:
            return ""
        return older_manifest(*self.older, max(self._manifest.uid, self.least_uid))

    def names_of(self, ids: Iterable[int]) -> Mapping[int, tuple[str, str]] | None:
        """The names, if all these collections have one; else None, and they are `unnamed` until they do."""
        names = self.names.share()
        missing = [number for number in ids if number not in names]
        newest = max(self._living, default=0) if missing else 0
        # Ids rise. If a newer collection is there, and this one is not, it was dropped.
        gone = [number for number in missing if number < newest or number in self._ended]
        for number in gone:
            self.names.put(number, _by_id(number))
        if gone:
            self._given_by_id.update(gone)
            names = self.names.share()
            missing = [number for number in missing if number not in names]
        self.unnamed = frozenset(missing)
        return None if missing else names

    def outdate(self) -> None:
        """The manifest has changed: it must be asked for again."""
        self.is_known = False

    def coverage(self, offset: StreamOffset, *, is_purged: bool = False) -> Coverage:
        """Compare the bucket's collections with those of a position.

        Args:
            offset: the position.
            is_purged: whether the history after it is known to lack events.
        """
        now = self._living if self.wanted.collections is None else self.wanted.collections
        had = offset.collections
        if had is None or not offset.seqno:
            return Coverage(tuple(now.values()))
        if len(had) == len(now) and all(item.collection_id in now for item in had):
            return Coverage(had)
        gone = [item for item in had if item.collection_id not in self._living]
        # A reader of everything receives the event of a collection's end. A reader of some collections cannot ask for
        # one that is gone; if another collection has the name now, the event of its beginning ends the old one.
        names = {item.path for item in now.values()}
        has_event = self.wanted.collections is None and not is_purged
        waiting = [item for item in gone if has_event or item.path in names]
        covered = {item.collection_id for item in had}
        is_plan_of_all = self.is_plan and self.wanted.collections is None
        left_out = (item for item in had if item.collection_id not in now and item.collection_id in self._living)
        return Coverage(
            (*(item for item in had if item.collection_id in now), *waiting),
            tuple(item for item in gone if item not in waiting),
            () if is_plan_of_all else tuple(item for number, item in now.items() if number not in covered),
            tuple(left_out) if self.is_plan else (),
        )

    def scope_of(self, event: CollectionEvent) -> str:
        """The name of an event's scope; its id in hexadecimal if that is not known."""
        return self._scopes.get(event.scope_id, f"0x{event.scope_id:x}")

    def collection_of(self, event: CollectionEvent) -> CollectionName:
        """The collection of an event. One without a known name has no scope either, as rows do not know it."""
        number = event.collection_id
        name = self._name_of(number) or ((self.scope_of(event), event.name) if event.name else _by_id(number))
        return CollectionName(number, *name)

    def _name_of(self, collection_id: int) -> tuple[str, str] | None:
        """The name, if it is known; an id is none."""
        name = self.names.get(collection_id)
        return None if name == _by_id(collection_id) else name

    def ended_names(self, event: CollectionEvent, *, is_resumed: bool) -> list[CollectionName]:
        """The names that rows of a dropped collection may have, of a vbucket whose position does not cover it.

        Args:
            event: of its end.
            is_resumed: whether an earlier reader may have given rows of the vbucket.
        """
        names = [self.collection_of(event)]
        by_id = CollectionName(event.collection_id, *_by_id(event.collection_id))
        if (is_resumed or event.collection_id in self._given_by_id) and by_id not in names:
            names.append(by_id)
        return names

    def take_event(self, event: CollectionEvent) -> None:
        """Take the event of a scope or collection that was created, dropped, flushed or modified."""
        if event.event == SystemEventId.CREATE_SCOPE:
            self._scopes[event.scope_id] = event.name
        elif event.event == SystemEventId.CREATE_COLLECTION:
            if self._name_of(event.collection_id) is None:
                self.names.put(event.collection_id, (self.scope_of(event), event.name))
        elif event.event == SystemEventId.DROP_COLLECTION:
            self._ended.add(event.collection_id)
            if self.wanted.collections is not None and event.collection_id in self.wanted.collections:
                self.is_known = False
        elif event.event == SystemEventId.DROP_SCOPE and event.scope_id == self.wanted.scope_id:
            self.is_known = False


def _by_id(collection_id: int) -> tuple[str, str]:
    """The scope and name of a collection whose name nobody knows."""
    return "", f"0x{collection_id:x}"


def older_manifest(nodes: str, uid: int, least_uid: int) -> str:
    """The message for nodes whose newest manifest is older than the one that is known, and what to do."""
    return (
        f"{nodes} has version {uid} of the bucket's collections, but this read, or the one that left its positions, "
        f"has seen version {least_uid}. The node was probably restarted, and the cluster's manager has not sent it the "
        "collections again: see that it does, or push them with SET_COLLECTIONS"
    )
