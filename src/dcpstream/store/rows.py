"""The index of one vbucket: which row is the newest of a key, where its frame lies, and which later row superseded it.

A row is one stored frame; rows are in the order of their seqnos, which rise but may skip. A row never moves: its
position counts bytes in the vbucket's own stream of frames, from the vbucket's first byte on, and `bytelog` knows in
which buffer or file that byte is. So neither a flush nor a roll to a new file touches the index.

Per row: u64 seqno, u64 position with the row's kinds in the top byte, u32 number of the row that superseded it
(`LIVE` if none). A reader that wants the state as of row n takes the rows that were superseded by n or later, so each
snapshot is consistent at its own end although writing goes on. Plus one dict entry per key. That is 20 bytes a row and
about 140 a key of 18 bytes.

With numpy the rows of a read are selected in bulk; without it one by one, with the same result.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from dcpstream.store.items import PREPARE_NAMESPACE, SCOPE_EVENT, SYSTEM_COLLECTION, prepare_key, prepares_of
from dcpstream.wire.block import BlockKind
from dcpstream.wire.keys import leb128_decode, leb128_encode
from dcpstream.wire.system_events import events_of_scope


def _import_numpy() -> Any:
    """Numpy, or None where the arrow extra is not installed."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


np: Any = _import_numpy()

LIVE = 0xFFFFFFFF
"""In `successors`: nothing superseded this row. Also one more than the rows a vbucket can hold."""

KIND_SHIFT = 56
"""Positions are below 2**56 (64 PiB of frames written to one vbucket); the byte above holds the row's kinds."""
POSITION_MASK = (1 << KIND_SHIFT) - 1
ALL_KINDS = 0xFF

SELECT_ROWS = 16_384
"""Rows looked at in one step of a selection: bounds the temporary arrays (some 400 KiB) however many rows are dead."""

LOOKAHEAD_ROWS = 64
"""Rows looked at beyond those that fit into a read by the mean size of a row."""

DELETED = int(BlockKind.DELETION | BlockKind.EXPIRATION)
SYSTEM = int(BlockKind.SYSTEM_EVENT)
PREPARE = int(BlockKind.PREPARE)
NOT_A_DOCUMENT = DELETED | SYSTEM | PREPARE

Selection = tuple[list[tuple[int, int]], Any, Any, int]
"""Runs of positions [from, to) to copy, then per row: starts within the copy, seqnos; then the kinds met."""


