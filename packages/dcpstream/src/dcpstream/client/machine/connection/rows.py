"""The data rows of one receive, in two shapes: single frames, or the native kernel's columns (`native_rows`).

Both answer the session's questions: which rows belong to which stream, where control messages stand between
them, and which row is the first above a seqno.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from dcpstream.client.machine.connection.stream_table import StreamTable
from dcpstream.client.machine.tracker import Moves
from dcpstream.errors import FieldError
from dcpstream.wire import MAX_FRAME_BYTES, Frame
from dcpstream.wire.columns import check_rest
from dcpstream.wire.frames import HEADER_BYTES, cut_frame, frame_length
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.messages.dcp import DATA_EXTRAS_BYTES

DATA_OPCODES = frozenset(DATA_EXTRAS_BYTES)


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

    def runs(self) -> list[tuple[int, int, int]]:
        """Adjacent rows of one stream."""
        opaques = [frame.opaque for frame in self.frames]
        count = len(opaques)
        cuts = {row for row in range(1, count) if opaques[row] != opaques[row - 1]}
        cuts.update(row for row, _ in self.controls if 0 < row < count)
        return [(first, stop, opaques[first]) for first, stop in pairwise((0, *sorted(cuts), count)) if first < stop]

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
        check_rest(buffer, at, stop)
        return FrameRows(frames, controls, at - start), at
