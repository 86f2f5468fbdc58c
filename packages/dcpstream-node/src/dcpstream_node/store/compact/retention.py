"""Retention: which rows of a vbucket a compaction keeps, and how far back rollbacks reach after it.

A row stays in four cases: it is the newest of its key; the row that superseded it lies above the rollback horizon, so
that a rollback can make it the newest again; a reader holds a view of the past that shows it; or the change history is
kept from its seqno on. All other rows go, with one exception. A purged deletion or end of a collection stays above the
horizon, because a rollback may lead to its seqno; and it stays while a row that it superseded is in the files, because
that row would come back without it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dcpstream_node.store.index.rows import KIND_SHIFT, LIVE, POSITION_MASK, RowTable, U64s
from dcpstream_node.store.index.snapshots import ReceivedSnapshots
from dcpstream_node.store.vbucket import VBucketLog

SLICE_ROWS = 65_536
"""Rows whose columns are copied in one hold of the lock: some 100 µs."""

ROLLBACK_PART, MIN_ROLLBACK_BYTES = 16, 8 * 1024
ROLLBACK_ROWS = 10_000
"""After a compaction, rollbacks reach back over this many rows, if their frames take at most a 16th of the live bytes
(or the minimum, if that is more). This bounds the disk space for rollbacks. A copy that has to go back further starts
from 0, as a server's does."""

ROLLBACK_SNAPSHOT = 4
"""A received snapshot that contains the horizon is kept whole if it is at most this many times that size."""


class RolledBackError(Exception):
    """A rollback took back rows that are being rewritten. Caught inside the store; the compaction tries again later."""


class Rules(NamedTuple):
    """The rules for rows that stay although newer ones supersede them.

    Attributes:
        horizon_seqno: rollbacks reach down to here.
        views: seqnos of the views of the past that readers hold, rising.
        kept_from_seqno: every version from here on stays; `LIVE` for none.
    """

    horizon_seqno: int
    views: tuple[int, ...] = ()
    kept_from_seqno: int = LIVE

    def keeps(self, seqno: int, successor: int) -> bool:
        """Whether a superseded row that was not purged stays."""
        if successor > self.horizon_seqno or seqno >= self.kept_from_seqno:
            return True
        view = bisect_left(self.views, seqno)
        return view < len(self.views) and self.views[view] < successor


class Choice(NamedTuple):
    """The rows among [first, stop) of a vbucket that stay.

    Attributes:
        kept: the rows that stay, rising.
        seqnos, kinds: of the rows that stay.
        starts, ends: positions of their frames.
        dropped: seqnos of the rows that go, rising, without purged ones.
        next_kept: for each of these, the seqno of the next version of its key that stays.
        bytes_kept, bytes_dropped: frames of all rows that stay, and of all that go.
    """

    first: int
    stop: int
    kept: array[int]
    seqnos: array[int]
    kinds: bytes
    starts: array[int]
    ends: array[int]
    dropped: array[int]
    next_kept: array[int]
    bytes_kept: int
    bytes_dropped: int

    def offsets(self) -> array[int]:
        """Offsets of the frames of the rows that stay, one after the other; with the end as one more."""
        starts, ends = np.frombuffer(self.starts, dtype=np.uint64), np.frombuffer(self.ends, dtype=np.uint64)
        return array("Q", bytes(8) + np.cumsum(ends - starts).tobytes())


