"""Options of STAT dcp: the user of the connections, and the format of streams.

`{"stream_format": "legacy" | "json" | "skip", "filter": {"user": NAME}}`, all of it optional. Like the server, the
node ignores unknown values.

Source: kv_engine engines/ep/src/ep_engine.cc (DcpStatsOptions), connhandler.cc (doStreamStatsJson).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket

LEGACY, JSON, SKIP = "legacy", "json", "skip"

_STREAM = re.compile(r"(eq_dcpq:.*:(?:stream|filter)_\d+)_.*", re.DOTALL)
"""A key of a stream; what is before its last part stands for the stream."""


class DcpStatOptions(NamedTuple):
    """Options of one request."""

    stream_format: str = LEGACY
    user: str | None = None


def read_options(value: bytes) -> DcpStatOptions:
    """The options in a value, which is JSON or empty."""
    data = json.loads(value) if value else {}
    if not isinstance(data, dict):
        return DcpStatOptions()
    asked, chosen = data.get("stream_format"), data.get("filter")
    user = chosen.get("user") if isinstance(chosen, dict) else None
    return DcpStatOptions(asked if asked in (JSON, SKIP) else LEGACY, user if isinstance(user, str) else None)


def apply_options(
    bucket: Bucket, items: Iterable[tuple[str, object]], options: DcpStatOptions
) -> Iterator[tuple[str, object]]:
    """The items that the options leave, streams in the form that they ask for."""
    left_out = tuple(
        f"eq_dcpq:{name}:"
        for name, session in bucket.dcp_sessions.items()
        if options.user is not None and session.user_name != options.user
    )
    gathered: dict[str, dict[str, str]] = {}
    rest: list[tuple[str, object]] = []
    for key, value in items:
        if left_out and key.startswith(left_out):
            continue
        found = _STREAM.fullmatch(key) if options.stream_format != LEGACY else None
        if found is None:
            rest.append((key, value))
        elif options.stream_format == JSON:
            stream = found[1].replace(":filter_", ":stream_")
            gathered.setdefault(stream, {})[key] = str(value)
    yield from ((key, json.dumps(values)) for key, values in gathered.items())
    yield from rest
