r"""Bytes as Arrow strings, with escapes for bytes that are not UTF-8.

Valid UTF-8 stays as it is. In other bytes, each byte that is not part of valid UTF-8 becomes `\xNN`, and every
backslash is doubled. Two different byte strings that are not UTF-8 therefore never become the same text, and `unescape`
returns the bytes. U+FFFD, the usual replacement, would merge different keys into one row, and null would lose the row's
key.

One collision remains: valid text that looks like an escape (a key of the four characters `\xff`) stays as it is, and
equals the text of the single byte ff.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy.typing as npt
import pyarrow as pa

CONSTANT_ROWS = 16_384
"""Rows up to which a column with one text is a slice of a cached one: more than most batches have."""
CONSTANT_LENGTH_MAX = 32
"""Longest cached text, in characters."""
CONSTANTS_MAX = 12
"""Number of cached texts: kinds of changes, and names of a few scopes and collections. With the bounds above at most
26 MiB, usually 2."""

_ESCAPE = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")


def escape(data: bytes) -> str:
    """The text of `data`, with escapes if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape(text: str) -> bytes:
    """The inverse of `escape`, for a text that is known to be escaped."""
    pieces = []
    at = 0
    for found in _ESCAPE.finditer(text):
        pieces.append(text[at : found.start()].encode())
        pieces.append(b"\\" if found[1] is None else bytes((int(found[1], 16),)))
        at = found.end()
    pieces.append(text[at:].encode())
    return b"".join(pieces)


def strings_of(values: pa.BinaryArray) -> pa.StringArray:
    """The values as strings, with their nulls. Valid UTF-8 is not copied."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if data is None else escape(data) for data in values.to_pylist()], pa.string())


def exact_strings_of(values: pa.BinaryArray) -> pa.StringArray:
    """The values as strings, null where the bytes are not UTF-8. Valid UTF-8 is not copied."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if data is None else _decoded(data) for data in values.to_pylist()], pa.string())


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def repeated(text: str | None, count: int) -> pa.StringArray:
    """`count` times the same text. Short texts are cached, for columns with one text in all rows of all batches."""
    if text is None:
        return pa.nulls(count, pa.string())
    if count <= CONSTANT_ROWS and len(text) <= CONSTANT_LENGTH_MAX:
        return _constant(text).slice(0, count)
    return pa.repeat(pa.scalar(text, pa.string()), count)


@lru_cache(maxsize=CONSTANTS_MAX)
def _constant(text: str) -> pa.StringArray:
    return pa.repeat(pa.scalar(text, pa.string()), CONSTANT_ROWS)


def chosen(texts: list[str | None], choice: npt.NDArray[Any]) -> pa.StringArray:
    """texts[choice[i]] for each i."""
    return pa.array(texts, pa.string()).take(pa.array(choice))
