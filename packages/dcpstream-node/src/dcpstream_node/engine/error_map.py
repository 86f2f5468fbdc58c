"""The error map: the attributes of statuses, for clients that negotiated XERROR.

`error_map.json` has the text and the attributes of each status. Source: kv_engine docs/ErrorMap.md.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from dcpstream.wire import Status
from dcpstream.wire.release import Release

NEWEST_VERSION = 2
"""The newest format of the map that we write; a client that asks for more gets this one."""


@cache
def error_map(version: int, release: Release) -> bytes | None:
    """The map of a release as JSON, of the newest format not newer than `version`; None if there is none."""
    if version < 1:
        return None
    entries = json.loads((files(__package__) / "error_map.json").read_text(encoding="utf-8"))
    errors = {
        f"{status:x}": {"name": status.name, "desc": text, "attrs": attributes}
        for status, (text, *attributes) in ((Status[name], entry) for name, entry in entries.items())
        if status not in release.unknown_statuses
    }
    content = {"version": min(version, NEWEST_VERSION), "revision": release.error_map_revision, "errors": errors}
    return json.dumps(content, separators=(",", ":")).encode()
