"""Received bytes as columns, by the decoders of the client."""

from __future__ import annotations

import pyarrow as pa

from dcpstream.arrow import WireChunk, chunk_of
from dcpstream.client.machine.connection.rows import FrameDecoder, FrameRows, NativeDecoder, NativeRows, Rows
from dcpstream.runtime import kernel
from dcpstream.wire.buffers import Buffer

WIRE_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("opcode", pa.uint8()),
        ("datatype", pa.uint8()),
        ("vbucket", pa.uint16()),
        ("cas", pa.uint64()),
        ("seqno", pa.uint64()),
        ("rev", pa.uint64()),
        ("flags", pa.uint32()),
        ("expiry", pa.uint32()),
    ]
)


def received(buffer: Buffer, start: int = 0, stop: int | None = None, *, collections: bool = True) -> tuple[Rows, int]:
    """The rows of the whole frames in `buffer[start:stop]`, by the kernel if there is one, and where those end."""
    decoder = FrameDecoder() if kernel.native is None else NativeDecoder(kernel.native, collections)
    # Neither writes to the buffer.
    return decoder.decode(buffer, start, len(buffer) if stop is None else stop)  # type: ignore[arg-type]


def decode_wire(buffer: Buffer, collections: bool = True) -> WireChunk:
    """The rows of a buffer, by the kernel if there is one."""
    return _chunk(received(buffer, collections=collections)[0], collections)


def decode_messages(buffer: Buffer, collections: bool = True) -> WireChunk:
    """The rows of a buffer, message by message."""
    return _chunk(FrameDecoder().decode(buffer, 0, len(buffer))[0], collections)  # type: ignore[arg-type]


def batch_of(chunk: WireChunk) -> pa.RecordBatch:
    """The columns of WIRE_SCHEMA."""
    columns = [pa.array(getattr(chunk, field.name), field.type) for field in WIRE_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA)


def _chunk(rows: Rows, collections: bool) -> WireChunk:
    if isinstance(rows, NativeRows):
        return WireChunk.over(rows.columns)
    assert isinstance(rows, FrameRows)
    return chunk_of(rows.frames, collections)
