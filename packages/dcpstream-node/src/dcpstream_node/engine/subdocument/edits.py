"""Lookup and change of the part of a JSON text at a path.

A change replaces the text at the path; the rest of the document keeps its bytes. New values are checked, so that the
document stays JSON and within the limit of depth.

Source: couchbase/subjson subdoc/operations.cc; kv_engine docs/SubDocument.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from dcpstream.wire import Opcode, Status
from dcpstream.wire.by_message import ByMessage
from dcpstream.wire.messages import subdoc
from dcpstream_node.engine.subdocument.paths import LEVELS_MAX, PATH_PARTS_MAX, Path, PathError
from dcpstream_node.engine.subdocument.scanner import (
    Found,
    Missing,
    count_members,
    elements,
    is_deeper,
    locate,
    skip,
    white,
)

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
"""Counters are signed 64-bit numbers."""

COUNTER_DIGITS_MAX: Final = 20
"""Longest text that is converted to a number; no 64-bit number has more digits."""

_DELTA: Final = re.compile(r"-?[1-9][0-9]*", re.ASCII)
_INTEGER: Final = re.compile(r"-?[0-9]+", re.ASCII)


class Change(NamedTuple):
    """The changed text, and the value of the answer."""

    text: str
    result: str = ""


CHANGES: Final[ByMessage[Callable[[str, Path, str, bool], Change]]] = ByMessage("the table of changes")
"""Opcode → function of (text, path, value, whether to create parents)."""


def look_up(text: str, path: Path) -> str:
    """The text of the value at a path.

    Raises:
        PathError: there is no value at the path.
    """
    found = locate(text, path)
    if isinstance(found, Missing):
        raise PathError(Status.SUBDOC_PATH_ENOENT)
    return text[found.start : found.end]


def count(text: str, path: Path) -> str:
    """The number of members of the object or array at a path, as text.

    Raises:
        PathError: there is no object or array at the path.
    """
    found = locate(text, path)
    if isinstance(found, Missing):
        raise PathError(Status.SUBDOC_PATH_ENOENT)
    if text[found.start] not in "{[":
        raise PathError(Status.SUBDOC_PATH_MISMATCH)
    return str(count_members(text, found.start))


def change(opcode: int, text: str, path: Path, value: str, *, creates_parents: bool) -> Change:
    """Change the part of a text at a path.

    Args:
        opcode: a key of `CHANGES`.
        value: the new JSON text, for counters the delta; SUBDOC_DELETE ignores it.
        creates_parents: whether to create missing objects on the path.

    Raises:
        PathError: the change is not possible.
    """
    return CHANGES[opcode](text, path, value, creates_parents)


def _check(wrapped: str, value: str, levels: int) -> None:
    """Refuse a value that is not JSON, or that would make the document too deep."""
    try:
        end = skip(wrapped, 0)
    except PathError as error:
        is_deep = error.status == Status.SUBDOC_DOC_E2DEEP
        raise PathError(Status.SUBDOC_VALUE_ETOODEEP if is_deep else Status.SUBDOC_VALUE_CANTINSERT) from None
    if end != len(wrapped) or not value.strip(" \t\r\n"):
        raise PathError(Status.SUBDOC_VALUE_CANTINSERT)
    if is_deeper(wrapped, levels + 1):
        raise PathError(Status.SUBDOC_VALUE_ETOODEEP)


def _check_member(path: Path, value: str) -> None:
    if not path:
        raise PathError(Status.SUBDOC_VALUE_CANTINSERT)
    _check(f'{{"":{value}}}', value, LEVELS_MAX - len(path))


def _check_elements(value: str, levels: int) -> None:
    _check(f"[{value}]", value, levels)


def _store(text: str, path: Path, value: str, opcode: int, *, creates_parents: bool) -> Change:
    found = locate(text, path)
    if opcode != Opcode.SUBDOC_REPLACE and isinstance(path[-1], int):
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    if isinstance(found, Found):
        if opcode == Opcode.SUBDOC_DICT_ADD:
            raise PathError(Status.SUBDOC_PATH_EEXISTS)
        return Change(text[: found.start] + value + text[found.end :])
    is_parent_there = found.level == len(path) - 1
    if opcode == Opcode.SUBDOC_REPLACE or not (is_parent_there or creates_parents):
        raise PathError(Status.SUBDOC_PATH_ENOENT)
    return Change(_make_parents(text, found, path, value))


def _make_parents(text: str, found: Missing, path: Path, value: str) -> str:
    """The text with objects for the missing parts of the path, the innermost with `value`."""
    missing = path[found.level :]
    if not all(isinstance(part, str) for part in missing):
        raise PathError(Status.SUBDOC_PATH_ENOENT)
    comma = "," if found.size else ""
    inserted = '":{"'.join(map(str, missing))
    closing = "}" * (len(missing) - 1)
    return f'{text[: found.end - 1]}{comma}"{inserted}":{value}{closing}{text[found.end - 1 :]}'


@CHANGES.of(subdoc.SubdocDictAdd)
def _dict_add(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    _check_member(path, value)
    return _store(text, path, value, Opcode.SUBDOC_DICT_ADD, creates_parents=creates_parents)


@CHANGES.of(subdoc.SubdocDictUpsert)
def _dict_upsert(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    _check_member(path, value)
    return _store(text, path, value, Opcode.SUBDOC_DICT_UPSERT, creates_parents=creates_parents)


@CHANGES.of(subdoc.SubdocReplace)
def _replace(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    _check_member(path, value)
    return _store(text, path, value, Opcode.SUBDOC_REPLACE, creates_parents=creates_parents)


@CHANGES.of(subdoc.SubdocDelete)
def _remove(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    if not path:
        raise PathError(Status.SUBDOC_VALUE_CANTINSERT)
    found = locate(text, path)
    if isinstance(found, Missing):
        raise PathError(Status.SUBDOC_PATH_ENOENT)
    after = white(text, found.end)
    if text[after : after + 1] == ",":
        return Change(text[: found.member] + text[after + 1 :])
    before = text.rindex(",", 0, found.member) if found.position else found.member
    return Change(text[:before] + text[found.end :])


@CHANGES.of(subdoc.SubdocArrayPushLast)
def _push_last(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    _check_elements(value, LEVELS_MAX - 1 - len(path))
    return _append(text, path, value, creates_parents) if path else _append_to_root(text, value)


def _append_to_root(text: str, value: str) -> Change:
    """Append to a document that is an array. Like the server, drop blanks before the closing bracket."""
    found = locate(text, ())
    if text[found.start] != "[":
        is_object = text[found.start] == "{"
        raise PathError(Status.SUBDOC_PATH_MISMATCH if is_object else Status.SUBDOC_DOC_NOTJSON)
    head = text[: found.end - 1].rstrip(" \t\r\n")
    return Change(f"{head}{'' if head.endswith('[') else ','}{value}]")


def _append(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    found = locate(text, path)
    if isinstance(found, Missing):
        if not creates_parents:
            raise PathError(Status.SUBDOC_PATH_ENOENT)
        return Change(_make_parents(text, found, path, f"[{value}]"))
    if text[found.start] != "[":
        raise PathError(Status.SUBDOC_PATH_MISMATCH)
    is_empty = white(text, found.start + 1) == found.end - 1
    return Change(text[: found.end - 1] + ("" if is_empty else ",") + value + text[found.end - 1 :])


@CHANGES.of(subdoc.SubdocArrayPushFirst)
def _push_first(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    _check_elements(value, LEVELS_MAX - 1 - len(path))
    assert len(path) < PATH_PARTS_MAX, "a value there would be too deep"
    found = locate(text, (*path, 0))
    if isinstance(found, Found):
        return Change(f"{text[: found.start]}{value},{text[found.start :]}")
    if found.level == len(path):
        return Change(text[: found.start + 1] + value + text[found.end - 1 :])
    if not creates_parents:
        raise PathError(Status.SUBDOC_PATH_ENOENT)
    return Change(_make_parents(text, found, path, f"[{value}]"))


@CHANGES.of(subdoc.SubdocArrayInsert)
def _insert(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    if not path:
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    _check_elements(value, LEVELS_MAX - len(path))
    index = path[-1]
    if not isinstance(index, int) or index < 0:
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    found = locate(text, path)
    if isinstance(found, Found):
        return Change(f"{text[: found.start]}{value},{text[found.start :]}")
    if found.level != len(path) - 1 or index != found.size:
        raise PathError(Status.SUBDOC_PATH_ENOENT)
    if not found.size:
        return Change(text[: found.start + 1] + value + text[found.end - 1 :])
    return Change(f"{text[: found.end - 1]},{value}{text[found.end - 1 :]}")


@CHANGES.of(subdoc.SubdocArrayAddUnique)
def _add_unique(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    _check_elements(value, LEVELS_MAX - 1 - len(path))
    parsed = json.loads(f"[{value}]", parse_int=len, parse_float=len)
    if len(parsed) != 1 or isinstance(parsed[0], (dict, list)):
        raise PathError(Status.SUBDOC_VALUE_CANTINSERT)
    found = locate(text, path)
    if isinstance(found, Found):
        if text[found.start] != "[":
            raise PathError(Status.SUBDOC_PATH_MISMATCH)
        for element in elements(text, found.start):
            if element[0] in "{[":
                raise PathError(Status.SUBDOC_PATH_MISMATCH)
            if element == value:
                raise PathError(Status.SUBDOC_PATH_EEXISTS)
    return _append(text, path, value, creates_parents)


@CHANGES.of(subdoc.SubdocCounter)
def _count(text: str, path: Path, value: str, creates_parents: bool) -> Change:
    if not _DELTA.fullmatch(value) or len(value) > COUNTER_DIGITS_MAX:
        raise PathError(Status.SUBDOC_DELTA_EINVAL)
    delta = int(value)
    if not INT64_MIN <= delta <= INT64_MAX:
        raise PathError(Status.SUBDOC_DELTA_EINVAL)
    found = locate(text, path)
    if isinstance(found, Missing):
        is_near = creates_parents or found.level == len(path) - 1
        if not is_near or not isinstance(path[found.level], str):
            raise PathError(Status.SUBDOC_PATH_ENOENT)
        stored = _store(text, path, value, Opcode.SUBDOC_DICT_ADD, creates_parents=creates_parents)
        return Change(stored.text, value)
    old = text[found.start : found.end]
    if not _INTEGER.fullmatch(old):
        raise PathError(Status.SUBDOC_PATH_MISMATCH)
    if len(old) > COUNTER_DIGITS_MAX or not INT64_MIN <= int(old) <= INT64_MAX:
        raise PathError(Status.SUBDOC_NUM_ERANGE)
    new = int(old) + delta
    if not INT64_MIN <= new <= INT64_MAX:
        raise PathError(Status.SUBDOC_VALUE_CANTINSERT)
    return Change(f"{text[: found.start]}{new}{text[found.end :]}", str(new))
