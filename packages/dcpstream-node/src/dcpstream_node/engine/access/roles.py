"""Roles, and the privileges of each at the node, a bucket, a scope or a collection.

A role is written as the server writes it: `admin`, `bucket_admin[travel]`, `data_reader[travel:inventory:airline]`,
with `*` for every bucket. It gives privileges (names with a capital, asked for by commands of the KV port) and
permissions (names with a dot, asked for by pages of the management port) at places: the node, all buckets, a bucket, a
scope or a collection. A right for a place holds for everything within it.

`roles.json` has the roles, the permissions, groups of both, and the names of the server's own permissions.

Places are names, so a collection that is dropped and created again is the same place; the server takes ids, and then it
is not. Roles of services that this node does not have (query, search, analytics, eventing, views) are not known.

Source: Couchbase Server documentation, "Roles"; ns_server menelaus_roles.erl, memcached_permissions.erl (which
privileges follow from a role); kv_engine docs/rbac.md, include/rbac/privileges.h (names).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, Self

from dcpstream.errors import ConfigError

EVERYWHERE: Final = "*"
"""In place of a bucket's name: all of them, also those that are made later."""

_FILE: dict[str, Any] = json.loads((files(__package__) / "roles.json").read_text(encoding="utf-8"))
_GROUPS: dict[str, frozenset[str]] = {"permissions": frozenset(_FILE["permissions"])}


def _names(words: Iterable[str]) -> frozenset[str]:
    """Privileges and permissions by name; `@` begins the name of a group of them."""
    return frozenset[str]().union(*(_GROUPS[word[1:]] if word.startswith("@") else (word,) for word in words))


for _group, _words in _FILE["groups"].items():
    _GROUPS[_group] = _names(_words)

COLLECTION_PRIVILEGES: Final = _GROUPS["collection"]
"""Privileges that can be given for a scope or a collection alone."""

DATA_PRIVILEGES: Final = _GROUPS["data"]
"""Those of them without which a user must not learn that a collection exists, there or at a place around it."""

SYSTEM_PRIVILEGES: Final = _GROUPS["system"]
"""Those that reading and writing system collections need, beside the others."""

BUCKET_PRIVILEGES: Final = _GROUPS["bucket"]
"""Privileges that can be given for a bucket. A user with one of them in a bucket may select it."""

ALL_PRIVILEGES: Final = _GROUPS["all"]
"""Every privilege that a command here asks for; the word `all` in a users file stands for them."""

KNOWN_PRIVILEGES: Final = ALL_PRIVILEGES.union(_FILE["other_privileges"])
"""Privileges that a request may name."""

PERMISSIONS: Final[Mapping[str, str]] = MappingProxyType(_FILE["permissions"])
"""The rights that pages of the management port need, by name, each with a description."""

