"""The data messages of a receive buffer as columns that the native kernel fills. Needs the kernel and nothing else.

The kernel finds the frames and counts; `fill` allocates all columns in their sizes and has them filled. Columns are
memoryviews, of which numpy and Arrow make arrays without a copy.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal, NamedTuple, TypeAlias

from dcpstream.runtime.slabs import SLAB_BYTES_MIN, slabs
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.frames import HEADER_BYTES, MAGICS, bad_magic, frame_length

_Format: TypeAlias = Literal["B", "H", "I", "Q", "i"]
_FIXED: tuple[tuple[_Format, int], ...] = (
    ("B", 1),  # opcode
    ("B", 1),  # datatype
    ("H", 2),  # vbucket
    ("Q", 8),  # cas
    ("Q", 8),  # seqno
    ("Q", 8),  # rev
    ("I", 4),  # flags
    ("I", 4),  # expiry
    ("I", 4),  # opaque
    ("I", 4),  # collection
)
"""Format and width of the columns of numbers, in the order of the kernel."""
VBUCKET, SEQNO, OPAQUE, COLLECTION = 2, 4, 8, 9
"""Places of some of them."""
_ALIGNMENT = 64
"""Bytes at multiples of which columns begin, as Arrow recommends."""
_SLACK_BYTES = 64
"""Bytes allocated behind keys and values: the kernel copies short ones in whole blocks where there is room for them."""


class NativeScan(NamedTuple):
    """The whole frames of a buffer.

    Attributes:
        native: the kernel.
        starts: int64[n] in bytes, the offset of each frame.
        end: offset at which the last whole frame ends.
        rows: number of data messages.
        key_bytes: of their key fields, with collection prefixes.
        value_bytes: of their values.
    """

    native: ModuleType
    starts: bytes
    end: int
    rows: int
    key_bytes: int
    value_bytes: int


class Columns(NamedTuple):
    """Data messages in order of arrival, n rows.

    Attributes:
        numbers: opcode, datatype, vbucket, cas, seqno, rev, flags, expiry, opaque, collection;
            `dcpstream.arrow.WireChunk` says what they hold.
        key_offsets, value_offsets: i32[n + 1], where each key and value begins, and the end of the last.
        key, value: bytes of all.
        others: (rows before it, start) of each frame that is no data message.
    """

    numbers: tuple[memoryview, ...]
    key_offsets: memoryview
    key: memoryview
    value_offsets: memoryview
    value: memoryview
    others: list[tuple[int, int]]


def check_rest(buffer: Buffer, at: int, stop: int) -> None:
    """Check the beginning of an incomplete frame.

    Raises:
        FrameError: no frame begins so.
    """
    if stop - at >= HEADER_BYTES:
        frame_length(buffer, at)
    elif at < stop and buffer[at] not in MAGICS:
        raise bad_magic(buffer, at, stop)


def fill(buffer: Buffer, found: NativeScan, *, collections: bool) -> tuple[Columns, int]:
    """The data messages among the frames that were found.

    Args:
        buffer: the bytes that were scanned.
        found: the frames in them.
        collections: whether keys carry a collection id in front.

    Returns: the columns, and the start of the first message that cannot be read, or -1. If there is one, the columns
        hold nothing.
    """
    rows = found.rows
    layout: list[tuple[_Format, int]] = [(kind, width * rows) for kind, width in _FIXED]
    layout += [("i", 4 * (rows + 1))] * 2
    layout += [("B", found.key_bytes + _SLACK_BYTES), ("B", found.value_bytes + _SLACK_BYTES)]
    *numbers, key_offsets, value_offsets, key, value = _memory(layout)
    fault, others = found.native.decode(
        buffer, found.starts, rows, collections, False, tuple(numbers), key_offsets, key, value_offsets, value
    )
    return Columns(tuple(numbers), key_offsets, key, value_offsets, value, others), fault


def _memory(layout: list[tuple[_Format, int]]) -> list[memoryview]:
    """Writable memory of each (format, bytes): pieces of one slab, or each for itself if they are small."""
    total = sum(_padded(size) for _, size in layout)
    if total < SLAB_BYTES_MIN:
        return [memoryview(bytearray(size)).cast(kind) for kind, size in layout]
    memory = memoryview(slabs.take(total))
    views = []
    at = 0
    for kind, size in layout:
        piece = memory[at : at + size]
        views.append(piece if kind == "B" else piece.cast(kind))
        at += _padded(size)
    return views


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
