"""The privilege DcpStream: whether a user may stream a bucket, a scope or single collections.

Of system collections a user needs SystemCollectionLookup, too; without it, a stream of everything leaves them out.

The producer asks when a stream is requested. It asks again before a marker if the answer may have changed, so that a
privilege taken away ends the stream. The producer knows collections by their ids and knows nothing of users; the node
answers.

Source: kv_engine engines/ep/src/collections/vbucket_filter.cc (checkPrivileges), docs/rbac.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from dcpstream.dcp.producer.stream_filter import StreamFilter
from dcpstream.dcp.refusals import Refusal, unknown_place
from dcpstream.wire import Status


class Access(Enum):
    """The user's privilege at a place."""

    GRANTED = "granted"
    DENIED = "not granted; the user may know that the place exists"
    INVISIBLE = "not granted, as no other privilege is; the user does not learn that the place exists"


class StreamAccess(Protocol):
    """The access of a user to a bucket's history."""

    def basis(self) -> object:
        """A value that differs from an earlier one if an answer of `at` may differ."""
        ...

    def at(self, scope_id: int | None, collection_id: int | None) -> Access:
        """The access to a place; a collection alone has scope None, the bucket has both None."""
        ...

    def sees_system(self) -> bool:
        """Whether a stream of everything has the system's collections, too; before 7.6 there are none."""
        ...


class _Everything:
    """The access of a user with every privilege."""

    def basis(self) -> None:
        """None: the answer never changes."""

    def at(self, scope_id: int | None, collection_id: int | None) -> Access:
        """The privilege is granted everywhere."""
        return Access.GRANTED

    def sees_system(self) -> bool:
        """Nothing is hidden."""
        return True


everything: StreamAccess = _Everything()
"""The access of a user with every privilege."""


def refusal_of(wanted: StreamFilter, access: StreamAccess, manifest_uid: int) -> Refusal | None:
    """Refuse a stream that the user may not have; None if the user may have it.

    Args:
        wanted: the stream's filter.
        manifest_uid: part of the answer for a place that the user may not know.
    """
    ids = wanted.collection_ids
    if wanted.scope_id is not None:
        found = [access.at(wanted.scope_id, None)]
        unknown = Status.UNKNOWN_SCOPE
    elif ids is None or wanted.hides_system:
        is_granted = access.at(None, None) is Access.GRANTED and (wanted.hides_system or access.sees_system())
        return None if is_granted else Refusal(Status.EACCESS)
    else:
        found = [access.at(None, number) for number in sorted(ids)]
        unknown = Status.UNKNOWN_COLLECTION
    if Access.INVISIBLE in found:
        return unknown_place(unknown, manifest_uid)
    return None if all(item is Access.GRANTED for item in found) else Refusal(Status.EACCESS)


class StandingAccess:
    """The access of one stream's user, who may lose it; it is only checked again if it may have changed."""

    def __init__(self, wanted: StreamFilter, access: StreamAccess) -> None:
        self._wanted = wanted
        self._access = access
        self._basis: object = None

    def is_granted(self) -> bool:
        """Whether the user may still have the stream."""
        basis = self._access.basis()
        if basis == self._basis:
            return True
        if refusal_of(self._wanted, self._access, 0) is not None:
            return False
        self._basis = basis
        return True
