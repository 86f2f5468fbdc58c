"""Users: credentials, roles, and the privileges that follow.

The node keeps of a password only the salted hash that SCRAM checks (RFC 5802), and never logs one. A user's rights
follow from their own roles, from those of their groups, and from privileges given one by one. A change takes effect at
once, also on open connections.

A login with an unknown name runs to its end with random credentials, and with a salt derived from the name. So a client
cannot distinguish unknown names from known ones.

Source: kv_engine docs/rbac.md, include/rbac/privileges.h (names), docs/sasl.md.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dcpstream.dcp.sasl import DEFAULT_ITERATIONS, Credentials, prepared_name
from dcpstream.errors import ConfigError
from dcpstream.runtime import Random
from dcpstream_node.engine.access.groups import FORBIDDEN, MAX_TEXT_LENGTH, Group, checked_id
from dcpstream_node.engine.access.roles import (
    ALL_PRIVILEGES,
    BUCKET_PRIVILEGES,
    COLLECTION_PRIVILEGES,
    DATA_PRIVILEGES,
    Rights,
    Role,
)

if TYPE_CHECKING:
    from dcpstream_node.engine.access.tokens import ClaimedNames

SALT_BITS: Final = 128
SECRET_BITS: Final = 256
MAX_USERS: Final = 1000
"""Users of one node: each costs about 10 ms of key derivation at start, and a test needs a handful."""
DOMAINS: Final = ("local", "external")
"""Domains of users: their passwords are with the node, or as if with another service."""
MAX_NAME_BYTES: Final = 128
MAX_PASSWORD_BYTES: Final = 1024
"""Bounds the work of hashing a password."""
MAX_ROLES: Final = 200
"""Roles of one user, or of one group."""
MAX_GROUPS: Final = 1000
"""As many as there can be users."""
MAX_GROUPS_OF_USER: Final = 50
"""Bounds the roles that a change has to look through."""


class User:
    """A user.

    Attributes:
        name: as it logs in.
        credentials: of the password; None if the user has none and can only log in with a certificate.
        roles: the user's own, in order.
        groups: the user's groups, whose roles count too.
        privileges: given one by one: of the node, or with a colon and a place.
        display_name: for people.
        domain: "local", or "external" for a user as another service (LDAP) has them, who cannot log in with SCRAM.
        is_configured: whether the node was started with this user; such a user cannot be changed through REST.
        version: grows with each change of the user's rights.
    """

    __slots__ = (
        "_rights",
        "credentials",
        "display_name",
        "domain",
        "groups",
        "is_configured",
        "name",
        "privileges",
        "roles",
        "version",
    )

    def __init__(
        self,
        name: str,
        credentials: Credentials | None,
        privileges: frozenset[str] = frozenset(),
        roles: tuple[Role, ...] = (),
        display_name: str = "",
        *,
        domain: str = "local",
        groups: tuple[Group, ...] = (),
        is_configured: bool = True,
    ) -> None:
        self.name = name
        self.domain = domain
        self.credentials = credentials
        self.display_name = display_name
        self.is_configured = is_configured
        self.version = 0
        self.allow(privileges, roles, groups)

    def allow(self, privileges: frozenset[str], roles: tuple[Role, ...] = (), groups: tuple[Group, ...] = ()) -> None:
        """Change the user's rights at once, also on open connections."""
        self.privileges = privileges
        self.roles = roles
        self.groups = groups
        self._rights = Rights(self.origins(), privileges)
        self.version += 1

    def origins(self) -> dict[Role, list[str]]:
        """Every role that the user has, and the groups that it comes from; an empty name is the user's own."""
        found: dict[Role, list[str]] = {role: [""] for role in self.roles}
        for group in self.groups:
            for role in group.roles:
                found.setdefault(role, []).append(group.name)
        return found

    def rights(self, bucket: str = "", scope: str = "", collection: str = "") -> frozenset[str]:
        """Privileges and permissions at a place: what was given for it and for what it is within."""
        return self._rights.at(bucket, scope, collection)

    def may(self, right: str, bucket: str = "", scope: str = "", collection: str = "") -> bool:
        """Whether the user has a privilege or permission at a place: the node, a bucket, a scope or a collection."""
        return right in self._rights.at(bucket, scope, collection)

    def may_within(self, right: str, bucket: str) -> bool:
        """Whether the user has a privilege or permission in the bucket, or anywhere in it."""
        return right in self._rights.within(bucket)

    def may_use(self, bucket: str) -> bool:
        """Whether the user has a right in the bucket, and so may select it and see that it exists."""
        return not BUCKET_PRIVILEGES.isdisjoint(self._rights.within(bucket))

    def knows(self, bucket: str, scope: str, collection: str = "") -> bool:
        """Whether the user has a right in a scope or collection, and so may see that it exists."""
        if scope and not collection:
            return not DATA_PRIVILEGES.isdisjoint(self._rights.within(bucket, scope))
        return not DATA_PRIVILEGES.isdisjoint(self._rights.at(bucket, scope, collection))

    @property
    def is_admin(self) -> bool:
        """Whether the user has every privilege."""
        return self._rights.at() >= ALL_PRIVILEGES

    def __repr__(self) -> str:
        """The name and what it may do; never anything of the password."""
        return f"User({self.name!r}, {sorted([*self.privileges, *map(str, self.origins())])})"


