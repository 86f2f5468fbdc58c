"""What is in a vbucket's history: documents by key, rows in seqno order, what they count and weigh.

`VBucketLog` (`dcpstream.store.vbucket`) says how it changes, and about threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable
from typing import NamedTuple
from weakref import WeakSet

import numpy as np

from dcpstream.errors import CorruptLog
from dcpstream.store.index.history import HistoryStart, first_repeated
from dcpstream.store.index.history import is_void as void_row
from dcpstream.store.index.rows import (
    DELETED,
    KIND_SHIFT,
    LIVE,
    NOT_A_DOCUMENT,
    POSITION_MASK,
    UNTOLD_REVISION,
    RowTable,
)
from dcpstream.store.index.selection import covering, select
from dcpstream.store.index.walking import Newest, finish, walk_collections, walk_range
from dcpstream.store.items import (
    META_BYTES,
    PREPARE_NAMESPACE,
    SYSTEM_COLLECTION,
    ItemMeta,
    StoredItem,
    index_key,
    prepare_key,
    prepares_of,
    read_item,
    read_meta,
)
from dcpstream.store.log.bytelog import ByteLog, Piece
from dcpstream.store.owner import NotAtHand, Owner
from dcpstream.wire.stored.block import EMPTY_BLOCK, BlockKind, FrameBlock

READ_BYTES = 1024 * 1024
"""What `read` returns at most unless told otherwise: enough that per-block costs vanish, small against a window."""


class Brief(NamedTuple):
    """What the index knows of a document: `BlockKind` bits, revision, expiration (of a tombstone its delete time)."""

    kinds: int
    revision: int
    time: int


_new_tuple = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""


class View:
    """A state of the past that somebody reads; kept as long as this object lives."""

    __slots__ = ("__weakref__", "seqno")

    def __init__(self, seqno: int) -> None:
        self.seqno = seqno


class VBucketContents:
    """One vbucket's history, to be looked at.

    Attributes:
        vbid: its number.
        high_seqno: the last seqno, 0 if empty.
        rows, log: the index and the bytes.
        kept_from_seqno: every version from this seqno on is kept, for histories of changes.
    """

    __slots__ = ("_history_start", "_lock", "_owner", "_views", "high_seqno", "kept_from_seqno", "log", "rows", "vbid")

    def __init__(self, owner: Owner, vbid: int) -> None:
        self._owner = owner
        self._lock = owner.lock
        self.vbid = vbid
        self.kept_from_seqno = LIVE
        self._history_start = HistoryStart()
        self._views: WeakSet[View] = WeakSet()
        self.rows = RowTable()
        self.log = ByteLog(owner.files)
        self.high_seqno = 0

    @property
    def memory_bytes(self) -> int:
        """About what the vbucket takes in memory: its index, and the frames that are not in files."""
        return self.rows.memory_bytes + self.rows.end - self.log.held_start

    @property
    def key_count(self) -> int:
        """Keys in the index: documents, tombstones, prepares and system events."""
        return len(self.rows.keys)

    @property
    def item_count(self) -> int:
        """Documents, without tombstones and system events."""
        return self.rows.item_count

    @property
    def live_bytes(self) -> int:
        """Frames of the newest versions."""
        return self.rows.end - self.rows.stale_bytes

    def high_seqno_of(self, collection_ids: Iterable[int]) -> int:
        """The highest seqno (mutation, deletion or system event) in any of these collections, 0 if none."""
        high = self.rows.collection_high
        return max((high.get(collection_id, 0) for collection_id in collection_ids), default=0)

    # ------------------------------------------------------------------------------------------------------ by key

    def __contains__(self, key: bytes) -> bool:
        """Whether the key is a document now (not deleted)."""
        with self._lock:
            row = self.rows.newest(key)
            return row is not None and not self.rows.positions[row] >> KIND_SHIFT & NOT_A_DOCUMENT

    def get(self, key: bytes) -> StoredItem | None:
        """The newest version of a key, tombstones included."""
        with self._lock:
            rows, log = self.rows, self.log
            seqno = rows.keys.get(key)
            if seqno is None:
                return None
            row = rows.row_of(seqno)
            start = rows.positions[row] & POSITION_MASK
            if start >= log.tail_start:
                return read_item(log.tail, start - log.tail_start)
            place = log.locate(start)
            if place is not None:
                return read_item(*place)
            pieces = log.pieces(*rows.extent(row))
        return read_item(self._bytes(pieces))

    def meta(self, key: bytes) -> ItemMeta | None:
        """As `get`, without the value."""
        with self._lock:
            row = self.rows.newest(key)
            if row is None:
                return None
            start, stop = self.rows.extent(row)
            place = self.log.locate(start)
            if place is not None:
                return read_meta(*place)
            pieces = self.log.pieces(start, min(stop, start + META_BYTES))
        return read_meta(self._bytes(pieces))

    def brief(self, key: bytes) -> Brief | None:
        """What the index knows of the newest version of a key, tombstones included, without reading its frame."""
        with self._lock:
            rows = self.rows
            seqno = rows.keys.get(key)
            if seqno is None:
                return None
            row = rows.row_of(seqno)
            brief = _new_tuple(Brief, (rows.positions[row] >> KIND_SHIFT, rows.revisions[row], rows.times[row]))
        if brief.revision == UNTOLD_REVISION:
            meta = self.meta(key)
            return None if meta is None else brief._replace(revision=meta.rev_seqno)
        return brief

    # --------------------------------------------------------------------------------------------- many keys at once

    def collection_events(self) -> list[bytes]:
        """The newest event of each scope and collection, in order of seqno, as stored."""
        return self._newest_of(SYSTEM_COLLECTION)

    def prepares(self) -> list[bytes]:
        """The newest prepare or abort of each document that has one, in order of seqno, as stored."""
        return self._newest_of(PREPARE_NAMESPACE)

    def _newest_of(self, namespace: int) -> list[bytes]:
        """The newest frame of each key that begins with this byte."""
        with self._lock:
            seqnos = sorted(seqno for key, seqno in self.rows.keys.items() if key[0] == namespace)
            pieces = [self.log.pieces(*self.rows.extent(row)) for row in self.rows.rows_of(seqnos).tolist()]
        return [bytes(self._bytes(group)) for group in pieces]

    def items_by_collection(self) -> dict[int, int]:
        """How many documents (not deleted) each collection has. Looks at every key if there are several."""
        return finish(self.walk_collections())

    def walk_collections(self) -> Generator[None, None, dict[int, int]]:
        """As `items_by_collection`, in steps; as of the first one."""
        if all(number <= SYSTEM_COLLECTION for number in self.rows.collection_high):
            return {0: self.item_count}
        return (yield from walk_collections(*self._newest_and_hidden()))

    def keys_between(self, first: bytes, last: bytes, limit: int | None = None) -> list[bytes]:
        """Keys of documents (not deleted) from `first` to `last`, both included, ascending; at most `limit`.

        Looks at every key and every row of the vbucket, some hundred nanoseconds each.
        """
        return finish(self.walk_keys(first, last, limit))[0]

    def walk_keys(
        self, first: bytes, last: bytes, limit: int | None = None
    ) -> Generator[None, None, tuple[list[bytes], array[int]]]:
        """As `keys_between`, in steps; as of the first one. With the seqno of each key."""
        return (yield from walk_range(*self._newest_and_hidden(), first, last, limit))

    def deletion_count(self) -> int:
        """How many tombstones are kept. Looks at every key."""
        newest = list(self.rows.keys.values())
        return len(self._seqnos_of(DELETED).intersection(newest)) if len(newest) > self.item_count else 0

    def _newest_and_hidden(self) -> tuple[Newest, frozenset[int]]:
        """Each key with the seqno of its newest row, and which rows are no documents: copies of one moment."""
        with self._lock:
            newest = list(self.rows.keys), list(self.rows.keys.values())
            has_others = len(newest[0]) > self.item_count
        return newest, self._seqnos_of(NOT_A_DOCUMENT) if has_others else frozenset()

    def _seqnos_of(self, kinds: int) -> frozenset[int]:
        """Seqnos of the rows that are of one of some kinds, superseded ones among them."""
        with self._lock:
            seqnos, positions = self.rows.seqnos[:], self.rows.positions[:]
        tag = kinds << KIND_SHIFT
        is_of_kinds = np.frombuffer(positions, dtype=np.uint64) & np.uint64(tag) != 0
        return frozenset(np.frombuffer(seqnos, dtype=np.uint64)[is_of_kinds].tolist())

    # ------------------------------------------------------------------------------------------------ durable writes

    @property
    def has_prepares(self) -> bool:
        """Whether a durable write ever was in this history, as far as it is kept."""
        return any(collection_id <= prepares_of(0) for collection_id in self.rows.collection_high)

    @property
    def prepare_bytes(self) -> int:
        """Frames of the newest prepares and aborts."""
        return sum(map(len, self.prepares())) if self.has_prepares else 0

    def prepare(self, key: bytes) -> bytes | None:
        """The newest prepare of a document, or the abort that took its place, as stored."""
        with self._lock:
            row = self.rows.newest(prepare_key(key))
            if row is None:
                return None
            pieces = self.log.pieces(*self.rows.extent(row))
        return bytes(self._bytes(pieces))

    def visible_seqno(self, seqno: int) -> int:
        """The last seqno at or below this one that is no prepare or abort; 0 if there is none."""
        with self._lock:
            rows = self.rows
            row = rows.visible_row_at(rows.row_after(seqno) - 1)
            return rows.seqnos[row] if row >= 0 else 0

    def first_seqno_after(self, seqno: int, *, is_prepare: bool) -> int | None:
        """The first seqno above this one that is a prepare or abort, or that is none; None if there is none."""
        with self._lock:
            rows = self.rows
            row = rows.first_row_from(rows.row_after(seqno), is_prepare=is_prepare)
            return rows.seqnos[row] if row < len(rows.seqnos) else None

    # ------------------------------------------------------------------------------------------------ in seqno order

    def read(
        self,
        after_seqno: int,
        end_seqno: int,
        *,
        snapshot_end: int | None = None,
        max_bytes: int = READ_BYTES,
        may_wait: bool = True,
    ) -> FrameBlock:
        """Rows with after < seqno <= end that are the newest of their key as of `snapshot_end`.

        Args:
            snapshot_end: the state of which moment, default `end_seqno`; rows above it do not hide older ones.
            max_bytes: of the block; at least one row comes if there is any.
            may_wait: whether to read what the disk has to give first.
        Returns: whole rows in seqno order; an empty block means that nothing is left.
        Raises: CorruptLog: the file does not hold what was written. StoreError: it cannot be read. NotAtHand: it
            would have to wait.
        Cost: one copy of the bytes, none if they lie in one sealed buffer.
        """
        rows = self.rows
        with self._lock:
            first = rows.row_after(after_seqno)
            stop = rows.row_after(end_seqno)
            view_seqno = end_seqno if snapshot_end is None else snapshot_end
            max_bytes = self.log.contiguous(rows.start_of(first), max_bytes)
            runs, starts, seqnos, kinds = select(rows, first, stop, view_seqno, max_bytes)
            if not runs:
                return EMPTY_BLOCK
            covered = covering(runs)
            groups = [self.log.pieces(begin, end) for begin, end in covered]
        pieces = [piece for group in groups for piece in group]
        if not may_wait and self._owner.would_wait(pieces):
            raise NotAtHand(pieces)
        data = self._bytes(pieces, by_key=False)
        if covered is not runs:
            base = runs[0][0]
            view = memoryview(data)
            data = b"".join([view[begin - base : end - base] for begin, end in runs])
        return FrameBlock(data, starts, seqnos, BlockKind(kinds))

    def read_history(self, after_seqno: int, end_seqno: int, *, max_bytes: int = READ_BYTES) -> FrameBlock:
        """As `read`, with every version that is kept, not only the newest of each key.

        What was purged, and what went with its collection, is left out.
        """
        # As of the moment before them nothing supersedes these rows.
        while (block := self.read(after_seqno, end_seqno, snapshot_end=after_seqno, max_bytes=max_bytes)).count:
            with self._lock:
                rows = self.rows
                is_void = [void_row(rows, rows.row_of(seqno), seqno) for seqno in block.seqnos.tolist()]
            if not any(is_void):
                return block
            if not all(is_void):
                return block.without(is_void)
            after_seqno = block.last_seqno
        return block

    def seqno_before_end(self, size: int) -> int:
        """The first seqno of those whose frames, to the last, take at most `size` bytes."""
        with self._lock:
            row = self.rows.row_at(max(self.rows.end - size, 0))
            return self.rows.seqnos[row] if row < len(self.rows.seqnos) else self.high_seqno + 1

    @property
    def keeps_history(self) -> bool:
        """Whether versions are kept for histories of changes."""
        return self.kept_from_seqno != LIVE

    def history_start_seqno(self) -> int:
        """The first seqno from which on every version is kept."""
        with self._lock:
            return self._history_start.find(self.rows)

    def first_repeated_seqno(self, after_seqno: int, end_seqno: int) -> int | None:
        """The lowest seqno up to `end_seqno` that is another version of a key above `after_seqno`; None if none is."""
        with self._lock:
            return first_repeated(self.rows, after_seqno, end_seqno)

    def hold(self, seqno: int) -> View:
        """Keep the state as of a seqno, for reads with that `snapshot_end`, as long as the result lives.

        Rows that it shows stay when the store is compacted, even if they were superseded long ago.
        """
        view = View(seqno)
        with self._lock:
            self._views.add(view)
        return view

    def held_seqnos(self) -> tuple[int, ...]:
        """Which states of the past somebody holds, rising; each once."""
        with self._lock:
            return self._held()

    def _held(self) -> tuple[int, ...]:
        return tuple(sorted({view.seqno for view in self._views}))

    # --------------------------------------------------------------------------------------------------- their bytes

    def fetch(self, pieces: list[Piece], *, by_key: bool = False) -> bytes | memoryview:
        """The bytes of some pieces of `log`; `by_key` if they are few in each place, see `Owner.read_pieces`."""
        return self._bytes(pieces, by_key=by_key)

    def _index_key_of(self, row: int) -> bytes:
        start, stop = self.rows.extent(row)
        return index_key(self._bytes(self.log.pieces(start, stop)))

    def _bytes(self, pieces: list[Piece], *, by_key: bool = True) -> bytes | memoryview:
        try:
            parts = self._owner.read_pieces(pieces, by_key=by_key)
        except CorruptLog as error:
            found = self._located(error)
            self._owner.note_damage(found)
            raise found from None
        if len(parts) == 1:
            part = parts[0]
            return bytes(part) if isinstance(part, bytearray) else part
        return b"".join(parts)

    def _located(self, error: CorruptLog) -> CorruptLog:
        """The same error with the seqnos that are in the damaged page."""
        with self._lock:
            extent = self.log.extent_of(error.file, error.offset)
            if extent is None:
                return error
            first, stop = self.rows.rows_between(*extent)
            seqnos = self.rows.seqnos[first:stop]
        where = f"vbucket {self.vbid}, seqnos {min(seqnos)} to {max(seqnos)}" if seqnos else f"vbucket {self.vbid}"
        return CorruptLog(error.file, error.offset, f"{error.expected} ({where})", error.actual, error.hint)
