"""The next manifest of a bucket: wanted changes become a manifest with new ids.

An id is never given twice. It is above every other, and above those of what was dropped, because a manifest's uid rises
by as many as ids were given (and by one if there were none).

Source: Couchbase Server REST API, "Manage scopes and collections"; ns_server menelaus_web_collections.erl (words: the
official client libraries look for some of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dcpstream.errors import ConfigError
from dcpstream.model import Collection, Manifest, Scope
from dcpstream.model.collections import DEFAULT_COLLECTION_ID, DEFAULT_NAME, NO_TTL
from dcpstream_node.engine.bucket.manifest import MAX_COLLECTIONS, ManifestError, check_manifest, check_step

FIRST_ID: Final = 8
"""The lowest id that may be given; those below are the default's and reserved."""
MAX_TTL: Final = (1 << 31) - 1
SYSTEM_PREFIXES: Final = ("_", "%")
SYSTEM_SCOPE_NAME: Final = "_system"
_UNCHANGEABLE: Final = 'Cannot modify collection properties for Scope "{}" Collection "{}"'


class NameTakenError(ManifestError):
    """A scope or collection of that name is there already."""


class NameMissingError(ManifestError):
    """There is no scope or collection of that name."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wanted attributes of a collection; None: unchanged, or the default of a new one."""

    max_ttl: int | None = None
    history: bool | None = None


class ManifestEditor:
    """Makes one change of a manifest.

    Args:
        present: the bucket's manifest.
        history: whether a collection that is made without saying keeps its history.
    """

    def __init__(self, present: Manifest, *, history: bool = False) -> None:
        self._present = present
        self._history = history
        known = [scope.scope_id for scope in present.scopes]
        known += [item.collection_id for _, item in present.collections()]
        self._first_id = self._next_id = max(present.uid + FIRST_ID, max(known, default=0) + 1)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _done(self, scopes: Iterable[Scope]) -> Manifest:
        """The manifest with these scopes.

        Raises: ManifestError: it cannot be, or cannot follow the present one.
        """
        uid = self._present.uid + max(1, self._next_id - self._first_id)
        manifest = Manifest(uid, tuple(scopes))
        if len(manifest.scopes) > MAX_COLLECTIONS:
            raise ManifestError("Maximum number of scopes has been reached")
        if sum(1 for _ in manifest.collections()) > MAX_COLLECTIONS:
            raise ManifestError("Maximum number of collections has been reached")
        check_manifest(manifest)
        check_step(self._present, manifest)
        return manifest

    def _scope(self, name: str) -> Scope:
        for scope in self._present.scopes:
            if scope.name == name:
                return scope
        raise NameMissingError(f'Scope with name "{name}" is not found')

    def _with(self, changed: Scope) -> Manifest:
        return self._done(changed if scope.scope_id == changed.scope_id else scope for scope in self._present.scopes)

    def add_scope(self, name: str) -> Manifest:
        """Make a scope."""
        if any(scope.name == name for scope in self._present.scopes):
            raise NameTakenError(f'Scope with name "{name}" already exists')
        check_new_name(name)
        return self._done((*self._present.scopes, Scope(self._new_id(), name)))

    def drop_scope(self, name: str) -> Manifest:
        """Drop a scope with its collections."""
        scope = self._scope(name)
        if name in (DEFAULT_NAME, SYSTEM_SCOPE_NAME):
            raise ManifestError(f"Deleting {name} scope is not allowed")
        return self._done(item for item in self._present.scopes if item is not scope)

    def add_collection(self, scope_name: str, name: str, wanted: Wanted) -> Manifest:
        """Make a collection."""
        scope = self._scope(scope_name)
        if any(item.name == name for item in scope.collections):
            raise NameTakenError(f'Collection with name "{name}" in scope "{scope_name}" already exists')
        check_new_name(name)
        if scope_name == SYSTEM_SCOPE_NAME:
            raise ManifestError(f"cannot create collection in '{scope_name}' scope")
        made = self._made(name, wanted)
        return self._with(replace(scope, collections=(*scope.collections, made)))

    def change_collection(self, scope_name: str, name: str, wanted: Wanted) -> Manifest:
        """Change what can be changed of a collection."""
        scope, item = self._find(scope_name, name)
        if scope_name == SYSTEM_SCOPE_NAME and wanted.max_ttl not in (None, item.max_ttl):
            raise ManifestError(_UNCHANGEABLE.format(scope_name, name))
        changed = tuple(_changed(item, wanted) if other is item else other for other in scope.collections)
        return self._with(replace(scope, collections=changed))

    def drop_collection(self, scope_name: str, name: str) -> Manifest:
        """Drop a collection."""
        if scope_name == SYSTEM_SCOPE_NAME:
            raise ManifestError(f'Cannot drop system collection "{name}" for scope "{scope_name}"')
        scope, item = self._find(scope_name, name)
        return self._with(replace(scope, collections=tuple(other for other in scope.collections if other is not item)))

    def _find(self, scope_name: str, name: str) -> tuple[Scope, Collection]:
        scope = self._scope(scope_name)
        for item in scope.collections:
            if item.name == name:
                return scope, item
        raise NameMissingError(f'Collection with name "{name}" in scope "{scope_name}" is not found')

    def replace_all(
        self, scopes: Mapping[str, Mapping[str, Wanted]], *, keeps_default_collection: bool = False
    ) -> Manifest:
        """Have these scopes and collections, and no others; what stays keeps its id.

        The default scope always stays, and the scope `_system` as it is; other names of the system's (names that begin
        with _) cannot be made, only kept.

        Args:
            scopes: scope → collection → how it is to be.
            keeps_default_collection: whether the default collection stays, if it is there, also if it is not named.
        """
        before = {scope.name: scope for scope in self._present.scopes}
        wanted: dict[str, dict[str, Wanted]] = {DEFAULT_NAME: {}}
        wanted |= {name: dict(items) for name, items in scopes.items()}
        if keeps_default_collection and any(
            item.name == DEFAULT_NAME for scope in self._present.scopes for item in scope.collections
        ):
            wanted[DEFAULT_NAME] = {DEFAULT_NAME: Wanted()} | wanted[DEFAULT_NAME]
        kept = [scope for scope in self._present.scopes if scope.name == SYSTEM_SCOPE_NAME]
        wanted.pop(SYSTEM_SCOPE_NAME, None)
        return self._done([*(self._replaced(name, items, before.get(name)) for name, items in wanted.items()), *kept])

    def _replaced(self, name: str, wanted: Mapping[str, Wanted], old: Scope | None) -> Scope:
        if old is None:
            check_new_name(name)
        known = {item.name: item for item in old.collections} if old is not None else {}
        items = []
        for item_name, how in wanted.items():
            item = known.get(item_name)
            if item is None:
                if item_name == DEFAULT_NAME:
                    raise ManifestError(
                        f'Cannot create _default collection in scope "{name}". Creation of _default collection is not '
                        "allowed."
                    )
                check_new_name(item_name)
                items.append(self._made(item_name, how))
            else:
                items.append(_changed(item, how))
        return Scope(old.scope_id if old is not None else self._new_id(), name, tuple(items))

    def _made(self, name: str, wanted: Wanted) -> Collection:
        history = self._history if wanted.history is None else wanted.history
        return Collection(self._new_id(), name, _ttl(wanted.max_ttl or 0), history)


