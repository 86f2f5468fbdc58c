"""Scopes and collections of a bucket, and the versioned list of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from dcpstream.errors import ConfigError

DEFAULT_COLLECTION_ID = 0
DEFAULT_SCOPE_ID = 0
DEFAULT_NAME = "_default"
SYSTEM_PREFIX = "_"
"""First character of the names of system scopes and collections; `_default` alone is none of them."""
MAX_ID = 0xFFFFFFFF
MAX_UID = 0xFFFFFFFFFFFFFFFF
NO_TTL = -1
"""A collection's `max_ttl` without a limit, even if the bucket has one. Manifests of KV, and events, write it as an
explicit 0."""


def is_system_name(name: str) -> bool:
    """Whether a scope or collection of this name is one of the system's; users cannot create one."""
    return name.startswith(SYSTEM_PREFIX) and name != DEFAULT_NAME


class CollectionName(NamedTuple):
    """A collection with its names. The bucket never reuses the id (u32), but may reuse the names."""

    collection_id: int
    scope: str
    collection: str

    @property
    def path(self) -> str:
        """`scope.collection`; names have no dot in them."""
        return f"{self.scope}.{self.collection}"

    @classmethod
    def of(cls, collection_id: int, path: str) -> CollectionName:
        """The inverse of `path`."""
        scope, _, collection = path.rpartition(".")
        return cls(collection_id, scope, collection)


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection: its id (u32), its name, and the longest life of its documents in seconds.

    `max_ttl` is 0 if the bucket's limit applies, and `NO_TTL` for no limit. `history` has an effect in buckets that
    keep a change history. `metered` (7.6) has no effect here. `flush_uid` (u64, 8.0) is the manifest that emptied the
    collection last, 0 if none did.
    """

    collection_id: int
    name: str
    max_ttl: int = 0
    history: bool = False
    metered: bool = False
    flush_uid: int = 0

    @property
    def is_system(self) -> bool:
        """Whether the name is one of the system's, which hides the collection from most users since 7.6."""
        return self.collection_id != DEFAULT_COLLECTION_ID and self.name.startswith(SYSTEM_PREFIX)


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope: its id (u32), its name and its collections."""

    scope_id: int
    name: str
    collections: tuple[Collection, ...] = ()

    @property
    def is_system(self) -> bool:
        """Whether the name is one of the system's, which hides the scope from most users since 7.6."""
        return self.scope_id != DEFAULT_SCOPE_ID and self.name.startswith(SYSTEM_PREFIX)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of scopes and collections, in one version (`uid`, u64).

    Source: kv_engine docs/Collections.md.
    """

    uid: int
    scopes: tuple[Scope, ...]

    DEFAULT: ClassVar[Manifest]
    WITH_SYSTEM_SCOPE: ClassVar[Manifest]

    def collections(self) -> Iterator[tuple[Scope, Collection]]:
        """Every collection with its scope."""
        for scope in self.scopes:
            for collection in scope.collections:
                yield scope, collection

    def collection_names(self) -> dict[int, tuple[str, str]]:
        """Collection id → (scope name, collection name)."""
        return {collection.collection_id: (scope.name, collection.name) for scope, collection in self.collections()}

    def named_collections(self) -> tuple[CollectionName, ...]:
        """Every collection with its names."""
        return tuple(
            CollectionName(collection.collection_id, scope.name, collection.name)
            for scope, collection in self.collections()
        )

    def find_scope(self, name: str) -> Scope | None:
        """The scope of that name, or None."""
        return next((scope for scope in self.scopes if scope.name == name), None)

    def find(self, scope_name: str, collection_name: str) -> Collection | None:
        """The collection of that name, or None. Empty names mean `_default`."""
        wanted = (scope_name or DEFAULT_NAME, collection_name or DEFAULT_NAME)
        for scope, collection in self.collections():
            if (scope.name, collection.name) == wanted:
                return collection
        return None

    def resolve(self, path: str) -> Collection:
        """The collection of `scope.collection`, or of `collection` in the default scope.

        Raises:
            ConfigError: it does not exist; the message lists those that do.
        """
        scope_name, _, collection_name = path.rpartition(".")
        found = self.find(scope_name, collection_name)
        if found is None:
            known = ", ".join(sorted(f"{scope.name}.{item.name}" for scope, item in self.collections()))
            message = f"the bucket has no collection {path}. It has {known or 'none'}"
            raise ConfigError("collections", path, known, message=message)
        return found

    def to_json(self, *, no_ttl: int = 0) -> dict[str, Any]:
        """The manifest in the server's JSON form, ids in hexadecimal text.

        Args:
            no_ttl: the number for `NO_TTL`: 0 in KV's form, -1 in that of the management port.
        """
        return {
            "uid": f"{self.uid:x}",
            "scopes": [
                {
                    "name": scope.name,
                    "uid": f"{scope.scope_id:x}",
                    "collections": [
                        {"name": item.name, "uid": f"{item.collection_id:x}"}
                        | ({"maxTTL": no_ttl if item.max_ttl == NO_TTL else item.max_ttl} if item.max_ttl else {})
                        | ({"history": True} if item.history else {})
                        | ({"metered": True} if item.metered else {})
                        | ({"flush_uid": f"{item.flush_uid:x}"} if item.flush_uid else {})
                        for item in scope.collections
                    ],
                }
                for scope in self.scopes
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """The manifest from the server's JSON, in KV's form.

        Raises:
            ValueError: not a manifest.
        """
        try:
            return cls(
                uid=_number(data["uid"], MAX_UID),
                scopes=tuple(
                    Scope(
                        scope_id=_number(scope["uid"], MAX_ID),
                        name=_name(scope["name"]),
                        collections=tuple(
                            Collection(
                                _number(item["uid"], MAX_ID),
                                _name(item["name"]),
                                (int(item["maxTTL"]) or NO_TTL) if "maxTTL" in item else 0,
                                bool(item.get("history", False)),
                                bool(item.get("metered", False)),
                                _number(item.get("flush_uid", "0"), MAX_UID),
                            )
                            for item in scope.get("collections", ())
                        ),
                    )
                    for scope in data["scopes"]
                ),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a collections manifest: {error!r}") from error


def _number(text: str, largest: int) -> int:
    """An id or uid, as the server writes it: in hexadecimal."""
    number = int(text, 16)
    if not 0 <= number <= largest:
        raise ValueError(f"{text!r} is not within 0..{largest:x}")
    return number


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a name")
    return value


Manifest.DEFAULT = Manifest(
    0, (Scope(DEFAULT_SCOPE_ID, DEFAULT_NAME, (Collection(DEFAULT_COLLECTION_ID, DEFAULT_NAME),)),)
)
Manifest.WITH_SYSTEM_SCOPE = Manifest(
    1,
    (
        *Manifest.DEFAULT.scopes,
        Scope(8, "_system", (Collection(9, "_query", NO_TTL), Collection(8, "_mobile", NO_TTL))),
    ),
)
"""The manifest of a new bucket since 7.6. Source: ns_server apps/ns_server/src/collections.erl (default_manifest)."""
