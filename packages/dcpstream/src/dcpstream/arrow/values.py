"""The documents in a column of values: inflated, and without their xattr section.

Most steps work on the whole column: numpy reads sizes and section lengths, and the same interleaved array and `take`
that cut keys and values out of the receive buffer cut out the bodies. Only snappy needs a call per value.
`dcpstream.arrow.xattrs` reads the sections.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.errors import FieldError
from dcpstream.wire.codes import Datatype

MAX_BATCH_BYTES = 2**31 - 1
"""Arrow's plain binary column counts its bytes in an int32."""
MAX_VALUE_BYTES = 30 * 1024 * 1024
"""Largest value when inflated: the largest frame. A server's limit for a document is 20 MiB and 1 MiB of xattrs."""
NULLS_KEPT = 16_384
"""Rows up to which a column of nulls is a slice of one that is kept: more than most batches have."""
NULL_KINDS_MAX = 16
"""Number of such columns: more than a batch has types. With the bound above each has at most 256 KiB."""
_SNAPPY_RATIO_MAX = 32
"""Highest ratio of a snappy block (3 bytes become 64). A larger claim is refused before memory is allocated."""
_VARINT_BYTES_MAX = 5
LENGTH_BYTES = 4

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Blame = Callable[[int, str], FieldError]
"""Makes the error for a row: (row, text)."""


def offsets_and_data(values: pa.BinaryArray) -> tuple[Int64Array, pa.Buffer]:
    """(int64[n + 1] offsets into the data, the data) of a binary array, sliced or not."""
    _, offsets, data = values.buffers()
    if offsets is None or len(values) == 0:
        return np.zeros(1, np.int64), pa.py_buffer(b"")
    view = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return view.astype(np.int64), data if data is not None else pa.py_buffer(b"")


def inflate(values: pa.BinaryArray, datatype: npt.NDArray[np.uint8], blame: Blame) -> pa.BinaryArray:
    """The values, inflated where they are compressed.

    Args:
        values: binary[n], no nulls.
        datatype: u8[n]; rows with SNAPPY hold a raw snappy block.
        blame: makes the error for a row.

    Raises:
        FieldError: a value that is not a snappy block, or too large when inflated.
    """
    rows = _flagged(values, datatype, Datatype.SNAPPY)
    if not len(rows):
        return values
    packed = values if len(rows) == len(values) else values.take(pa.array(rows))
    sizes = _inflated_sizes(packed, rows, blame)
    bounds = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    if bounds[-1] > MAX_BATCH_BYTES:
        raise ValueError(f"{bounds[-1]} bytes of inflated values do not fit one batch; decode fewer frames at once")
    data = pa.allocate_buffer(int(bounds[-1]))
    target = memoryview(data)
    into = cramjam.snappy.decompress_raw_into
    at = 0
    for number, (block, end) in enumerate(zip(packed.to_pylist(), bounds[1:].tolist(), strict=True)):
        try:
            written = into(block, target[at:end]) if end > at else 0
        except Exception as error:
            raise blame(int(rows[number]), f"not a snappy block: {error}") from error
        assert written == end - at, "snappy itself refuses blocks whose size is not the one they begin with"
        at = end
    inflated = pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(bounds.astype(np.int32)), data])
    return _replaced(values, rows, inflated)


def _flagged(values: pa.BinaryArray, datatype: npt.NDArray[np.uint8], flag: Datatype) -> Int64Array:
    """Rows whose datatype has a flag and whose value is not empty.

    A stream without values that keeps the datatypes (open flag 0x40) sends flags with empty values.
    """
    if not int(np.bitwise_or.reduce(datatype)) & flag:
        return np.zeros(0, np.int64)
    flagged = (datatype & np.uint8(flag)) != 0
    if flagged.any():
        offsets, _ = offsets_and_data(values)
        flagged &= offsets[1:] > offsets[:-1]
    return np.flatnonzero(flagged)


def _replaced(values: pa.BinaryArray, rows: Int64Array, new: pa.BinaryArray) -> pa.BinaryArray:
    if len(rows) == len(values):
        return new
    order = np.arange(len(values), dtype=np.int64)
    order[rows] = np.arange(len(values), len(values) + len(rows))
    return pc.take(pa.concat_arrays([values, new]), pa.array(order), boundscheck=False)


