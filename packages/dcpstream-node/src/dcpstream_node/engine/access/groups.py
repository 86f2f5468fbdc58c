"""Groups of users: roles that every member has.

Source: ns_server menelaus_users.erl, menelaus_web_rbac.erl (what a name may be).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from dcpstream.errors import ConfigError
from dcpstream_node.engine.access.roles import Role

MAX_NAME_LENGTH: Final = 128
MAX_TEXT_LENGTH: Final = 4096
"""Longest description, and longest name in a directory of users."""
FORBIDDEN: Final = frozenset('()<>,;:\\"/[]?={}')
"""Characters that the server does not take in the name of a user or a group."""
_DELETE: Final = "\x7f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group.

    Attributes:
        name: of the group.
        roles: of its members.
        description: for people; None: there is none.
        ldap_group_ref: its name in a directory of users, kept for REST only; it makes nobody a member.
    """

    name: str
    roles: tuple[Role, ...] = ()
    description: str | None = None
    ldap_group_ref: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For `from_json`."""
        return {
            "roles": [str(role) for role in self.roles],
            "description": self.description,
            "ldap_group_ref": self.ldap_group_ref,
        }

    @classmethod
    def from_json(cls, name: str, data: Any) -> Self:
        """The group of which `to_json` made this.

        Raises:
            ConfigError, KeyError, TypeError: it is something else.
        """
        texts = {field: data[field] for field in ("description", "ldap_group_ref")}
        if not all(text is None or isinstance(text, str) for text in texts.values()):
            raise TypeError("a text of a group")
        return cls(name=checked_id(name, "group"), roles=tuple(map(Role.parse, data["roles"])), **texts)


def checked_id(name: str, what: str) -> str:
    """The name of a user or a group that is made while the node runs.

    Raises:
        ConfigError: it cannot be one; names that begin with @ are those of services.
    """
    is_printable = all(char > " " and char != _DELETE for char in name)
    if not 0 < len(name) <= MAX_NAME_LENGTH or name.startswith("@") or not is_printable or FORBIDDEN & set(name):
        allowed = f"1 to {MAX_NAME_LENGTH} characters, without blanks and {' '.join(sorted(FORBIDDEN))}, not @ at first"
        raise ConfigError(what, name, allowed)
    return name
