"""The data messages of a natively scanned buffer as Arrow columns, filled by the kernel.

`dcpstream.wire.columns` allocates and fills them; here they become arrays, without a copy. Fresh pages cost more than
the decoding, so the columns of a large receive lie in memory that was used before, see `dcpstream.runtime.slabs`.
"""

from __future__ import annotations

from dcpstream.columnar.chunk import DecodeOptions, RowMemory, WireChunk
from dcpstream.columnar.messages import decode_messages
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.columns import NativeScan, fill
from dcpstream.wire.frames import cut_frame


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
    controls = [(row, cut_frame(buffer, start)) for row, start in columns.others]
    return WireChunk.over(RowMemory(columns, 0, found.rows), controls)
