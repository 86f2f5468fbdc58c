"""Search for the value at a path in a JSON text, reading no more of the text than needed.

Theory of operation: the scanner walks over the members of each object and array on the path. The compiled scanner of
the json library skips the members that are not on the path. The text is not rewritten, so parts that an operation does
not touch keep their bytes. As in the server, the first of several members with one name counts, and text behind the
value is not checked.

Source: couchbase/subjson subdoc/match.cc.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple, NoReturn

from dcpstream.wire import Status
from dcpstream_node.engine.subdocument.paths import LEVELS_MAX, Part, Path, PathError

_WHITE: Final = re.compile(r"[ \t\n\r]*")
_KEY: Final = re.compile(r'[ \t\n\r]*"((?:[^"\\\x00-\x1f]|\\.)*)"[ \t\n\r]*:[ \t\n\r]*')
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]|[^\s\[\]{},:"]+', re.DOTALL)
_NEXT: Final = re.compile(r"[ \t\n\r]*([,\]}])[ \t\n\r]*")
_SIMPLE_MEMBERS: Final = (
    r'(?:(?!"%s")"[^"\\\x00-\x1f]*"[ \t\n\r]*:[ \t\n\r]*'
    r'(?:"[^"\\\x00-\x1f]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)'
    r"[ \t\n\r]*,[ \t\n\r]*)*+"
)
"""Members of an object that one match skips: scalars under names without escapes, up to the wanted name."""

LARGE_CHARACTERS: Final = 16 * 1024
"""Smallest text for which a pattern that skips members is compiled; that takes 0.3 ms for a new name."""

_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_CLOSING: Final = {"{": "}", "[": "]"}
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


class Found(NamedTuple):
    """The value at a path.

    Attributes:
        start, end: the value's text.
        member: start of the member: in an object that of its name, else `start`.
        position: number of elements before it in its array; in an object 0 for the first member only.
    """

    start: int
    end: int
    member: int
    position: int


class Missing(NamedTuple):
    """There is no value at the path.

    Attributes:
        start, end: the text of the deepest object or array on the path, with its brackets.
        level: number of the path's parts that lead to it.
        size: number of elements of an array; of an object 0 only if it is empty.
    """

    start: int
    end: int
    level: int
    size: int


class _Known:
    """An object that was read in part: the members so far, by name without escapes, and an iterator over the rest."""

    __slots__ = ("members", "rest", "size")

    def __init__(self, rest: Iterator[tuple[int, str, int]]) -> None:
        self.members: dict[str, tuple[int, int, int]] = {}
        self.rest = rest
        self.size = 0


class Text(str):
    """A JSON text for several lookups: it caches what they have read.

    Args:
        is_for_reading: whether to cache members. They refer to the text; `forget` breaks that cycle.

    Attributes:
        is_shallow: whether the whole text is within the limit of depth; None if that was not checked yet.
    """

    __slots__ = ("is_for_reading", "is_shallow", "known")

    def __new__(cls, text: str, *, is_for_reading: bool = False) -> Text:
        """The text."""
        made = super().__new__(cls, text)
        made.is_for_reading = is_for_reading
        made.is_shallow = None
        made.known = {}
        return made

    is_for_reading: bool
    is_shallow: bool | None
    known: dict[int, _Known]

    def forget(self) -> None:
        """Empty the cache."""
        self.known.clear()

    def named(self, at: int, part: str) -> tuple[int, int, int] | int:
        """Like `_step` in the object at `at`; continues reading only if the name is not cached."""
        wanted = unescape(part)
        known = self.known.get(at)
        if known is None:
            known = self.known[at] = _Known(_members(self, at))
        if wanted not in known.members:
            for member, name, value in known.rest:
                plain = unescape(name)
                known.members.setdefault(plain, (member, value, known.size))
                known.size += 1
                if plain == wanted:
                    break
            else:
                return known.size
        return known.members[wanted]


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(text)


# Numbers are checked, not converted: `len` is the cheapest function that accepts their text.
_decoder = json.JSONDecoder(parse_float=len, parse_int=len, parse_constant=_refuse_constant)
_scan = _decoder.scan_once  # type: ignore[attr-defined]


def white(text: str, at: int) -> int:
    """The position of the next character that is not a blank."""
    match = _WHITE.match(text, at)
    assert match is not None, "the pattern matches the empty string"
    return match.end()


def skip(text: str, at: int) -> int:
    """The end of the value that begins at `at`.

    Raises:
        PathError: SUBDOC_DOC_NOTJSON: there is no value; SUBDOC_DOC_E2DEEP: it is too deep.
    """
    try:
        return int(_scan(text, at)[1])
    except (StopIteration, ValueError):
        raise PathError(Status.SUBDOC_DOC_NOTJSON) from None
    except RecursionError:
        raise PathError(Status.SUBDOC_DOC_E2DEEP) from None


def _members(text: str, at: int, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """(start of the member, name, start of its value) of each member of the object or array at `at`.

    The name is "" in arrays. A value is read only when the next member is asked for.

    Args:
        start: start of the member to begin with; 0 for the first.
    """
    opener = text[at]
    closing = _CLOSING[opener]
    at = start or white(text, at + 1)
    if not start and text[at : at + 1] == closing:
        return
    is_object, name = opener == "{", ""
    try:
        while True:
            member = at
            if is_object:
                match = _KEY.match(text, at)
                if match is None:
                    break
                name, at = match[1], match.end()
            yield member, name, at
            match = _NEXT.match(text, _scan(text, at)[1])
            if match is None:
                break
            if match[1] != ",":
                if match[1] == closing:
                    return
                break
            at = match.end()
    except (StopIteration, ValueError):
        pass
    except RecursionError:
        raise PathError(Status.SUBDOC_DOC_E2DEEP) from None
    raise PathError(Status.SUBDOC_DOC_NOTJSON)


def members(text: str, at: int) -> Iterator[tuple[str, str]]:
    """(name with its escapes, text of the value) of each member of the object at `at`."""
    for _, name, start in _members(text, at):
        yield name, text[start : skip(text, start)]


def count_members(text: str, at: int) -> int:
    """The number of members of the object or array at `at`."""
    return sum(1 for _ in _members(text, at))


def elements(text: str, at: int) -> Iterator[str]:
    """The texts of the elements of the array at `at`."""
    for _, _, start in _members(text, at):
        yield text[start : skip(text, start)]


def _is_named(name: str, part: str) -> bool:
    """Whether a member has the name of a path's part; both may have escapes."""
    if name == part:
        return True
    return "\\" in name and unescape(name) == unescape(part)


