"""The position of one vbucket's reader while the messages of its stream arrive.

`PositionTracker` follows the messages; a `Run` holds the position of a run of rows. Both follow the resume rule (see
`resume`): a position always carries the bounds of the snapshot that it lies in.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple

from dcpstream.client.machine.values import VbucketEvent
from dcpstream.dcp.snapshot import READER, PlainItems, ReceivedSnapshots, Violation
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import CollectionName, FailoverLog, StreamOffset

_new_tuple = tuple.__new__


class Run(NamedTuple):
    """Adjacent rows of one stream, and the position after each of them.

    All rows of a run lie under one marker, so their positions differ only in the seqno. Inside an out-of-order snapshot
    they do not differ at all. A run without rows is a place where the position moved without one.

    Attributes:
        vbid: the vbucket.
        first, stop: number of the first row, and of the row after the last.
        vbuuid, seqno, snapshot_start, snapshot_end, manifest_uid: the position after the last row.
        unordered_high: inside an out-of-order snapshot the highest seqno received in it so far, else 0.
        collections: what the position covers.
        held: the position that counts instead, whatever the rows' seqnos.
        purge_limit: that of the position, as long as it lies below.
        event: an event of the vbucket, for a run without rows.
    """

    vbid: int
    first: int
    stop: int
    vbuuid: int
    seqno: int
    snapshot_start: int
    snapshot_end: int | None
    manifest_uid: int
    unordered_high: int = 0
    collections: tuple[CollectionName, ...] | None = None
    held: StreamOffset | None = None
    purge_limit: int | None = None
    event: VbucketEvent | None = None

    @classmethod
    def standing(cls, vbid: int, at: StreamOffset) -> Run:
        """A position without rows."""
        return cls(vbid, 0, 0, at.vbuuid, at.seqno, at.snapshot_start, at.snapshot_end, at.manifest_uid, held=at)

    def offset(self, seqno: int | None = None) -> StreamOffset:
        """The position after the row with this seqno; after the last one for None."""
        if self.held is not None:
            return self.held
        if seqno is None or self.unordered_high:
            seqno = self.seqno
        start, end, limit = self.snapshot_start, self.snapshot_end, self.purge_limit
        if limit is not None:
            limit = _limit_at(limit, seqno, start, end)
        return StreamOffset(self.vbuuid, seqno, start, end, self.manifest_uid, self.collections, limit)


def _limit_at(purge_limit: int | None, seqno: int, start: int, end: int | None) -> int | None:
    """A purge limit, if it lies above a position and within its snapshot."""
    if purge_limit is None or end is None or not start < seqno < purge_limit <= end:
        return None
    return purge_limit


_MOVE = struct.Struct("=QQQII")
"""A move as the kernel writes it: seqno, bounds of its snapshot, place of the stream, number of rows."""


class Moves(NamedTuple):
    """Positions that the kernel has moved in one receive; see `native/walk.c`.

    A stream has a move for each marker under which it moved.

    Attributes:
        runs: of each move: all but its seqno and its rows.
        raw: the moves as the kernel wrote them.
        owners: of each row the number of its move as u32; a larger number for none.
        handed: (first, stop) of the rows that have none, ascending.
        has_unordered: whether some may be of an out-of-order snapshot.
        native: the kernel.
        seqnos: u64 of each row.
    """

    runs: tuple[Run, ...]
    raw: bytes
    owners: bytes
    handed: list[tuple[int, int]]
    has_unordered: bool
    native: ModuleType
    seqnos: memoryview

    def reached(self, first: int, stop: int) -> Moves:
        """The moves as they stand after the rows in first..stop."""
        return self._replace(raw=self.native.reached(self.owners, self.seqnos, first, stop, self.raw))

    @property
    def is_whole(self) -> bool:
        """Whether every row is of a move."""
        return not self.handed

    def bounds(self, move: int) -> tuple[int, int]:
        """The bounds of a move's snapshot."""
        _, begin, end, _, _ = _MOVE.unpack_from(self.raw, move * _MOVE.size)
        return begin, end

    def place(self, move: int) -> int:
        """The place of a move's stream."""
        return int(_MOVE.unpack_from(self.raw, move * _MOVE.size)[3])

    def rows(self, move: int) -> int:
        """The number of a move's rows."""
        return int(_MOVE.unpack_from(self.raw, move * _MOVE.size)[4])

    def run(self, move: int) -> Run:
        """The position after a move."""
        return self.run_at(move, 0, 0, _MOVE.unpack_from(self.raw, move * _MOVE.size)[0])

    def run_at(self, move: int, first: int, stop: int, seqno: int) -> Run:
        """Some rows of a move, with the seqno of the last one; in an out-of-order snapshot the highest one so far."""
        run = self.runs[move]
        if run.unordered_high:
            return run._replace(first=first, stop=stop, unordered_high=max(seqno, run.unordered_high))
        return run._replace(first=first, stop=stop, seqno=seqno)

    def joined(self, runs: Iterable[Run]) -> Moves:
        """The same with rows that were handled in Python, as if the kernel had moved these."""
        moves, raw, owners = list(self.runs), [self.raw], bytearray(self.owners)
        for run in runs:
            count = run.stop - run.first
            if count:
                owners[4 * run.first : 4 * run.stop] = len(moves).to_bytes(4, sys.byteorder) * count
                moves.append(run)
                raw.append(_MOVE.pack(run.unordered_high or run.seqno, 0, 0, 0, count))
        return self._replace(runs=tuple(moves), raw=b"".join(raw), owners=bytes(owners))

    def vbids(self, *, with_rows: bool = False) -> set[int]:
        """The vbuckets that moved; those that got rows."""
        if not with_rows:
            return {run.vbid for run in self.runs}
        return {run.vbid for run, move in zip(self.runs, _MOVE.iter_unpack(self.raw), strict=True) if move[4]}


