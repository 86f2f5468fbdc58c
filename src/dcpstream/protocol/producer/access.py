"""Who may stream what: the privilege DcpStream, of a whole bucket, of scopes or of single collections.

The producer asks when a stream is requested and again at each of its markers, so that a privilege taken away ends the
stream. It knows collections by their ids and nothing of users; the node answers.

Source: kv_engine engines/ep/src/collections/vbucket_filter.cc (checkPrivileges), docs/rbac.md.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from dcpstream.protocol.answers import Refusal
from dcpstream.protocol.producer.stream_filter import StreamFilter
from dcpstream.wire import Status

__all__ = ["Access", "StreamAccess", "everything", "refusal_of"]


class Access(Enum):
    """What a user may do at a place."""

    GRANTED = "granted"
    DENIED = "known to the user, who may not stream it"
    INVISIBLE = "the user has no privilege there, and is not told that it exists"


StreamAccess = Callable[[int | None, int | None], Access]
"""(scope id, collection id) → access; a collection alone has scope None, the bucket has both None."""


def everything(scope_id: int | None, collection_id: int | None) -> Access:
    """The access of a user who may stream all."""
    return Access.GRANTED


def refusal_of(wanted: StreamFilter, access: StreamAccess, manifest_uid: int) -> Refusal | None:
    """Why a stream is not to be had, or None.

    Args:
        wanted: what it is to carry.
        manifest_uid: told along with what seems not to exist.
    """
    if wanted.scope_id is not None:
        found = [access(wanted.scope_id, None)]
        unknown = Status.UNKNOWN_SCOPE
    else:
        ids = wanted.collection_ids
        found = [access(None, None)] if ids is None else [access(None, number) for number in sorted(ids)]
        unknown = Status.EACCESS if ids is None else Status.UNKNOWN_COLLECTION
    if Access.INVISIBLE in found and unknown is not Status.EACCESS:
        return Refusal(unknown, "Unknown scope or collection in operation", manifest_uid)
    return None if all(item is Access.GRANTED for item in found) else Refusal(Status.EACCESS)
