"""Queries over a vbucket's index: rows visible as of a seqno, rows by time, completeness of the change history.

The caller holds the lock under which the rows change.
"""

from __future__ import annotations

import weakref
from array import array

import numpy as np

from dcpstream.runtime import kernel
from dcpstream.wire.stored.block import Offsets
from dcpstream_node.store.index.rows import KIND_SHIFT, LIVE, POSITION_MASK, Rows, RowTable, U64s
from dcpstream_node.store.items import NOT_A_DOCUMENT, PREPARE, SYSTEM

ALL_KINDS = 0xFF

SELECT_ROWS = 16_384
"""Rows looked at in one step: bounds the temporary arrays (some 400 KiB) however many rows were superseded."""

LOOKAHEAD_ROWS = 64
"""Rows looked at beyond the number that fits into a read by the mean size of a row."""

MIN_RUNS_AT_ONCE = 4
MAX_WASTE = 4
"""A read of at least `MIN_RUNS_AT_ONCE` runs fetches the whole range around them, if that is at most `MAX_WASTE` times
the wanted bytes. This bounds both the superseded bytes and the number of calls of a read."""

Places = Offsets
Selection = tuple[Places, Places, U64s, int]
"""Runs of positions [from, to) to copy, two numbers each; per row the start within the copy and the seqno; the kinds
that occur."""
_NOTHING: Selection = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64), 0)


def select(table: RowTable, first: int, stop: int, view_seqno: int, max_bytes: int) -> Selection:
    """The rows of [first, stop) that no row up to `view_seqno` superseded: up to `max_bytes`, but at least one.

    Returns: see `Selection`; no runs if there is no such row.
    """
    if kernel.native is None:
        return select_plainly(table, first, stop, view_seqno, max_bytes)
    starts, seqnos, runs, kinds = kernel.native.select_rows(
        table.positions, table.successors, table.seqnos, first, stop, table.end, view_seqno, max_bytes
    )
    return np.frombuffer(runs, np.int64), np.frombuffer(starts, np.int64), np.frombuffer(seqnos, np.uint64), kinds


def select_plainly(table: RowTable, first: int, stop: int, view_seqno: int, max_bytes: int) -> Selection:
    """As `select`, without the native kernel."""
    runs: list[Places] = []
    starts: list[Places] = []
    seqnos: list[U64s] = []
    kinds = size = 0
    while first < stop and (not runs or size < max_bytes):
        # Look at no more rows than may fit if they are of the mean size.
        fitting = LOOKAHEAD_ROWS + (max_bytes - size) * len(table.positions) // max(table.end, 1)
        step = min(stop, first + SELECT_ROWS, first + fitting)
        # These views must not outlive the lock: an array with a view cannot be resized by the next append.
        tagged = np.frombuffer(table.positions, dtype=np.int64)[first:step]
        met = _kinds_in(tagged)
        successors = np.frombuffer(table.successors, dtype=np.uint64)[first:step]
        if int(successors.min()) > view_seqno:
            # No row is superseded: one run, and the rows' positions as they are.
            begin = table.start_of(first)
            offsets = (tagged & POSITION_MASK if met else tagged) - (begin - size)
            count = _fitting(table, first, step, offsets, max_bytes)
            if count == 0 and runs:
                break
            count = max(count, 1)
            finish = table.start_of(first + count)
            if met and first + count < step:
                met = _kinds_in(tagged[:count])
            starts.append(offsets[:count])
            seqnos.append(np.frombuffer(table.seqnos, dtype=np.uint64)[first : first + count].copy())
            kinds |= met
            size += finish - begin
            runs.append(np.array((begin, finish)))
            if first + count < step:
                break
            first = step
            continue
        live = successors > view_seqno
        places = np.append(tagged & POSITION_MASK, table.start_of(step))
        rows = np.flatnonzero(live)
        first = step
        if not len(rows):
            continue
        lengths = places[rows + 1] - places[rows]
        ends = np.cumsum(lengths)
        count = int(np.searchsorted(ends, max_bytes - size, side="right"))
        if count == 0 and not runs:
            count = 1
        if count == 0:
            break
        cut = count < len(rows)
        if cut:
            rows, lengths, ends = rows[:count], lengths[:count], ends[:count]
        starts.append(ends - lengths + size)
        seqnos.append(np.frombuffer(table.seqnos, dtype=np.uint64)[step - len(live) : step][rows])
        kinds |= _kinds_in(tagged[rows])
        runs.append(_runs_of(rows, places))
        size += int(ends[-1])
        if cut:
            break
    if not runs:
        return _NOTHING
    if len(starts) == 1:
        return runs[0], starts[0], seqnos[0], kinds
    return _joined(runs), np.concatenate(starts), np.concatenate(seqnos), kinds


def _joined(parts: list[Places]) -> Places:
    """Runs one after the other; those that touch become one."""
    runs = np.concatenate(parts)
    touches = np.flatnonzero(runs[1:-1:2] == runs[2::2])
    return np.delete(runs, np.concatenate((2 * touches + 1, 2 * touches + 2)))


def _fitting(table: RowTable, first: int, step: int, offsets: Places, max_bytes: int) -> int:
    """The number of rows of [first, step), adjacent and at these offsets, that end within `max_bytes`."""
    before = table.start_of(first) - int(offsets[0])
    count = step - first
    if table.start_of(step) - before > max_bytes:
        count = int(offsets.searchsorted(max_bytes, "right"))  # rows that begin within; the last may end outside
        if table.start_of(first + count) - before > max_bytes:
            count -= 1
    return count