SERVER_PERMISSIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(_FILE["server_permissions"])
"""The server's permissions about the `cluster`, and about a `bucket`, scope or collection → the rights here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleKind:
    """A kind of role, before it is given for a place.

    Attributes:
        name: as the server writes it.
        title, description: for people.
        depth: how many parts its place can have: 0 none, 1 a bucket, 2 a scope, 3 a collection; all but the first may
            be left out.
        on_node: what it gives for the node.
        on_all: what it gives for every bucket.
        on_bucket: what it gives for the bucket of its place, even if the place is within it.
        on_place: what it gives for its place.
    """

    name: str
    title: str
    description: str
    depth: int = 0
    on_node: frozenset[str] = frozenset()
    on_all: frozenset[str] = frozenset()
    on_bucket: frozenset[str] = frozenset()
    on_place: frozenset[str] = frozenset()


_PLACES: Final = ("on_node", "on_all", "on_bucket", "on_place")
KINDS: Final[Mapping[str, RoleKind]] = MappingProxyType(
    {
        name: RoleKind(name=name, **entry | {place: _names(entry[place]) for place in _PLACES if place in entry})
        for name, entry in _FILE["roles"].items()
    }
)
"""Every role that can be given, by name."""

_TEXT = re.compile(r"([a-z_]+)(?:\[([^\[\]]{1,400})\])?")

Place = tuple[str, ...]
"""(), or a bucket (or `*`), a scope and a collection by name, as far as it goes."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role at a place."""

    kind: RoleKind
    place: Place = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """A role from its text.

        Raises:
            ConfigError: no such role, or no place that it can have.
        """
        match = _TEXT.fullmatch(text.strip())
        kind = KINDS.get(match[1]) if match is not None else None
        if match is None or kind is None:
            raise ConfigError("role", text, f"one of {', '.join(KINDS)}, with its place in brackets")
        parts = tuple(match[2].split(":")) if match[2] is not None else ()
        while len(parts) > 1 and parts[-1] == EVERYWHERE:
            parts = parts[:-1]  # `[b:*:*]` is `[b]`
        if bool(parts) != bool(kind.depth) or len(parts) > kind.depth or not all(parts) or EVERYWHERE in parts[1:]:
            raise ConfigError("role", text, _form(kind))
        return cls(kind, parts)

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.kind.name}[{':'.join(self.place)}]" if self.place else self.kind.name

    @property
    def name(self) -> str:
        """The role without its place."""
        return self.kind.name

    @property
    def bucket(self) -> str:
        """The bucket's name, `*` for all, empty for a role of the node."""
        return self.place[0] if self.place else ""

    def to_json(self) -> dict[str, str]:
        """The form of the server's REST API: the parts of the place by name, `*` for those that were left out."""
        names = ("bucket_name", "scope_name", "collection_name")[: self.kind.depth]
        parts = (*self.place, *(EVERYWHERE,) * (len(names) - len(self.place)))
        return {"role": self.kind.name} | dict(zip(names, parts, strict=True))


def parse_roles(text: str) -> tuple[Role, ...]:
    """Roles separated by commas, as a form has them; each once.

    Raises:
        ConfigError: one of them is none.
    """
    return tuple(dict.fromkeys(Role.parse(part) for part in text.split(",") if part.strip()))


def _form(kind: RoleKind) -> str:
    return f"{kind.name}{('', '[bucket]', '[bucket:scope]', '[bucket:scope:collection]')[kind.depth]}"


class Rights:
    """A role at a place.

    Args:
        roles: their roles.
        privileges: and what they were given one by one: `Name` on the node, `Name:scope` and `Name:scope.collection`
            in every bucket.
    """

    __slots__ = ("_places", "_scoped")

    def __init__(self, roles: Iterable[Role] = (), privileges: Iterable[str] = ()) -> None:
        places: dict[Place, set[str]] = {(): set()}
        for role in roles:
            kind = role.kind
            given = [((), kind.on_node), ((EVERYWHERE,), kind.on_all), (role.place, kind.on_place)]
            given.append((role.place[:1], kind.on_bucket))
            for place, names in given:
                if names:
                    places.setdefault(place, set()).update(names)
        for item in privileges:
            name, colon, path = item.partition(":")
            place = (EVERYWHERE, *path.split(".", 1)) if colon else ()
            places.setdefault(place, set()).add(name)
        self._places = {place: frozenset(names) for place, names in places.items()}
        self._scoped = any(len(place) > 1 for place in self._places)

    def at(self, bucket: str = "", scope: str = "", collection: str = "") -> frozenset[str]:
        """Everything that is given for a place and for what it is within."""
        result = self._places[()]
        if bucket and len(self._places) > 1:
            for first in (EVERYWHERE, bucket):
                result |= self._places.get((first,), frozenset())
                if self._scoped and scope:
                    result |= self._places.get((first, scope), frozenset())
                    if collection:
                        result |= self._places.get((first, scope, collection), frozenset())
        return result

    def within(self, bucket: str, scope: str = "") -> frozenset[str]:
        """Everything that is given for the bucket or the scope, or for any place in it."""
        result = self.at(bucket, scope)
        for place, names in self._places.items():
            if len(place) > 1 and place[0] in (EVERYWHERE, bucket) and scope in ("", place[1]):
                result |= names
        return result
