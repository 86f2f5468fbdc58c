"""The data rows of one receive as the native kernel's columns, for single changes. Needs no pyarrow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from types import ModuleType

from dcpstream.client.machine.connection.rows import NO_RUNS, FrameDecoder, Rows, Slice
from dcpstream.client.machine.connection.stream_table import StreamTable
from dcpstream.client.machine.tracker import Moves
from dcpstream.wire import Frame
from dcpstream.wire.columns import COLLECTION, OPAQUE, SEQNO, VBUCKET, Columns, fill
from dcpstream.wire.frames import cut_frame


class NativeRows:
    """Rows as columns in plain memory.

    Args:
        native: the kernel.
        columns: the rows.
        controls: (rows before it, frame) of every frame that is no row.
        wire_bytes: of all frames.
        moves: what the kernel has handled.
    """

    __slots__ = (
        "_edges",
        "_runs",
        "_seqnos",
        "_strays",
        "_unordered",
        "columns",
        "controls",
        "moves",
        "native",
        "wire_bytes",
    )

    def __init__(
        self,
        native: ModuleType,
        columns: Columns,
        controls: list[tuple[int, Frame]],
        wire_bytes: int,
        moves: Moves | None = None,
    ) -> None:
        self.native = native
        self.columns = columns
        self.controls = controls
        self.wire_bytes = wire_bytes
        numbers = columns.numbers
        self._seqnos = numbers[SEQNO]
        self.moves = moves
        found = NO_RUNS
        if moves is None or not moves.is_whole:
            owners = None if moves is None else moves.owners
            found = native.runs(self.count, numbers[OPAQUE], self._seqnos, numbers[VBUCKET], controls, owners)
        self._runs, self._edges, self._unordered, self._strays = found

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.columns.key_offsets) - 1

    def reached(self, moves: Moves, first: int, stop: int) -> bytes:
        """Moves as they stand after some rows."""
        found: bytes = self.native.reached(moves.owners, self._seqnos, first, stop, moves.raw)
        return found

    def runs(self) -> list[tuple[int, int, int]]:
        """Adjacent rows of one stream."""
        runs: list[tuple[int, int, int]] = self._runs
        return runs

    def seqno(self, row: int) -> int:
        """The seqno of a row."""
        return self._seqnos[row]

    def highest(self, first: int, stop: int) -> int:
        """The highest seqno."""
        return max(self._seqnos[first:stop])

    def vbid(self, row: int) -> int:
        """The vbucket of a row."""
        return self.columns.numbers[VBUCKET][row]

    def edges(self, _runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The first and last row of each run."""
        edges: list[tuple[int, int, int]] = self._edges
        return edges

    def disorder(self) -> tuple[list[int], list[int]]:
        """Rows that do not follow the row before."""
        return self._unordered, self._strays

    def first_above(self, first: int, stop: int, seqno: int) -> int:
        """The first row with a larger seqno."""
        return bisect_right(self._seqnos, seqno, first, stop)

    def collections(self, keep: Iterable[Slice], *, has_collections: bool) -> set[int]:
        """The ids of the collections of these rows."""
        found: set[int] = set()
        for first, stop in keep if has_collections else ():
            ids = self.columns.numbers[COLLECTION][first:stop]
            raw = ids.tobytes()
            found.update(ids[:1] if raw == raw[: ids.itemsize] * len(ids) else ids)  # most slices are of one collection
        return found


class NativeDecoder:
    """Frames as columns, whatever their number.

    Args:
        native: the kernel.
        collections: whether keys carry a collection id.
    """

    def __init__(self, native: ModuleType, collections: bool) -> None:
        self._native = native
        self._collections = collections
        self._frames = FrameDecoder()
        self.table = StreamTable(native)

    def decode(self, buffer: bytearray, start: int, stop: int) -> tuple[Rows, int]:
        """The whole frames between `start` and `stop`."""
        walked = self.table.walk(buffer, start, stop)
        found = walked.found
        columns, fault = fill(buffer, found, collections=self._collections, stream_ids=False)
        if fault >= 0:
            # A key that cannot be read concerns only its own row here; as frames the others can be read.
            return self._frames.decode(buffer, start, stop)
        controls = [(row, cut_frame(buffer, at)) for row, at in walked.others]
        return NativeRows(self._native, columns, controls, found.end - start, self.table.settle(walked)), found.end
