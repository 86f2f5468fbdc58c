"""Privileges: which are missing, how a request without them is refused, and what of a manifest a user may see.

Source: kv_engine daemon/mcbp_privileges.cc, docs/rbac.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.model import Manifest
from dcpstream.wire import Status

LOOKUP, _MUTATION = "SystemCollectionLookup", "SystemCollectionMutation"
_OF_SYSTEM = {
    **dict.fromkeys(("Read", "RangeScan", "DcpStream", "SimpleStats"), LOOKUP),
    **dict.fromkeys(("Upsert", "Insert", "Delete", "MetaWrite"), _MUTATION),
}
"""Privilege → the one that is needed with it in a system collection."""

if TYPE_CHECKING:
    from dcpstream_node.engine.access.users import User, Users


def has(rights: frozenset[str], privileges: str) -> bool:
    """Whether the privileges are among the rights: names with blanks between for all, with bars for one of them."""
    if privileges in rights or not privileges:
        return True
    return not lacking(rights, privileges)


def lacking(rights: frozenset[str], privileges: str) -> list[str]:
    """The privileges that are missing; of those with a bar between one is enough, and the last one is named."""
    found = []
    for names in privileges.split():
        choices = names.split("|")
        if rights.isdisjoint(choices):
            found.append(choices[-1])
    return found


@cache
def in_system_collection(privileges: str) -> str:
    """The privileges that a request needs in a system collection if it needs these elsewhere."""
    found = []
    for names in privileges.split():
        extra = _OF_SYSTEM.get(names.partition("|")[0])
        found += [extra, names] if extra else [names]
    return " ".join(found)


class Refusal(NamedTuple):
    """Why a user's request is refused.

    Attributes:
        status: EACCESS, or UNKNOWN_COLLECTION.
        privilege: the missing one; empty if the client must not learn it.
        context: another reason for the client.
        is_hidden: the client must not learn whether the collection exists.
    """

    status: int
    privilege: str = ""
    context: str = ""
    is_hidden: bool = False


def refused(missing: list[str]) -> Refusal:
    """The refusal for lack of privileges."""
    return Refusal(Status.EACCESS, missing[0] if missing else "")


def impersonated(user: User | None, users: Users, name: bytes) -> User | Refusal:
    """The user for whom `user` makes a request, or why `user` may not make it."""
    if user is None or not user.is_admin:
        return Refusal(Status.EACCESS, context="You need the Impersonate privilege in order to impersonate users")
    if name.startswith(b"^"):
        return Refusal(Status.NOT_SUPPORTED, context="External authentication service not configured")
    text = name.decode(errors="replace")
    other = users.find(text)
    return other or Refusal(Status.EACCESS, context=f'User "{text}" is not a Couchbase user')


def visible_manifest(manifest: Manifest, user: User, bucket: str) -> Manifest:
    """The scopes and collections that a user may see."""
    if user.knows(bucket, ""):
        return manifest
    scopes = (
        replace(
            scope, collections=tuple(item for item in scope.collections if user.knows(bucket, scope.name, item.name))
        )
        for scope in manifest.scopes
        if user.knows(bucket, scope.name)
    )
    return replace(manifest, scopes=tuple(scopes))


def without_system(manifest: Manifest, may_see: Callable[[str, str], bool]) -> Manifest:
    """The manifest without the system's scopes and collections that a user may not see; they are given by name."""
    return replace(
        manifest,
        scopes=tuple(
            replace(
                scope,
                collections=tuple(
                    item for item in scope.collections if not item.is_system or may_see(scope.name, item.name)
                ),
            )
            for scope in manifest.scopes
            if not scope.is_system or may_see(scope.name, "")
        ),
    )
