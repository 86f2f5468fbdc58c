"""The data rows of one receive, in two shapes: Arrow columns, or single frames.

Both answer the session's questions: which rows belong to which stream, where control messages stand between
them, and which row is the first above a seqno. `FrameRows` needs no extra; `ArrowRows` needs pyarrow (the extra
`arrow`).
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from dcpstream.client.machine.connection.stream_table import StreamTable
from dcpstream.client.machine.tracker import Moves
from dcpstream.errors import ConfigError, FieldError
from dcpstream.runtime import kernel
from dcpstream.wire import MAX_FRAME_BYTES, Frame
from dcpstream.wire.columns import OPAQUE, SEQNO, VBUCKET
from dcpstream.wire.frames import HEADER_BYTES, cut_frame, frame_length
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.messages.dcp import DATA_EXTRAS_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dcpstream.arrow import WireChunk

DATA_OPCODES = frozenset(DATA_EXTRAS_BYTES)


SMALL_IDS = 1 << 16
"""Ids of collections below this are counted instead of sorted, which takes a twentieth of the time."""

NO_RUNS: tuple[list[Any], list[Any], list[Any], list[Any]] = ([], [], [], [])
"""The answer of the kernel where it has handled all rows: runs, edges, rows out of order, rows of other vbuckets."""

Slice = tuple[int, int]
"""Rows from the first number up to, not including, the second."""


class Rows(Protocol):
    """Rows of one receive, in order of arrival, and the control messages between them."""

    @property
    def count(self) -> int:
        """The number of rows."""
        ...

    @property
    def wire_bytes(self) -> int:
        """Bytes of all frames, rows and controls."""
        ...

    @property
    def controls(self) -> Sequence[tuple[int, Frame]]:
        """(rows before it, frame) of every frame that is no row, and that the kernel has not handled."""
        ...

    @property
    def moves(self) -> Moves | None:
        """The rows that the kernel has handled, and the positions that it has moved; None without a kernel."""
        ...

    def reached(self, moves: Moves, first: int, stop: int) -> bytes:
        """Moves as they stand after the rows in first..stop, as `Moves.raw`."""
        ...

    def runs(self) -> list[tuple[int, int, int]]:
        """(first row, row after the last, opaque) of each run: adjacent rows of one stream, no control between.

        Rows that the kernel has handled are in no run.
        """
        ...

    def seqno(self, row: int) -> int:
        """The seqno of a row."""
        ...

    def highest(self, first: int, stop: int) -> int:
        """The highest seqno in first..stop, which is not empty; the seqnos there need not rise."""
        ...

    def vbid(self, row: int) -> int:
        """The vbucket of a row."""
        ...

    def edges(self, runs: Sequence[tuple[int, int, int]]) -> Iterable[tuple[int, int, int]]:
        """(vbucket and seqno of the first row, seqno of the last one) of each run."""
        ...

    def disorder(self) -> tuple[Sequence[int], Sequence[int]]:
        """Rows, ascending, that do not follow the row before, although both are of one stream.

        Returns: those whose seqno is not above that of the row before, and those of another vbucket.
        """
        ...

    def first_above(self, first: int, stop: int, seqno: int) -> int:
        """The first row in first..stop with a larger seqno, or `stop`; the seqnos there rise."""
        ...

    def collections(self, keep: Iterable[Slice], *, has_collections: bool) -> set[int]:
        """The ids of the collections of these rows.

        Args:
            keep: the rows.
            has_collections: whether keys carry a collection id.
        """
        ...


class Decoder(Protocol):
    """Cuts a receive buffer into rows and controls."""

    @property
    def table(self) -> StreamTable | None:
        """The streams that the kernel may follow; None for a decoder without one."""
        ...

    def decode(self, buffer: bytearray, start: int, stop: int) -> tuple[Rows, int]:
        """The whole frames between `start` and `stop`, and where the first incomplete one begins.

        Raises:
            WireError: the bytes are no frames.
        """
        ...


class FrameRows:
    """Rows as single frames. The kernel handles none of them."""

    __slots__ = ("controls", "frames", "wire_bytes")
    moves = None

    def __init__(self, frames: list[Frame], controls: list[tuple[int, Frame]], wire_bytes: int) -> None:
        self.frames = frames
        self.controls = controls
        self.wire_bytes = wire_bytes

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.frames)

    def reached(self, moves: Moves, first: int, stop: int) -> bytes:
        """There are no moves."""
        raise NotImplementedError

    def runs(self) -> list[tuple[int, int, int]]:
        """Adjacent rows of one stream."""
        opaques = [frame.opaque for frame in self.frames]
        cuts = [row for row in range(1, len(opaques)) if opaques[row] != opaques[row - 1]]
        return cut_runs(cuts, self.controls, opaques)

    def seqno(self, row: int) -> int:
        """The seqno of a row."""
        return int.from_bytes(self.frames[row].extras[:8], "big")

    def highest(self, first: int, stop: int) -> int:
        """The highest seqno."""
        return max(self.seqno(row) for row in range(first, stop))

    def vbid(self, row: int) -> int:
        """The vbucket of a row."""
        return self.frames[row].vbid

    def edges(self, runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The first and last row of each run."""
        return [(self.frames[first].vbid, self.seqno(first), self.seqno(stop - 1)) for first, stop, _ in runs]

    def disorder(self) -> tuple[list[int], list[int]]:
        """Rows that do not follow the row before."""
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
        """The first row with a larger seqno."""
        return bisect_right(range(stop), seqno, first, stop, key=self.seqno)

    def collections(self, keep: Iterable[Slice], *, has_collections: bool) -> set[int]:
        """The ids of the collections of these rows."""
        if not has_collections:
            return {0}
        return {leb128_decode(frame.key)[0] for first, stop in keep for frame in self.frames[first:stop]}


