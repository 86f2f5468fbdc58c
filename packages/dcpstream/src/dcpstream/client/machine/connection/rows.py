"""The data rows of one receive, in two shapes: single frames, or the native kernel's columns.

Both answer the session's questions: which rows belong to which stream, where control messages stand between
them, and which row is the first above a seqno.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias

from dcpstream.client.machine.connection.stream_table import StreamTable
from dcpstream.client.machine.tracker import Moves
from dcpstream.errors import FieldError
from dcpstream.wire import MAX_FRAME_BYTES, Frame
from dcpstream.wire.columns import COLLECTION, OPAQUE, SEQNO, VBUCKET, Columns, check_rest, fill
from dcpstream.wire.frames import HEADER_BYTES, cut_frame, frame_length
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.messages.dcp import DATA_EXTRAS_BYTES

DATA_OPCODES = frozenset(DATA_EXTRAS_BYTES)


SMALL_IDS = 1 << 16
"""Ids of collections below this are counted instead of sorted, which takes a twentieth of the time."""

MANY_ROWS = 200
"""Rows whose ids numpy finds sooner than a set."""

Slice = tuple[int, int]
"""Rows from the first number up to, not including, the second."""


class FrameRows:
    """Rows as single frames. The kernel handles none of them.

    Attributes:
        frames: the rows, in order of arrival.
        controls: (rows before it, frame) of every frame that is no row, and that the kernel has not handled.
        wire_bytes: of all frames, rows and controls.
        moves: the rows that the kernel has handled, and the positions that it has moved.
    """

    __slots__ = ("controls", "frames", "wire_bytes")
    moves: Moves | None = None

    def __init__(self, frames: list[Frame], controls: list[tuple[int, Frame]], wire_bytes: int) -> None:
        self.frames = frames
        self.controls = controls
        self.wire_bytes = wire_bytes

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.frames)

    def runs(self) -> list[tuple[int, int, int]]:
        """(first row, row after the last, opaque) of each run: adjacent rows of one stream, no control between.

        Rows that the kernel has handled are in no run.
        """
        opaques = [frame.opaque for frame in self.frames]
        count = len(opaques)
        cuts = {row for row in range(1, count) if opaques[row] != opaques[row - 1]}
        cuts.update(row for row, _ in self.controls if 0 < row < count)
        return [(first, stop, opaques[first]) for first, stop in pairwise((0, *sorted(cuts), count)) if first < stop]

    def seqno(self, row: int) -> int:
        """The seqno of a row."""
        return int.from_bytes(self.frames[row].extras[:8], "big")

    def highest(self, first: int, stop: int) -> int:
        """The highest seqno in first..stop, which is not empty; the seqnos there need not rise."""
        return max(self.seqno(row) for row in range(first, stop))

    def vbid(self, row: int) -> int:
        """The vbucket of a row."""
        return self.frames[row].vbid

    def edges(self, runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """(vbucket and seqno of the first row, seqno of the last one) of each run."""
        return [(self.frames[first].vbid, self.seqno(first), self.seqno(stop - 1)) for first, stop, _ in runs]

    def disorder(self) -> tuple[list[int], list[int]]:
        """Rows, ascending, that do not follow the row before, although both are of one stream.

        Returns: those whose seqno is not above that of the row before, and those of another vbucket.
        """
        unordered, strays = [], []
        before, seqno_before = None, b""
        for row, frame in enumerate(self.frames):
            seqno = frame.extras[:8]  # big-endian, so that bytes compare as numbers do
            if before is not None and frame.opaque == before.opaque:
                if seqno <= seqno_before:
                    unordered.append(row)
                if frame.vbid != before.vbid:
                    strays.append(row)
            before, seqno_before = frame, seqno
        return unordered, strays

    def first_above(self, first: int, stop: int, seqno: int) -> int:
        """The first row in first..stop with a larger seqno, or `stop`; the seqnos there rise."""
        return bisect_right(range(stop), seqno, first, stop, key=self.seqno)

    def collections(self, keep: Iterable[Slice], *, has_collections: bool) -> set[int]:
        """The ids of the collections of these rows; `has_collections` says whether keys carry one."""
        if not has_collections:
            return {0}
        return {leb128_decode(frame.key)[0] for first, stop in keep for frame in self.frames[first:stop]}


class FrameDecoder:
    """Frame by frame, in pure Python."""

    table: StreamTable | None = None

    def decode(self, buffer: bytearray, start: int, stop: int) -> tuple[FrameRows, int]:
        """The whole frames between `start` and `stop`, and where the first incomplete one begins.

        Raises:
            WireError: the bytes are no frames.
        """
        frames: list[Frame] = []
        controls: list[tuple[int, Frame]] = []
        at = start
        while stop - at >= HEADER_BYTES:
            end = at + frame_length(buffer, at, MAX_FRAME_BYTES)
            if end > stop:
                break
            frame = cut_frame(buffer, at)
            if frame.opcode in DATA_OPCODES and frame.is_request:
                if len(frame.extras) not in DATA_EXTRAS_BYTES[frame.opcode]:
                    raise FieldError(
                        f"extras of {len(frame.extras)} bytes in a message with opcode 0x{frame.opcode:02x}", offset=at
                    )
                frames.append(frame)
            else:
                controls.append((len(frames), frame))
            at = end
        check_rest(buffer, at, stop)
        return FrameRows(frames, controls, at - start), at


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

    def edges(self, runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
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


Rows: TypeAlias = FrameRows | NativeRows
"""Rows of one receive, in order of arrival, and the control messages between them."""

Decoder: TypeAlias = FrameDecoder | NativeDecoder