class Offsets(Mapping[int, StreamOffset]):
    """Vbucket → position after the last of its runs; made when it is looked up, because most are not.

    Args:
        runs: in order.
        moves: of the rows before the runs.
        has_all: whether moves without rows count.

    Attributes:
        last: vbucket → its last run, or the number of its last move.
    """

    __slots__ = ("_has_all", "_last", "_moves", "_runs")

    def __init__(self, runs: Iterable[Run], moves: Moves | None = None, *, has_all: bool = True) -> None:
        self._runs = runs
        # Positions outlive their rows: recorded ones are kept for as long as a rollback may go back to them.
        self._moves = None if moves is None else moves._replace(owners=b"", handed=[], seqnos=memoryview(b""))
        self._has_all = has_all
        self._last: dict[int, Run | int] | None = None

    @property
    def last(self) -> Mapping[int, Run | int]:
        """See above."""
        if self._last is None:
            last: dict[int, Run | int] = {}
            moves = self._moves
            if moves is not None and self._has_all:
                last = {run[0]: move for move, run in enumerate(moves.runs)}
            elif moves is not None:
                last = {run.vbid: move for move, run in enumerate(moves.runs) if moves.rows(move)}
            last.update((run[0], run) for run in self._runs)
            self._last = last
            self._runs = ()
        return self._last

    def __getitem__(self, vbid: int) -> StreamOffset:
        """The position of a vbucket."""
        last = self.last[vbid]
        if isinstance(last, Run):
            return last.offset()
        assert self._moves is not None
        return self._moves.run(last).offset()

    def __contains__(self, vbid: object) -> bool:
        """Whether a vbucket moved."""
        return vbid in self.last

    def __iter__(self) -> Iterator[int]:
        """The vbuckets."""
        return iter(self.last)

    def __len__(self) -> int:
        """The number of vbuckets."""
        return len(self.last)

    def __repr__(self) -> str:
        """As a dict."""
        return repr(dict(self))


