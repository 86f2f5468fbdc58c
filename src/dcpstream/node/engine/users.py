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


class User:
    """A user: name, how to check the password, and privileges."""

    __slots__ = ("credentials", "name", "privileges")

    def __init__(self, name: str, credentials: Credentials, privileges: frozenset[str]) -> None:
        self.name = name
        self.credentials = credentials
        self.privileges = privileges

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
        unknown = privileges - ALL_PRIVILEGES
        if unknown:
            raise ConfigError(
                f"privileges of user {name}", ", ".join(sorted(unknown)), f"all, or {', '.join(sorted(ALL_PRIVILEGES))}"
            )
        if len(self._users) >= MAX_USERS and name not in self._users:
            raise ConfigError("users", f"{len(self._users) + 1} users", f"at most {MAX_USERS}")
        self._users[name] = User(name, self._credentials(password), privileges)

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
