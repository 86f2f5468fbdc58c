"""The users of a test as the file that a server reads its privileges from (`rbac_file` of its configuration).

The server reads it again at RBAC_REFRESH. Names of privileges are those of the server's release.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dcpstream_node.engine import Users
from dcpstream_node.engine.access.roles import ALL_PRIVILEGES, BUCKET_PRIVILEGES, COLLECTION_PRIVILEGES
from dcpstream_node.engine.bucket.manifest import read_manifest

ADMINISTRATORS = ("admin", "@admin")
"""The names that tests have for the server's administrator."""
UNKNOWN = frozenset({"MetaRead"})
"""Privileges of a node that no server of a release here knows."""
BEFORE_76 = {
    "Administrator": ("NodeManagement", "SecurityManagement", "AuditManagement"),
    "NodeSupervisor": ("BucketManagement", "SessionManagement"),
    **dict.fromkeys(
        ("BucketThrottleManagement", "RangeScan", "SystemCollectionLookup", "SystemCollectionMutation"), ()
    ),
}
"""Privileges that came with 7.6, and what stood for them."""


class PrivilegesFile:
    """The file, with what was in it before the first test wrote it.

    Args:
        path: the file.
        release: of the server.
    """

    def __init__(self, path: Path, release: str) -> None:
        self._path = path
        self._release = release
        self._before = path.read_text("utf-8")
        self._content = self._before

    def write(self, users: Users, bucket: str, manifest: bytes) -> bool:
        """Write the privileges of a test's users, beside those of the server's own; False if they are there already.

        Args:
            users: of a node whose bucket is `default`.
            bucket: the name of that bucket at the server.
            manifest: its scopes and collections.
        """
        entries = json.loads(self._before)
        for user in users.everyone():
            if user.name not in ADMINISTRATORS:
                entries[user.name] = self._entry(user, bucket, manifest)
        return self._put(json.dumps(entries, indent=1))

    def restore(self) -> bool:
        """Write what was there before; False if it is there."""
        return self._put(self._before)

    def _put(self, content: str) -> bool:
        if content == self._content:
            return False
        self._path.write_text(content, "utf-8")
        self._content = content
        return True

    def _entry(self, user: Any, bucket: str, manifest: bytes) -> dict[str, Any]:
        here = user.rights("default")
        scopes: dict[str, Any] = {}
        for scope in read_manifest(manifest).scopes:
            in_scope = user.rights("default", scope.name)
            collections = {}
            for collection in scope.collections:
                found = user.rights("default", scope.name, collection.name) & COLLECTION_PRIVILEGES
                if more := self._names(found - in_scope):
                    collections[f"{collection.collection_id:x}"] = {"privileges": more}
            more = self._names((in_scope - here) & COLLECTION_PRIVILEGES)
            if more or collections:
                scopes[f"{scope.scope_id:x}"] = {"privileges": more} | (
                    {"collections": collections} if collections else {}
                )
        in_bucket = self._names(here & BUCKET_PRIVILEGES)
        place = {"privileges": in_bucket} | ({"scopes": scopes} if scopes else {})
        return {
            "buckets": {bucket: place} if in_bucket or scopes else {},
            "privileges": self._names(user.rights() & (ALL_PRIVILEGES - BUCKET_PRIVILEGES)),
            "domain": "local",
        }

    def _names(self, privileges: Iterable[str]) -> list[str]:
        names: set[str] = set()
        for name in set(privileges) - UNKNOWN:
            names |= set(BEFORE_76.get(name, (name,)) if self._release == "7.2" else (name,))
        return sorted(names)