class FrameDecoder:
    """Frame by frame, in pure Python."""

    table = None

    def decode(self, buffer: bytearray, start: int, stop: int) -> tuple[FrameRows, int]:
        """The whole frames between `start` and `stop`."""
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
        return FrameRows(frames, controls, at - start), at


class ArrowRows:
    """Rows as Arrow columns.

    Args:
        chunk: the rows, and the frames between them.
        wire_bytes: of all frames.
        moves: what the kernel has handled.
    """

    __slots__ = ("_found", "chunk", "moves", "wire_bytes")

    def __init__(self, chunk: WireChunk, wire_bytes: int, moves: Moves | None = None) -> None:
        self.chunk = chunk
        self.wire_bytes = wire_bytes
        self.moves = moves
        self._found: Any = None
        if moves is not None and moves.is_whole:
            self._found = NO_RUNS
        elif kernel.native is not None:
            numbers = chunk.memory.columns.numbers
            owners = None if moves is None else moves.owners
            self._found = kernel.native.runs(
                len(chunk), numbers[OPAQUE], numbers[SEQNO], numbers[VBUCKET], chunk.controls, owners
            )

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.chunk)

    @property
    def controls(self) -> Sequence[tuple[int, Frame]]:
        """The frames between the rows."""
        return self.chunk.controls

    def reached(self, moves: Moves, first: int, stop: int) -> bytes:
        """Moves as they stand after some rows."""
        assert kernel.native is not None
        seqnos = self.chunk.memory.columns.numbers[SEQNO]
        found: bytes = kernel.native.reached(moves.owners, seqnos, first, stop, moves.raw)
        return found

    def runs(self) -> list[tuple[int, int, int]]:
        """Adjacent rows of one stream."""
        if self._found is not None:
            runs: list[tuple[int, int, int]] = self._found[0]
            return runs
        opaques = self.chunk.opaques
        cuts = ((opaques[1:] != opaques[:-1]).nonzero()[0] + 1).tolist() if len(opaques) else []
        return cut_runs(cuts, self.chunk.controls, opaques)

    def seqno(self, row: int) -> int:
        """The seqno of a row."""
        return int(self.chunk.seqno[row])

    def highest(self, first: int, stop: int) -> int:
        """The highest seqno."""
        return int(self.chunk.seqno[first:stop].max())

    def vbid(self, row: int) -> int:
        """The vbucket of a row."""
        return int(self.chunk.vbucket[row])

    def edges(self, runs: Sequence[tuple[int, int, int]]) -> Iterable[tuple[int, int, int]]:
        """The first and last row of each run."""
        if self._found is not None:
            edges: list[tuple[int, int, int]] = self._found[1]
            return edges
        vbid, seqno = self.vbid, self.seqno
        return [(vbid(first), seqno(first), seqno(stop - 1)) for first, stop, _ in runs]

    def disorder(self) -> tuple[list[int], list[int]]:
        """Rows that do not follow the row before."""
        if self._found is not None:
            return self._found[2], self._found[3]
        seqnos, vbuckets = self.chunk.seqno, self.chunk.vbucket
        return (
            self._within_streams(seqnos[1:] <= seqnos[:-1]),
            self._within_streams(vbuckets[1:] != vbuckets[:-1]),
        )

    def _within_streams(self, suspects: npt.NDArray[np.bool_]) -> list[int]:
        """The suspects that belong to the same stream as the row before."""
        if not suspects.any():
            return []
        opaques = self.chunk.opaques
        rows: list[int] = (suspects & (opaques[1:] == opaques[:-1])).nonzero()[0].tolist()
        return [row + 1 for row in rows]

    def first_above(self, first: int, stop: int, seqno: int) -> int:
        """The first row with a larger seqno."""
        seqnos = self.chunk.seqno
        return first + int(seqnos[first:stop].searchsorted(seqnos.dtype.type(seqno), side="right"))

    def collections(self, keep: Iterable[Slice], *, has_collections: bool) -> set[int]:
        """The ids of the collections of these rows."""
        import numpy as np

        found: set[int] = set()
        for first, stop in keep if has_collections else ():
            ids = self.chunk.collection_ids[first:stop]
            least, largest = int(ids.min()), int(ids.max())
            if least == largest:
                found.add(least)
            elif largest < SMALL_IDS:
                found.update(np.bincount(ids).nonzero()[0].tolist())
            else:
                found.update(np.unique(ids).tolist())
        return found


