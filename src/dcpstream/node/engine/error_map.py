"""The error map: the attributes of statuses, for clients that negotiated XERROR.

Knows the names and the attributes of each status; nothing of sessions. Source: kv_engine docs/ErrorMap.md.
"""

from __future__ import annotations

import json
from functools import cache

from dcpstream.node.engine.release import Release
from dcpstream.wire import Status

NEWEST_VERSION = 2
"""The newest format of the map that we write; a client that asks for more gets this one."""

_ITEM = ("item-only",)
_FETCH = ("item-only", "constraint-failure")
_RETRY = ("temp", "retry-later")
_INTERNAL = ("internal",)
_PART_OF_ITEM = ("subdoc", "item-only")
_PART_OF_INPUT = ("subdoc", "invalid-input")
_ENTRIES: dict[Status, tuple[str, tuple[str, ...]]] = {
    Status.SUCCESS: ("Success", ("success",)),
    Status.KEY_ENOENT: ("Not Found", _ITEM),
    Status.KEY_EEXISTS: ("Key already exists, or CAS mismatch", _FETCH),
    Status.E2BIG: ("Value is too big", (*_ITEM, "invalid-input")),
    Status.EINVAL: ("Invalid packet", (*_INTERNAL, "invalid-input")),
    Status.NOT_STORED: ("Not stored", _FETCH),
    Status.DELTA_BADVAL: ("Existing document not a number", (*_ITEM, "invalid-input")),
    Status.NOT_MY_VBUCKET: ("Server does not know about this vBucket", ("fetch-config", "invalid-input")),
    Status.NO_BUCKET: ("Not connected to any bucket", ("conn-state-invalidated",)),
    Status.LOCKED: ("Requested resource is locked", (*_ITEM, "item-locked", "retry-now")),
    Status.DCP_STREAM_NOT_FOUND: ("No DCP stream with this opaque", ("conn-state-invalidated",)),
    Status.OPAQUE_NO_MATCH: ("The DCP message's opaque does not match the stream", ("item-only",)),
    Status.WOULD_THROTTLE: ("The command would be throttled", _RETRY),
    Status.NOT_LOCKED: ("Requested resource is not locked", _ITEM),
    Status.AUTH_STALE: ("Reauthentication required", ("conn-state-invalidated", "auth")),
    Status.AUTH_ERROR: ("Authentication failed", ("conn-state-invalidated", "auth")),
    Status.AUTH_CONTINUE: ("Another step of the login is needed", ("special-handling",)),
    Status.ERANGE: ("Value is outside the range", ("invalid-input",)),
    Status.ROLLBACK: ("Rollback required", ("special-handling",)),
    Status.EACCESS: ("Not authorized", ("support",)),
    Status.UNKNOWN_FRAME_INFO: ("Unknown frame info", ("support", *_INTERNAL)),
    Status.UNKNOWN_COMMAND: ("The server does not know this command", ("support",)),
    Status.ENOMEM: ("The server is out of memory", _RETRY),
    Status.NOT_SUPPORTED: ("The server does not support this command", ("support", *_INTERNAL)),
    Status.EINTERNAL: ("Internal error in the server", ("internal", "conn-state-invalidated")),
    Status.BUSY: ("The server is too busy", _RETRY),
    Status.TMPFAIL: ("The server is temporarily unable", _RETRY),
    Status.XATTR_EINVAL: ("Invalid extended attributes", (*_ITEM, "invalid-input")),
    Status.UNKNOWN_COLLECTION: ("Unknown collection", ("item-only", "special-handling")),
    Status.CANNOT_APPLY_MANIFEST: ("The manifest cannot be applied", ("invalid-input",)),
    Status.UNKNOWN_SCOPE: ("Unknown scope", ("item-only", "special-handling")),
    Status.DCP_STREAMID_INVALID: ("Invalid DCP stream id", ("invalid-input",)),
    Status.DURABILITY_INVALID_LEVEL: ("Invalid durability level", (*_ITEM, "invalid-input")),
    Status.DURABILITY_IMPOSSIBLE: ("The durability cannot be had", (*_ITEM, "retry-later")),
    Status.SYNC_WRITE_IN_PROGRESS: ("A durable write is under way", (*_ITEM, "retry-later")),
    Status.SYNC_WRITE_AMBIGUOUS: ("The outcome of the durable write is unknown", ("item-only",)),
    Status.RANGE_SCAN_CANCELLED: ("The range scan was cancelled", ("success",)),
    Status.RANGE_SCAN_MORE: ("The range scan has more to tell", ("success",)),
    Status.RANGE_SCAN_COMPLETE: ("The range scan is complete", ("success",)),
    Status.VBUUID_NOT_EQUAL: ("The vBucket has another uuid", ("invalid-input",)),
    Status.SUBDOC_PATH_ENOENT: ("There is nothing at the path", _PART_OF_ITEM),
    Status.SUBDOC_PATH_MISMATCH: ("Path and document disagree about objects and arrays", _PART_OF_ITEM),
    Status.SUBDOC_PATH_EINVAL: ("The path is none, or none for this operation", _PART_OF_INPUT),
    Status.SUBDOC_PATH_E2BIG: ("The path has too many parts", _PART_OF_INPUT),
    Status.SUBDOC_DOC_E2DEEP: ("The document is too deep", _PART_OF_INPUT),
    Status.SUBDOC_VALUE_CANTINSERT: ("The value cannot be put in", _PART_OF_INPUT),
    Status.SUBDOC_DOC_NOTJSON: ("The document is not JSON", _PART_OF_ITEM),
    Status.SUBDOC_NUM_ERANGE: ("The number in the document is out of range", _PART_OF_ITEM),
    Status.SUBDOC_DELTA_EINVAL: ("The delta is none", _PART_OF_ITEM),
    Status.SUBDOC_PATH_EEXISTS: ("There is something at the path", _PART_OF_ITEM),
    Status.SUBDOC_VALUE_ETOODEEP: ("The value makes the document too deep", (*_PART_OF_INPUT, "item-only")),
    Status.SUBDOC_INVALID_COMBO: ("The operations do not go together", _PART_OF_INPUT),
    Status.SUBDOC_MULTI_FAILURE: ("An operation failed, see the value", ("subdoc", "special-handling")),
    Status.SUBDOC_SUCCESS_DELETED: ("Done, on a deleted document", ("item-deleted", "success", "subdoc")),
    Status.SUBDOC_XATTR_INVALID_FLAG_COMBO: ("The flags do not go together", _PART_OF_INPUT),
    Status.SUBDOC_XATTR_INVALID_KEY_COMBO: ("The attributes do not go together", _PART_OF_INPUT),
    Status.SUBDOC_XATTR_UNKNOWN_MACRO: ("There is no such macro", _PART_OF_INPUT),
    Status.SUBDOC_XATTR_UNKNOWN_VATTR: ("There is no such virtual attribute", _PART_OF_INPUT),
    Status.SUBDOC_XATTR_CANT_MODIFY_VATTR: ("Virtual attributes are for reading", _PART_OF_INPUT),
    Status.SUBDOC_MULTI_FAILURE_DELETED: (
        "An operation on a deleted document failed, see the value",
        ("item-deleted", "subdoc", "special-handling"),
    ),
    Status.SUBDOC_INVALID_XATTR_ORDER: ("Attributes have to come before the body", _PART_OF_INPUT),
    Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO: ("There is no such macro about the document", _PART_OF_INPUT),
    Status.SUBDOC_CAN_ONLY_REVIVE_DELETED: ("Only deleted documents can be revived", _PART_OF_ITEM),
    Status.SUBDOC_DELETED_CANT_HAVE_VALUE: ("A deleted document has no body", _PART_OF_ITEM),
    Status.SUBDOC_FIELD_NOT_BINARY_VALUE: ("The attribute does not hold bytes", _PART_OF_ITEM),
}


@cache
def error_map(version: int, release: Release) -> bytes | None:
    """The map of a release as JSON, of the newest format not newer than `version`; None if there is none."""
    if version < 1:
        return None
    errors = {
        f"{status:x}": {"name": status.name, "desc": text, "attrs": list(attributes)}
        for status, (text, attributes) in _ENTRIES.items()
        if status not in release.unknown_statuses
    }
    content = {"version": min(version, NEWEST_VERSION), "revision": release.error_map_revision, "errors": errors}
    return json.dumps(content, separators=(",", ":")).encode()
