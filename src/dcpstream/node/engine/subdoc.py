"""Parts of a JSON document, addressed by paths: what a small part of the server's sub-document API needs.

A path is names with dots between them, `a.b.c`, and numbers of array elements, `a[0]` or `a[-1]` for the last one. A
whole attribute or document is put in as the text that came; inside of one the rest is written anew without blanks.

Source: kv_engine docs/SubDocument.md, docs/ExtendedAttributes.md.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dcpstream.wire import Opcode, Status

_PART = re.compile(r"([^.\[\]`]+|`(?:[^`]|``)+`)((?:\[(?:\d+|-1)\])*)(\.|$)")
_INDEX = re.compile(r"\[(\d+|-1)\]")

DEPTH_MAX = 32
"""Parts of a path: the server's limit."""

Path = tuple[str | int, ...]


class PathError(Exception):
    """A path cannot be followed, or nothing can be done there; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status 0x{int(status):02x}")
        self.status = int(status)


def parse_path(text: str) -> Path:
    """The names and numbers of a path.

    Raises:
        PathError: it is none.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text) or text.endswith("."):
        match = _PART.match(text, at)
        if match is None:
            raise PathError(Status.SUBDOC_PATH_EINVAL)
        name = match[1]
        parts.append(name[1:-1].replace("``", "`") if name.startswith("`") else name)
        parts += [int(number) for number in _INDEX.findall(match[2])]
        at = match.end()
        if at == len(text) and match[3]:
            raise PathError(Status.SUBDOC_PATH_EINVAL)
        if not match[3]:
            break
    if len(parts) > DEPTH_MAX:
        raise PathError(Status.SUBDOC_PATH_E2BIG)
    return tuple(parts)


def _step(value: Any, part: str | int) -> Any:
    if isinstance(part, str) and isinstance(value, dict):
        if part in value:
            return value[part]
    elif isinstance(part, int) and isinstance(value, list):
        if -1 <= part < len(value) and value:
            return value[part]
    else:
        raise PathError(Status.SUBDOC_PATH_MISMATCH)
    raise PathError(Status.SUBDOC_PATH_ENOENT)


def load(text: bytes, status: int) -> Any:
    """The JSON value in a text, or a PathError with this status."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise PathError(status) from None


def dump(value: Any) -> bytes:
    """A JSON value as text without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def look_up(document: bytes, path: Path) -> bytes:
    """The text of what is at a path.

    Raises:
        PathError: nothing is there, or the document is no JSON.
    """
    if not path:
        return document
    value = load(document, Status.SUBDOC_DOC_NOTJSON)
    for part in path:
        value = _step(value, part)
    return dump(value)


def change(document: bytes, opcode: int, path: Path, text: bytes, *, creates_parents: bool) -> bytes:
    """The document with a part put in, replaced or taken out.

    Args:
        opcode: SUBDOC_DICT_ADD, DICT_UPSERT, REPLACE or DELETE.
        path: not empty.
        text: JSON of the new value; not looked at for DELETE.
        creates_parents: objects that are missing on the way are made.

    Raises:
        PathError: it cannot be done.
    """
    root = load(document, Status.SUBDOC_DOC_NOTJSON)
    new = None if opcode == Opcode.SUBDOC_DELETE else load(text, Status.SUBDOC_VALUE_CANTINSERT)
    parent = root
    for part in path[:-1]:
        if creates_parents and isinstance(parent, dict) and isinstance(part, str) and part not in parent:
            parent[part] = {}
        parent = _step(parent, part)
    last = path[-1]
    if opcode in (Opcode.SUBDOC_REPLACE, Opcode.SUBDOC_DELETE):
        _step(parent, last)
        if opcode == Opcode.SUBDOC_DELETE:
            del parent[last]
        else:
            parent[last] = new
        return dump(root)
    if not isinstance(parent, dict) or not isinstance(last, str):
        raise PathError(Status.SUBDOC_PATH_MISMATCH)
    if opcode == Opcode.SUBDOC_DICT_ADD and last in parent:
        raise PathError(Status.SUBDOC_PATH_EEXISTS)
    parent[last] = new
    return dump(root)
