"""Who may log in, and what each of them may do.

A password is kept only as what SCRAM needs to check it (salted, iterated, hashed; RFC 5802), never as text, and never
logged. Privileges carry the server's names; a user who has all of them is an administrator.

Source: kv_engine docs/rbac.md, include/rbac/privileges.h (names), docs/sasl.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dcpstream.errors import ConfigError
from dcpstream.protocol.sasl import Credentials
from dcpstream.runtime import Random

ALL_PRIVILEGES: Final = frozenset(
    {
        "Read",
        "Insert",
        "Upsert",
        "Delete",
        "SimpleStats",
        "Stats",
        "NodeSupervisor",
        "Administrator",
        "BucketThrottleManagement",
        "DcpConsumer",
        "DcpProducer",
        "DcpStream",
        "MetaRead",
        "MetaWrite",
        "SystemXattrRead",
        "SystemXattrWrite",
        "Settings",
        "IdleConnection",
    }
)
"""Every privilege that a command here asks for; the word `all` in a users file stands for them."""

SALT_BITS: Final = 128
MAX_USERS: Final = 1000
"""Users of one node: each costs about 10 ms of key derivation at start, and a test needs a handful."""
MAX_NAME_BYTES: Final = 128


COLLECTION_PRIVILEGES: Final = frozenset(
    {
        "Read",
        "Insert",
        "Upsert",
        "Delete",
        "SimpleStats",
        "DcpStream",
        "MetaRead",
        "MetaWrite",
        "SystemXattrRead",
        "SystemXattrWrite",
    }
)
"""Privileges that can be given for a scope or a collection alone, written `DcpStream:scope` and
`DcpStream:scope.collection`. Whoever has one of them anywhere above a collection is told that the collection exists.
Only DcpStream is looked for there; documents ask for the privilege of the bucket."""


class User:
    """A user: name, how to check the password, and privileges (of the bucket, and with a colon those of a place)."""

    __slots__ = ("credentials", "name", "privileges")

    def __init__(self, name: str, credentials: Credentials, privileges: frozenset[str]) -> None:
        self.name = name
        self.credentials = credentials
        self.privileges = privileges

    def may(self, privilege: str, scope: str = "", collection: str = "") -> bool:
        """Whether the user has a privilege in the bucket, or if named in the scope or collection."""
        places = (privilege, f"{privilege}:{scope}", f"{privilege}:{scope}.{collection}")
        return any(place in self.privileges for place in places[: 1 + bool(scope) + bool(collection)])

    def knows(self, scope: str, collection: str = "") -> bool:
        """Whether the user has anything to do with a scope or collection, and so may know that it is there."""
        return any(self.may(privilege, scope, collection) for privilege in COLLECTION_PRIVILEGES)

    def __repr__(self) -> str:
        """The name and the privileges; never anything of the password."""
        return f"User({self.name!r}, {sorted(self.privileges)})"


class Users:
    """The users of a node.

    Args:
        random: where salts come from.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._users: dict[str, User] = {}
        self.decoy = self._credentials(f"{random.getrandbits(SALT_BITS):x}")

    def _credentials(self, password: str) -> Credentials:
        return Credentials(password, self._random.getrandbits(SALT_BITS).to_bytes(SALT_BITS // 8, "big"))

    def add(self, name: str, password: str, privileges: frozenset[str] = ALL_PRIVILEGES) -> None:
        """Add a user, or replace the one of that name.

        Raises:
            ConfigError: an empty or too long name, an unknown privilege, or too many users.
        """
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise ConfigError("user", name, f"1 to {MAX_NAME_BYTES} bytes")
        unknown = {item for item in privileges if not _is_privilege(item)}
        if unknown:
            raise ConfigError(
                f"privileges of user {name}", ", ".join(sorted(unknown)), f"all, or {', '.join(sorted(ALL_PRIVILEGES))}"
            )
        if len(self._users) >= MAX_USERS and name not in self._users:
            raise ConfigError("users", f"{len(self._users) + 1} users", f"at most {MAX_USERS}")
        self._users[name] = User(name, self._credentials(password), privileges)

    def set_privileges(self, name: str, privileges: frozenset[str]) -> None:
        """Change what a user may do, at once and also on connections that are open.

        Raises:
            ConfigError: no such user, or an unknown privilege.
        """
        user = self._users.get(name)
        if user is None:
            raise ConfigError("user", name, "a user that was added")
        unknown = {item for item in privileges if not _is_privilege(item)}
        if unknown:
            raise ConfigError(
                f"privileges of user {name}", ", ".join(sorted(unknown)), ", ".join(sorted(ALL_PRIVILEGES))
            )
        user.privileges = privileges

    def add_from_json(self, data: Any) -> None:
        """Add the users of a users file.

        Args:
            data: the parsed file: `{name: {"password": text, "privileges": [name, …] | ["all"]}}`; privileges may be
                left out and then mean all.

        Raises:
            ConfigError: another shape, or an unknown privilege. Never quotes a password.
        """
        if not isinstance(data, Mapping):
            raise ConfigError("users", type(data).__name__, 'a JSON object {"name": {"password": "…"}}')
        for name, entry in data.items():
            if not isinstance(entry, Mapping) or not isinstance(entry.get("password"), str):
                raise ConfigError(
                    f"users: {name}", "an entry without a password", '{"password": "…", "privileges": […]}'
                )
            unknown = set(entry) - {"password", "privileges"}
            if unknown:
                raise ConfigError(f"users: {name}", ", ".join(sorted(unknown)), "password and privileges only")
            self.add(str(name), entry["password"], _privileges(name, entry.get("privileges", ["all"])))

    def find(self, name: str) -> User | None:
        """The user of that name, or None."""
        return self._users.get(name)

    def credentials(self, name: str) -> Credentials | None:
        """What checks that user's password, or None if there is no such user."""
        user = self._users.get(name)
        return user.credentials if user is not None else None


def _privileges(name: str, names: Any) -> frozenset[str]:
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise ConfigError(f"privileges of user {name}", repr(names), 'a list of names, or ["all"]')
    return ALL_PRIVILEGES if "all" in names else frozenset(names)


def _is_privilege(item: str) -> bool:
    """Whether this is a privilege's name, of the bucket or of a place that it can be given for."""
    name, colon, place = item.partition(":")
    return name in COLLECTION_PRIVILEGES and bool(place) if colon else name in ALL_PRIVILEGES
