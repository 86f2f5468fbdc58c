"""Whether a session's user may do what a request asks, at the place that the request is about.

Privileges that hold for the whole bucket are looked up in one set. Only where one is missing there, the document's
collection is looked at, or, for commands that are about no single document, whether any place in the bucket gives it.

Source: kv_engine daemon/mcbp_privileges.cc, daemon/cookie.cc (unknown collection instead of no access for those who
know nothing of it), docs/rbac.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.model import Manifest
from dcpstream.node.engine.access.roles import BUCKET_PRIVILEGES
from dcpstream.wire import Frame, Status
from dcpstream.wire.keys import leb128_decode

if TYPE_CHECKING:
    from dcpstream.node.engine.access.users import User
    from dcpstream.node.engine.commands import Command
    from dcpstream.node.engine.session.session import Session

NOTHING: frozenset[str] = frozenset()


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


class Refusal(NamedTuple):
    """Why a user's request is refused.

    Attributes:
        status: EACCESS, or UNKNOWN_COLLECTION.
        privilege: the one that is missing; empty if the client is not told.
        context: another reason for the client.
    """

    status: int
    privilege: str = ""
    context: str = ""


def refusal_of(session: Session, command: Command, frame: Frame) -> Refusal | None:
    """Why a request is refused to this session's user, or None; the session is logged in."""
    if not command.privilege:
        return None
    user, bucket = session.user, session.bucket
    assert user is not None, "before the login only commands without a privilege are answered"
    if bucket is None:
        # Without a bucket nobody lacks a privilege that is given for buckets: the answer is that there is no bucket.
        missing = lacking(session.rights | BUCKET_PRIVILEGES, command.privilege)
        return _no_access(missing) if missing else None
    if has(session.rights, command.privilege):
        return None
    missing = lacking(session.rights, command.privilege)
    if command.is_anywhere:
        return None if all(user.may_within(name, bucket.name) for name in missing) else Refusal(Status.EACCESS)
    if not command.is_document:
        return _no_access(missing)
    collection_id = leb128_decode(frame.key)[0] if session.has_collections else 0
    return refusal_in(session, command.privilege, collection_id)


def refusal_in(session: Session, privileges: str, collection_id: int) -> Refusal | None:
    """Why privileges (as a command names them) are refused in a collection, or None.

    UNKNOWN_COLLECTION: there is none of that id, or the user has nothing to do with it and is not told that there is.
    A user with privileges in the whole bucket is told what is missing, whether there is such a collection or not.
    """
    if has(session.rights, privileges):
        return None
    missing = lacking(session.rights, privileges)
    user, bucket = session.user, session.bucket
    assert user is not None, "nothing is asked for before the login"
    assert bucket is not None, "only a bucket has collections"
    if session.places_of is not bucket.manifest:
        session.places_of = bucket.manifest
        session.places = bucket.manifest.collection_names()
    place = session.places.get(collection_id)
    if place is not None:
        rights = user.rights(bucket.name, *place)
        if has(rights, privileges):
            return None
        if user.knows(bucket.name, *place):
            return _no_access(lacking(rights, privileges))
    if user.knows(bucket.name, "") or not session.has_collections:
        return _no_access(missing)
    return Refusal(Status.UNKNOWN_COLLECTION)


def impersonated(session: Session, name: bytes) -> User | Refusal:
    """The user for whom a request is made, or why the session's own user may not make it."""
    user = session.user
    if user is None or not user.is_admin:
        return Refusal(Status.EACCESS, context="You need the Impersonate privilege in order to impersonate users")
    if name.startswith(b"^"):
        return Refusal(Status.NOT_SUPPORTED, context="External authentication service not configured")
    text = name.decode(errors="replace")
    other = session.engine.users.find(text)
    return other or Refusal(Status.EACCESS, context=f'User "{text}" is not a Couchbase user')


def _no_access(missing: list[str]) -> Refusal:
    return Refusal(Status.EACCESS, missing[0] if missing else "")


def visible_manifest(manifest: Manifest, user: User, bucket: str) -> Manifest:
    """The manifest as a user may know it: scopes and collections with which they have something to do."""
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
