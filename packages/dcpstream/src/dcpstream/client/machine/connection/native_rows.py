"""The data rows of one receive as the native kernel's columns. Needs no pyarrow."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from dcpstream.client.machine.connection.rows import FrameDecoder, Rows, Slice
from dcpstream.client.machine.connection.stream_table import StreamTable
from dcpstream.client.machine.tracker import Moves
from dcpstream.wire import Frame
from dcpstream.wire.columns import COLLECTION, OPAQUE, SEQNO, VBUCKET, Columns, fill
from dcpstream.wire.frames import cut_frame

SMALL_IDS = 1 << 16
"""Ids of collections below this are counted instead of sorted, which takes a twentieth of the time."""

MANY_ROWS = 200
"""Rows whose ids numpy finds sooner than a set."""


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
        moves: Moves,
    ) -> None:
        self.native = native
        self.columns = columns
        self.controls = controls
        self.wire_bytes = wire_bytes
        numbers = columns.numbers
        self._seqnos = numbers[SEQNO]
        self.moves = moves
        found: tuple[list[Any], list[Any], list[int], list[int]] = ([], [], [], [])
        if not moves.is_whole:
            found = native.runs(self.count, numbers[OPAQUE], self._seqnos, numbers[VBUCKET], controls, moves.owners)
        self._runs, self._edges, self._unordered, self._strays = found

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.columns.key_offsets) - 1

    def runs(self) -> list[tuple[int, int, int]]:
        """Adjacent rows of one stream."""
        return self._runs

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
        return self._edges

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
            found.update(ids[:1] if raw == raw[: ids.itemsize] * len(ids) else _distinct(ids))
        return found


def _distinct(ids: memoryview) -> Iterable[int]:
    """The ids without repetition, if numpy is loaded, as where Arrow is: a set takes ten times as long."""
    np = sys.modules.get("numpy")
    if np is None or len(ids) < MANY_ROWS:
        return ids
    found = np.bincount(ids).nonzero()[0] if np.max(ids) < SMALL_IDS else np.unique(ids)
    return map(int, found)


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
        columns, fault = fill(buffer, found, collections=self._collections)
        if fault >= 0:
            # A key that cannot be read concerns only its own row here; as frames the others can be read.
            return self._frames.decode(buffer, start, stop)
        controls = [(row, cut_frame(buffer, at)) for row, at in walked.others]
        moves = self.table.settle(walked, columns.numbers[SEQNO])
        return NativeRows(self._native, columns, controls, found.end - start, moves), found.end
