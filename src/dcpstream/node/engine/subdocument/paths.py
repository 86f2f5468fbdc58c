"""Paths to parts of a JSON document: `a.b[0].c`, `[-1]` for the last element, a name in backticks if it has dots.

A name stays as it stands in JSON, with its escapes, because that is how it is put into a document. Like the server's,
the reader of paths lets a dot at the end pass and reads `[]` as `[0]`.

Source: couchbase/subjson subdoc/path.cc, kv_engine docs/SubDocument.md.
"""

from __future__ import annotations

from typing import Final

from dcpstream.wire import Status

PATH_BYTES_MAX: Final = 1024
"""Longest path in a request: the server's limit."""

PATH_PARTS_MAX: Final = 31
"""Names and numbers in a path: with the root that makes the 32 levels that the server's parser has."""

LEVELS_MAX: Final = 32
"""Levels of a document, the root being the first and a number in an empty-handed leaf one too: the server's limit."""

_ESCAPABLE: Final = frozenset('"/\\bfnrt')
"""What may follow a backslash in a path; `u` may not."""

Part = str | int
Path = tuple[Part, ...]


class PathError(Exception):
    """A path cannot be followed, or nothing can be done there; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status 0x{int(status):02x}")
        self.status = int(status)


def parse_path(path: bytes) -> Path:
    """The names and numbers of a path; empty for the root.

    Raises:
        PathError: SUBDOC_PATH_EINVAL, it is none; SUBDOC_PATH_E2BIG, it has too many parts.
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
    """(number, where to read on) of `[number]` and the dot that may follow."""
    end = text.find("]", at)
    digits = text[at + 1 : end]
    if end < 0 or not (digits in ("", "-1") or (digits.isascii() and digits.isdigit())):
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    at = end + 1
    if at < len(text) and text[at] not in ".[":
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    return int(digits or "0"), at + (text[at : at + 1] == ".")


def _read_name(text: str, at: int) -> tuple[str, int]:
    """(name, where to read on) of a name up to a dot, which is skipped, a bracket or the end."""
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
