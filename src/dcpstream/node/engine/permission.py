"""Whether a session's user may do what a request asks, at the place that the request is about.

Privileges that hold for the whole bucket are looked up in one set. Only where one is missing there, the document's
collection is looked at, or, for commands that are about no single document, whether any place in the bucket gives it.

Source: kv_engine daemon/mcbp_privileges.cc, daemon/cookie.cc (unknown collection instead of no access for those who
know nothing of it), docs/rbac.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dcpstream.errors import FieldError
from dcpstream.model import Manifest
from dcpstream.wire import Frame, Status, leb128_decode

if TYPE_CHECKING:
    from dcpstream.node.engine.commands import Command
    from dcpstream.node.engine.session import Session
    from dcpstream.node.engine.users import User

NOTHING: frozenset[str] = frozenset()


def has(rights: frozenset[str], privileges: str) -> bool:
    """Whether all of the privileges (their names with blanks between) are among the rights."""
    return privileges in rights or not privileges or all(name in rights for name in privileges.split())


def refusal_of(session: Session, command: Command, frame: Frame) -> int:
    """The status that refuses a request to this session's user, or 0; the session is logged in."""
    if has(session.rights, command.privilege):
        return Status.SUCCESS
    user, bucket = session.user, session.bucket
    if user is None or bucket is None:
        return Status.EACCESS
    if command.is_anywhere:
        names = command.privilege.split()
        return Status.SUCCESS if all(user.may_within(name, bucket.name) for name in names) else Status.EACCESS
    if not command.is_document:
        return Status.EACCESS
    collection_id = 0
    if session.has_collections:
        try:
            collection_id = leb128_decode(frame.key)[0]
        except FieldError:
            return Status.EINVAL
    return refusal_in(session, command.privilege, collection_id)


def refusal_in(session: Session, privileges: str, collection_id: int) -> int:
    """The status that refuses privileges (their names with blanks between) in a collection, or 0.

    UNKNOWN_COLLECTION: there is none of that id, or the user has nothing to do with it and is not told that there is.
    """
    if has(session.rights, privileges):
        return Status.SUCCESS
    user, bucket = session.user, session.bucket
    if user is None or bucket is None:
        return Status.EACCESS
    if session.places_of is not bucket.manifest:
        session.places_of = bucket.manifest
        session.places = bucket.manifest.collection_names()
    place = session.places.get(collection_id)
    if place is not None:
        if has(user.rights(bucket.name, *place), privileges):
            return Status.SUCCESS
        if user.knows(bucket.name, *place):
            return Status.EACCESS
    return Status.UNKNOWN_COLLECTION if session.has_collections else Status.EACCESS


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
