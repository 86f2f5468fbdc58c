"""Removing rows from a vbucket's index and frame log while appends and reads go on.

Theory of operation. The caller has copied the frames that stay (`kept_frames` reads them). `RowRemoval` builds new
columns, without the rows that go, next to the present ones, one slice at a time. Then it catches up: it copies rows
that were appended meanwhile, and updates rows that were superseded meanwhile, which a journal lists. When little is
left, it does the rest and installs the new columns in one hold of the lock. If a rollback takes back rows in between,
the building starts again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.compact.retention import Choice, RolledBackError, relinked, slices
from dcpstream_node.store.index.rows import POSITION_MASK, Columns, Rows
from dcpstream_node.store.log.blocks import Page
from dcpstream_node.store.vbucket import VBucketLog

READ_SPAN_BYTES = 1024 * 1024
"""Frames that stay are read in spans of this size, including dropped frames between them: pages are read whole."""

LAST_ROWS = 512
"""Appended and superseded rows that are processed in one hold of the lock: about a ms."""


def kept_frames(vbucket: VBucketLog, choice: Choice) -> Iterator[tuple[int, int, list[Buffer]]]:
    """The frames that stay, in steps of about a MiB: indexes [from, to) in `choice.kept`, and their bytes.

    Raises:
        CorruptLog, StoreError: they cannot be read.
        RolledBackError: a rollback has taken back some of them.
    """
    starts, ends, count = choice.starts, choice.ends, len(choice.kept)
    at = 0
    while at < count:
        to = max(at + 1, bisect_right(ends, starts[at] + READ_SPAN_BYTES, lo=at))
        begin, stop = starts[at], ends[to - 1]
        with vbucket.lock:
            if vbucket.rows.intact_rows < choice.stop:
                raise RolledBackError
            pieces = vbucket.log.pieces(begin, stop)
        data = memoryview(vbucket.fetch(pieces, by_key=False))
        runs: list[Buffer] = []
        since = begin
        for row in _breaks(starts, ends, at, to):
            runs.append(data[since - begin : ends[row - 1] - begin])
            since = starts[row]
        runs.append(data[since - begin : stop - begin])
        yield at, to, runs
        at = to


def _breaks(starts: array[int], ends: array[int], at: int, to: int) -> list[int]:
    """The indexes among kept rows (at, to) whose frames do not directly follow the frame before."""
    begins = np.frombuffer(starts, dtype=np.uint64)[at + 1 : to]
    stops = np.frombuffer(ends, dtype=np.uint64)[at : to - 1]
    return (np.flatnonzero(begins != stops) + (at + 1)).tolist()


class RowRemoval:
    """Removes from one vbucket's index and frame log the rows that `choice` does not keep."""

    def __init__(self, vbucket: VBucketLog, choice: Choice) -> None:
        self._vbucket = vbucket
        self._rows = vbucket.rows
        self._choice = choice
        self._lock = vbucket.lock
        self._offsets = choice.offsets()
        # The part of the choice that rollbacks have left; see `_build`.
        self._first = self._stop = self._kept = self._delta = 0
        self._columns = Columns.empty()
        self._copied = self._truncations = 0

    def run(
        self,
        commits: AbstractContextManager[object],
        *,
        pages: Sequence[Page] = (),
        buffers: Sequence[tuple[int, bytearray]] = (),
    ) -> None:
        """Change index and frame log. Appends and reads go on meanwhile.

        Args:
            commits: the lock that keeps commits out.
            pages: the copied frames in a disk store; positions count from the first frame that stays.
            buffers: the copied frames in a memory store, with positions that count alike.
        """
        is_done = False
        while not is_done:
            try:
                self._build()
            except RolledBackError:
                continue
            while self._catch_up():
                pass
            with commits:
                while self._catch_up():
                    pass
                is_done = self._finish(pages, buffers)

    def _finish(self, pages: Sequence[Page], buffers: Sequence[tuple[int, bytearray]]) -> bool:
        """Install the new columns; False if a rollback came in between."""
        rows = self._rows
        with self._lock:
            if rows.truncations != self._truncations:
                return False
            while self._catch_up_locked():
                pass
            rows.journal = None
            begin, end = rows.start_of(self._first), rows.start_of(self._stop)
            self._vbucket.rows_go(self._first, self._stop, self._choice.kept, self._kept)
            kept_bytes = self._offsets[self._kept]
            self._vbucket.log.replace(
                begin,
                end,
                kept_bytes,
                [page for page in pages if page[0] < kept_bytes],
                [(place, _cut(buffer, kept_bytes - place)) for place, buffer in buffers if place < kept_bytes],
            )
            rows.columns = self._columns
            rows.end -= self._delta
            rows.stale_bytes -= self._delta
        self._columns = Columns.empty()
        return True

    def _build(self) -> None:
        """Build the new columns from the present ones.

        Raises: RolledBackError: a rollback came in between, and the rows are others than at the beginning.
        """
        rows, choice = self._rows, self._choice
        with self._lock:
            rows.journal = []
            self._truncations = rows.truncations
            # Leave out rows that a rollback took back, and rows that were appended in their place.
            self._stop = min(choice.stop, rows.intact_rows, len(rows.seqnos))
            self._first = min(choice.first, self._stop)
            count = len(rows.seqnos)
            begin, end = rows.start_of(self._first), rows.start_of(self._stop)
        self._kept = bisect_left(choice.kept, self._stop)
        self._delta = end - begin - self._offsets[self._kept]
        self._columns = Columns.empty()
        for row, to in slices(0, self._first):
            self._add_relinked(self._slice(row, to))
        at = 0
        for row, to in slices(self._first, self._stop):
            before, at = at, bisect_left(choice.kept, to, lo=at)
            if at > before:
                kept = np.array(choice.kept[before:at], dtype=np.intp) - row
                picked = Columns(*(_picked(column, kept) for column in self._slice(row, to)))
                placed = _placed(picked.positions, self._offsets[before:at], begin)
                self._add_relinked(picked._replace(positions=placed))
        for row, to in slices(self._stop, count):
            self._add_moved(self._slice(row, to))
        self._copied = count

    def _slice(self, first: int, stop: int) -> Columns:
        with self._lock:
            if self._rows.truncations != self._truncations:
                raise RolledBackError
            return self._rows.columns.part(first, stop)

    def _add_relinked(self, columns: Columns) -> None:
        """Add rows whose successors may go."""
        dropped, next_kept = self._choice.dropped, self._choice.next_kept
        if dropped:
            seqnos = (np.frombuffer(column, dtype=np.uint64) for column in (columns.successors, dropped, next_kept))
            columns = columns._replace(successors=array("Q", relinked(*seqnos).tobytes()))
        self._columns.extend(columns)

    def _add_moved(self, columns: Columns) -> None:
        """Add rows whose frames lie after those that go."""
        positions = columns.positions
        if self._delta:
            places = np.frombuffer(positions, dtype=np.uint64) - np.uint64(self._delta)
            positions = array("Q", places.tobytes())
        self._columns.extend(columns._replace(positions=positions))

    def _catch_up(self) -> bool:
        """One step of catching up; True if there may be more to do."""
        with self._lock:
            return self._rows.truncations == self._truncations and self._catch_up_locked()

    def _catch_up_locked(self) -> bool:
        rows = self._rows
        journal = rows.journal or []
        now, rows.journal = journal[:LAST_ROWS], journal[LAST_ROWS:]
        stop = min(len(rows.seqnos), self._copied + LAST_ROWS)
        if stop > self._copied:
            self._add_moved(rows.columns.part(self._copied, stop))
            self._copied = stop
        seqnos = self._columns.seqnos
        for seqno in now:
            at = bisect_left(seqnos, seqno)
            if at < len(seqnos) and seqnos[at] == seqno:
                self._columns.successors[at] = rows.successors[rows.row_of(seqno)]
        return len(now) == LAST_ROWS or stop < len(rows.seqnos)


def _picked(column: array[int], rows: Rows) -> array[int]:
    return array(column.typecode, np.asarray(column)[rows].tobytes())


def _placed(positions: array[int], offsets: array[int], begin: int) -> array[int]:
    """The kinds in `positions` with new places."""
    kinds = np.frombuffer(positions, dtype=np.uint64) & ~np.uint64(POSITION_MASK)
    return array("Q", (kinds | np.frombuffer(offsets, dtype=np.uint64) + np.uint64(begin)).tobytes())


def _cut(buffer: bytearray, size: int) -> bytearray | memoryview:
    return buffer if len(buffer) <= size else memoryview(buffer)[:size]
