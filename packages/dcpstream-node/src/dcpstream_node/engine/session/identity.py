"""The user of a session, and what they may do.

Privileges that hold for the whole bucket are kept in one set. The document's collection is looked up only if a
privilege is missing there, and every place in the bucket only for commands that name no single document.

Source: kv_engine daemon/mcbp_privileges.cc, daemon/cookie.cc (UNKNOWN_COLLECTION instead of EACCESS for users without
any privilege in the collection), docs/rbac.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.wire import Frame, Status
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.release import Rule
from dcpstream_node.engine.access.permission import Refusal, has, in_system_collection, lacking, refused
from dcpstream_node.engine.access.roles import BUCKET_PRIVILEGES, SYSTEM_PRIVILEGES

if TYPE_CHECKING:
    from dcpstream.model import Manifest
    from dcpstream_node.engine.access.users import User
    from dcpstream_node.engine.bucket.bucket import Bucket
    from dcpstream_node.engine.commands import Command

NOTHING: frozenset[str] = frozenset()


class Identity:
    """The user that a session acts for.

    Attributes:
        user: the user that is logged in, or None.
        rights: the user's privileges in the whole selected bucket, or in the node if no bucket is selected.
        rights_version: the user's `version` that they are of.
        dropped: privileges that the client gave up, until the next login.
        sees_system: the user may read and write system collections of the whole bucket.
        is_certified: the user comes from a client certificate; no other login is possible.
        expires_at: when the token of the login ends, seconds of the monotonic clock; None for a login without one.
    """

    def __init__(self) -> None:
        self.user: User | None = None
        self.rights = NOTHING
        self.is_certified = False
        self.expires_at: float | None = None
        self.rights_version = 0
        self.dropped = NOTHING
        self.sees_system = False
        self._places: dict[int, tuple[str, str]] = {}
        self._manifest: Manifest | None = None

    def update(self, bucket: Bucket | None) -> None:
        """Look up the rights again: after a login, in another bucket, or after a change of roles."""
        user = self.user
        self.rights = NOTHING
        if user is not None:
            self.rights_version = user.version
            self.rights = self.rights_at("" if bucket is None else bucket.name)
        self.sees_system = self.rights >= SYSTEM_PRIVILEGES

    def log_in(self, user: User | None, expires_at: float | None = None) -> None:
        """Act for a user, or for nobody; what was given up before holds no longer.

        Args:
            user: the user, or None.
            expires_at: see the attribute.
        """
        self.user = user
        self.expires_at = expires_at
        self.dropped = NOTHING

    def rights_at(self, bucket: str, scope: str = "", collection: str = "") -> frozenset[str]:
        """The user's rights at a place, without what was given up."""
        assert self.user is not None, "the session is logged in"
        return self.user.rights(bucket, scope, collection) - self.dropped

    def may_see_system(self, bucket: str, scope: str, collection: str = "") -> bool:
        """Whether the names of a system scope or collection are shown: either privilege is enough."""
        return not SYSTEM_PRIVILEGES.isdisjoint(self.rights_at(bucket, scope, collection))

    def may(self, privilege: str) -> bool:
        """Whether the user has a privilege in the whole selected bucket, or of the node if no bucket is selected."""
        return self.user is not None and has(self.rights, privilege)

    def refusal_of(
        self, command: Command, frame: Frame, bucket: Bucket | None, *, has_collections: bool
    ) -> Refusal | None:
        """Why the user may not make a request, or None, for a session with a login."""
        if not command.privilege:
            return None
        user = self.user
        assert user is not None, "before the login only commands without a privilege are answered"
        if bucket is None:
            # Without a bucket, privileges that are given for buckets count as present: the answer is NO_BUCKET.
            missing = lacking(self.rights | BUCKET_PRIVILEGES, command.privilege)
            return refused(missing) if missing else None
        sees_all = self.sees_system or not bucket.system_collections or not command.is_document
        if sees_all and has(self.rights, command.privilege):
            return None
        missing = lacking(self.rights, command.privilege)
        if command.is_anywhere:
            may = all(user.may_within(name, bucket.name) and name not in self.dropped for name in missing)
            return None if may else Refusal(Status.EACCESS)
        if not command.is_document:
            return refused(missing)
        collection_id = leb128_decode(frame.key)[0] if has_collections else 0
        return self.refusal_in(command.privilege, bucket, collection_id, has_collections=has_collections)

    def refusal_in(
        self, privileges: str, bucket: Bucket, collection_id: int, *, has_collections: bool
    ) -> Refusal | None:
        """Why privileges (as a command names them) are refused in a collection, or None.

        The status is UNKNOWN_COLLECTION if the collection does not exist, or if the user has no privilege in it and
        must not learn of it. Users with a privilege in the whole bucket learn which privilege is missing.
        """
        if collection_id in bucket.system_collections:
            privileges = in_system_collection(privileges)
        if has(self.rights, privileges):
            return None
        missing = lacking(self.rights, privileges)
        user = self.user
        assert user is not None, "the session is logged in"
        if self._manifest is not bucket.manifest:
            self._manifest = bucket.manifest
            self._places = bucket.manifest.collection_names()
        place = self._places.get(collection_id)
        if place is not None:
            rights = self.rights_at(bucket.name, *place)
            if has(rights, privileges):
                return None
            if user.knows(bucket.name, *place):
                return refused(lacking(rights, privileges))
        is_unknown = place is None and has_collections and bucket.release.has(Rule.UNKNOWN_COLLECTION_FIRST)
        if not has_collections or (user.knows(bucket.name, "") and not is_unknown):
            return refused(missing)
        return Refusal(Status.UNKNOWN_COLLECTION, is_hidden=not is_unknown)
