"""The data messages of a natively scanned buffer as Arrow columns, filled by the kernel.

The scan has counted, so every column is allocated once in its size. The memory comes from Arrow's pool, which hands out
pages that were used before; fresh pages cost more than the decoding. The columns of fixed width share one allocation,
which is small beside keys and values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.columnar.boundaries import Int64Array
from dcpstream.columnar.chunk import DecodeOptions, WireChunk
from dcpstream.columnar.frame_index import Counts
from dcpstream.columnar.messages import decode_messages
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.frames import decode_frame

_COLUMNS: tuple[tuple[npt.DTypeLike, int], ...] = (
    (np.uint8, 1),  # opcode
    (np.uint8, 1),  # datatype
    (np.uint16, 2),  # vbucket
    (np.uint64, 8),  # cas
    (np.uint64, 8),  # seqno
    (np.uint64, 8),  # rev
    (np.uint32, 4),  # flags
    (np.uint32, 4),  # expiry
    (np.uint32, 4),  # opaques
    (np.uint32, 4),  # collection_ids
    (np.uint16, 2),  # stream_ids
)
"""Type and width of the fixed columns, in the order of `WireChunk` and of the kernel."""
_ALIGNMENT = 64
"""Bytes at multiples of which columns begin, as Arrow recommends."""
_OFFSET_BYTES = 4
_SLACK_BYTES = 64
"""Bytes allocated behind keys and values: the kernel copies short ones in whole blocks where there is room for them."""


def decode_natively(buffer: Buffer, starts: Int64Array, counts: Counts, options: DecodeOptions) -> WireChunk:
    """The frames that a native scan found, as columns; see `dcpstream.columnar.decode_wire`.

    Args:
        buffer: the bytes that were scanned.
        starts: int64[n], the offset of each frame.
        counts: of that scan.
        options: features of the connection.

    Raises:
        FieldError: a data message that cannot be read.
    """
    rows = counts.rows
    kinds = _COLUMNS if options.stream_ids else _COLUMNS[:-1]
    fixed = pa.allocate_buffer(sum(_padded(width * rows) for _, width in kinds))
    columns: list[Any] = []
    at = 0
    for kind, width in kinds:
        columns.append(np.frombuffer(fixed, kind, rows, at))
        at += _padded(width * rows)
    key_offsets, value_offsets = (pa.allocate_buffer(_OFFSET_BYTES * (rows + 1)) for _ in range(2))
    key = pa.allocate_buffer(counts.key_bytes + _SLACK_BYTES)
    value = pa.allocate_buffer(counts.value_bytes + _SLACK_BYTES)
    fault, others = counts.native.decode(
        buffer,
        starts,
        rows,
        options.collections,
        options.stream_ids,
        tuple(columns),
        key_offsets,
        key,
        value_offsets,
        value,
    )
    if fault >= 0:
        decode_messages(buffer, options, starts=[fault])
        raise AssertionError(f"the kernel refused the message at {fault}, the plain decoder did not")
    chunk = WireChunk(
        pa.Array.from_buffers(pa.binary(), rows, [None, key_offsets, key]),
        pa.Array.from_buffers(pa.binary(), rows, [None, value_offsets, value]),
        *columns,
    )
    chunk.controls = [(row, decode_frame(buffer, start)) for row, start in others]
    return chunk


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
