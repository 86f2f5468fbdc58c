"""What of a vbucket's rows stays when the store is compacted, and what goes.

A row stays if it is the newest of its key; if what superseded it lies above the rollback horizon, so that a rollback to
any seqno from there on can bring it back; if somebody holds a view of the past that shows it; or if the history of
changes is kept from its seqno on. Everything else goes, but for one thing: a deletion or the end of a collection that
was purged stays above the horizon, where every seqno is one that a rollback may lead to; and as long as something that
it superseded is in the files, which would come back without it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dcpstream.store.index.rows import KIND_SHIFT, LIVE, POSITION_MASK, RowTable, U64s

SLICE_ROWS = 65_536
"""Rows whose columns are copied in one hold of the lock: some 100 µs."""


class RolledBackError(Exception):
    """A rollback took back rows that are being rewritten; not an error of anybody, and not seen outside the store."""


class Rules(NamedTuple):
    """What stays beside the newest rows.

    Attributes:
        horizon_seqno: rollbacks reach down to here.
        views: seqnos of the views of the past that somebody holds, rising.
        kept_from_seqno: every version from here on stays; `LIVE` for none.
    """

    horizon_seqno: int
    views: tuple[int, ...] = ()
    kept_from_seqno: int = LIVE

    def keeps(self, seqno: int, successor: int) -> bool:
        """Whether a row stays that was not purged."""
        if successor > self.horizon_seqno or seqno >= self.kept_from_seqno:
            return True
        view = bisect_left(self.views, seqno)
        return view < len(self.views) and self.views[view] < successor


class Choice(NamedTuple):
    """The rows [first, stop) of a vbucket, of which some stay.

    Attributes:
        kept: the rows that stay, rising.
        seqnos, kinds: theirs.
        starts, ends: positions of their frames.
        dropped: seqnos of those that go, rising; purged ones are not among them.
        next_kept: of each, the seqno of the next version of its key that is not among them.
        bytes_kept, bytes_dropped: frames of all that stay, and of all that go.
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


def slices(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """[from, to) of each slice of some rows."""
    for begin in range(first, stop, SLICE_ROWS):
        yield begin, min(begin + SLICE_ROWS, stop)


def choose(table: RowTable, lock: AbstractContextManager[object], first: int, stop: int, rules: Rules) -> Choice:
    """Which of the rows [first, stop) stay. Takes the lock for one slice at a time.

    A row that is superseded meanwhile stays until the next time. Whether rows were taken back by a rollback the caller
    learns from `intact_rows`, which it has set before.

    Raises: RolledBackError: a rollback has taken back some of them.
    """
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
"""Seqnos; positions, one more; successors."""
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
    """Successors of rows that stay, with those that go replaced by the next version that stays."""
    if not len(dropped):
        return successors
    at = np.minimum(np.searchsorted(dropped, successors), len(dropped) - 1)
    return np.where(dropped[at] == successors, next_kept[at], successors)
