"""The snapshots in which a copy received its rows.

A copy that a stream fills is a state of the bucket only at the ends of its snapshots. They are remembered, so that a
rollback lands at the end of one. On an active vbucket each row stands for itself.

Nothing here locks; the vbucket calls all of it under its lock, except `covering`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from dcpstream.model import SnapshotRange
from dcpstream_node.store.index.rows import RowTable
from dcpstream_node.store.log.blocks import NO_SNAPSHOT, Mark

MAX_SNAPSHOTS = 4096
"""Received snapshots that are remembered. A rollback to before the oldest one starts from 0."""


class ReceivedSnapshots:
    """The snapshots of one vbucket.

    Attributes:
        marks: the first row of each, rising, and its range; None where each row stands for itself.
    """

    __slots__ = ("_rows", "marks")

    def __init__(self, rows: RowTable) -> None:
        self._rows = rows
        self.marks: list[tuple[int, SnapshotRange | None]] = [(0, None)]

    def begin(self, snapshot: SnapshotRange | None) -> None:
        """Rows that are appended from now on belong to this snapshot."""
        first = len(self._rows.seqnos)
        if self.marks[-1][0] == first:
            self.marks.pop()
        self.marks.append((first, snapshot))

    def forget(self, count: int) -> None:
        """Forget the oldest marks; a rollback into their rows starts from 0 if any came in a snapshot."""
        if count > 0:
            was_received = any(snapshot is not None for _, snapshot in self.marks[:count])
            last = self._rows.seqnos[self.marks[count][0] - 1] if self.marks[count][0] else 0
            self.marks[:count] = [(0, SnapshotRange(0, last + 1) if was_received else None)]

    def forget_before(self, stop: int) -> None:
        """If there are too many marks, forget some before the one that covers the row before `stop`."""
        if len(self.marks) > MAX_SNAPSHOTS:
            covering = bisect_left(self.marks, stop, key=_first_row) - 1
            self.forget(min(covering, MAX_SNAPSHOTS // 2))

    def at(self, stop: int) -> SnapshotRange | None:
        """The snapshot that covers the row before `stop`."""
        for first, snapshot in reversed(self.marks):
            if first < stop:
                return snapshot
        return None

    def truncate(self, row: int) -> None:
        """Forget the marks of this row and later ones."""
        self.marks = [mark for mark in self.marks if mark[0] < row] or [(0, None)]

    def renumber(self, moved: Callable[[int], int]) -> None:
        """Replace each mark's row number by `moved(row)`."""
        marks: list[tuple[int, SnapshotRange | None]] = []
        for row, snapshot in self.marks:
            at = moved(row)
            if marks and marks[-1][0] == at:
                marks.pop()
            marks.append((at, snapshot))
        self.marks = marks

    def covering(self, first: int, stop: int) -> list[Mark]:
        """The snapshots that cover the rows [first, stop), as a block holds them; none if there are none.

        Needs no lock: of the marks of existing rows only the oldest ever change.
        """
        marks = self.marks
        if len(marks) == 1 and marks[0][1] is None:
            return []
        found: list[Mark] = []
        for row, snapshot in reversed(marks):
            if row < stop:
                bounds = NO_SNAPSHOT if snapshot is None else (snapshot.start_seqno, snapshot.end_seqno)
                found.append((self._rows.seqnos[max(row, first)], *bounds))
            if row <= first:
                break
        if all(mark[1:] == NO_SNAPSHOT for mark in found):
            return []
        return found[::-1]

    def recovered(self, marks: Sequence[Mark]) -> None:
        """Replace all marks by those that were read from blocks."""
        self.marks = [(0, None)]
        for seqno, start, end in marks[-MAX_SNAPSHOTS:]:
            row = self._rows.row_after(seqno - 1)
            snapshot = None if (start, end) == NO_SNAPSHOT else SnapshotRange(start, end)
            if self.marks[-1][0] == row:
                self.marks.pop()
            self.marks.append((row, snapshot))
        if len(marks) >= MAX_SNAPSHOTS and len(self.marks) > 1:
            # Older marks may be forgotten: take the rows before for rows of one snapshot, which is safe.
            self.marks[0] = (0, SnapshotRange(0, self._rows.seqnos[self.marks[1][0] - 1] + 1))


def _first_row(mark: tuple[int, SnapshotRange | None]) -> int:
    return mark[0]
