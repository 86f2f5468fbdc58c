"""What rows are labelled with that their frames do not say: names of collections, and the branch of each vbucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcpstream.client.events import CollectionEvent
from dcpstream.model import Manifest
from dcpstream.wire import SystemEventId

Names = Mapping[int, tuple[str, str]]
Branches = Mapping[int, int]


class Labels:
    """Names and branches as they are now; what was lent out does not change any more.

    Args:
        collections: names to read, None for all.
    """

    def __init__(self, collections: Sequence[str] | None) -> None:
        self.collection_ids: list[int] | None = None
        self.is_known = False
        self._wanted = collections
        self._names: dict[int, tuple[str, str]] = {}
        self._scopes: dict[int, str] = {}
        self._branches: dict[int, int] = {}
        self._is_lent = False

    def lend(self) -> tuple[Names, Branches]:
        """(collection id → names, vbucket → vbuuid); the same objects as long as nothing changes."""
        self._is_lent = True
        return self._names, self._branches

    def take_manifest(self, manifest: Manifest) -> None:
        """The bucket's collections are known now.

        Raises:
            ConfigError: a collection that is wanted does not exist.
        """
        self._renew()
        self._names.update(manifest.collection_names())
        self._scopes.update({scope.scope_id: scope.name for scope in manifest.scopes})
        if self._wanted is not None:
            self.collection_ids = [manifest.resolve(name).collection_id for name in self._wanted]
        self.is_known = True

    def take_event(self, event: CollectionEvent) -> None:
        """A scope or collection was made."""
        if event.event == SystemEventId.CREATE_SCOPE:
            self._scopes[event.scope_id] = event.name
        elif event.event == SystemEventId.CREATE_COLLECTION and event.collection_id is not None:
            scope = self._scopes.get(event.scope_id, f"0x{event.scope_id:x}")
            if event.collection_id not in self._names:
                self._renew()
                self._names[event.collection_id] = (scope, event.name)

    def take_branch(self, vbid: int, vbuuid: int) -> None:
        """A vbucket's rows belong to this branch from now on."""
        if self._branches.get(vbid) != vbuuid:
            self._renew()
            self._branches[vbid] = vbuuid

    def _renew(self) -> None:
        if self._is_lent:
            self._names, self._branches = dict(self._names), dict(self._branches)
            self._is_lent = False
