"""The index of one vbucket: the newest row of each key, where its frame lies, and which row superseded it.

A row is one stored frame. Rows are in order of seqno; seqnos rise but may skip. Keys and superseded rows refer to other
rows by seqno, so a compaction can remove rows without a change of the keys. A row's position counts bytes in the
vbucket's own stream of frames; `log.frame_log` knows in which buffer or file that byte is, so neither a commit nor a
new segment file touches the index.

Columns: u64 seqno; u64 position, with the row's kinds in the top byte; u64 seqno of the row that superseded it (`LIVE`
if none); u32 time (a document's expiration, a tombstone's delete time); u32 revision. A read as of a seqno takes the
rows that no row up to that seqno superseded, so each snapshot is consistent at its own end while writing goes on. With
one dict entry per key this takes 32 bytes a row and about 140 bytes a key of 18 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dcpstream.wire.keys import leb128_decode, leb128_encode
from dcpstream.wire.system_events import events_of_scope
from dcpstream_node.store.items import (
    NOT_A_DOCUMENT,
    PREPARE,
    PREPARE_NAMESPACE,
    SCOPE_EVENT,
    SHARED_KEYS,
    SYSTEM,
    SYSTEM_COLLECTION,
    UNTOLD_REVISION,
    U32s,
    modify_key,
    prepare_key,
    prepares_of,
)

LIVE = 0xFFFFFFFFFFFFFFFF
"""In `successors`: no row superseded this one."""

ROW_BYTES = 32
KEY_BYTES = 140
"""Measured memory of a row and of a key of 18 bytes, with the allocator's and the dict's spare room; for the quota."""

KIND_SHIFT = 56
"""Positions are below 2**56 (64 PiB of frames written to one vbucket); the byte above holds the row's kinds."""
POSITION_MASK = (1 << KIND_SHIFT) - 1

U64s: TypeAlias = npt.NDArray[np.uint64]
Rows: TypeAlias = npt.NDArray[np.intp]


class Columns(NamedTuple):
    """The columns of some rows."""

    seqnos: array[int]
    positions: array[int]
    successors: array[int]
    times: array[int]
    revisions: array[int]

    @classmethod
    def empty(cls) -> Columns:
        """The columns of no rows."""
        return cls(array("Q"), array("Q"), array("Q"), array("I"), array("I"))

    def part(self, first: int, stop: int) -> Columns:
        """A copy of the rows [first, stop)."""
        return Columns(*(column[first:stop] for column in self))

    def extend(self, other: Columns) -> None:
        """Add the other rows at the end."""
        for column, more in zip(self, other, strict=True):
            column.extend(more)


