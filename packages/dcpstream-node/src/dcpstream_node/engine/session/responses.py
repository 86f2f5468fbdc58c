"""Contents of responses: reasons in JSON, statuses for old clients, and the duration of a request.

Source: kv_engine daemon/cookie.cc (errors), daemon/connection.cc (statuses without XERROR), tracing/tracer.cc.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dcpstream.wire import Status

DURATION_MAX_US = 120_125_042
"""The longest duration that the 16 bits can hold, two minutes; longer ones are sent as this one."""
DURATION_INFO = 0x02
"""Element of the framing extras: id 0 (duration of the request in the server), two bytes."""

CLOSES_WITHOUT_XERROR = frozenset(
    (
        Status.EACCESS,
        Status.NO_BUCKET,
        Status.AUTH_STALE,
        Status.DCP_STREAMID_INVALID,
        Status.DURABILITY_IMPOSSIBLE,
        Status.SYNC_WRITE_AMBIGUOUS,
        Status.RANGE_SCAN_CANCELLED,
        Status.VBUUID_NOT_EQUAL,
    )
)
"""Statuses that a client without XERROR does not know, and that have no older equivalent: the connection is closed."""
WITHOUT_XERROR: Mapping[int, int] = MappingProxyType(
    {
        Status.CONFIG_ONLY: Status.NOT_SUPPORTED,
        Status.LOCKED: Status.KEY_EEXISTS,
        Status.NOT_LOCKED: Status.TMPFAIL,
        Status.CANNOT_APPLY_MANIFEST: Status.EINTERNAL,
        Status.SYNC_WRITE_IN_PROGRESS: Status.TMPFAIL,
        Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS: Status.TMPFAIL,
    }
)
"""Statuses that came with XERROR → what a client without XERROR gets instead."""


def encode_duration(microseconds: float) -> int:
    """A duration in 16 bits: exact for short ones, some per cent off for long ones."""
    return int(math.pow(2 * min(max(microseconds, 0), DURATION_MAX_US), 1 / 1.74) + 0.5)


def pack_duration(seconds: float) -> bytes:
    """The framing extras with the duration of a request."""
    return bytes((DURATION_INFO,)) + encode_duration(seconds * 1e6).to_bytes(2, "big")


def reason_json(context: str | None = None, reference: str | None = None, **more: str) -> bytes:
    """The value of an error response; empty without content."""
    error = {name: text for name, text in (("context", context), ("ref", reference)) if text is not None}
    content: dict[str, Any] = {"error": error, **more} if error else dict(more)
    return json.dumps(content, separators=(",", ":")).encode() if content else b""