def _inflated_sizes(blocks: pa.BinaryArray, rows: Int64Array, blame: Blame) -> Int64Array:
    """The sizes in the varints in front of the blocks, checked."""
    offsets, data = offsets_and_data(blocks)
    content = np.frombuffer(data, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    sizes = np.zeros(len(blocks), np.int64)
    bad = np.zeros(len(blocks), np.bool_)
    going = np.arange(len(blocks))
    for group in range(_VARINT_BYTES_MAX):
        cut = lengths[going] <= group
        bad[going[cut]] = True
        going = going[~cut]
        byte = content[starts[going] + group].astype(np.int64)
        sizes[going] |= (byte & 0x7F) << (7 * group)
        going = going[byte >= 0x80]
    bad[going] = True
    if bad.any():
        raise blame(int(rows[np.argmax(bad)]), "not a snappy block: its size cannot be read")
    bad = (sizes > MAX_VALUE_BYTES) | (sizes > lengths * _SNAPPY_RATIO_MAX)
    if bad.any():
        number = int(np.argmax(bad))
        raise blame(int(rows[number]), f"a snappy block of {lengths[number]} bytes claims to hold {sizes[number]}")
    return sizes


def lengths_at(content: npt.NDArray[np.uint8], positions: Int64Array) -> Int64Array:
    """The big-endian u32 at each position."""
    length = np.zeros(len(positions), np.int64)
    for byte in range(LENGTH_BYTES):
        length = length << 8 | content[positions + byte]
    return length


def split_sections(
    values: pa.BinaryArray, datatype: npt.NDArray[np.uint8], blame: Blame
) -> tuple[pa.BinaryArray, pa.BinaryArray | None, Int64Array]:
    """Bodies, and the xattr sections in front of them.

    Args:
        values: binary[n], inflated, no nulls.
        datatype: u8[n]; values with XATTR begin with a section.
        blame: makes the error for a row.

    Returns: (bodies binary[n]; sections binary[n], empty where there is none, or None if there is none at all; the rows
    that have one).

    Raises:
        FieldError: a section longer than its value.
    """
    rows = _flagged(values, datatype, Datatype.XATTR)
    if not len(rows):
        return values, None, rows
    offsets, data = offsets_and_data(values)
    content = np.frombuffer(data, np.uint8)
    starts, ends = offsets[rows], offsets[rows + 1]
    bad = ends - starts < LENGTH_BYTES
    if not bad.any():
        length = lengths_at(content, starts)
        cut = starts + LENGTH_BYTES + length
        bad = cut > ends
    if bad.any():
        raise blame(int(rows[np.argmax(bad)]), "an xattr section longer than its value")
    # Section, body, section, body, …: the values' own bytes seen as twice as many elements.
    halves = np.empty(2 * len(values) + 1, np.int32)
    halves[0::2] = offsets
    halves[1::2] = offsets[:-1]
    halves[2 * rows + 1] = cut
    parts = pa.Array.from_buffers(pa.binary(), 2 * len(values), [None, pa.py_buffer(halves), data])
    even = np.arange(0, 2 * len(values), 2, dtype=np.int64)
    return pick(parts, even + 1), pick(parts, even), rows


def pick(parts: pa.BinaryArray, rows: Int64Array) -> pa.BinaryArray:
    """Copies of the elements with these numbers."""
    return pc.take(parts, pa.array(rows), boundscheck=False)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """`count` nulls. Those of a kind are made once, for columns without a value in all rows of all batches."""
    return _all_nulls(kind).slice(0, count) if count <= NULLS_KEPT else pa.nulls(count, kind)


@lru_cache(maxsize=NULL_KINDS_MAX)
def _all_nulls(kind: pa.DataType) -> pa.Array:
    return pa.nulls(NULLS_KEPT, kind)


def with_nulls(values: Any, null: BoolArray) -> Any:
    """The same array, binary or of fixed width, null where `null` is true; its memory is shared."""
    if not null.any():
        return values
    valid = np.concatenate((np.ones(values.offset, np.bool_), ~null)) if values.offset else ~null
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bitmap, *values.buffers()[1:]], offset=values.offset)
