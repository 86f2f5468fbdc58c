"""Taking rows out of a vbucket's index and its stream of frames, while appends and reads go on.

Theory of operation. The frames that stay were copied elsewhere (`kept_frames` gives them); now index and stream are to
say so. The columns without the rows that go are built beside the present ones, a slice at a time; what happens
meanwhile is caught up with: rows that were appended are copied, and a journal tells which rows were superseded. When
little is left, the rest is done and the columns change places in one hold of the lock. A rollback that takes back rows
in between makes the building start anew.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from dcpstream.store.compact.choosing import Choice, RolledBackError, relinked, slices
from dcpstream.store.index.rows import POSITION_MASK, Columns

if TYPE_CHECKING:
    from dcpstream.store.log.bytelog import Buffer
    from dcpstream.store.vbucket import VBucketLog

READ_SPAN_BYTES = 1024 * 1024
"""Frames that stay are read together with what goes between them, so many bytes at once: pages are read whole."""

LAST_ROWS = 512
"""Appended and superseded rows that are caught up with in one hold of the lock: about a ms."""

Lock = AbstractContextManager[object]


def kept_frames(vbucket: VBucketLog, choice: Choice, lock: Lock) -> Iterator[tuple[int, int, list[Buffer]]]:
    """The frames that stay, in steps of about a MiB: which of the kept rows [from, to), and their bytes in pieces.

    Raises:
        CorruptLog, StoreError: they cannot be read.
        RolledBackError: some of them are not there any more.
    """
    starts, ends, count = choice.starts, choice.ends, len(choice.kept)
    at = 0
    while at < count:
        to = max(at + 1, bisect_right(ends, starts[at] + READ_SPAN_BYTES, lo=at))
        begin, stop = starts[at], ends[to - 1]
        with lock:
            if vbucket.rows.intact_rows < choice.stop:
                raise RolledBackError
            pieces = vbucket.log.pieces(begin, stop)
        data = memoryview(vbucket.fetch(pieces))
        runs: list[Buffer] = []
        since = begin
        for row in _breaks(starts, ends, at, to):
            runs.append(data[since - begin : ends[row - 1] - begin])
            since = starts[row]
        runs.append(data[since - begin : stop - begin])
        yield at, to, runs
        at = to


def _breaks(starts: array[int], ends: array[int], at: int, to: int) -> list[int]:
    """Which of the kept rows (at, to) do not follow the one before without a gap."""
    begins = np.frombuffer(starts, dtype=np.uint64)[at + 1 : to]
    stops = np.frombuffer(ends, dtype=np.uint64)[at : to - 1]
    return (np.flatnonzero(begins != stops) + (at + 1)).tolist()


class Rewrite:
    """One vbucket's index without the rows that go.

    Args:
        choice: which rows stay of those that are rewritten.
        lock: under which rows and buffers change.
    """

    def __init__(self, vbucket: VBucketLog, choice: Choice, lock: Lock) -> None:
        self._vbucket = vbucket
        self._rows = vbucket.rows
        self._choice = choice
        self._lock = lock
        self._offsets = array("Q", accumulate(_sizes(choice), initial=0))
        # What a rollback after the choice left of it; see `_build`.
        self._first = self._stop = self._kept = self._delta = 0
        self._columns: Columns = _empty_columns()
        self._copied = self._truncations = 0

    def run(
        self,
        commits: Lock,
        *,
        pages: Sequence[tuple[int, int, int, int]] = (),
        buffers: Sequence[tuple[int, bytearray]] = (),
    ) -> None:
        """Change index and stream. Returns when it is done; appends and reads go on meanwhile.

        Args:
            commits: held while none may be under way.
            pages: of a disk store: position (counted from the first frame that stays), address, size, checksum of each.
            buffers: of a memory store: position, counted alike, and frames.
        """
        is_done = False
        while not is_done:
            self._build()
            while self._catch_up():
                pass
            with commits:
                while self._catch_up():
                    pass
                is_done = self._finish(pages, buffers)

    def _finish(self, pages: Sequence[tuple[int, int, int, int]], buffers: Sequence[tuple[int, bytearray]]) -> bool:
        """The last step; False if a rollback came in between."""
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
        self._columns = _empty_columns()
        return True

    def _build(self) -> None:
        """All columns as they are now."""
        rows, choice = self._rows, self._choice
        with self._lock:
            rows.journal = []
            self._truncations = rows.truncations
            # Rows that were taken back since are not there any more, nor what others wrote in their places.
            self._stop = min(choice.stop, rows.intact_rows, len(rows.seqnos))
            self._first = min(choice.first, self._stop)
            count = len(rows.seqnos)
            begin, end = rows.start_of(self._first), rows.start_of(self._stop)
        self._kept = bisect_left(choice.kept, self._stop)
        self._delta = end - begin - self._offsets[self._kept]
        self._columns = _empty_columns()
        for row, to in slices(0, self._first):
            self._add(self._slice(row, to), relinks=True)
        at = 0
        for row, to in slices(self._first, self._stop):
            before, at = at, bisect_left(choice.kept, to, lo=at)
            if at > before:
                kept = [choice.kept[index] - row for index in range(before, at)]
                seqnos, positions, *others = (_picked(column, kept) for column in self._slice(row, to))
                places = self._offsets[before:at]
                columns = (seqnos, _placed(positions, places, begin), *others)
                self._add(columns, relinks=True)  # type: ignore[arg-type]
        for row, to in slices(self._stop, count):
            self._add_moved(self._slice(row, to))
        self._copied = count

    def _slice(self, first: int, stop: int) -> Columns:
        with self._lock:
            seqnos, positions, successors, times, revisions = self._rows.columns
            return (
                seqnos[first:stop],
                positions[first:stop],
                successors[first:stop],
                times[first:stop],
                revisions[first:stop],
            )

    def _add(self, columns: Columns, *, relinks: bool) -> None:
        seqnos, positions, successors, times, revisions = columns
        if relinks:
            successors = self._relinked(successors)
        for column, more in zip(self._columns, (seqnos, positions, successors, times, revisions), strict=True):
            column.extend(more)

    def _add_moved(self, columns: Columns) -> None:
        seqnos, positions, *others = columns
        self._add((seqnos, _moved(positions, self._delta), *others), relinks=False)  # type: ignore[arg-type]

    def _relinked(self, successors: array[int]) -> array[int]:
        dropped, next_kept = self._choice.dropped, self._choice.next_kept
        if not dropped:
            return successors
        columns = (np.frombuffer(column, dtype=np.uint64) for column in (successors, dropped, next_kept))
        return array("Q", relinked(*columns).tobytes())

    def _catch_up(self) -> bool:
        """One step; whether there may be more to do."""
        with self._lock:
            return self._rows.truncations == self._truncations and self._catch_up_locked()

    def _catch_up_locked(self) -> bool:
        rows = self._rows
        journal = rows.journal or []
        now, rows.journal = journal[:LAST_ROWS], journal[LAST_ROWS:]
        columns = rows.columns
        stop = min(len(rows.seqnos), self._copied + LAST_ROWS)
        if stop > self._copied:
            seqnos, positions, successors, times, revisions = (column[self._copied : stop] for column in columns)
            self._add_moved((seqnos, positions, successors, times, revisions))
            self._copied = stop
        seqnos, successors = self._columns[0], self._columns[2]
        for seqno in now:
            at = bisect_left(seqnos, seqno)
            if at < len(seqnos) and seqnos[at] == seqno:
                successors[at] = rows.successors[rows.row_of(seqno)]
        return len(now) == LAST_ROWS or stop < len(rows.seqnos)


def _empty_columns() -> Columns:
    return array("Q"), array("Q"), array("Q"), array("I"), array("I")


def _sizes(choice: Choice) -> list[int]:
    ends, starts = np.frombuffer(choice.ends, dtype=np.uint64), np.frombuffer(choice.starts, dtype=np.uint64)
    sizes: list[int] = (ends - starts).tolist()
    return sizes


def _picked(column: array[int], rows: list[int]) -> array[int]:
    return array(column.typecode, np.asarray(column)[rows].tobytes())


def _placed(positions: array[int], offsets: array[int], begin: int) -> array[int]:
    """The kinds in `positions`, with other places."""
    kinds = np.frombuffer(positions, dtype=np.uint64) & ~np.uint64(POSITION_MASK)
    return array("Q", (kinds | np.frombuffer(offsets, dtype=np.uint64) + np.uint64(begin)).tobytes())


def _moved(positions: array[int], delta: int) -> array[int]:
    if not delta:
        return positions
    return array("Q", (np.frombuffer(positions, dtype=np.uint64) - np.uint64(delta)).tobytes())


def _cut(buffer: bytearray, size: int) -> bytearray | memoryview:
    return buffer if len(buffer) <= size else memoryview(buffer)[:size]
