"""From which seqno on a vbucket's rows hold every version, for streams of changes.

Every seqno of an active vbucket is a row, and a compaction only takes rows away; a copy that was filled by a
deduplicated snapshot lacks rows too. So the history is whole behind the last gap in the seqnos, which needs no note.
"""

from __future__ import annotations

import weakref
from array import array

import numpy as np

from dcpstream.store.index.rows import KIND_SHIFT, LIVE, SYSTEM, RowTable


class HistoryStart:
    """Finds it, and remembers how far it has looked. The caller holds the lock under which the rows change."""

    __slots__ = ("_column", "_rows", "_start", "_truncations")

    def __init__(self) -> None:
        self._column: weakref.ref[array[int]] | None = None
        self._truncations = 0
        self._rows = 0
        self._start = 1

    def find(self, table: RowTable) -> int:
        """The first seqno from which on no version is missing.

        Cost: one look at 8 bytes of each row that came since the last call, of all rows after a compaction.
        """
        seqnos = table.seqnos
        is_same = self._column is not None and self._column() is seqnos
        if not is_same or self._truncations != table.truncations or self._rows > len(seqnos):
            # A compaction puts new columns in place, a rollback makes them shorter.
            self._column, self._truncations, self._rows, self._start = weakref.ref(seqnos), table.truncations, 0, 1
        first = max(self._rows - 1, 0)
        if self._rows == 0 and seqnos and seqnos[0] != 1:
            self._start = seqnos[0]
        column = np.frombuffer(seqnos, dtype=np.uint64)[first:]
        gaps = np.flatnonzero(np.diff(column) != 1)
        if len(gaps):
            self._start = int(column[gaps[-1] + 1])
        self._rows = len(seqnos)
        return self._start


def first_repeated(table: RowTable, after_seqno: int, end_seqno: int) -> int | None:
    """The lowest seqno up to `end_seqno` whose row superseded one above `after_seqno`; None if there is none.

    Rows that were purged are their own successors, and repeat nothing.
    """
    first, stop = table.row_after(after_seqno), table.row_after(end_seqno)
    if first >= stop:
        return None
    successors = np.frombuffer(table.successors, dtype=np.uint64)[first:stop]
    is_later = successors > np.frombuffer(table.seqnos, dtype=np.uint64)[first:stop]
    lowest = int(successors.min(where=is_later, initial=LIVE))
    return lowest if lowest <= end_seqno else None


def is_void(table: RowTable, row: int, seqno: int) -> bool:
    """Whether a row is no version to be told of: it was purged, or went with its collection.

    Args:
        row, seqno: where it was, and which it is; by now it may have gone.
    """
    if row >= len(table.seqnos) or table.seqnos[row] != seqno or table.successors[row] == LIVE:
        return False
    successor = table.successors[row]
    superseding = table.row_of(successor)
    return superseding == row or bool(table.positions[superseding] >> KIND_SHIFT & SYSTEM)
