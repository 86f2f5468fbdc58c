"""The result of decoding a buffer: columns with the types of the wire.

A `WireChunk` holds the data messages of a buffer as columns, and every other frame unchanged with its place among the
rows. Both decoders, the fast one and the one by message, yield equal chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.wire.frames import Frame

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
"""Key and value as sent (the key without its collection prefix), then the fixed fields of a data message."""

_FIXED = WIRE_SCHEMA.names[2:]
_FIXED_TYPES = WIRE_SCHEMA.types[2:]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Features of the connection that change the bytes of data messages.

    Attributes:
        collections: keys carry a collection id in front (HELLO 0x12).
        stream_ids: framing extras carry stream ids (control enable_stream_id).
    """

    collections: bool = True
    stream_ids: bool = False


def arrow_of(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array over the memory of a contiguous numpy array, without nulls."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


@dataclass(slots=True)
class WireChunk:
    """The data messages of a buffer in columns, and the other frames between them.

    It owns its memory, so the receive buffer may be reused when decoding has returned.

    Attributes:
        key: binary[n], without collection prefix.
        value: binary[n], as sent: compressed, with xattr section, as the datatype says.
        opcode: u8[n]; DCP_MUTATION, DCP_DELETION or DCP_EXPIRATION.
        datatype: u8[n].
        vbucket: u16[n].
        cas, seqno, rev: u64[n].
        flags: u32[n]; 0 but for mutations.
        expiry: u32[n], epoch seconds: a mutation's expiration, else the delete time; 0 if there is none.
        opaques: u32[n], the stream request's.
        collection_ids: u32[n]; 0 without collections.
        stream_ids: u16[n], 0 for none; None unless asked for.
        controls: (number of rows before it, frame) of every other frame, in order.
    """

    key: pa.BinaryArray
    value: pa.BinaryArray
    opcode: npt.NDArray[np.uint8]
    datatype: npt.NDArray[np.uint8]
    vbucket: npt.NDArray[np.uint16]
    cas: npt.NDArray[np.uint64]
    seqno: npt.NDArray[np.uint64]
    rev: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint32]
    expiry: npt.NDArray[np.uint32]
    opaques: npt.NDArray[np.uint32]
    collection_ids: npt.NDArray[np.uint32]
    stream_ids: npt.NDArray[np.uint16] | None = None
    controls: list[tuple[int, Frame]] = field(default_factory=list)
    _batch: pa.RecordBatch | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        """The number of data messages."""
        return len(self.key)

    @property
    def batch(self) -> pa.RecordBatch:
        """The columns of WIRE_SCHEMA as a RecordBatch; no copy."""
        if self._batch is None:
            columns = [self.key, self.value]
            columns += [arrow_of(getattr(self, name), kind) for name, kind in zip(_FIXED, _FIXED_TYPES, strict=True)]
            self._batch = pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA)
        return self._batch

    def slice(self, start: int, stop: int) -> WireChunk:
        """Rows `start` to `stop` without copying, without controls."""
        return self._mapped(lambda values: values.slice(start, stop - start), lambda values: values[start:stop])

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | Sequence[int]) -> WireChunk:
        """A copy of some rows, without controls.

        Args:
            rows: bool[n], or row numbers in any order.
        """
        picked = np.asarray(rows)
        picked = np.flatnonzero(picked) if picked.dtype == np.bool_ else picked.astype(np.int64)
        indices = pa.array(picked)
        return self._mapped(lambda values: values.take(indices), lambda values: values[picked])

    def _mapped(
        self, arrow: Callable[[pa.BinaryArray], pa.BinaryArray], column: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    ) -> WireChunk:
        columns: dict[str, Any] = {name: column(getattr(self, name)) for name in (*_FIXED, "opaques", "collection_ids")}
        return WireChunk(
            key=arrow(self.key),
            value=arrow(self.value),
            stream_ids=None if self.stream_ids is None else column(self.stream_ids),
            **columns,
        )