class RowTable:
    """Rows and keys of one vbucket.

    Attributes:
        keys: index key → the seqno of its newest row.
        seqnos, positions, successors, times, revisions: the columns described above.
        end: position after the last row.
        item_count: keys whose newest row is a document (neither deleted nor a system event).
        collection_high: collection id → the highest seqno in it.
        stale_bytes: frames of superseded rows.
        ending: while ends of collections are deferred: collection id → seqno of the end; else None.
        journal: while a compaction copies the columns: seqnos of rows superseded meanwhile; else None.
        intact_rows: rows below this one were not truncated since a compaction set it to `LIVE`.
        truncations: the number of truncations so far.
    """

    __slots__ = (
        "collection_high",
        "end",
        "ending",
        "intact_rows",
        "item_count",
        "journal",
        "keys",
        "positions",
        "revisions",
        "seqnos",
        "stale_bytes",
        "successors",
        "times",
        "truncations",
    )

    def __init__(self) -> None:
        self.keys: dict[bytes, int] = {}
        self.columns = Columns.empty()
        self.end = 0
        self.item_count = 0
        self.collection_high: dict[int, int] = {}
        self.stale_bytes = 0
        self.journal: list[int] | None = None
        self.ending: dict[int, int] | None = None
        self.intact_rows = LIVE
        self.truncations = 0

    @property
    def memory_bytes(self) -> int:
        """The table's approximate memory."""
        return len(self.seqnos) * ROW_BYTES + len(self.keys) * KEY_BYTES

    @property
    def columns(self) -> Columns:
        """The columns of all rows."""
        return Columns(self.seqnos, self.positions, self.successors, self.times, self.revisions)

    @columns.setter
    def columns(self, columns: Columns) -> None:
        self.seqnos, self.positions, self.successors, self.times, self.revisions = columns

    def append(
        self,
        key: bytes,
        seqno: int,
        kinds: int,
        size: int,
        collection_id: int,
        time: int = 0,
        revision: int = UNTOLD_REVISION,
    ) -> None:
        """Add the next row. The caller has checked that `seqno` is above the last one."""
        positions, keys, end = self.positions, self.keys, self.end
        old = keys.get(key)
        if old is not None:
            # As `row_of` and `extent`, inline: the calls would cost a tenth of the whole append.
            seqnos = self.seqnos
            last = len(seqnos) - 1
            row = last - seqnos[last] + old
            if row < 0 or seqnos[row] != old:
                row = bisect_left(seqnos, old)
            self.successors[row] = seqno
            tagged = positions[row]
            self.stale_bytes += (positions[row + 1] if row < last else end) - tagged & POSITION_MASK
            if tagged <= POSITION_MASK or not tagged >> KIND_SHIFT & NOT_A_DOCUMENT:
                self.item_count -= 1
            if self.journal is not None:
                self.journal.append(old)
        keys[key] = seqno
        self.seqnos.append(seqno)
        positions.append(kinds << KIND_SHIFT | end if kinds else end)
        self.successors.append(LIVE)
        self.times.append(time)
        self.revisions.append(revision)
        self.end = end + size
        if not kinds & NOT_A_DOCUMENT:
            self.item_count += 1
        self.collection_high[collection_id] = seqno

    def append_documents(
        self,
        keys: Sequence[bytes],
        seqnos: Sequence[int],
        starts: npt.NDArray[np.int64],
        size: int,
        times: U32s,
        revisions: U32s,
    ) -> None:
        """Add many rows at once, all documents without further kinds. The caller sets `collection_high`.

        Args:
            starts: where each frame begins, counted from `end`.
            size: of all the frames.
        """
        known = len(self.keys)
        self.extend_columns(_column_of(seqnos), starts.astype(np.uint64) + np.uint64(self.end), times, revisions)
        self.end += size
        superseded = self.index_rows(keys, seqnos)
        self.item_count += len(self.keys) - known
        if len(superseded):
            self._count_superseded(superseded)

    def _count_superseded(self, rows: Rows) -> None:
        """Count rows that documents superseded; `item_count` has these documents already."""
        column = np.frombuffer(self.positions, dtype=np.uint64)
        tagged, following = column[rows], column[rows + 1]  # there is a next row: at least the superseding one
        mask = np.uint64(POSITION_MASK)
        self.stale_bytes += int(((following & mask) - (tagged & mask)).sum())
        self.item_count += int(np.count_nonzero(tagged & np.uint64(NOT_A_DOCUMENT << KIND_SHIFT)))

    def extend_columns(self, seqnos: U64s, positions: U64s, times: U32s, revisions: U32s) -> None:
        """Add these columns; the caller calls `index_rows` and sets `end`."""
        self.seqnos.frombytes(seqnos.tobytes())
        self.positions.frombytes(positions.tobytes())
        self.times.frombytes(times.tobytes())
        self.revisions.frombytes(revisions.tobytes())

    def index_rows(self, keys: Sequence[bytes], seqnos: Sequence[int]) -> Rows:
        """Enter the keys of rows that `extend_columns` added, and a `LIVE` successor for each.

        Returns: the rows that these supersede, including rows among themselves.
        """
        index, successors = self.keys, self.successors
        first, count = len(successors), len(keys)
        successors.frombytes(b"\xff" * (successors.itemsize * count))
        known = len(index)
        earlier = list(map(index.get, keys)) if known else []
        index.update(zip(keys, seqnos, strict=True))
        if len(index) - known == count:
            return _NO_ROWS
        replaced = [old for old in earlier if old is not None]
        # A key that occurs twice among the new ones supersedes the same earlier row twice, or is new only once.
        if len(index) - known + len(set(replaced)) == count:
            all_did = len(replaced) == count
            later = seqnos if all_did else [at for old, at in zip(earlier, seqnos, strict=True) if old is not None]
            rows = self.rows_of(replaced)
            np.frombuffer(successors, dtype=np.uint64)[rows] = _column_of(later)
            if self.journal is not None:
                self.journal += replaced
            return rows
        superseded = []
        latest: dict[bytes, int] = {}
        for place, (key, seqno) in enumerate(zip(keys, seqnos, strict=True)):
            within = latest.get(key)
            old = earlier[place] if earlier else None
            if within is not None or old is not None:
                row = first + within if within is not None else self.row_of(old or 0)
                successors[row] = seqno
                superseded.append(row)
            latest[key] = place
        if self.journal is not None:
            self.journal += [self.seqnos[row] for row in superseded]
        return np.asarray(superseded, dtype=np.intp)

    def row_of(self, seqno: int) -> int:
        """The row with this seqno; if there is none, the first one above it."""
        seqnos = self.seqnos
        last = len(seqnos) - 1
        if last >= 0:
            # If no seqno is missing between this one and the last, the row is known without a search.
            row = last - seqnos[last] + seqno
            if 0 <= row <= last and seqnos[row] == seqno:
                return row
        return bisect_left(seqnos, seqno)

    def rows_of(self, seqnos: Sequence[int]) -> Rows:
        """The rows with these seqnos, all of which exist."""
        return np.searchsorted(np.frombuffer(self.seqnos, dtype=np.uint64), _column_of(seqnos))

    def newest(self, key: bytes) -> int | None:
        """The newest row of an index key."""
        seqno = self.keys.get(key)
        return None if seqno is None else self.row_of(seqno)

    def extent(self, row: int) -> tuple[int, int]:
        """Positions [from, to) of a row's frame."""
        start = self.positions[row] & POSITION_MASK
        following = row + 1
        stop = self.positions[following] & POSITION_MASK if following < len(self.positions) else self.end
        return start, stop

    def start_of(self, row: int) -> int:
        """Position of a row's frame; of the row after the last one, the end."""
        return self.positions[row] & POSITION_MASK if row < len(self.positions) else self.end

    def row_at(self, position: int) -> int:
        """The row whose frame begins at this position, or the first one after it."""
        return bisect_left(self.positions, position, key=_position_of)

    def rows_between(self, start: int, stop: int) -> tuple[int, int]:
        """Rows [from, to) that begin at positions [start, stop)."""

        def first_at(position: int) -> int:
            return bisect_left(range(len(self.positions)), position, key=self.start_of)

        return first_at(start), first_at(stop)

    def row_after(self, seqno: int) -> int:
        """The first row whose seqno is above `seqno`."""
        return bisect_right(self.seqnos, seqno)

    def visible_row_at(self, row: int) -> int:
        """The last row at or before `row` that is no prepare or abort; -1 if there is none."""
        while row >= 0 and self.positions[row] >> KIND_SHIFT & PREPARE:
            row -= 1
        return row

    def first_row_from(self, row: int, *, is_prepare: bool) -> int:
        """The first prepare or abort from `row` on, or the first other row; the number of rows if there is none."""
        stop = len(self.positions)
        while row < stop and bool(self.positions[row] >> KIND_SHIFT & PREPARE) != is_prepare:
            row += 1
        return row

    # ----------------------------------------------------------------------------------------------------- rollback

    def recount(self) -> None:
        """Compute `item_count` and `stale_bytes` from the columns."""
        self.item_count = self.stale_bytes = 0
        if self.positions:
            tagged = np.frombuffer(self.positions, dtype=np.uint64)
            live = np.frombuffer(self.successors, dtype=np.uint64) == LIVE
            self.item_count = int(np.count_nonzero(live & (tagged >> np.uint64(KIND_SHIFT) & NOT_A_DOCUMENT == 0)))
            if not live.all():
                sizes = np.diff(np.append(tagged & np.uint64(POSITION_MASK), np.uint64(self.end)))
                self.stale_bytes = int(sizes[~live].sum())

    def truncate(self, row: int, key_of: Callable[[int], bytes]) -> None:
        """Forget `row` and all later rows; the rows that they superseded are the newest of their keys again.

        Cost: one pass over the keys and one over the forgotten rows. `key_of` reads a frame only for documents of an
        ended collection and for purged deletions, whose keys the index does not have.
        """
        self.intact_rows = min(self.intact_rows, row)
        self.truncations += 1
        if row >= len(self.seqnos):
            return
        from_seqno, successors = self.seqnos[row], self.successors
        going = {newest: key for key, newest in self.keys.items() if newest >= from_seqno}
        for older in self.superseded_from(row):
            # The chain of successors ends at the row under which the index knows the key, at the end of the
            # collection, or at a purged deletion, which is its own successor.
            newest = successors[older]
            at = self.row_of(newest)
            while (following := successors[at]) not in (LIVE, newest):
                newest = following
                at = self.row_of(newest)
            is_known = newest in going and self._is_event(at) == self._is_event(older)
            self.keys[going.pop(newest) if is_known else key_of(older)] = self.seqnos[older]
            successors[older] = LIVE
        for key in going.values():
            del self.keys[key]
        high = self.seqnos[row - 1] if row else 0
        self.end = self.start_of(row)
        for column in self.columns:
            del column[row:]
        self.recount()
        self._recount_collections(high)

    def _is_event(self, row: int) -> bool:
        return bool(self.positions[row] >> KIND_SHIFT & SYSTEM)

    # ----------------------------------------------------------------------------------------- ended, purged rows

    def end_collection(self, collection_id: int, end_row: int) -> None:
        """End a collection: the end event in `end_row` supersedes its present documents and prepares.

        Cost: one pass over the keys. If `ending` is set, the end is noted there, and `carry_out` makes the pass.
        """
        if self.ending is not None:
            self.ending[collection_id] = self.seqnos[end_row]
            return
        prefix, end_seqno = leb128_encode(collection_id), self.seqnos[end_row]
        prefixes = (prefix, prepare_key(prefix), modify_key(collection_id))
        self._end(
            [
                (key, seqno, end_seqno)
                for key, seqno in self.keys.items()
                if seqno < end_seqno and key.startswith(prefixes)
            ]
        )

    def carry_out(self) -> None:
        """End the collections noted in `ending`, in one pass over the keys."""
        ending, self.ending = self.ending, None
        if not ending:
            return
        by_length: dict[int, dict[bytes, int]] = {}
        for collection_id, end_seqno in ending.items():
            prefix = leb128_encode(collection_id)
            for start in (prefix, prepare_key(prefix), modify_key(collection_id)):
                by_length.setdefault(len(start), {})[start] = end_seqno
        # No prefix begins with another one, so the order of lengths does not matter.
        gone = [
            (key, seqno, end_seqno)
            for length, starts in by_length.items()
            for key, seqno in self.keys.items()
            if seqno < (end_seqno := starts.get(key[:length], 0))
        ]
        self._end(gone)

    def _end(self, gone: list[tuple[bytes, int, int]]) -> None:
        """Forget keys; each comes with its seqno and the seqno of the end that supersedes it."""
        for (key, _, end_seqno), row in zip(gone, self.rows_of([seqno for _, seqno, _ in gone]).tolist(), strict=True):
            if not self.positions[row] >> KIND_SHIFT & NOT_A_DOCUMENT:
                self.item_count -= 1
            self._note_stale(row, end_seqno)
            del self.keys[key]

    def purge(self, going: Iterable[tuple[bytes, int]]) -> int:
        """Forget deletions and ends of collections, given as (key, seqno), that are still the newest of their keys.

        Each becomes its own successor, so that no reader finds it or the rows that it superseded.

        Returns: how many were forgotten.
        """
        count = 0
        for key, seqno in going:
            if self.keys.get(key) == seqno:
                self._note_stale(self.row_of(seqno), seqno)
                del self.keys[key]
                count += 1
        return count

    def _note_stale(self, row: int, successor: int) -> None:
        start, stop = self.extent(row)
        self.successors[row] = successor
        self.stale_bytes += stop - start
        if self.journal is not None:
            self.journal.append(self.seqnos[row])

    def _recount_collections(self, high: int) -> None:
        stale = {collection for collection, seqno in self.collection_high.items() if seqno > high}
        for collection in stale:
            del self.collection_high[collection]
        if not stale:
            return
        # The highest row of a collection is the newest of its key, so the keys' rows are enough.
        for key, seqno in self.keys.items():
            collection = collection_of(key)
            if collection in stale:
                self.collection_high[collection] = max(self.collection_high.get(collection, 0), seqno)

    def superseded_from(self, row: int) -> list[int]:
        """The rows before `row` that `row` or a later one superseded: a rollback makes them live again."""
        seqno = self.seqnos[row] if row < len(self.seqnos) else LIVE
        column = np.frombuffer(self.successors, dtype=np.uint64)[:row]
        return np.flatnonzero((column >= seqno) & (column < LIVE)).tolist()


_NO_ROWS = np.empty(0, dtype=np.intp)


def _column_of(seqnos: Sequence[int]) -> U64s:
    """Seqnos as a numpy column."""
    if isinstance(seqnos, range):
        return np.arange(seqnos.start, seqnos.stop, seqnos.step, dtype=np.uint64)
    return np.fromiter(seqnos, np.uint64, len(seqnos))


def _position_of(tagged: int) -> int:
    return tagged & POSITION_MASK


def collection_of(key: bytes) -> int:
    """The collection id in an index key: the key's LEB128 prefix, or the collection of a system event.

    Events of a scope have the number `events_of_scope`.
    """
    first = key[0]
    if first == SYSTEM_COLLECTION:
        return _collection_of_event(key)
    if first == PREPARE_NAMESPACE:
        return prepares_of(collection_of(key[1:]))
    return first if first < 0x80 else leb128_decode(key)[0]


@lru_cache(SHARED_KEYS)
def _collection_of_event(key: bytes) -> int:
    """As `collection_of`; all vbuckets share the number object."""
    number = int.from_bytes(key[-4:], "big")
    return events_of_scope(number) if key[1:].startswith(SCOPE_EVENT) else number