class Users:
    """The users of a node.

    Args:
        random: where salts come from.
        iterations: rounds of PBKDF2 for passwords that are set from now on.

    Attributes:
        version: grows with each change that is worth keeping; see `to_json`.
        changed: called after each such change, before it is answered.
    """

    def __init__(self, random: Random, iterations: int = DEFAULT_ITERATIONS) -> None:
        self._random = random
        self._iterations = iterations
        self._users: dict[str, User] = {}
        self._groups: dict[str, Group] = {}
        self._secret = _drawn(random, SECRET_BITS)
        self._nobody = Credentials.of_nobody(_drawn(random, SECRET_BITS), _drawn(random, SALT_BITS), iterations)
        self.version = 0
        self.changed: Callable[[], None] = _nothing

    def _credentials(self, password: str, domain: str = "local") -> Credentials:
        return Credentials(password, _drawn(self._random, SALT_BITS), self._iterations, has_scram=domain == "local")

    # ------------------------------------------------------------------------------------------ those of the options

    def add(
        self,
        name: str,
        password: str | None,
        privileges: frozenset[str] = ALL_PRIVILEGES,
        roles: Iterable[Role | str] = (),
        display_name: str = "",
        domain: str = "local",
    ) -> None:
        """Add a user whom the node is started with, or replace the one of that name.

        Args:
            privileges: given one by one; all of them together make an administrator.
            domain: see `User`.

        Raises:
            ConfigError: an empty or too long name, an unknown privilege, role or domain, or too many users.
        """
        if domain not in DOMAINS:
            raise ConfigError(f"domain of user {name}", domain, " or ".join(DOMAINS))
        _check_privileges(name, privileges)
        given = _roles(roles)
        if privileges >= ALL_PRIVILEGES and not given:
            given = (Role.parse("admin"),)
        name = self._checked(name, password)
        credentials = self._credentials(password, domain) if password is not None else None
        self._users[name] = User(name, credentials, privileges, given, display_name, domain=domain)

    def everyone(self) -> list[User]:
        """The users, in the order in which they came."""
        return list(self._users.values())

    def set_privileges(self, name: str, privileges: frozenset[str]) -> None:
        """Change a user's rights at once, also on open connections; the user loses all roles.

        Raises:
            ConfigError: no such user, or an unknown privilege.
        """
        user = self._users.get(name)
        if user is None:
            raise ConfigError("user", name, "a user that was added")
        _check_privileges(name, privileges)
        user.allow(privileges)

    def add_from_json(self, data: Any) -> None:
        """Add the users of a users file.

        Args:
            data: the parsed file: `{name: {"password": text, "roles": [role, …], "privileges": [name, …] | ["all"]}}`.
                A user with neither roles nor privileges is an administrator; one without a password can only log in
                with a certificate, and that has to be said with null. `"domain": "external"` makes a user as LDAP has
                them.

        Raises:
            ConfigError: another shape, or an unknown privilege or role. Never quotes a password.
        """
        if not isinstance(data, Mapping):
            raise ConfigError("users", type(data).__name__, 'a JSON object {"name": {"password": "…"}}')
        for name, entry in data.items():
            if not isinstance(entry, Mapping) or not isinstance(entry.get("password", 0), str | None):
                raise ConfigError(
                    f"users: {name}", "an entry without a password", '{"password": "…", "roles": […]}, or null for none'
                )
            unknown = set(entry) - {"password", "privileges", "roles", "name", "domain"}
            if unknown:
                raise ConfigError(
                    f"users: {name}", ", ".join(sorted(unknown)), "password, roles, privileges, name and domain"
                )
            roles = _names(f"roles of user {name}", entry.get("roles", []))
            privileges = _names(
                f"privileges of user {name}", entry.get("privileges", [] if "roles" in entry else ["all"])
            )
            given = ALL_PRIVILEGES if "all" in privileges else frozenset(privileges)
            texts = str(entry.get("name", "")), str(entry.get("domain", "local"))
            self.add(str(name), entry["password"], given, roles, *texts)

    # ------------------------------------------------------------------------------------- those made while it runs

    def put(
        self,
        name: str,
        password: str | None = None,
        roles: Iterable[Role | str] = (),
        display_name: str = "",
        groups: Iterable[str] = (),
    ) -> User:
        """Make a user, or change one: what they may do holds at once, the password for the next login.

        Args:
            password: None leaves it as it is.
            roles: all that are the user's own from now on.
            groups: names of all those that the user is in from now on.

        Raises:
            ConfigError: a name, password or role that cannot be, a group that is not there, a new user without a
                password, too many users or groups, or a user whom the node was started with.
        """
        given, joined = _roles(roles), self._joined(groups)
        name = checked_id(self._checked(name, password), "user")
        user = self._users.get(name)
        if user is not None and user.is_configured:
            raise ConfigError("user", name, "a user that the node was not started with; those are changed there")
        if user is None:
            if password is None:
                raise ConfigError("password", "none", "a password for the new user")
            user = User(name, None, is_configured=False)
        if password is not None:
            user.credentials = self._credentials(password)
        user.allow(frozenset(), given, joined)
        user.display_name = display_name
        self._users[name] = user
        self._change()
        return user

    def set_password(self, name: str, password: str) -> None:
        """Give a user another password, from the next login on; connections that are open stay.

        Raises:
            ConfigError: no such user, or no such password. Those whom the node was started with can change theirs too,
                until it is started again.
        """
        user = self._users.get(self._checked(name, password))
        if user is None:
            raise ConfigError("user", name, "a user that is there")
        user.credentials = self._credentials(password, user.domain)
        if not user.is_configured:
            self._change()

    def remove(self, name: str) -> bool:
        """Remove a user, whose open connections lose all rights; returns whether there was one.

        Raises:
            ConfigError: the node was started with this user.
        """
        user = self._users.get(name)
        if user is None:
            return False
        if user.is_configured:
            raise ConfigError("user", name, "a user that the node was not started with; those are removed there")
        del self._users[name]
        user.allow(frozenset())
        user.credentials = None
        self._change()
        return True

    def _joined(self, names: Iterable[str]) -> tuple[Group, ...]:
        wanted = list(dict.fromkeys(names))
        missing = [name for name in wanted if name not in self._groups]
        if missing:
            raise ConfigError("groups", ",".join(missing), "groups that are there")
        if len(wanted) > MAX_GROUPS_OF_USER:
            raise ConfigError("groups", f"{len(wanted)} groups of one user", f"at most {MAX_GROUPS_OF_USER}")
        return tuple(self._groups[name] for name in wanted)

    # ------------------------------------------------------------------------------------------------------- groups

    def put_group(self, group: Group) -> None:
        """Make a group, or change the one of that name; its members' rights change at once.

        Raises:
            ConfigError: a name or text that cannot be, or too many roles or groups.
        """
        checked_id(group.name, "group")
        _roles(group.roles)
        for text in (group.description, group.ldap_group_ref):
            if text is not None and len(text) > MAX_TEXT_LENGTH:
                raise ConfigError("group", f"a text of {len(text)} characters", f"at most {MAX_TEXT_LENGTH}")
        if len(self._groups) >= MAX_GROUPS and group.name not in self._groups:
            raise ConfigError("groups", f"{len(self._groups) + 1} groups", f"at most {MAX_GROUPS}")
        self._groups[group.name] = group
        self._regroup(group.name)
        self._change()

    def remove_group(self, name: str) -> bool:
        """Remove a group, and its roles from its members; returns whether there was one."""
        if self._groups.pop(name, None) is None:
            return False
        self._regroup(name)
        self._change()
        return True

    def _regroup(self, name: str) -> None:
        """Update the members of a group that was changed or removed."""
        for user in self._users.values():
            names = [group.name for group in user.groups]
            if name in names:
                there = tuple(self._groups[each] for each in names if each in self._groups)
                user.allow(user.privileges, user.roles, there)

    def groups(self) -> list[Group]:
        """Every group, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def find_group(self, name: str) -> Group | None:
        """The group of that name, or None."""
        return self._groups.get(name)

    def _change(self) -> None:
        self.version += 1
        self.changed()

    def _checked(self, name: str, password: str | None) -> str:
        prepared = prepared_name(name)
        if prepared is None or not 0 < len(prepared.encode()) <= MAX_NAME_BYTES or FORBIDDEN & set(prepared):
            raise ConfigError("user", name, f"1 to {MAX_NAME_BYTES} bytes, none of {' '.join(sorted(FORBIDDEN))}")
        if password is not None and len(password.encode()) > MAX_PASSWORD_BYTES:
            raise ConfigError("password", "a longer one", f"at most {MAX_PASSWORD_BYTES} bytes")
        if len(self._users) >= MAX_USERS and prepared not in self._users:
            raise ConfigError("users", f"{len(self._users) + 1} users", f"at most {MAX_USERS}")
        return prepared

    # -------------------------------------------------------------------------------------------------------- looks

    def all(self) -> list[User]:
        """Every user, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def find(self, name: str) -> User | None:
        """The user of that name, or None."""
        prepared = prepared_name(name)
        return self._users.get(prepared) if prepared is not None else None

    def of_token(self, name: str, roles: ClaimedNames | None, groups: ClaimedNames | None) -> User | None:
        """The external user whom a token names, with the roles and groups of its claims, too; None if there is none.

        Args:
            roles, groups: those of the claims; None: the claims do not count. Names that mean nothing here are ignored.
        """
        user, prepared = self.find(name), prepared_name(name)
        if prepared is None or (user is not None and user.domain != "external"):
            return None
        own = () if roles is None else tuple(roles.known(_role_or_none))
        joined = () if groups is None else tuple(groups.known(self.find_group))
        if not own and not joined:
            return user
        privileges: frozenset[str] = frozenset()
        if user is not None:
            own, joined, privileges = (*user.roles, *own), (*user.groups, *joined), user.privileges
        own, joined = tuple(dict.fromkeys(own)), tuple(dict.fromkeys(joined))
        return User(prepared, None, privileges, own, domain="external", groups=joined, is_configured=False)

    def credentials(self, name: str) -> Credentials | None:
        """The credentials of a user, or None if there is no such user or no password."""
        user = self.find(name)
        return user.credentials if user is not None else None

    def decoy(self, name: str) -> Credentials:
        """Random credentials for an unknown name; the salt stays the same for the name."""
        digest = hmac.digest(self._secret, name.encode(errors="replace"), "sha256")
        return self._nobody.with_salt(digest[: SALT_BITS // 8])

    def authenticate(self, name: str, password: bytes) -> User | None:
        """The user with this name and password, or None; both take the same time, also for an unknown name."""
        user = self.find(name)
        credentials = user.credentials if user is not None else None
        is_right = (credentials or self.decoy(name)).matches(password)
        return user if credentials is not None and is_right else None

    # --------------------------------------------------------------------------------------------------------- keeping

    def to_json(self) -> dict[str, Any]:
        """The users and groups made while the node ran, for `load`: salted hashes, no password."""
        return {
            "version": 1,
            "secret": self._secret.hex(),
            "groups": {group.name: group.to_json() for group in self.groups()},
            "users": {
                user.name: {
                    "name": user.display_name,
                    "roles": [str(role) for role in user.roles],
                    "groups": [group.name for group in user.groups],
                    "credentials": user.credentials.to_json() if user.credentials is not None else None,
                }
                for user in self.all()
                if not user.is_configured
            },
        }

    def replace(self, data: Any) -> None:
        """As `load`, in place of the users and groups that were made while the node ran, and keep them.

        Raises:
            ConfigError: it is not what `to_json` gives.
        """
        for user in [user for user in self._users.values() if not user.is_configured]:
            del self._users[user.name]
            user.allow(frozenset())
            user.credentials = None
        for name in list(self._groups):
            del self._groups[name]
        self.load(data)
        self._change()

    def load(self, data: Any) -> None:
        """Take what `to_json` gave; users whom the node is started with win over kept ones of the same name.

        Raises:
            ConfigError: it is not what `to_json` gives.
        """
        try:
            if data["version"] != 1:
                raise ValueError(f"version {data['version']}")
            self._secret = bytes.fromhex(data["secret"])
            for name, entry in data["groups"].items():
                self._groups[name] = Group.from_json(name, entry)
            for name, entry in data["users"].items():
                if name in self._users and self._users[name].is_configured:
                    continue
                kept = entry["credentials"]
                credentials = Credentials.from_json(kept) if kept is not None else None
                checked = self._checked(name, None)
                self._users[checked] = User(
                    checked,
                    credentials,
                    roles=_roles(entry["roles"]),
                    display_name=str(entry["name"]),
                    groups=self._joined(entry.get("groups", ())),
                    is_configured=False,
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("users", f"kept users that cannot be read ({error!r})", "what the node wrote") from None


def _nothing() -> None:
    """Default of `Users.changed`: the users are not kept."""


def _roles(roles: Iterable[Role | str]) -> tuple[Role, ...]:
    found = tuple(dict.fromkeys(role if isinstance(role, Role) else Role.parse(role) for role in roles))
    if len(found) > MAX_ROLES:
        raise ConfigError("roles", f"{len(found)} roles", f"at most {MAX_ROLES}")
    return found


def _role_or_none(text: str) -> Role | None:
    try:
        return Role.parse(text)
    except ConfigError:
        return None


def _names(what: str, names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise ConfigError(what, repr(names), 'a list of names, such as ["all"]')
    return names


def _drawn(random: Random, bits: int) -> bytes:
    return random.getrandbits(bits).to_bytes(bits // 8, "big")


def _check_privileges(name: str, privileges: frozenset[str]) -> None:
    unknown = {item for item in privileges if not _is_privilege(item)}
    if unknown:
        raise ConfigError(
            f"privileges of user {name}", ", ".join(sorted(unknown)), f"all, or {', '.join(sorted(ALL_PRIVILEGES))}"
        )


def _is_privilege(item: str) -> bool:
    """Whether this is a privilege's name, of the bucket or of a place that it can be given for."""
    name, colon, place = item.partition(":")
    return name in COLLECTION_PRIVILEGES and bool(place) if colon else name in ALL_PRIVILEGES
