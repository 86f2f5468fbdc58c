"""The positions of one stream between its deliveries and the offset store: which record is saved when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dcpstream.client.machine.reader.changes import Change
from dcpstream.client.machine.resume import spaced
from dcpstream.client.machine.values import RollbackEvent, VbucketRange
from dcpstream.client.offsets import OffsetStore, SavedOffset
from dcpstream.model import MAX_SEQNO, StreamOffset

MAX_UNACKNOWLEDGED = 10_000
"""Unacknowledged batches whose positions are kept apart; beyond it the oldest ones are joined to the next."""


class Positions:
    """The records of a stream: those to save when the user acknowledges, and those before a delivery.

    An acknowledgement covers the batch and all before it. Batches are numbered as they are delivered.

    Three things are saved without an acknowledgement, because the next run could not be exact otherwise if this one
    ends before the next acknowledgement (all but the first by `due`):

    - At the beginning, for a start at the present end of the bucket: where each vbucket without a record begins
      (`beginnings`). Without it the next run would begin at the end of that moment, and skip what came between.
    - Before the first rows of a vbucket without a record: where they begin, and on which branch. Without it the next
      run would not know that rows were delivered at all, and could not report that they are void.
    - Before a rollback below the record: the position gone back to, marked as a rollback that may or may not have been
      carried out. Without it the next run might go on above the rows that the user has kept; without the mark, it might
      leave the user with void rows.

    Args:
        ranges: what is read.
        store: where records are saved, or None.
        saved: the existing records.

    Attributes:
        branches: returns vbucket → branch for the vbuckets that are being read.
    """

    def __init__(
        self, ranges: Sequence[VbucketRange], store: OffsetStore | None, saved: Mapping[int, SavedOffset] | None = None
    ) -> None:
        self._earlier = {part.vbid: part.earlier for part in ranges}
        self.branches: Callable[[], Mapping[int, int]] = dict
        self._saved = {vbid: record.offset for vbid, record in (saved or {}).items()}
        self._starts: dict[int, StreamOffset] = {}
        if store is not None and saved is not None:
            self._starts = {part.vbid: part.start for part in ranges if part.vbid not in saved}
        self._store = store
        self._given: deque[tuple[int, Mapping[int, StreamOffset]]] = deque()
        self._next = 0

    def beginnings(self) -> dict[int, SavedOffset]:
        """The records to save (`write`) before anything is read, if the starts are only valid at this moment."""
        records = {vbid: SavedOffset(start) for vbid, start in self._starts.items()}
        self._starts.clear()
        return records

    def due(self, offsets: Mapping[int, StreamOffset], rollback: RollbackEvent | None) -> dict[int, SavedOffset]:
        """The records to save (`write`) before rows with these positions, or a rollback, are delivered."""
        records = {}
        if self._starts and not self._starts.keys().isdisjoint(offsets):
            # All that are known by now, at once: saving many costs as much as saving one.
            known = {**self.branches(), **{vbid: offset.vbuuid for vbid, offset in offsets.items()}}
            for vbid, start in list(self._starts.items()):
                if vbid in known:
                    del self._starts[vbid]
                    records[vbid] = SavedOffset(start if start.vbuuid else replace(start, vbuuid=known[vbid]))
        if rollback is not None:
            vbid, at = rollback.vbid, rollback.resumed_at
            # An acknowledgement of an earlier batch must not bring back a position above this one.
            self._given = deque(
                (number, {other: offset for other, offset in given.items() if other != vbid})
                for number, given in self._given
            )
            self._earlier[vbid] = tuple(old for old in self._earlier.get(vbid, ()) if old.seqno < at.seqno)
            saved = records[vbid].offset if vbid in records else self._saved.get(vbid)
            # A record below, or on another branch, already implies that rows above it may be void.
            is_below = (
                saved is None or saved.seqno < at.seqno or (saved.seqno == at.seqno and saved.vbuuid != at.vbuuid)
            )
            if not is_below:
                records[vbid] = SavedOffset(at, self._earlier[vbid], is_rolling_back=True)
        return records

    def give(self, offsets: Mapping[int, StreamOffset]) -> int:
        """A batch is delivered with these positions after it; returns its number."""
        number = self._next
        self._next += 1
        if self._store is not None and offsets:
            if len(self._given) >= MAX_UNACKNOWLEDGED:
                _, oldest = self._given.popleft()
                following, others = self._given[0]
                self._given[0] = (following, {**oldest, **others})
            self._given.append((number, offsets))
        return number

    def acknowledge(self, number: int) -> None:
        """The user has processed this batch and those before it: save their positions."""
        newest: dict[int, Mapping[int, StreamOffset]] = {}
        while self._given and self._given[0][0] <= number:
            offsets = self._given.popleft()[1]
            newest.update(dict.fromkeys(offsets, offsets))
        # A batch makes its positions when they are looked up: only those that are saved are.
        self.save({vbid: offsets[vbid] for vbid, offsets in newest.items()})

    def save(self, done: Mapping[int, StreamOffset]) -> None:
        """The user has processed everything up to these positions."""
        if self._store is None:
            return
        records = {}
        for vbid, offset in done.items():
            earlier = tuple(old for old in self._earlier.get(vbid, ()) if old.seqno < offset.seqno)
            records[vbid] = SavedOffset(offset, earlier)
            self._earlier[vbid] = spaced(earlier, offset)
        self.write(records)

    def write(self, records: Mapping[int, SavedOffset]) -> None:
        """Replace these records."""
        if self._store is not None and records:
            self._store.save(records)
            self._saved.update((vbid, record.offset) for vbid, record in records.items())


def save_after(store: OffsetStore, change: Change) -> None:
    """Save the position after a change that was processed, when its stream is closed already."""
    record, at = store.load().get(change.vbid, SavedOffset(StreamOffset.ZERO)), change.offset
    saved = record.offset
    if record.is_rolling_back or saved.seqno < at.seqno or (saved.seqno == at.seqno and saved.vbuuid != at.vbuuid):
        part = VbucketRange(change.vbid, saved, MAX_SEQNO, (saved, *record.earlier))
        Positions([part], store).save({change.vbid: at})
