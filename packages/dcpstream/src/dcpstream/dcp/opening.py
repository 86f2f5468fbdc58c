"""DCP_OPEN: the request that makes a connection a producer or a consumer, read and checked.

Source: kv_engine daemon/protocol/mcbp/dcp_open_executor.cc, daemon/mcbp_validators.cc, checked against recordings.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from dcpstream.dcp.refusals import Refusal, bad_flags, check_shape
from dcpstream.wire import Datatype, Frame, OpenFlag, Status
from dcpstream.wire.messages.dcp import Open
from dcpstream.wire.release import DEFAULT_RELEASE, Release


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A legal DCP_OPEN.

    Attributes:
        name: the connection's name; any bytes.
        flags: see `OpenFlag`.
        consumer_name: the name of a consumer that takes part in durable writes, or "".
        drops: a server closes the connection on this request, although it is well formed.
    """

    name: bytes
    flags: int
    consumer_name: str = ""
    drops: bool = False

    @property
    def is_producer(self) -> bool:
        """Whether the server's end becomes a producer."""
        return bool(self.flags & OpenFlag.PRODUCER)


@dataclass(frozen=True, slots=True)
class Opening:
    """The opening of a DCP connection: DCP_OPEN, and the features that HELLO granted before.

    Attributes:
        name: of the connection.
        flags: see `OpenFlag`.
        features: codes that HELLO granted.
        consumer_name: of DCP_OPEN's JSON, or "".
    """

    name: str
    flags: int = 0
    features: Collection[int] = frozenset()
    consumer_name: str = ""


def read_open(
    frame: Frame, release: Release = DEFAULT_RELEASE, *, has_collections: bool = False
) -> OpenRequest | Refusal:
    """Read a DCP_OPEN frame that a node of a release got, or refuse it; `has_collections` by HELLO."""
    refusal = check_shape(frame, release=release, has_collections=has_collections)
    if refusal is not None:
        return refusal
    flags = Open.decode(frame).flags
    context = _bad_flags(flags, release)
    if context:
        return Refusal(Status.EINVAL, context)
    if not frame.value:
        if frame.datatype:
            return Refusal(Status.EINVAL, "Request datatype invalid")
        return OpenRequest(frame.key, flags)
    return _read_value(frame, flags)


def _bad_flags(flags: int, release: Release) -> str:
    if flags & ~release.open_flags:
        return bad_flags(flags & ~release.open_flags, release, {OpenFlag.INVALID_PITR: "PiTR"})
    if flags & OpenFlag.INVALID_PITR and not flags & OpenFlag.PRODUCER:
        return "PiTR require Producer to be set"
    if flags & OpenFlag.NO_VALUE and flags & OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE:
        return "Request contains invalid flags combination (NO_VALUE && NO_VALUE_WITH_UNDERLYING_DATATYPE)"
    if flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS and not flags & OpenFlag.INCLUDE_XATTRS:
        return "Request contains invalid flags combination - IncludeDeletedUserXattrs but not IncludeXattrs"
    if flags & OpenFlag.SKIP_DELETES_IN_BACKFILL and not flags & OpenFlag.PRODUCER:
        return "SkipDeletesInInitialBackfill requires Producer to be set"
    return ""


def _read_value(frame: Frame, flags: int) -> OpenRequest | Refusal:
    if frame.datatype != Datatype.JSON:
        return Refusal(Status.EINVAL, "datatype should be set to JSON for non-empty value")
    try:
        document = json.loads(frame.value)
    except (ValueError, RecursionError):
        return Refusal(Status.EINVAL, "value is not valid JSON")
    if not isinstance(document, dict):
        return Refusal(Status.EINVAL, "value must be JSON of type object")
    unknown = next((name for name in document if name != "consumer_name"), None)
    if unknown is not None:
        return Refusal(Status.EINVAL, f"Unsupported JSON property {unknown}")
    if flags & OpenFlag.PRODUCER and document:
        return Refusal(Status.EINVAL, "consumer_name only valid for Consumer connections")
    name = document.get("consumer_name", "")
    if not isinstance(name, str):
        return Refusal(Status.EINVAL, "consumer_name must be a string")
    return OpenRequest(frame.key, flags, name, drops=not document and not flags & OpenFlag.PRODUCER)