class ArrowDecoder:
    """Many frames at once.

    Args:
        collections: whether keys carry a collection id.

    Raises:
        ConfigError: numpy or pyarrow is missing.
    """

    def __init__(self, collections: bool) -> None:
        columnar = require_arrow()
        self._columnar = columnar
        self._options = columnar.DecodeOptions(collections=collections)
        self.table = None if kernel.native is None else StreamTable(kernel.native)

    def decode(self, buffer: bytearray, start: int, stop: int) -> tuple[ArrowRows, int]:
        """The whole frames between `start` and `stop`."""
        if self.table is None:
            index = self._columnar.scan(buffer, start, stop)
            chunk = self._columnar.decode_wire(buffer, index, self._options)
            return ArrowRows(chunk, index.consumed), index.end
        walked = self.table.walk(buffer, start, stop)
        chunk = self._columnar.decode_rows(buffer, walked.found, self._options)
        chunk.controls = [(row, cut_frame(buffer, at)) for row, at in walked.others]
        end = walked.found.end
        return ArrowRows(chunk, end - start, self.table.settle(walked)), end


def require_arrow() -> ModuleType:
    """The columnar package.

    Raises:
        ConfigError: pyarrow is missing; says what to install and what works without.
    """
    try:
        return importlib.import_module("dcpstream.arrow")
    except ImportError as error:
        raise ConfigError(
            "stream",
            "Arrow batches",
            f"they need pyarrow: pip install 'dcpstream[arrow]', or read single changes with changes() ({error})",
        ) from error


def cut_runs(
    cuts: Iterable[int], controls: Sequence[tuple[int, Frame]], opaques: Sequence[int] | npt.NDArray[np.uint32]
) -> list[tuple[int, int, int]]:
    """Runs of rows between the given cuts, cut once more at every control message."""
    count = len(opaques)
    if not count:
        return []
    at_controls = {row for row, _ in controls}
    if at_controls:
        at_controls.update(cuts)
        cuts = sorted(at_controls)
    bounds = [0, *(row for row in cuts if 0 < row < count), count]
    return [(bounds[index], bounds[index + 1], int(opaques[bounds[index]])) for index in range(len(bounds) - 1)]
