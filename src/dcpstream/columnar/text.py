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
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.runtime import kernel

CONSTANT_ROWS = 16_384
"""Rows up to which a column with one text is a slice of a cached one: more than most batches have."""
CONSTANT_LENGTH_MAX = 32
"""Longest cached text, in characters."""
CONSTANTS_MAX = 12
"""Number of cached texts: kinds of changes, and names of a few scopes and collections. With the bounds above at most
26 MiB, usually 2."""

SHORT_LIST_MAX = 8
"""Texts to choose from for which a table is made each time: the kinds of changes."""

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
    if kernel.native is not None and _is_ascii(kernel.native, values):
        return pa.Array.from_buffers(
            pa.string(), len(values), values.buffers(), null_count=values.null_count, offset=values.offset
        )
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if data is None else escape(data) for data in values.to_pylist()], pa.string())


def _is_ascii(native: ModuleType, values: pa.BinaryArray) -> bool:
    """Whether all bytes of the values, and between them, are ASCII."""
    _, offsets, data = values.buffers()
    if offsets is None or data is None or not len(values):
        return False
    first, last = np.frombuffer(offsets, np.int32)[[values.offset, values.offset + len(values)]].tolist()
    answer: bool = native.is_ascii(data, first, last)
    return answer


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
    if len(texts) <= SHORT_LIST_MAX:
        found = TextTable(texts).chosen(choice.astype(np.uint8))
        if found is not None:
            return found
    return pa.array(texts, pa.string()).take(pa.array(choice))


class TextTable:
    """Texts of which a column is made by their numbers, with the kernel.

    Args:
        texts: at most 65,536; None for one that is not there.
    """

    def __init__(self, texts: Sequence[str | None]) -> None:
        parts = [b"" if text is None else text.encode() for text in texts]
        self._bounds = np.zeros(len(parts) + 1, np.int32)
        np.cumsum([*map(len, parts)], out=self._bounds[1:])
        # Texts are copied in blocks of 16 bytes, also the last one.
        self._bytes = b"".join(parts) + bytes(16)

    def chosen(self, choice: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> pa.StringArray | None:
        """The text with each of these numbers; None without the kernel, or if a text is empty or not there."""
        if kernel.native is None:
            return None
        buffers = kernel.native.gather_texts(choice, len(choice), self._bounds, self._bytes)
        if buffers is None:
            return None
        return pa.Array.from_buffers(pa.string(), len(choice), [None, *map(pa.py_buffer, buffers)], null_count=0)
