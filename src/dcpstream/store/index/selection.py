"""Choosing rows of a vbucket's index: those of a read as of some seqno, and those whose time has come.

The caller holds the lock under which the rows change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dcpstream.store.index.rows import (
    KIND_SHIFT,
    LIVE,
    NOT_A_DOCUMENT,
    POSITION_MASK,
    PREPARE,
    SYSTEM,
    Rows,
    RowTable,
    U64s,
)

ALL_KINDS = 0xFF

SELECT_ROWS = 16_384
"""Rows looked at in one step of a selection: bounds the temporary arrays (some 400 KiB) however many rows are dead."""

LOOKAHEAD_ROWS = 64
"""Rows looked at beyond those that fit into a read by the mean size of a row."""

MIN_RUNS_AT_ONCE = 4
MAX_WASTE = 4
"""A read of at least so many runs fetches the whole range around them if that is at most so many times the wanted
bytes: bounds what superseded rows cost a read in bytes, and runs cost in calls."""

Places = npt.NDArray[np.int64]
Selection = tuple[list[tuple[int, int]], Places, U64s, int]
"""Runs of positions [from, to) to copy, then per row: starts within the copy, seqnos; then the kinds met."""


def select(table: RowTable, first: int, stop: int, view_seqno: int, max_bytes: int) -> Selection:
    """The rows of [first, stop) that nothing up to `view_seqno` superseded, up to `max_bytes` but at least one.

    Returns: see `Selection`; no runs if there is no such row.
    """
    runs: list[tuple[int, int]] = []
    starts: list[Places] = []
    seqnos: list[U64s] = []
    kinds = size = 0
    while first < stop and (not runs or size < max_bytes):
        # No more rows than may fit, if they are of the usual size: the rest would be looked at for nothing.
        fitting = LOOKAHEAD_ROWS + (max_bytes - size) * len(table.positions) // max(table.end, 1)
        step = min(stop, first + SELECT_ROWS, first + fitting)
        # Views of the arrays must be gone before the next append, which could not resize them otherwise.
        tagged = np.frombuffer(table.positions, dtype=np.int64)[first:step]
        met = _kinds_in(tagged)
        successors = np.frombuffer(table.successors, dtype=np.uint64)[first:step]
        if int(successors.min()) > view_seqno:
            # Nothing superseded: one run, and the rows' places as they are.
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
            if runs and runs[-1][1] == begin:
                begin = runs.pop()[0]
            runs.append((begin, finish))
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
        found = _runs_of(rows, places)
        if runs and runs[-1][1] == found[0][0]:
            found[0] = (runs.pop()[0], found[0][1])
        runs += found
        size += int(ends[-1])
        if cut:
            break
    if not runs:
        return [], np.empty(0, np.int64), np.empty(0, np.uint64), 0
    if len(starts) == 1:
        return runs, starts[0], seqnos[0], kinds
    return runs, np.concatenate(starts), np.concatenate(seqnos), kinds


def _fitting(table: RowTable, first: int, step: int, offsets: Places, max_bytes: int) -> int:
    """How many rows of [first, step), which lie one after the other at these offsets, end within `max_bytes`."""
    before = table.start_of(first) - int(offsets[0])
    count = step - first
    if table.start_of(step) - before > max_bytes:
        count = int(offsets.searchsorted(max_bytes, "right"))  # those that begin within; the last may end behind
        if table.start_of(first + count) - before > max_bytes:
            count -= 1
    return count


def covering(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What to fetch for these runs: many short ones with little between them are fetched as one and cut after."""
    whole = runs[-1][1] - runs[0][0]
    if len(runs) >= MIN_RUNS_AT_ONCE and whole <= MAX_WASTE * sum(end - begin for begin, end in runs):
        return [(runs[0][0], runs[-1][1])]
    return runs


def timed_rows(
    table: RowTable, first: int, stop: int, kinds: int, before_time: int, limit: int
) -> tuple[list[int], int]:
    """The newest rows of their keys among [first, stop) whose time is below `before_time`.

    Args:
        kinds: any of these the row must have; 0: it must be a document, and have a time at all.
        limit: how many seqnos at most.
    Returns: their seqnos, and up to which row was looked.
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
    """The kinds of some rows, given their positions as int64, of which the highest kind is the sign."""
    return int(np.bitwise_or.reduce(tagged)) >> KIND_SHIFT & ALL_KINDS


def _runs_of(rows: Rows, places: Places) -> list[tuple[int, int]]:
    """Positions [from, to) of each run of neighbours among some rows, given where all rows and the one after begin."""
    breaks = np.flatnonzero(np.diff(rows) != 1)
    begins = places[rows[np.concatenate(([0], breaks + 1))]].tolist()
    finishes = places[rows[np.append(breaks, len(rows) - 1)] + 1].tolist()
    return list(zip(begins, finishes, strict=True))