def rollback_bytes(rows: RowTable) -> int:
    """Superseded frames up to this size are kept for rollbacks."""
    return max((rows.end - rows.stale_bytes) // ROLLBACK_PART, MIN_ROLLBACK_BYTES)


def rules_for(vbucket: VBucketLog, *, is_durable: bool) -> Rules:
    """The rules of a compaction that begins now. Rollbacks to below its horizon go to 0 from now on."""
    with vbucket.lock:
        stop = vbucket.flushed_rows if is_durable else len(vbucket.rows.seqnos)
        vbucket.horizon_seqno = max(vbucket.horizon_seqno, _next_horizon(vbucket.rows, vbucket.snapshots, stop))
        return Rules(vbucket.horizon_seqno, vbucket.views_held(), vbucket.kept_from_seqno)


def _next_horizon(rows: RowTable, snapshots: ReceivedSnapshots, stop: int) -> int:
    """The oldest seqno before the row `stop` to which rollbacks shall reach."""
    reach = rollback_bytes(rows)
    row = max(rows.row_at(max(rows.end - reach, 0)), len(rows.seqnos) - ROLLBACK_ROWS, 0)
    row = min(row, stop)
    if not row:
        return 0
    seqno = rows.seqnos[row - 1]
    snapshot = snapshots.at(row)
    if snapshot is not None and snapshot.start_seqno < seqno < snapshot.end_seqno:
        # A rollback into a received snapshot goes to its start.
        start = rows.row_after(snapshot.start_seqno)
        if rows.end - rows.start_of(start) <= ROLLBACK_SNAPSHOT * reach:
            return snapshot.start_seqno
    return seqno


def slices(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The rows [first, stop) in slices [from, to) of `SLICE_ROWS`."""
    for begin in range(first, stop, SLICE_ROWS):
        yield begin, min(begin + SLICE_ROWS, stop)


def choose(vbucket: VBucketLog, first: int, stop: int, rules: Rules) -> Choice:
    """Choose which of the rows [first, stop) stay. Takes the lock for one slice at a time.

    A row that is superseded meanwhile stays until the next compaction. The caller has reset `RowTable.intact_rows`,
    which a rollback lowers.

    Raises: RolledBackError: a rollback has taken back some of the rows.
    """
    table, lock = vbucket.rows, vbucket.lock
    seqnos, positions, successors = array("Q"), array("Q"), array("Q")
    for begin, end in slices(first, stop):
        with lock:
            seqnos += table.seqnos[begin:end]
            positions += table.positions[begin:end]
            successors += table.successors[begin:end]
    with lock:
        if table.intact_rows < stop:
            raise RolledBackError
        positions.append(table.start_of(stop))

    def of_older() -> Iterator[array[int]]:
        for begin, end in slices(0, first):
            with lock:
                yield table.successors[begin:end]

    return _choose(first, (seqnos, positions, successors), rules, of_older)


Columns = tuple["array[int]", "array[int]", "array[int]"]
"""Seqnos; positions, with the end as one more; successors."""
Slices = Callable[[], Iterator["array[int]"]]


def _choose(first: int, columns: Columns, rules: Rules, of_older: Slices) -> Choice:
    seqnos, tagged, successors = (np.frombuffer(column, dtype=np.uint64) for column in columns)
    places = tagged & np.uint64(POSITION_MASK)
    is_purged = seqnos == successors
    keeps = (successors > np.uint64(rules.horizon_seqno)) | (seqnos >= np.uint64(rules.kept_from_seqno))
    if rules.views:
        views = np.array([*rules.views, LIVE], dtype=np.uint64)
        keeps |= views[np.searchsorted(views, seqnos)] < successors
    goes = ~keeps & ~is_purged
    dropped, next_kept = seqnos[goes], successors[goes]
    while len(dropped):
        following = np.minimum(np.searchsorted(dropped, next_kept), len(dropped) - 1)
        is_dropped = dropped[following] == next_kept
        if not is_dropped.any():
            break
        next_kept = np.where(is_dropped, next_kept[following], next_kept)
    if is_purged.any():
        purged = seqnos[is_purged]
        needed = np.zeros(len(purged), dtype=bool)
        for older in (*of_older(), successors[keeps & ~is_purged]):
            wanted = relinked(np.frombuffer(older, dtype=np.uint64), dropped, next_kept)
            at = np.minimum(np.searchsorted(purged, wanted), len(purged) - 1)
            needed[at[purged[at] == wanted]] = True
        needed |= purged >= np.uint64(rules.horizon_seqno)
        is_gone = is_purged.copy()
        is_gone[is_purged] = ~needed
        goes |= is_gone
    kept, sizes = np.flatnonzero(~goes), places[1:] - places[:-1]
    return Choice(
        first,
        first + len(seqnos),
        _column(kept + first),
        _column(seqnos[kept]),
        (tagged[kept] >> np.uint64(KIND_SHIFT)).astype(np.uint8).tobytes(),
        _column(places[kept]),
        _column(places[kept + 1]),
        _column(dropped),
        _column(next_kept),
        int(sizes[~goes].sum()),
        int(sizes[goes].sum()),
    )


def _column(numbers: npt.NDArray[np.integer[Any]]) -> array[int]:
    column = array("Q")
    column.frombytes(np.asarray(numbers, dtype=np.uint64).tobytes())
    return column


def relinked(successors: U64s, dropped: U64s, next_kept: U64s) -> U64s:
    """Successors of rows that stay; a successor that goes is replaced by the next version that stays."""
    if not len(dropped):
        return successors
    at = np.minimum(np.searchsorted(dropped, successors), len(dropped) - 1)
    return np.where(dropped[at] == successors, next_kept[at], successors)