def _changed(item: Collection, wanted: Wanted) -> Collection:
    max_ttl = item.max_ttl if wanted.max_ttl is None else _ttl(wanted.max_ttl)
    history = item.history if wanted.history is None else wanted.history
    if item.collection_id == DEFAULT_COLLECTION_ID and max_ttl != item.max_ttl:
        raise ManifestError(_UNCHANGEABLE.format(DEFAULT_NAME, DEFAULT_NAME))
    return replace(item, max_ttl=max_ttl, history=history)


def _ttl(seconds: int) -> int:
    if not NO_TTL <= seconds <= MAX_TTL:
        raise ManifestError(f"maxTTL must be a number of seconds from 0 to {MAX_TTL}, or {NO_TTL}, not {seconds}")
    return seconds


def check_new_name(name: str) -> None:
    """Refuse names that only the system may make.

    Raises: ManifestError: it is one.
    """
    if name.startswith(SYSTEM_PREFIXES):
        raise ManifestError(f"First character must not be _ or %: {name!r} would be a name of the system's")


def with_collections(
    present: Manifest, scopes: Mapping[str, Mapping[str, int] | Sequence[str]], *, history: bool
) -> Manifest:
    """The manifest with these scopes and collections, as `Node.set_collections` takes them; others are dropped.

    Raises: ConfigError: a name that cannot be.
    """
    wanted = {
        scope: {item: Wanted(items[item] if isinstance(items, Mapping) else None) for item in items}
        for scope, items in scopes.items()
    }
    try:
        return ManifestEditor(present, history=history).replace_all(wanted, keeps_default_collection=True)
    except ManifestError as error:
        raise ConfigError("scopes", scopes, str(error)) from error
