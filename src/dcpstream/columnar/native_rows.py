"""The data messages of a natively scanned buffer as Arrow columns, filled by the kernel.

`dcpstream.wire.columns` allocates and fills them; here they become arrays, without a copy. Fresh pages cost more than
the decoding, so the columns of a large receive lie in memory that was used before, see `dcpstream.runtime.slabs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dcpstream.columnar.chunk import DecodeOptions, WireChunk
from dcpstream.columnar.messages import decode_messages
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.columns import NativeScan, fill
from dcpstream.wire.frames import decode_frame

_KINDS = (*(np.uint8,) * 2, np.uint16, *(np.uint64,) * 3, *(np.uint32,) * 4, np.uint16)
"""Of the columns of numbers, in the order of the kernel."""


def decode_natively(buffer: Buffer, found: NativeScan, options: DecodeOptions) -> WireChunk:
    """The frames that a native scan found, as columns; see `dcpstream.columnar.decode_wire`.

    Args:
        buffer: the bytes that were scanned.
        found: the frames.
        options: features of the connection.

    Raises:
        FieldError: a data message that cannot be read.
    """
    columns, fault = fill(buffer, found, collections=options.collections, stream_ids=options.stream_ids)
    if fault >= 0:
        decode_messages(buffer, options, starts=[fault])
        raise AssertionError(f"the kernel refused the message at {fault}, the plain decoder did not")
    numbers: list[Any] = [np.frombuffer(one, kind) for one, kind in zip(columns.numbers, _KINDS, strict=False)]
    chunk = WireChunk(
        _binary(found.rows, columns.key_offsets, columns.key),
        _binary(found.rows, columns.value_offsets, columns.value),
        *numbers,
    )
    chunk.controls = [(row, decode_frame(buffer, start)) for row, start in columns.others]
    return chunk


def _binary(rows: int, offsets: memoryview, content: memoryview) -> pa.BinaryArray:
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