class RowTable:
    """Rows and keys of one vbucket.

    Attributes:
        keys: index key → its newest row.
        seqnos, positions, successors: the columns described above.
        end: position after the last row.
        item_count: keys whose newest row is a document (neither deleted nor a system event).
        collection_high: collection id → the highest seqno in it.
    """

    __slots__ = ("collection_high", "end", "item_count", "keys", "positions", "seqnos", "successors")

    def __init__(self) -> None:
        self.keys: dict[bytes, int] = {}
        self.seqnos = array("Q")
        self.positions = array("Q")
        self.successors = array("I")
        self.end = 0
        self.item_count = 0
        self.collection_high: dict[int, int] = {}

    def append(self, key: bytes, seqno: int, kinds: int, size: int, collection_id: int) -> None:
        """Add the next row. The caller has checked that `seqno` is above the last one."""
        seqnos, positions = self.seqnos, self.positions
        row = len(seqnos)
        old = self.keys.get(key)
        if old is not None:
            self.successors[old] = row
            if not positions[old] >> KIND_SHIFT & NOT_A_DOCUMENT:
                self.item_count -= 1
        self.keys[key] = row
        seqnos.append(seqno)
        positions.append(kinds << KIND_SHIFT | self.end)
        self.successors.append(LIVE)
        self.end += size
        if not kinds & NOT_A_DOCUMENT:
            self.item_count += 1
        self.collection_high[collection_id] = seqno

    def append_documents(self, keys: Sequence[bytes], seqnos: Sequence[int], kinds: int, sizes: Sequence[int]) -> None:
        """Add many rows at once, all documents (not deleted) of the same kinds, no key twice.

        `collection_high` is left to the caller.
        """
        known = len(self.keys)
        replaced = self.index_rows(keys)
        self.item_count += len(self.keys) - known
        for old in replaced:
            if self.positions[old] >> KIND_SHIFT & NOT_A_DOCUMENT:
                self.item_count += 1
        self.seqnos.extend(seqnos)
        ends = list(accumulate(sizes, initial=self.end))
        self.end = ends.pop()
        if kinds:
            tag = kinds << KIND_SHIFT
            self.positions.extend([tag | position for position in ends])
        else:
            self.positions.extend(ends)

    def index_rows(self, keys: Sequence[bytes]) -> list[int]:
        """Enter the keys of the next rows, and a `LIVE` successor for each; the caller adds the other columns.

        Returns: the earlier rows that they supersede, without those of `keys` themselves.
        """
        index, successors = self.keys, self.successors
        first, count = len(successors), len(keys)
        successors.frombytes(b"\xff" * (successors.itemsize * count))
        known = len(index)
        earlier = list(map(index.get, keys)) if known else []
        index.update(zip(keys, range(first, first + count), strict=True))
        if len(index) - known == count:
            return []
        replaced = [old for old in earlier if old is not None]
        # A key that occurs twice among the new ones supersedes the same earlier row twice, or is new only once.
        if len(index) - known + len(set(replaced)) == count:
            for row, old in enumerate(earlier, first):
                if old is not None:
                    successors[old] = row
            return replaced
        replaced = []
        latest: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            row = first + place
            within = latest.get(key)
            old = earlier[place] if within is None and earlier else within
            if old is not None:
                successors[old] = row
                if within is None:
                    replaced.append(old)
            latest[key] = row
        return replaced

    def extent(self, row: int) -> tuple[int, int]:
        """Positions [from, to) of a row's frame."""
        start = self.positions[row] & POSITION_MASK
        following = row + 1
        stop = self.positions[following] & POSITION_MASK if following < len(self.positions) else self.end
        return start, stop

    def start_of(self, row: int) -> int:
        """Position of a row's frame; of the row after the last one, the end."""
        return self.positions[row] & POSITION_MASK if row < len(self.positions) else self.end

    def row_after(self, seqno: int) -> int:
        """The first row whose seqno is above `seqno`."""
        return bisect_right(self.seqnos, seqno)

    def visible_row_at(self, row: int) -> int:
        """The last row at or before `row` that is no prepare or abort; -1 if there is none."""
        while row >= 0 and self.positions[row] >> KIND_SHIFT & PREPARE:
            row -= 1
        return row

    def first_row_from(self, row: int, *, is_prepare: bool) -> int:
        """The first row from `row` on that is a prepare or abort, or that is none; the number of rows if none is."""
        stop = len(self.positions)
        while row < stop and bool(self.positions[row] >> KIND_SHIFT & PREPARE) != is_prepare:
            row += 1
        return row

    # ------------------------------------------------------------------------------------------------------ reading

    def select(self, first: int, stop: int, view_end: int, max_bytes: int) -> Selection:
        """The rows of [first, stop) that were not superseded before row `view_end`, up to `max_bytes` but at least one.

        Returns: see `Selection`; no runs if there is no such row.
        """
        if np is None:
            return self._select_plain(first, stop, view_end, max_bytes)
        return self._select_numpy(first, stop, view_end, max_bytes)

    def _select_plain(self, first: int, stop: int, view_end: int, max_bytes: int) -> Selection:
        runs: list[tuple[int, int]] = []
        starts: list[int] = []
        seqnos: list[int] = []
        kinds = size = 0
        for row in range(first, stop):
            if self.successors[row] < view_end:
                continue
            begin, end = self.extent(row)
            if starts and size + end - begin > max_bytes:
                break
            if runs and runs[-1][1] == begin:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((begin, end))
            starts.append(size)
            seqnos.append(self.seqnos[row])
            kinds |= self.positions[row] >> KIND_SHIFT
            size += end - begin
        return runs, starts, seqnos, kinds

    def _select_numpy(self, first: int, stop: int, view_end: int, max_bytes: int) -> Selection:
        runs: list[tuple[int, int]] = []
        starts: list[Any] = []
        seqnos: list[Any] = []
        kinds = size = 0
        while first < stop and (not runs or size < max_bytes):
            # No more rows than may fit, if they are of the usual size: the rest would be looked at for nothing.
            fitting = LOOKAHEAD_ROWS + (max_bytes - size) * len(self.positions) // max(self.end, 1)
            step = min(stop, first + SELECT_ROWS, first + fitting)
            # Views of the arrays must be gone before the next append, which could not resize them otherwise.
            tagged = np.frombuffer(self.positions, dtype=np.int64)[first:step]
            met = _kinds_in(tagged)
            successors = np.frombuffer(self.successors, dtype=np.uint32)[first:step]
            if int(successors.min()) >= view_end:
                # Nothing superseded: one run, and the rows' places as they are.
                begin = self.start_of(first)
                offsets = (tagged & POSITION_MASK if met else tagged) - (begin - size)
                count = self._fitting(first, step, offsets, max_bytes)
                if count == 0 and runs:
                    break
                count = max(count, 1)
                finish = self.start_of(first + count)
                if met and first + count < step:
                    met = _kinds_in(tagged[:count])
                starts.append(offsets[:count])
                seqnos.append(np.frombuffer(self.seqnos, dtype=np.uint64)[first : first + count].copy())
                kinds |= met
                size += finish - begin
                if runs and runs[-1][1] == begin:
                    begin = runs.pop()[0]
                runs.append((begin, finish))
                if first + count < step:
                    break
                first = step
                continue
            live = successors >= view_end
            places = np.append(tagged & POSITION_MASK, self.start_of(step))
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
            seqnos.append(np.frombuffer(self.seqnos, dtype=np.uint64)[step - len(live) : step][rows])
            kinds |= _kinds_in(tagged[rows])
            found = _runs_of(rows, places)
            if runs and runs[-1][1] == found[0][0]:
                found[0] = (runs.pop()[0], found[0][1])
            runs += found
            size += int(ends[-1])
            if cut:
                break
        if not runs:
            return [], [], [], 0
        if len(starts) == 1:
            return runs, starts[0], seqnos[0], kinds
        return runs, np.concatenate(starts), np.concatenate(seqnos), kinds

    def _fitting(self, first: int, step: int, offsets: Any, max_bytes: int) -> int:
        """How many rows of [first, step), which lie one after the other at these offsets, end within `max_bytes`."""
        before = self.start_of(first) - int(offsets[0])
        count = step - first
        if self.start_of(step) - before > max_bytes:
            count = int(offsets.searchsorted(max_bytes, "right"))  # those that begin within; the last may end behind
            if self.start_of(first + count) - before > max_bytes:
                count -= 1
        return count

    # ----------------------------------------------------------------------------------------------------- rollback

    def recount(self) -> None:
        """Work out `item_count` from the columns."""
        if np is None:
            self.item_count = sum(
                successor == LIVE and not position >> KIND_SHIFT & NOT_A_DOCUMENT
                for successor, position in zip(self.successors, self.positions, strict=True)
            )
        elif self.positions:
            kinds = np.frombuffer(self.positions, dtype=np.uint64) >> np.uint64(KIND_SHIFT)
            live = np.frombuffer(self.successors, dtype=np.uint32) == LIVE
            self.item_count = int(np.count_nonzero(live & (kinds & np.uint64(NOT_A_DOCUMENT) == 0)))
        else:
            self.item_count = 0

    def truncate(self, row: int, key_of: Callable[[int], bytes]) -> None:
        """Forget `row` and all later rows; what they had superseded is the newest of its key again.

        Cost: one pass over the keys, one over the rows that go. Only of documents of an ended collection and of
        purged deletions, whose keys the index does not have, the frame is read, by `key_of`.
        """
        going = {newest: key for key, newest in self.keys.items() if newest >= row}
        successors = self.successors
        for older in self.superseded_from(row):
            # The chain of successors ends at the row under which the index knows the key, at the end of the
            # collection, or at a purged deletion, which is its own successor.
            newest = older
            while (following := successors[newest]) not in (LIVE, newest):
                newest = following
            is_known = newest in going and self._is_event(newest) == self._is_event(older)
            self.keys[going.pop(newest) if is_known else key_of(older)] = older
            successors[older] = LIVE
        for key in going.values():
            del self.keys[key]
        high = self.seqnos[row - 1] if row else 0
        self.end = self.start_of(row)
        del self.seqnos[row:]
        del self.positions[row:]
        del self.successors[row:]
        self.recount()
        self._recount_collections(high)

    def _is_event(self, row: int) -> bool:
        return bool(self.positions[row] >> KIND_SHIFT & SYSTEM)

    # ------------------------------------------------------------------------------------- what is gone for good

    def end_collection(self, collection_id: int, end_row: int) -> None:
        """A collection has ended: its end event, in `end_row`, supersedes its documents and prepares as they are now.

        Cost: one pass over the keys.
        """
        prefix = leb128_encode(collection_id)
        prefixes = (prefix, prepare_key(prefix))
        gone = [(key, row) for key, row in self.keys.items() if row < end_row and key.startswith(prefixes)]
        for key, row in gone:
            if not self.positions[row] >> KIND_SHIFT & NOT_A_DOCUMENT:
                self.item_count -= 1
            self.successors[row] = end_row
            del self.keys[key]

    def deletions(self, seqno: int) -> list[tuple[bytes, int]]:
        """(key, row) of the documents that are deleted now, by a row at or below `seqno`."""
        stop, positions = self.row_after(seqno), self.positions
        return [
            (key, row)
            for key, row in self.keys.items()
            if row < stop and positions[row] >> KIND_SHIFT & DELETED and key[0] != PREPARE_NAMESPACE
        ]

    def purge(self, deletions: Iterable[tuple[bytes, int]]) -> None:
        """Forget deletions: each becomes its own successor, so that no reader finds it or what it superseded."""
        for key, row in deletions:
            self.successors[row] = row
            del self.keys[key]

    def _recount_collections(self, high: int) -> None:
        stale = {collection for collection, seqno in self.collection_high.items() if seqno > high}
        for collection in stale:
            del self.collection_high[collection]
        if not stale:
            return
        # The highest row of a collection is the newest of its key, so the keys' rows are enough.
        for key, row in self.keys.items():
            collection = collection_of(key)
            if collection in stale:
                self.collection_high[collection] = max(self.collection_high.get(collection, 0), self.seqnos[row])

    def superseded_from(self, row: int) -> list[int]:
        """The rows before `row` that were superseded by `row` or a later one: a rollback brings them back."""
        if np is None:
            return [older for older in range(row) if row <= self.successors[older] < LIVE]
        column = np.frombuffer(self.successors, dtype=np.uint32)[:row]
        found: list[int] = np.flatnonzero((column >= row) & (column < LIVE)).tolist()
        return found


def _kinds_in(tagged: Any) -> int:
    """The kinds of some rows, given their positions as int64, of which the highest kind is the sign."""
    return int(np.bitwise_or.reduce(tagged)) >> KIND_SHIFT & ALL_KINDS


def _runs_of(rows: Any, places: Any) -> list[tuple[int, int]]:
    """Positions [from, to) of each run of neighbours among some rows, given where all rows and the one after begin."""
    breaks = np.flatnonzero(np.diff(rows) != 1)
    begins = places[rows[np.concatenate(([0], breaks + 1))]].tolist()
    finishes = places[rows[np.append(breaks, len(rows) - 1)] + 1].tolist()
    return list(zip(begins, finishes, strict=True))


def collection_of(key: bytes) -> int:
    """The collection of an index key: what its LEB128 prefix says, or which collection a system event is about.

    Events of a scope have the number `events_of_scope`.
    """
    first = key[0]
    if first == SYSTEM_COLLECTION:
        number = int.from_bytes(key[-4:], "big")
        return events_of_scope(number) if key[1:].startswith(SCOPE_EVENT) else number
    if first == PREPARE_NAMESPACE:
        return prepares_of(collection_of(key[1:]))
    return first if first < 0x80 else leb128_decode(key)[0]
