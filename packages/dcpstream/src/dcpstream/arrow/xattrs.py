"""Xattr sections as a map column.

A section is a u32 length and pairs, each a u32 length, a name, a zero byte, JSON text, a zero byte. The first pairs of
all rows are read together, then all second pairs, and so on, up to the largest number of pairs in a row. The list of
all zero bytes gives the ends of names. `take` then cuts out names and texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.arrow.schema import XATTRS
from dcpstream.arrow.text import escape, strings_of
from dcpstream.arrow.values import LENGTH_BYTES, Blame, Int64Array, lengths_at, nulls, offsets_and_data, pick
from dcpstream.errors import FieldError
from dcpstream.wire.values import decode_xattrs

ROUNDS_MAX = 32
"""Most attributes of a row when rows are read together; with more, the batch is read row by row."""
TOGETHER_MIN = 16
"""Number of rows with attributes from which reading them together is faster."""


def xattr_maps(sections: pa.BinaryArray | None, rows: Int64Array, count: int, blame: Blame) -> pa.MapArray:
    """map<string, string>[count]: name → JSON text of the attributes; null where a row has no section.

    Args:
        sections: binary[count], or None if no row has any.
        rows: the rows that have one, rising.
        count: number of rows.
        blame: makes the error for a row.

    Raises:
        FieldError: a section whose lengths disagree.
    """
    if sections is None:
        return nulls(count, XATTRS)
    pairs = _pairs(sections, rows, blame) if len(rows) >= TOGETHER_MIN else None
    if pairs is None:
        return _one_by_one(sections, rows, count, blame)
    names, texts = pairs.cut_out(offsets_and_data(sections)[1])
    if not _are_keys(names, pairs.row):
        return _one_by_one(sections, rows, count, blame)
    counts = np.bincount(pairs.row, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    empty = np.ones(count + 1, np.bool_)
    empty[rows] = False
    empty[count] = False
    return pa.MapArray.from_arrays(pa.array(offsets, mask=empty), names.cast(pa.string()), strings_of(texts))


def _are_keys(names: pa.BinaryArray, row: Int64Array) -> bool:
    """Whether the names can be keys of a map: UTF-8, and no name twice in a row. Servers store only such names."""
    try:
        names.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    codes = names.dictionary_encode().indices.to_numpy()
    for distance in range(1, ROUNDS_MAX):
        neighbours = row[distance:] == row[:-distance]
        if not neighbours.any():
            break
        if (codes[distance:] == codes[:-distance])[neighbours].any():
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The places of names and texts, ordered by row and place.

    Attributes:
        row: int64[m].
        name, name_end, text_end: int64[m], offsets in bytes; the text begins behind the zero byte at `name_end`.
    """

    row: Int64Array
    name: Int64Array
    name_end: Int64Array
    text_end: Int64Array

    def cut_out(self, data: pa.Buffer) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Names and texts."""
        count = len(self.row)
        if not count:
            return pa.array([], pa.binary()), pa.array([], pa.binary())
        offsets = np.empty((count, 4), np.int32)
        offsets[:, 0] = self.name
        offsets[:, 1] = self.name_end
        offsets[:, 2] = self.name_end + 1
        offsets[:, 3] = self.text_end
        parts = pa.Array.from_buffers(pa.binary(), 4 * count - 1, [None, pa.py_buffer(offsets), data])
        fourth = np.arange(0, 4 * count, 4, dtype=np.int64)
        return pick(parts, fourth), pick(parts, fourth + 2)


def _pairs(sections: pa.BinaryArray, rows: Int64Array, blame: Blame) -> _Pairs | None:
    """All pairs of all rows, or None if a row has too many."""
    offsets, data = offsets_and_data(sections)
    content = np.frombuffer(data, np.uint8)
    zeros = np.flatnonzero(content == 0)
    row, at, end = rows, offsets[rows] + LENGTH_BYTES, offsets[rows + 1]
    rounds: list[tuple[npt.NDArray[np.int64], ...]] = []
    while True:
        going = at < end
        if not going.all():
            row, at, end = row[going], at[going], end[going]
        if not len(row):
            break
        if len(rounds) == ROUNDS_MAX:
            return None
        cut = at + LENGTH_BYTES > end
        after = np.where(cut, end + 1, at + LENGTH_BYTES)
        after += lengths_at(content, np.where(cut, 0, at))
        name = at + LENGTH_BYTES
        bad = after > end
        # The first zero byte from the name on ends it; it must neither be at once nor be the pair's last byte.
        name_end = np.append(zeros, len(content))[np.searchsorted(zeros, name)]
        bad |= (name_end <= name) | (name_end >= after - 1)
        bad |= content[np.where(bad, 0, after - 1)] != 0
        if bad.any():
            broken = int(row[np.argmax(bad)])
            _one_by_one(sections, np.array([broken]), len(sections), blame)
            raise AssertionError(f"the fast check refused the attributes of row {broken}, the plain one did not")
        rounds.append((row, name, name_end, after - 1))
        at = after
    if not rounds:
        return _Pairs(*(np.empty(0, np.int64) for _ in range(4)))
    columns = [np.concatenate(column) for column in zip(*rounds, strict=True)]
    if len(rounds) > 1:
        order = np.argsort(columns[0], kind="stable")
        columns = [column[order] for column in columns]
    return _Pairs(*columns)


def _one_by_one(sections: pa.BinaryArray, rows: Int64Array, count: int, blame: Blame) -> pa.MapArray:
    names: list[str] = []
    texts: list[str] = []
    offsets: list[int | None] = [None] * count
    for row, section in zip(rows.tolist(), sections.take(pa.array(rows)).to_pylist(), strict=True):
        offsets[row] = len(names)
        try:
            attributes, _ = decode_xattrs(section)
        except FieldError as error:
            raise blame(row, str(error)) from error
        names.extend(attributes)
        texts.extend(map(escape, attributes.values()))
    return pa.MapArray.from_arrays(
        pa.array([*offsets, len(names)], pa.int32()), pa.array(names, pa.string()), pa.array(texts, pa.string())
    )