def within(limit: int, begin: int, end: int, starts: Places, seqnos: U64s) -> tuple[int, Places, U64s]:
    """The rows of the run [begin, end) that end in its first `limit` bytes, and their end; all if none does."""
    count = int(starts.searchsorted(limit, "right")) - 1
    if end - begin <= limit or count < 1:
        return end, starts, seqnos
    return begin + int(starts[count]), starts[:count], seqnos[:count]


def covering(runs: Places) -> list[tuple[int, int]]:
    """The ranges to fetch for these runs: many short runs with little between them are fetched as one range."""
    begin, end = int(runs[0]), int(runs[-1])
    count = len(runs) // 2
    if count > 1 and not (count >= MIN_RUNS_AT_ONCE and end - begin <= MAX_WASTE * int((runs[1::2] - runs[::2]).sum())):
        return list(zip(runs[::2].tolist(), runs[1::2].tolist(), strict=True))
    return [(begin, end)]


def timed_rows(
    table: RowTable, first: int, stop: int, kinds: int, before_time: int, limit: int
) -> tuple[list[int], int]:
    """The newest rows of their keys among [first, stop) whose time is below `before_time`.

    Args:
        kinds: the row must have any of these; 0: it must be a document that has a time.
        limit: the largest number of seqnos.

    Returns: their seqnos, and the row at which the next call continues.
    """
    others = (SYSTEM | PREPARE) & ~kinds
    wanted = (NOT_A_DOCUMENT, 0) if not kinds else (kinds | others, kinds)
    stop = min(stop, first + SELECT_ROWS)
    times = np.frombuffer(table.times, dtype=np.uint32)[first:stop]
    in_time = times <= min(max(before_time - 1, 0), 0xFFFFFFFF)
    found = np.flatnonzero(in_time if kinds else in_time & (times != 0)) if before_time > 0 else times[:0]
    if len(found):
        found += first
        of_rows = np.frombuffer(table.positions, dtype=np.uint64)[found] >> np.uint64(KIND_SHIFT) & wanted[0]
        newest = np.frombuffer(table.successors, dtype=np.uint64)[found] == LIVE
        is_wanted = (of_rows & wanted[1] != 0) & (of_rows & others == 0) if kinds else of_rows == 0
        found = found[newest & is_wanted]
    if len(found) > limit:
        found, stop = found[:limit], int(found[limit])
    return np.frombuffer(table.seqnos, dtype=np.uint64)[found].tolist(), stop


def _kinds_in(tagged: Places) -> int:
    """The kinds of some rows from their positions as int64; the highest kind is the sign bit."""
    return int(np.bitwise_or.reduce(tagged)) >> KIND_SHIFT & ALL_KINDS


def _runs_of(rows: Rows, places: Places) -> Places:
    """Begin and end of each run of adjacent rows among `rows`; `places` are the positions of all rows."""
    breaks = np.flatnonzero(np.diff(rows) != 1)
    begins = places[rows[np.concatenate(([0], breaks + 1))]]
    finishes = places[rows[np.append(breaks, len(rows) - 1)] + 1]
    return np.stack((begins, finishes), axis=1).ravel()


class HistoryStart:
    """The first seqno from which on a vbucket's rows hold every version, for change histories.

    Every seqno of an active vbucket is a row. A compaction removes rows, and a copy that was filled by a deduplicated
    snapshot lacks rows. So the history is complete after the last gap in the seqnos. The object remembers how far it
    has looked.
    """

    __slots__ = ("_column", "_rows", "_start", "_truncations")

    def __init__(self) -> None:
        self._column: weakref.ref[array[int]] | None = None
        self._truncations = 0
        self._rows = 0
        self._start = 1

    def find(self, table: RowTable) -> int:
        """The first seqno from which on no version is missing.

        Cost: a look at 8 bytes of each row since the last call; of all rows after a compaction.
        """
        seqnos = table.seqnos
        is_same = self._column is not None and self._column() is seqnos
        if not is_same or self._truncations != table.truncations or self._rows > len(seqnos):
            # A compaction installs new columns; a rollback shortens them.
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

    Purged rows are their own successors and supersede no other row here.
    """
    first, stop = table.row_after(after_seqno), table.row_after(end_seqno)
    if first >= stop:
        return None
    successors = np.frombuffer(table.successors, dtype=np.uint64)[first:stop]
    is_later = successors > np.frombuffer(table.seqnos, dtype=np.uint64)[first:stop]
    lowest = int(successors.min(where=is_later, initial=LIVE))
    return lowest if lowest <= end_seqno else None


def is_void(table: RowTable, row: int, seqno: int) -> bool:
    """Whether a change history leaves a row out, because it was purged or went with its collection.

    Args:
        row, seqno: the row, and the seqno that it had; a compaction may have removed it since.
    """
    if row >= len(table.seqnos) or table.seqnos[row] != seqno or table.successors[row] == LIVE:
        return False
    successor = table.successors[row]
    superseding = table.row_of(successor)
    return superseding == row or bool(table.positions[superseding] >> KIND_SHIFT & SYSTEM)