def unescape(name: str) -> str:
    """A name without its JSON escapes.

    Raises:
        PathError: SUBDOC_DOC_NOTJSON: the escapes are not valid.
    """
    if "\\" not in name:
        return name
    try:
        return str(json.loads(f'"{name}"'))
    except ValueError:
        raise PathError(Status.SUBDOC_DOC_NOTJSON) from None


def _step(text: str, at: int, part: Part) -> tuple[int, int, int] | int:
    """(member, value, position) of the member that a part of the path names, or the number of members if none is."""
    if text[at : at + 1] != ("{" if isinstance(part, str) else "["):
        skip(text, at)
        raise PathError(Status.SUBDOC_PATH_MISMATCH)
    if isinstance(part, str):
        if isinstance(text, Text) and text.is_for_reading:
            return text.named(at, part)
        return _named(text, at, part)
    count, last = 0, None
    for member, _, value in _members(text, at):
        if count == part:
            return member, value, count
        last = (member, value, count)
        count += 1
    return last if part == -1 and last is not None else count


def _named(text: str, at: int, part: str) -> tuple[int, int, int] | int:
    """Like `_step` in the object at `at`; the number of members is exact only if it is 0."""
    start = 0
    if len(text) - at > LARGE_CHARACTERS:
        match = re.compile(_SIMPLE_MEMBERS % re.escape(part)).match(text, white(text, at + 1))
        assert match is not None, "the pattern matches the empty string"
        start = match.end() if match.end() > match.start() else 0
    count = int(start > 0)
    for member, name, value in _members(text, at, start):
        if _is_named(name, part):
            return member, value, count
        count += 1
    return count


def locate(text: str, path: Path) -> Found | Missing:
    """The place of the value at a path.

    Raises:
        PathError: SUBDOC_PATH_MISMATCH: a value on the path is of another kind; SUBDOC_DOC_NOTJSON: the part that was
            read is not JSON; SUBDOC_DOC_E2DEEP: it is too deep.
    """
    member = at = white(text, 0)
    position = 0
    found: Found | Missing
    for level, part in enumerate(path):
        step = _step(text, at, part)
        if isinstance(step, int):
            found = Missing(at, skip(text, at), level, step)
            break
        member, at, position = step
    else:
        found = Found(at, skip(text, at), member, position)
    if _is_too_deep(text, found.end):
        raise PathError(Status.SUBDOC_DOC_E2DEEP)
    return found


def _is_too_deep(text: str, end: int) -> bool:
    """Whether the first `end` characters of a text are too deep."""
    if isinstance(text, Text):
        if text.is_shallow is None:
            text.is_shallow = not is_deeper(text, LEVELS_MAX)
        if text.is_shallow:
            return False
    return is_deeper(text[:end], LEVELS_MAX)


def is_deeper(text: str, levels: int) -> bool:
    """Whether a JSON text, or the first part of one, has more levels than that: a lone number has one, `[1]` two."""
    if text.count("[") + text.count("{") < levels:
        return False
    brackets = _STRING.sub("", text).encode(errors="replace").translate(None, _NO_BRACKETS)
    # Most documents are flat: after a few rounds of removing pairs of brackets, only open ones are left.
    left, rounds = brackets.replace(b"{", b"[").replace(b"}", b"]"), 0
    while b"[]" in left and rounds < levels:
        left, rounds = left.replace(b"[]", b""), rounds + 1
    if len(left) + rounds < levels:
        return False
    deepest = max(accumulate(map(_STEP.__getitem__, brackets.decode())), default=0)
    if deepest != levels:
        return deepest > levels
    # As deep as allowed: a scalar in the innermost brackets makes it too deep.
    depth = 0
    for match in _TOKEN.finditer(text):
        change = _STEP.get(text[match.start()], 0)
        depth += change
        if not change and depth == levels:
            return True
    return False
