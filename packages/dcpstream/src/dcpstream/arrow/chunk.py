"""Data messages as columns with the types of the wire: the kernel's, or made of single frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.wire.columns import Columns

NUMBERS: tuple[tuple[str, type[np.unsignedinteger[Any]]], ...] = (
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
)
"""Columns of numbers and their types, in the order of `dcpstream.wire.columns`."""
_PLACES = {name: place for place, (name, _) in enumerate(NUMBERS)}


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
            kind = NUMBERS[place][1]
            return np.frombuffer(columns.numbers[place], kind)[self.first : self.stop]
        offsets, content = (
            (columns.key_offsets, columns.key) if name == "key" else (columns.value_offsets, columns.value)
        )
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.binary(), count, buffers, offset=self.first)


@dataclass(slots=True)
class WireChunk:
    """Data messages in columns.

    The columns of a native decoding are made when they are asked for: a table of changes is built without them.

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
    _memory: RowMemory | None = field(default=None, repr=False, compare=False)

    @classmethod
    def over(cls, columns: Columns, first: int = 0, stop: int | None = None) -> WireChunk:
        """The chunk of rows that the kernel has decoded, from `first` to `stop`; all of them if it is None."""
        chunk = cls.__new__(cls)
        chunk._memory = RowMemory(columns, first, len(columns.key_offsets) - 1 if stop is None else stop)
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
            numbers: list[Any] = [getattr(self, name) for name, _ in NUMBERS]
            columns = Columns(tuple(numbers), *_binary_memory(self.key), *_binary_memory(self.value), [])
            self._memory = RowMemory(columns, 0, len(self))
        return self._memory

    def slice(self, start: int, stop: int) -> WireChunk:
        """Rows `start` to `stop` without copying."""
        if self._memory is not None:
            first = self._memory.first
            return WireChunk.over(self._memory.columns, first + start, first + stop)
        return self._mapped(lambda values: values.slice(start, stop - start), lambda values: values[start:stop])

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | Sequence[int]) -> WireChunk:
        """A copy of some rows.

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
        numbers: dict[str, Any] = {name: column(getattr(self, name)) for name in _PLACES}
        return WireChunk(key=arrow(self.key), value=arrow(self.value), **numbers)


_MADE_LATER = frozenset(("key", "value", *_PLACES))


def _binary_memory(values: pa.BinaryArray) -> tuple[memoryview, memoryview]:
    """(offsets, bytes) of an array without nulls."""
    _, offsets, content = values.buffers()
    if offsets is None or not len(values):
        return memoryview(bytes(4)), memoryview(b"")
    begin = 4 * values.offset
    return memoryview(offsets)[begin : begin + 4 * (len(values) + 1)], memoryview(content or b"")
