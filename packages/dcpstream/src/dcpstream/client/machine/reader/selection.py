"""The collections that a reader wants: the user's names, resolved against each manifest of the bucket.

| written | means |
| --- | --- |
| `a.b` | the collection `b` of the scope `a` |
| `a.*` | the scope `a`, with the collections that are made in it later |
| `x` | the scope `x` if there is one, else the collection `x` of the scope `_default`; both at once are an error |
| `_default` | the default collection (the scope is `_default.*`) |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dcpstream.errors import ConfigError
from dcpstream.model import CollectionName, Manifest
from dcpstream.model.collections import DEFAULT_NAME

WHOLE_SCOPE = "*"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection resolved against one manifest.

    Attributes:
        collections: id → names of what is wanted, None for everything.
        scope_id: set if it is one scope and nothing else: the node then adds collections that are made later.
        missing: names of the user that the bucket does not have now.
    """

    collections: Mapping[int, CollectionName] | None = None
    scope_id: int | None = None
    missing: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether no stream can be asked for."""
        return self.collections is not None and not self.collections and self.scope_id is None

    def lies_within(self, other: Wanted) -> bool:
        """Whether every collection of it is one of the other's."""
        if self.scope_id is not None or self.collections is None or other.collections is None:
            return self.scope_id == other.scope_id
        return self.collections.keys() <= other.collections.keys()


EVERYTHING = Wanted()


@dataclass(slots=True)
class Selection:
    """The names that a user wrote.

    Args:
        names: as in the table above; None for everything.
    """

    names: tuple[str, ...] | None
    _places: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Bare name → the place where it was first found: the name keeps this meaning."""

    @classmethod
    def of(cls, names: Sequence[str] | Selection | FixedSelection | None) -> Selection | FixedSelection:
        """The selection of these names; a selection as it is."""
        if isinstance(names, Selection | FixedSelection):
            return names
        return cls(None if names is None else tuple(names))

    def resolve(self, manifest: Manifest) -> Wanted:
        """The wanted part of this manifest.

        Raises:
            ConfigError: a bare name is that of a scope and of a collection.
        """
        if self.names is None:
            return EVERYTHING
        found: dict[int, CollectionName] = {}
        scope_ids: list[int] = []
        missing: list[str] = []
        for name in self.names:
            scope_name, collection_name = self._place(name, manifest)
            if collection_name == WHOLE_SCOPE:
                scope = manifest.find_scope(scope_name)
                if scope is None:
                    missing.append(name)
                    continue
                scope_ids.append(scope.scope_id)
                for item in scope.collections:
                    found[item.collection_id] = CollectionName(item.collection_id, scope_name, item.name)
            elif (collection := manifest.find(scope_name, collection_name)) is not None:
                number = collection.collection_id
                found[number] = CollectionName(number, scope_name, collection_name)
            else:
                missing.append(name)
        scope_id = scope_ids[0] if scope_ids and len(self.names) == 1 else None
        return Wanted(found, scope_id, tuple(missing))

    @property
    def has_scopes(self) -> bool:
        """Whether a name that was found means a whole scope."""
        return any(place[1] == WHOLE_SCOPE for place in self._places.values())

    @property
    def may_be_one_collection(self) -> bool:
        """Whether it names a single collection."""
        return self.names is not None and len(self.names) == 1 and not self.names[0].endswith(f".{WHOLE_SCOPE}")

    def _place(self, name: str, manifest: Manifest) -> tuple[str, str]:
        if name in self._places:
            return self._places[name]
        scope_name, dot, collection_name = name.rpartition(".")
        if not dot and name != DEFAULT_NAME:
            is_scope = manifest.find_scope(name) is not None
            is_collection = manifest.find(DEFAULT_NAME, name) is not None
            if is_scope and is_collection:
                raise ConfigError(
                    "collections",
                    name,
                    f"{name}.{WHOLE_SCOPE} for the scope or {DEFAULT_NAME}.{name} for the collection",
                )
            if is_scope:
                scope_name, collection_name = name, WHOLE_SCOPE
            elif not is_collection:
                return DEFAULT_NAME, name  # not in the bucket: its meaning is settled when it appears
        place = (scope_name or DEFAULT_NAME, collection_name or DEFAULT_NAME)
        self._places[name] = place
        return place


@dataclass(frozen=True, slots=True)
class FixedSelection:
    """Collections by id, resolved when a read was planned: the read must not see others.

    Args:
        collections: of the plan; None for everything.
        manifest_uid: the version of the manifest that the plan was made by: an older one says nothing about them.
    """

    collections: tuple[CollectionName, ...] | None
    manifest_uid: int = 0

    def resolve(self, manifest: Manifest) -> Wanted:
        """The collections that still exist."""
        if self.collections is None:
            return EVERYTHING
        living = {item.collection_id for _, item in manifest.collections()}
        found = {item.collection_id: item for item in self.collections if item.collection_id in living}
        return Wanted(found, None, tuple(item.path for item in self.collections if item.collection_id not in living))

    @property
    def may_be_one_collection(self) -> bool:
        """Whether it is a single collection."""
        return self.collections is not None and len(self.collections) == 1


def unknown_names(missing: Iterable[str], manifest: Manifest) -> ConfigError:
    """The error for names that the bucket does not have."""
    known = ", ".join(sorted(item.path for item in manifest.named_collections()))
    names = ", ".join(missing)
    return ConfigError(
        "collections", names, known, message=f"the bucket has no collection {names}. It has {known or 'none'}"
    )