class PositionTracker:
    """The position of one vbucket's reader as the messages of its stream arrive.

    `ReceivedSnapshots` decides which message fits and where the position is. This class adds what else a position
    holds: its branch, the manifest, the collections. A violation becomes an error.

    While messages are plain, the kernel follows them instead (`follow`). It gives the stream back if somebody asks for
    the position.

    Attributes:
        followed_seqno: the last seqno that the kernel moved the position to.
    """

    def __init__(self, offset: StreamOffset, *, held: StreamOffset | None = None) -> None:
        self._snapshots = ReceivedSnapshots(READER, offset.seqno, (offset.snapshot_start, offset.request_bounds()[2]))
        self._give_back: Callable[[], PlainItems] | None = None
        self.followed_seqno = 0
        self._held = held
        self._collections = offset.collections
        self._vbuuid = offset.vbuuid
        self._manifest_uid = offset.manifest_uid
        self._purge_limit = offset.purge_limit

    @property
    def snapshots(self) -> ReceivedSnapshots:
        """The seqno, and the bounds of its snapshot."""
        self.take_back()
        return self._snapshots

    def take_back(self) -> None:
        """Have the kernel give the stream back, if it follows it."""
        if self._give_back is None:
            return
        give_back, self._give_back = self._give_back, None
        items = give_back()
        self._snapshots.follow(items)
        if not items.is_unordered:
            self.followed_seqno = items.seqno
        if items.has_limit:
            self._purge_limit = items.last

    def plain_items(self, vbid: int) -> tuple[PlainItems, Run] | None:
        """The facts that decide about the next messages, and a run without rows under the present marker.

        None if they need more than that. A position with a purge limit takes no marker without a look at its kind.
        """
        if self._held is not None:
            return None
        items = self.snapshots.plain_items()
        if items is None:
            return None
        run = self.run(vbid, 0, 0)
        if items.is_unordered:
            return items, run._replace(unordered_high=max(items.seqno, 1))
        if items.takes_markers and self._purge_limit is not None:
            items = items._replace(takes_markers=False)
        if (items.first, items.last) != (run.snapshot_start, run.snapshot_end):
            run = run._replace(snapshot_start=items.first, snapshot_end=items.last)
        return items, run

    def follow(self, give_back: Callable[[], PlainItems]) -> None:
        """The kernel follows the messages from now on, until somebody asks for the position.

        Args:
            give_back: ends that; returns what has come of `plain_items`.
        """
        self._give_back = give_back

    @property
    def seqno(self) -> int:
        """The last seqno that was reached."""
        return self.snapshots.seqno

    @property
    def vbuuid(self) -> int:
        """The branch that is being read."""
        return self._vbuuid

    @property
    def offset(self) -> StreamOffset:
        """The position to record, and to resume from."""
        return self._held or self.reached_offset

    @property
    def purge_limit(self) -> int | None:
        """The purge limit of the position of this stream; see `StreamOffset`."""
        return _limit_at(self._purge_limit, self.snapshots.seqno, *self.snapshots.bounds)

    @property
    def reached_offset(self) -> StreamOffset:
        """The position of this stream, also if another position is held meanwhile."""
        start, end = self.snapshots.bounds
        seqno, uid = self.snapshots.seqno, self._manifest_uid
        return StreamOffset(self._vbuuid, seqno, start, end, uid, self._collections, self.purge_limit)

    def run(self, vbid: int, first: int, stop: int) -> Run:
        """The rows from `first` up to `stop`, the last of which was the last `item`."""
        snapshots = self.snapshots
        start, end = snapshots.bounds
        # Without the call of the named tuple's own constructor, which takes twice as long: a receive has many runs.
        return _new_tuple(
            Run,
            (
                vbid,
                first,
                stop,
                self._vbuuid,
                snapshots.seqno,
                start,
                end,
                self._manifest_uid,
                snapshots.unordered_high or 0,
                self._collections,
                self._held,
                self._purge_limit,
                None,
            ),
        )

    @property
    def is_out_of_order(self) -> bool:
        """Whether the reader is inside an out-of-order snapshot: the seqnos there do not rise."""
        return self.snapshots.unordered_high is not None

    @property
    def is_held(self) -> bool:
        """Whether another position counts meanwhile."""
        return self._held is not None

    @property
    def collections(self) -> tuple[CollectionName, ...] | None:
        """The collections that the position covers."""
        return self._collections

    def opened(self, log: FailoverLog) -> None:
        """The producer accepted the position: from now on it belongs to the newest branch."""
        self._vbuuid = log.newest.vbuuid
        self.snapshots.opened()

    def cover(self, collections: Iterable[CollectionName]) -> None:
        """A collection has begun or ended: from now on the position covers these."""
        self._collections = tuple(sorted(collections))

    def manifest(self, uid: int) -> None:
        """A system event named a newer collections manifest."""
        self._manifest_uid = max(self._manifest_uid, uid)

    def marker(self, start_seqno: int, end_seqno: int, *, is_unique: bool = False) -> None:
        """A snapshot marker arrived: what follows lies within these bounds.

        Args:
            start_seqno, end_seqno: the bounds.
            is_unique: whether the snapshot has each document once, as it is at the end. If the reader has nothing yet,
                the end is its purge limit. The limit stays as long as the reader is below it and gets rows that were
                not deleted up to there.

        Raises:
            RemoteProtocolError: it may not come now.
        """
        refuse(self.snapshots.marker(start_seqno, end_seqno))
        if not self.snapshots.seqno:
            self._purge_limit = end_seqno if is_unique else None
        elif not is_unique or end_seqno < (self._purge_limit or 0):
            self._purge_limit = None

    def oso(self, is_start: bool) -> None:
        """An out-of-order snapshot begins or ends.

        Raises:
            RemoteProtocolError: a second one begins inside it, or one ends that did not begin.
        """
        refuse(self.snapshots.out_of_order(is_start=is_start))
        self._purge_limit = None

    def item(self, seqno: int) -> None:
        """An item, system event or seqno-advanced arrived.

        Raises:
            RemoteProtocolError: it may not come now.
        """
        refuse(self.snapshots.items(seqno, seqno))

    def items(self, first_seqno: int, last_seqno: int) -> None:
        """Items arrived under one marker, their seqnos rising from the first to the last.

        Raises:
            RemoteProtocolError: they may not come now.
        """
        violation = self.snapshots.items(first_seqno, last_seqno)
        if violation is not None:
            refuse(violation)

    def check(self, first_seqno: int, last_seqno: int) -> None:
        """Refuse items that may not come now; the position stays.

        Raises:
            RemoteProtocolError: they may not come now.
        """
        refuse(self.snapshots.item_violation(first_seqno, last_seqno))


def refuse(violation: Violation | None) -> None:
    """Turn a violation into an error.

    Raises:
        RemoteProtocolError: it is one.
    """
    if violation is not None:
        raise RemoteProtocolError(violation.text)
