"""The result of decoding a buffer: columns with the types of the wire.

A `WireChunk` holds the data messages of a buffer as columns, and every other frame unchanged with its place among the
rows. Both decoders, the native one and the one by message, yield equal chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.wire.columns import Columns
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

_NUMBERS: tuple[tuple[str, type[np.unsignedinteger[Any]]], ...] = (
    ("opcode", np.uint8),
    ("datatype", np.uint8),
    ("vbucket", np.uint16),
    ("cas", np.uint64),
    ("seqno", np.uint64),
    ("rev", np.uint64),
    ("flags", np.uint32),
    ("expiry", np.uint32),
    ("opaques", np.uint32),
    ("collection_ids", np.uint32),
    ("stream_ids", np.uint16),
)
"""Columns of numbers and their types, in the order of `dcpstream.wire.columns`."""
_PLACES = {name: place for place, (name, _) in enumerate(_NUMBERS)}


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


class RowMemory(NamedTuple):
    """The buffers of rows in memory, for the kernel.

    Attributes:
        columns: the kernel's columns, or as many other buffers with the same content in the same order.
        first, stop: the rows among those of the columns.
    """

    columns: Columns
    first: int
    stop: int

    def column(self, name: str) -> Any:
        """A column of a chunk over this memory."""
        count = self.stop - self.first
        columns = self.columns
        if name in _PLACES:
            place = _PLACES[name]
            if place == len(columns.numbers):
                return None  # stream ids were not asked for
            kind = _NUMBERS[place][1]
            return np.frombuffer(columns.numbers[place], kind)[self.first : self.stop]
        offsets, content = (
            (columns.key_offsets, columns.key) if name == "key" else (columns.value_offsets, columns.value)
        )
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.binary(), count, buffers, offset=self.first)


@dataclass(slots=True)
class WireChunk:
    """The data messages of a buffer in columns, and the other frames between them.

    It owns its memory, so the receive buffer may be reused when decoding has returned. The columns of a native decoding
    are made when they are asked for: a table of changes is built without them.

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
    _memory: RowMemory | None = field(default=None, repr=False, compare=False)

    @classmethod
    def over(cls, memory: RowMemory, controls: list[tuple[int, Frame]]) -> WireChunk:
        """The chunk of rows that the kernel has decoded."""
        chunk = cls.__new__(cls)
        chunk.controls = controls
        chunk._batch = None
        chunk._memory = memory
        return chunk

    if not TYPE_CHECKING:  # the columns are declared above

        def __getattr__(self, name: str) -> Any:
            """A column that was not made yet."""
            if name not in _MADE_LATER:
                raise AttributeError(name)
            column = self._memory.column(name)
            setattr(self, name, column)
            return column

    def __len__(self) -> int:
        """The number of data messages."""
        return len(self.key) if self._memory is None else self._memory.stop - self._memory.first

    @property
    def memory(self) -> RowMemory:
        """The rows for the kernel; no copy."""
        if self._memory is None:
            numbers: list[Any] = [getattr(self, name) for name, _ in _NUMBERS[:-1]]
            columns = Columns(tuple(numbers), *_binary_memory(self.key), *_binary_memory(self.value), [])
            self._memory = RowMemory(columns, 0, len(self))
        return self._memory

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
        if self._memory is not None:
            first = self._memory.first
            return WireChunk.over(RowMemory(self._memory.columns, first + start, first + stop), [])
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


_MADE_LATER = frozenset(("key", "value", *_PLACES))


def _binary_memory(values: pa.BinaryArray) -> tuple[memoryview, memoryview]:
    """(offsets, bytes) of an array without nulls."""
    _, offsets, content = values.buffers()
    if offsets is None or not len(values):
        return memoryview(bytes(4)), memoryview(b"")
    begin = 4 * values.offset
    return memoryview(offsets)[begin : begin + 4 * (len(values) + 1)], memoryview(content or b"")
