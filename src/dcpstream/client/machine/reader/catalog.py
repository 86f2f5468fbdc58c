"""Collections and branches as they are now: names for rows, the filter of streams, and what a reader still needs.

Each time that it asks for a stream, a reader learns from the manifest which of the collections that its position covers
are gone, and which are new (`coverage`). So it can tell a drop that happened while it was away, even if the history no
longer holds the event, and it reads a collection that is new to it from that collection's beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dcpstream.client.machine.reader.selection import EVERYTHING, FixedSelection, Selection, Wanted, unknown_names
from dcpstream.model import CollectionName, Manifest, StreamOffset
from dcpstream.wire import SystemEventId
from dcpstream.wire.system_events import CollectionEvent

logger = logging.getLogger(__name__)

Names = Mapping[int, tuple[str, str]]
Branches = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the bucket's collections mean to a reader at some position.

    Attributes:
        kept: the collections that the position covers.
        dropped: those that it covered and that are gone, with no other of their name. The user must be told.
        fresh: wanted collections of which the reader has nothing: to be read from 0 up to the position.
    """

    kept: tuple[CollectionName, ...] = ()
    dropped: tuple[CollectionName, ...] = ()
    fresh: tuple[CollectionName, ...] = ()


class Catalog:
    """Names and branches as they are now; what was lent out does not change any more.

    Args:
        collections: what to read, None for all.
        is_resumed: whether a position says which collections were read before. Then names that the bucket does not
            have are those of collections that were dropped; else they are mistakes.

    Attributes:
        is_known: whether `wanted` is up to date.
        wanted: what to read.
    """

    def __init__(
        self, collections: Sequence[str] | Selection | FixedSelection | None, *, is_resumed: bool = False
    ) -> None:
        self.is_known = False
        self.wanted: Wanted = EVERYTHING
        self._selection = Selection.of(collections)
        self._is_strict = not is_resumed and isinstance(self._selection, Selection)
        self._manifest = Manifest(0, ())
        self._living: dict[int, CollectionName] = {}
        self._names: dict[int, tuple[str, str]] = {}
        self._scopes: dict[int, str] = {}
        self._branches: dict[int, int] = {}
        self._is_lent = False

    @property
    def manifest_uid(self) -> int:
        """The uid of the newest manifest that is known."""
        return self._manifest.uid

    @property
    def needs_polling(self) -> bool:
        """Whether collections may become wanted that no stream tells of."""
        return bool(self.wanted.missing) or (
            isinstance(self._selection, Selection) and self.wanted.scope_id is None and self._selection.has_scopes
        )

    def lend(self) -> tuple[Names, Branches]:
        """(collection id → names, vbucket → vbuuid); the same objects as long as nothing changes."""
        self._is_lent = True
        return self._names, self._branches

    def take_manifest(self, manifest: Manifest) -> None:
        """The bucket's collections are known now; an older manifest than the known one changes nothing.

        Raises:
            ConfigError: a collection that is wanted does not exist, or a name means two things.
        """
        self.is_known = True
        if manifest.uid < self._manifest.uid:
            return
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
        self._renew()
        self._names.update(manifest.collection_names())
        self._scopes.update({scope.scope_id: scope.name for scope in manifest.scopes})

    def outdate(self) -> None:
        """Something says that the manifest has changed: it is asked for again."""
        self.is_known = False

    def coverage(self, offset: StreamOffset, *, is_purged: bool = False) -> Coverage:
        """What the bucket's collections mean to a reader at this position.

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
        # The history tells the end of a collection to a reader of everything. A reader of some cannot ask for one that
        # is gone. Where another of its name was made, the event of that one's beginning says from where on it counts.
        names = {item.path for item in now.values()}
        is_told = self.wanted.collections is None and not is_purged
        waiting = [item for item in gone if is_told or item.path in names]
        covered = {item.collection_id for item in had}
        return Coverage(
            (*(item for item in had if item.collection_id in now), *waiting),
            tuple(item for item in gone if item not in waiting),
            () if self._is_plan_of_all else tuple(item for number, item in now.items() if number not in covered),
        )

    @property
    def is_plan(self) -> bool:
        """Whether the names were resolved before. Nothing was given out then above a position that was recorded."""
        return isinstance(self._selection, FixedSelection)

    @property
    def _is_plan_of_all(self) -> bool:
        return self.is_plan and self.wanted.collections is None

    def scope_of(self, event: CollectionEvent) -> str:
        """The name of an event's scope; its id in hexadecimal if that is not known."""
        return self._scopes.get(event.scope_id, f"0x{event.scope_id:x}")

    def collection_of(self, event: CollectionEvent) -> CollectionName:
        """The collection that an event is about; ids in hexadecimal for names that are not known."""
        number = event.collection_id
        scope, name = self._names.get(number) or (self.scope_of(event), event.name or f"0x{number:x}")
        return CollectionName(number, scope, name)

    def take_event(self, event: CollectionEvent) -> None:
        """A scope or collection was created, dropped, flushed or modified."""
        if event.event == SystemEventId.CREATE_SCOPE:
            self._scopes[event.scope_id] = event.name
        elif event.event == SystemEventId.CREATE_COLLECTION:
            scope = self._scopes.get(event.scope_id, f"0x{event.scope_id:x}")
            if event.collection_id not in self._names:
                self._renew()
                self._names[event.collection_id] = (scope, event.name)
        elif event.event == SystemEventId.DROP_COLLECTION:
            if self.wanted.collections is not None and event.collection_id in self.wanted.collections:
                self.is_known = False
        elif event.event == SystemEventId.DROP_SCOPE and event.scope_id == self.wanted.scope_id:
            self.is_known = False

    def take_branch(self, vbid: int, vbuuid: int) -> None:
        """A vbucket's rows belong to this branch from now on."""
        if self._branches.get(vbid) != vbuuid:
            self._renew()
            self._branches[vbid] = vbuuid

    def _renew(self) -> None:
        if self._is_lent:
            self._names, self._branches = dict(self._names), dict(self._branches)
            self._is_lent = False
