"""Paths to parts of a JSON document: `a.b[0].c`, `[-1]` for the last element, a name in backticks if it has dots.

Names keep their JSON escapes, because they are put into documents as they are. Like the server, the parser accepts a
dot at the end and reads `[]` as `[0]`.

Source: couchbase/subjson subdoc/path.cc, kv_engine docs/SubDocument.md.
"""

from __future__ import annotations

from typing import Final

from dcpstream.wire import Status

PATH_BYTES_MAX: Final = 1024
"""Longest path in a request: the server's limit."""

PATH_PARTS_MAX: Final = 31
"""Most names and numbers in a path: with the root, the 32 levels of the server's parser."""

LEVELS_MAX: Final = 32
"""Most levels of a document, with the root as the first and a scalar as a level of its own: the server's limit."""

_ESCAPABLE: Final = frozenset('"/\\bfnrt')
"""Characters allowed after a backslash in a path; `u` is not."""

Part = str | int
Path = tuple[Part, ...]


class PathError(Exception):
    """A path has no value, or the operation is not possible there; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status 0x{int(status):02x}")
        self.status = int(status)


def parse_path(path: bytes) -> Path:
    """The names and numbers of a path; empty for the root.

    Raises:
        PathError: SUBDOC_PATH_EINVAL: not a path; SUBDOC_PATH_E2BIG: too many parts.
    """
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise PathError(Status.SUBDOC_PATH_EINVAL) from None
    parts: list[Part] = []
    at = 0
    while at < len(text):
        part: Part
        part, at = _read_index(text, at) if text[at] == "[" else _read_name(text, at)
        if len(parts) == PATH_PARTS_MAX:
            raise PathError(Status.SUBDOC_PATH_E2BIG)
        parts.append(part)
    return tuple(parts)


def _read_index(text: str, at: int) -> tuple[int, int]:
    """(number, position after it) of `[number]` and the dot that may follow."""
    end = text.find("]", at)
    digits = text[at + 1 : end]
    if end < 0 or not (digits in ("", "-1") or (digits.isascii() and digits.isdigit())):
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    at = end + 1
    if at < len(text) and text[at] not in ".[":
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    return int(digits or "0"), at + (text[at : at + 1] == ".")


def _read_name(text: str, at: int) -> tuple[str, int]:
    """(name, position after it) of a name, which ends at a dot, at a bracket or with the text; the dot is skipped."""
    start, is_quoted, is_escaped = at, False, False
    end = after = len(text)
    while at < len(text):
        character = text[at]
        if is_escaped:
            if character not in _ESCAPABLE:
                raise PathError(Status.SUBDOC_PATH_EINVAL)
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif character == '"' or character < " ":
            raise PathError(Status.SUBDOC_PATH_EINVAL)
        if character == "`":
            is_quoted = not is_quoted
        elif not is_quoted and character in ".[":
            end, after = at, at + (character == ".")
            break
        elif not is_quoted and character == "]":
            raise PathError(Status.SUBDOC_PATH_EINVAL)
        at += 1
    name = text[start:end]
    if is_quoted or is_escaped:
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    if len(name) > 1 and name[0] == name[-1] == "`":
        name = name[1:-1]
    if "`" in name:
        name = name.replace("``", "\0").replace("`", "").replace("\0", "`")
    if not name:
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    return name, after
