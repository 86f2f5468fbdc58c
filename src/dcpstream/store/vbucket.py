"""The history of one vbucket: frames in seqno order, the newest version of each key, snapshots, rollback.

The same class serves the memory and the disk store; its owner, a bucket store, says what durable means. The object
refuses to know about streams, connections and time.

Threads: appends and reads may come from one thread while others commit and compact. Everything that changes rows or
buffers, and every look at rows that takes more than one step (a compaction changes their numbers), happens under the
bucket's lock, which is held for microseconds; files are read outside of it.

What grows: with every append a row (32 bytes) and the frame; with every new key about 140 bytes. Superseded rows and
their frames stay until the store is compacted.
"""

from __future__ import annotations

import heapq
import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from threading import Lock
from typing import NamedTuple, Protocol
from weakref import WeakSet

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import FailoverLog, SnapshotRange, VbucketState
from dcpstream.store import purging
from dcpstream.store.blocks import NO_SNAPSHOT, Mark, Page
from dcpstream.store.bytelog import Buffer, ByteLog, PageFile, Piece
from dcpstream.store.choosing import Rules
from dcpstream.store.history import HistoryStart, first_repeated
from dcpstream.store.history import is_void as void_row
from dcpstream.store.items import (
    HEADER_BYTES,
    META_BYTES,
    PREPARE_NAMESPACE,
    SYSTEM_COLLECTION,
    ItemMeta,
    StoredItem,
    index_key,
    is_collection_end,
    prepare_key,
    prepares_of,
    read_item,
    read_meta,
    tombstone_revision,
)
from dcpstream.store.rows import (
    DELETED,
    KIND_SHIFT,
    LIVE,
    NOT_A_DOCUMENT,
    PREPARE,
    SYSTEM,
    UNTOLD_REVISION,
    RowTable,
    collection_of,
    np,
)
from dcpstream.store.selection import select
from dcpstream.wire.block import EMPTY_BLOCK, BlockKind, FrameBlock

READ_BYTES = 1024 * 1024
"""What `read` returns at most unless told otherwise: enough that per-block costs vanish, small against a window."""

MAX_SNAPSHOTS = 4096
"""Received snapshots that are remembered, so that a rollback lands where one ended; one to before them begins anew."""

ROLLBACK_PART, MIN_ROLLBACK_BYTES = 16, 8 * 1024
ROLLBACK_ROWS = 10_000
"""How far back a rollback reaches after a compaction: over so many rows, whose frames take at most a 16th of what
lives (or the minimum, if that is more). It is what disk use grows by for it; a copy that has to go back further begins
anew, as a server's does."""

ROLLBACK_SNAPSHOT = 4
"""A received snapshot that the horizon falls into is kept whole if it is at most so many times that size."""

MIN_RUNS_AT_ONCE = 4
MAX_WASTE = 4
"""A read of at least so many runs fetches the whole range around them if that is at most so many times the wanted
bytes: bounds what superseded rows cost a read in bytes, and runs cost in calls."""

COLUMNS_AT_ONCE = 64
"""From so many frames on their columns are read in bulk: its fixed cost is that of some forty read one by one."""

BATCH_ROWS = 16
"""Below this many rows `append_many` appends one by one: the bulk path's fixed cost would be larger."""


_document_fields = struct.Struct(">QII").unpack_from
"""Revision, flags and expiration; they follow the seqno in a mutation's extras."""
_tombstone_fields = struct.Struct(">QI").unpack_from
"""Revision and delete time."""
FIELDS_AT = HEADER_BYTES + 8


class Brief(NamedTuple):
    """What the index knows of a document: `BlockKind` bits, revision, expiration (of a tombstone its delete time)."""

    kinds: int
    revision: int
    time: int


class View:
    """A state of the past that somebody reads; kept as long as this object lives."""

    __slots__ = ("__weakref__", "seqno")

    def __init__(self, seqno: int) -> None:
        self.seqno = seqno


MULTIBYTE = 0x80
"""From here on the first byte of a key is not all of its collection's id."""


class Owner(Protocol):
    """What a vbucket needs of its bucket store."""

    lock: Lock
    is_durable: bool
    pending_bytes: int
    dirty: dict[int, VBucketLog]

    @property
    def files(self) -> Mapping[int, PageFile]:
        """The files that hold pages, by number."""
        ...

    def read_pieces(self, pieces: list[Piece], *, by_key: bool = False) -> list[Buffer]:
        """The pieces, those that are in files read and verified; `by_key`: with pages that are kept for the next."""
        ...

    def note_damage(self, error: CorruptLog) -> None:
        """A read met bytes that are not what was written."""
        ...

    def would_wait(self, pieces: list[Piece]) -> bool:
        """Whether reading the pieces would wait for the disk, as far as that can be told."""
        ...

    def metadata_changed(self, vbucket: VBucketLog) -> None:
        """State, failover log or purge seqno were set: make it durable."""
        ...

    def roll_back(self, vbucket: VBucketLog, seqno: int) -> None:
        """Make the rollback durable and call `truncate`."""
        ...


class NotAtHand(Exception):
    """What was to be read without waiting is on the disk alone: have `pieces` fetched (`BucketStore.fetch`) first."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(f"{len(pieces)} pieces")
        self.pieces = pieces


class VBucketLog:
    """One vbucket of a bucket store.

    Attributes:
        vbid: its number.
        incarnation: rises each time the vbucket is created anew; blocks of an older one are void.
        high_seqno: the last seqno, 0 if empty.
        rows, log: the index and the bytes.
        max_deleted_rev: the highest revision that a tombstone ever had here, as far as it is known.
        horizon_seqno: states before this seqno are not kept, but for views that somebody holds.
        kept_from_seqno: every version from this seqno on is kept, for histories of changes.
    """

    __slots__ = (
        "_failover_log",
        "_history_start",
        "_lock",
        "_marks",
        "_owner",
        "_persisted_seqno",
        "_persisted_snapshot",
        "_purge_seqno",
        "_state",
        "_views",
        "flushed_rows",
        "high_seqno",
        "horizon_seqno",
        "incarnation",
        "kept_from_seqno",
        "log",
        "max_deleted_rev",
        "rows",
        "vbid",
    )

    def __init__(
        self,
        owner: Owner,
        vbid: int,
        state: VbucketState,
        failover_log: FailoverLog,
        *,
        purge_seqno: int = 0,
        max_deleted_rev: int = 0,
        horizon_seqno: int = 0,
        incarnation: int = 0,
    ) -> None:
        self._owner = owner
        self._lock = owner.lock
        self.vbid = vbid
        self.incarnation = incarnation
        self._state = state
        self._failover_log = failover_log
        self._purge_seqno = purge_seqno
        self.max_deleted_rev = max_deleted_rev
        self.horizon_seqno = horizon_seqno
        self.kept_from_seqno = LIVE
        self._history_start = HistoryStart()
        self._views: WeakSet[View] = WeakSet()
        self.rows = RowTable()
        self.log = ByteLog(owner.files)
        self.high_seqno = 0
        self.flushed_rows = 0
        self._persisted_seqno = 0
        self._persisted_snapshot: SnapshotRange | None = None
        self._marks: list[tuple[int, SnapshotRange | None]] = [(0, None)]

    # ----------------------------------------------------------------------------------------------------- metadata

    @property
    def state(self) -> VbucketState:
        """The vbucket's role on this node; setting it is durable at once (see `BucketStore.metadata_batch`)."""
        return self._state

    @state.setter
    def state(self, state: VbucketState) -> None:
        self._state = state
        self._owner.metadata_changed(self)

    @property
    def failover_log(self) -> FailoverLog:
        """The branches this copy knows; setting it is durable at once."""
        return self._failover_log

    @failover_log.setter
    def failover_log(self, log: FailoverLog) -> None:
        self._failover_log = log
        self._owner.metadata_changed(self)

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a tombstone that was dropped; setting it is durable at once."""
        return self._purge_seqno

    @purge_seqno.setter
    def purge_seqno(self, seqno: int) -> None:
        self._purge_seqno = seqno
        self._owner.metadata_changed(self)

    def set_state(self, state: VbucketState, failover_log: FailoverLog) -> None:
        """State and failover log in one durable step: a promotion writes both or neither."""
        self._state = state
        self._failover_log = failover_log
        self._owner.metadata_changed(self)

    @property
    def memory_bytes(self) -> int:
        """About what the vbucket takes in memory: its index, and the frames that are not in files."""
        return self.rows.memory_bytes + self.rows.end - self.log.held_start

    @property
    def item_count(self) -> int:
        """Documents, without tombstones and system events."""
        return self.rows.item_count

    def high_seqno_of(self, collection_ids: Iterable[int]) -> int:
        """The highest seqno (mutation, deletion or system event) in any of these collections, 0 if none."""
        high = self.rows.collection_high
        return max((high.get(collection_id, 0) for collection_id in collection_ids), default=0)

    # --------------------------------------------------------------------------------------- snapshots, persistence

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot that covers the last row.

        On an active vbucket, where every row is there, it is (high, high). On one that receives a stream it is what
        was set before the row came; a snapshot set since then counts from its first row on.
        """
        with self._lock:
            return self._snapshot_at(len(self.rows.seqnos)) or SnapshotRange(self.high_seqno, self.high_seqno)

    def set_snapshot(self, snapshot: SnapshotRange | None) -> None:
        """Rows appended from now on belong to this received snapshot; None: each row stands for itself (active)."""
        with self._lock:
            first = len(self.rows.seqnos)
            if self._marks[-1][0] == first:
                self._marks.pop()
            self._marks.append((first, snapshot))
            if len(self._marks) > MAX_SNAPSHOTS and not self._owner.is_durable:
                self._forget_snapshots(MAX_SNAPSHOTS // 2)

    def _forget_snapshots(self, count: int) -> None:
        """Keep of the oldest marks only that their rows came in snapshots: a rollback into them begins anew."""
        if count > 0:
            was_received = any(snapshot is not None for _, snapshot in self._marks[:count])
            last = self.rows.seqnos[self._marks[count][0] - 1] if self._marks[count][0] else 0
            self._marks[:count] = [(0, SnapshotRange(0, last + 1) if was_received else None)]

    def _snapshot_at(self, stop: int) -> SnapshotRange | None:
        for first, snapshot in reversed(self._marks):
            if first < stop:
                return snapshot
        return None

    def snapshot_at_seqno(self, seqno: int) -> SnapshotRange:
        """The snapshot that covers the last row at or below `seqno`, as far as it is remembered."""
        with self._lock:
            return self._snapshot_at(self.rows.row_after(seqno)) or SnapshotRange(seqno, seqno)

    @property
    def persisted_seqno(self) -> int:
        """The last seqno that survives kill -9 and a power cut; in a memory store the high seqno."""
        return self._persisted_seqno if self._owner.is_durable else self.high_seqno

    @property
    def persisted_snapshot(self) -> SnapshotRange:
        """The snapshot that covers `persisted_seqno`; complete if its end is that seqno."""
        if not self._owner.is_durable:
            return self.snapshot
        with self._lock:  # a commit moves the seqno and the snapshot in two steps
            return self._persisted_snapshot or SnapshotRange(self._persisted_seqno, self._persisted_seqno)

    @property
    def branch_seqno(self) -> int:
        """Where a new branch begins when this copy takes over or after a crash.

        The persisted snapshot's end if all of it is persisted, else its start: a state inside of a snapshot was never
        a state of the bucket.
        """
        with self._lock:
            seqno = self.persisted_seqno
            snapshot = self._persisted_snapshot if self._owner.is_durable else self._snapshot_at(len(self.rows.seqnos))
        return seqno if snapshot is None or snapshot.end_seqno <= seqno else snapshot.start_seqno

    # ------------------------------------------------------------------------------------------------------ writing

    def append(
        self, frame: bytes | bytearray, key: bytes, seqno: int, *, is_deleted: bool = False, kinds: int = 0
    ) -> None:
        """Add a frame in stored form.

        Args:
            key: with collection prefix; ignored for system events, whose index key is made from the frame.
            seqno: above `high_seqno`; may skip.
            is_deleted: a deletion or expiration.
            kinds: what the frame is, `BlockKind` bits; DELETION is implied by `is_deleted` if neither is given, and
                a PREPARE gets an index key of its own.
        """
        if seqno <= self.high_seqno:
            raise AssertionError(f"vb {self.vbid}: seqno {seqno} does not follow {self.high_seqno}")
        if type(kinds) is not int:
            kinds = int(kinds)
        if kinds & (SYSTEM | PREPARE):
            key = index_key(frame)
        elif is_deleted and not kinds & DELETED:
            kinds |= DELETED & int(BlockKind.DELETION)
        collection = 0 if not key[0] else collection_of(key)
        revision, time = fields_of(frame, kinds)
        if kinds & DELETED and self.max_deleted_rev < revision:
            self.max_deleted_rev = tombstone_revision(frame)
        owner = self._owner
        with self._lock:
            # The beginning of a new collection, by far the most frequent event, has nothing to end.
            had_any = kinds & SYSTEM and collection in self.rows.collection_high
            self.rows.append(key, seqno, kinds, len(frame), collection, time, revision)
            if had_any and is_collection_end(frame):
                self.rows.end_collection(collection, len(self.rows.seqnos) - 1)
            self.log.append(frame)
            self.high_seqno = seqno
            if owner.is_durable:
                owner.dirty[self.vbid] = self
                owner.pending_bytes += len(frame)

    def defer_ends(self) -> None:
        """Ends of collections that are appended from now on wait for `carry_out_ends`; nothing may come between."""
        self.rows.ending = {}

    def carry_out_ends(self) -> None:
        """Carry out what waits, however many collections, in one pass over the keys."""
        with self._lock:
            self.rows.carry_out()

    def append_many(
        self,
        frames: bytes | bytearray | Sequence[bytes | bytearray],
        keys: Sequence[bytes],
        seqnos: Sequence[int],
        *,
        sizes: Sequence[int] | None = None,
        kinds: int | Sequence[int] = 0,
    ) -> None:
        """Add many frames at once.

        The bulk path takes documents only (no deletion, no system event) of the same kinds and collection; everything
        else, and small batches, go row by row with the same result.

        Args:
            frames: one after the other in one buffer (then `sizes` says how long each is), or a sequence of them.
            seqnos: rising; the first above `high_seqno`.
            kinds: `BlockKind` bits of all frames, or of each.
        """
        if isinstance(frames, (bytes, bytearray)):
            data: bytes | bytearray = frames
            if sizes is None:
                raise TypeError("append_many of one buffer needs the frames' sizes")
        else:
            data = b"".join(frames)
            sizes = [len(frame) for frame in frames]
        if not keys:
            return
        if not isinstance(kinds, int) and len(set(kinds)) == 1:
            kinds = int(kinds[0])
        is_bulk = (
            isinstance(kinds, int)
            and not kinds & NOT_A_DOCUMENT
            and len(keys) >= BATCH_ROWS
            and keys[0][0] < 0x80
            and len({key[0] for key in keys}) == 1
            and len(set(keys)) == len(keys)
        )
        if not is_bulk:
            at = 0
            each = [kinds] * len(keys) if isinstance(kinds, int) else kinds
            for key, seqno, size, kind in zip(keys, seqnos, sizes, each, strict=True):
                frame = data[at : at + size]
                self.append(frame, key, seqno, kinds=kind)
                at += size
            return
        if seqnos[0] <= self.high_seqno:
            raise AssertionError(f"vb {self.vbid}: seqno {seqnos[0]} does not follow {self.high_seqno}")
        times, revisions = _columns_of(data, sizes)
        owner = self._owner
        with self._lock:
            self.rows.append_documents(keys, seqnos, int(kinds), sizes, times, revisions)  # type: ignore[arg-type]
            self.rows.collection_high[keys[0][0]] = seqnos[-1]
            self.log.append_frames(data, sizes)
            self.high_seqno = seqnos[-1]
            if owner.is_durable:
                owner.dirty[self.vbid] = self
                owner.pending_bytes += len(data)

    def rollback(self, seqno: int) -> int:
        """Forget everything above `seqno`, durably; what those rows had superseded is the newest again.

        Inside a snapshot that was received and is still remembered it goes on to the snapshot's start. To below
        `horizon_seqno` it goes to 0: what was there then is not known any more.

        Returns: the high seqno reached: that of the last row kept, 0 if there is none.
        Raises: StoreError: it could not be made durable; then nothing has changed.
        """
        with self._lock:
            row = self.rows.row_after(seqno)
            snapshot = self._snapshot_at(row)
            if snapshot is not None and row and self.rows.seqnos[row - 1] < snapshot.end_seqno:
                row = self.rows.row_after(min(seqno, snapshot.start_seqno))
            reached = self.reachable(self.rows.seqnos[row - 1] if row else 0)
        if reached < self.high_seqno:
            self._owner.roll_back(self, reached)
            if self._purge_seqno > self.high_seqno:
                # Of what comes now nothing was purged: an opening must not take it for that.
                self._purge_seqno = self.high_seqno
                with suppress(StoreError):  # the next change of the metadata writes it too
                    self._owner.metadata_changed(self)
            reached = self.high_seqno
        return reached

    def purge(self, before_seqno: int, before_time: int) -> int:
        """Drop deletions and ends of collections for good: those up to a seqno that were made before a moment.

        The last row always stays, and what is not persisted too. `purge_seqno` rises to the highest that is dropped.

        Args:
            before_seqno: only up to this one.
            before_time: only those that were made earlier, epoch seconds.
        Returns: how many were dropped.
        """
        return purging.purge(self, self._lock, before_seqno, before_time)

    def expired(self, unix_s: int, limit: int) -> list[bytes]:
        """Keys of documents whose expiration is over at `unix_s`, `limit` at most: those that were written first.

        Cost: a look at 4 bytes a row, in steps of some 100 µs that leave the lock free between them; then a read of
        each frame that was found.
        """
        return purging.expired(self, self._lock, unix_s, limit)

    def brief(self, key: bytes) -> Brief | None:
        """What the index knows of the newest version of a key, tombstones included, without reading its frame."""
        with self._lock:
            row = self.rows.newest(key)
            if row is None:
                return None
            rows = self.rows
            brief = Brief(rows.positions[row] >> KIND_SHIFT, rows.revisions[row], rows.times[row])
        if brief.revision == UNTOLD_REVISION:
            meta = self.meta(key)
            return None if meta is None else brief._replace(revision=meta.rev_seqno)
        return brief

    def _index_key_of(self, row: int) -> bytes:
        start, stop = self.rows.extent(row)
        return index_key(self._bytes(self.log.pieces(start, stop)))

    def collection_events(self) -> list[bytes]:
        """The newest event of each scope and collection, in order of seqno, as stored."""
        with self._lock:
            seqnos = sorted(seqno for key, seqno in self.rows.keys.items() if key[0] == SYSTEM_COLLECTION)
            pieces = [self.log.pieces(*self.rows.extent(row)) for row in self.rows.rows_of(seqnos)]
        return [bytes(self._bytes(group)) for group in pieces]

    def items_by_collection(self) -> dict[int, int]:
        """How many documents (not deleted) each collection has. Looks at every key if there are several."""
        if all(number <= SYSTEM_COLLECTION for number in self.rows.collection_high):
            return {0: self.item_count}
        newest = list(self.rows.keys.items())  # in one step, so that others may change the index meanwhile
        hidden = self._seqnos_of(NOT_A_DOCUMENT) if len(newest) > self.item_count else frozenset()
        return dict(
            Counter(
                key[0] if key[0] < MULTIBYTE else collection_of(key) for key, seqno in newest if seqno not in hidden
            )
        )

    def deletion_count(self) -> int:
        """How many tombstones are kept. Looks at every key."""
        newest = list(self.rows.keys.values())
        return len(self._seqnos_of(DELETED).intersection(newest)) if len(newest) > self.item_count else 0

    @property
    def live_bytes(self) -> int:
        """Frames of the newest versions."""
        return self.rows.end - self.rows.stale_bytes

    @property
    def prepare_bytes(self) -> int:
        """Frames of the newest prepares and aborts."""
        return sum(map(len, self.prepares())) if self.has_prepares else 0

    @property
    def unflushed_bytes(self) -> int:
        """Frames that no commit has made durable yet; 0 in memory."""
        return self.rows.end - self.rows.start_of(self.flushed_rows) if self._owner.is_durable else 0

    def keys_between(self, first: bytes, last: bytes, limit: int | None = None) -> list[bytes]:
        """Keys of documents (not deleted) from `first` to `last`, both included, ascending; at most `limit`.

        Looks at every key and every row of the vbucket, some hundred nanoseconds each.
        """
        newest = list(self.rows.keys.items())  # in one step, so that others may change the index meanwhile
        hidden = self._seqnos_of(NOT_A_DOCUMENT) if len(newest) > self.item_count else frozenset()
        found = [key for key, seqno in newest if first <= key <= last and seqno not in hidden]
        return sorted(found) if limit is None else heapq.nsmallest(limit, found)

    def _seqnos_of(self, kinds: int) -> frozenset[int]:
        """Seqnos of the rows that are of one of some kinds, superseded ones among them."""
        with self._lock:
            seqnos, positions = self.rows.seqnos[:], self.rows.positions[:]
        tag = kinds << KIND_SHIFT
        return frozenset(seqno for seqno, position in zip(seqnos, positions, strict=True) if position & tag)

    # ------------------------------------------------------------------------------------------------ durable writes

    @property
    def has_prepares(self) -> bool:
        """Whether a durable write ever was in this history, as far as it is kept."""
        return any(collection_id <= prepares_of(0) for collection_id in self.rows.collection_high)

    def prepare(self, key: bytes) -> bytes | None:
        """The newest prepare of a document, or the abort that took its place, as stored."""
        with self._lock:
            row = self.rows.newest(prepare_key(key))
            if row is None:
                return None
            pieces = self.log.pieces(*self.rows.extent(row))
        return bytes(self._bytes(pieces))

    def prepares(self) -> list[bytes]:
        """The newest prepare or abort of each document that has one, in order of seqno, as stored."""
        with self._lock:
            seqnos = sorted(seqno for key, seqno in self.rows.keys.items() if key[0] == PREPARE_NAMESPACE)
            pieces = [self.log.pieces(*self.rows.extent(row)) for row in self.rows.rows_of(seqnos)]
        return [bytes(self._bytes(group)) for group in pieces]

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

    def truncate(self, seqno: int) -> None:
        """The part of a rollback in memory; for the owner."""
        with self._lock:
            row = self.rows.row_after(seqno)
            self.rows.truncate(row, self._index_key_of)
            if not row:
                self.horizon_seqno = 0
            self.log.truncate(self.rows.end)
            self.high_seqno = seqno
            self.flushed_rows = min(self.flushed_rows, row)
            self._marks = [mark for mark in self._marks if mark[0] < row] or [(0, None)]
            if self._persisted_seqno > seqno:
                self._persisted_seqno = seqno
                self._persisted_snapshot = self._snapshot_at(row)

    # ------------------------------------------------------------------------------------------------------ reading

    def __contains__(self, key: bytes) -> bool:
        """Whether the key is a document now (not deleted)."""
        with self._lock:
            row = self.rows.newest(key)
            return row is not None and not self.rows.positions[row] >> KIND_SHIFT & NOT_A_DOCUMENT

    def get(self, key: bytes) -> StoredItem | None:
        """The newest version of a key, tombstones included."""
        with self._lock:
            row = self.rows.newest(key)
            if row is None:
                return None
            start, stop = self.rows.extent(row)
            place = self.log.locate(start)
            if place is not None:
                return read_item(*place)
            pieces = self.log.pieces(start, stop)
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
            covered = self._covering(runs)
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
                is_void = [void_row(rows, rows.row_of(seqno), seqno) for seqno in map(int, block.seqnos)]
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

    @staticmethod
    def _covering(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """What to fetch for these runs: many short ones with little between them are fetched as one and cut after."""
        whole = runs[-1][1] - runs[0][0]
        if len(runs) >= MIN_RUNS_AT_ONCE and whole <= MAX_WASTE * sum(end - begin for begin, end in runs):
            return [(runs[0][0], runs[-1][1])]
        return runs

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

    # -------------------------------------------------------------------------------------------- compaction (owner)

    def reachable(self, seqno: int) -> int:
        """Where a rollback to this seqno leads: to 0 if it lies before the horizon."""
        return 0 if seqno < self.horizon_seqno else seqno

    def rules(self) -> Rules:
        """What a compaction has to keep beside the newest rows. Rollbacks to below go to 0 from now on."""
        with self._lock:
            self.horizon_seqno = max(self.horizon_seqno, self._next_horizon())
            return Rules(self.horizon_seqno, self._held(), self.kept_from_seqno)

    @property
    def rollback_bytes(self) -> int:
        """Frames up to this size are kept for rollbacks although they were superseded."""
        return max((self.rows.end - self.rows.stale_bytes) // ROLLBACK_PART, MIN_ROLLBACK_BYTES)

    def _next_horizon(self) -> int:
        """The oldest seqno down to which rollbacks shall reach."""
        rows, reach = self.rows, self.rollback_bytes
        row = max(rows.row_at(max(rows.end - reach, 0)), len(rows.seqnos) - ROLLBACK_ROWS, 0)
        row = min(row, self.flushed_rows) if self._owner.is_durable else row
        if not row:
            return 0
        seqno = rows.seqnos[row - 1]
        snapshot = self._snapshot_at(row)
        if snapshot is not None and snapshot.start_seqno < seqno < snapshot.end_seqno:
            # A rollback into a received snapshot goes to its start.
            start = rows.row_after(snapshot.start_seqno)
            if rows.end - rows.start_of(start) <= ROLLBACK_SNAPSHOT * reach:
                return snapshot.start_seqno
        return seqno

    def fetch(self, pieces: list[Piece], *, by_key: bool = False) -> bytes | memoryview:
        """The bytes of some pieces of `log`; `by_key` if they are few in each place, see `Owner.read_pieces`."""
        return self._bytes(pieces, by_key=by_key)

    def rows_go(self, first: int, stop: int, kept: Sequence[int], count: int) -> None:
        """Of the rows [first, stop) only the `count` first of `kept` stay: their numbers change. Under the lock."""

        def moved(row: int) -> int:
            if row <= first:
                return row
            return row - (stop - first - count) if row >= stop else first + bisect_left(kept, row, hi=count)

        self.flushed_rows = moved(self.flushed_rows)
        marks: list[tuple[int, SnapshotRange | None]] = []
        for row, snapshot in self._marks:
            at = moved(row)
            if marks and marks[-1][0] == at:
                marks.pop()
            marks.append((at, snapshot))
        self._marks = marks

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

    # --------------------------------------------------------------------------------- hand-over to a commit (owner)

    def seal(self) -> None:
        """Freeze what is pending, so that a commit may write it while appends go on. Under the bucket's lock."""
        self.log.seal()

    def marks_of(self, first: int, stop: int) -> list[Mark]:
        """Which received snapshots cover the rows [first, stop), as a block says it; none if each stands for itself.

        Needs no lock: marks of rows that are there do not change but from the oldest on.
        """
        marks = self._marks
        if len(marks) == 1 and marks[0][1] is None:
            return []
        found: list[Mark] = []
        for row, snapshot in reversed(marks):
            if row < stop:
                bounds = NO_SNAPSHOT if snapshot is None else (snapshot.start_seqno, snapshot.end_seqno)
                found.append((self.rows.seqnos[max(row, first)], *bounds))
            if row <= first:
                break
        if all(mark[1:] == NO_SNAPSHOT for mark in found):
            return []
        return found[::-1]

    def flushed(self, stop: int, pages: Iterable[Page]) -> None:
        """Rows below `stop` are durable now, in these pages. Under the bucket's lock."""
        self.log.add_pages(pages)
        self.log.release(self.rows.start_of(stop))
        self.flushed_rows = stop
        self._persisted_seqno = self.rows.seqnos[stop - 1]
        self._persisted_snapshot = self._snapshot_at(stop)
        if len(self._marks) > MAX_SNAPSHOTS:
            covering = bisect_left(self._marks, stop, key=_first_row) - 1
            self._forget_snapshots(min(covering, MAX_SNAPSHOTS // 2))

    def recovered(self, marks: Sequence[Mark]) -> None:
        """All rows are durable; `marks` tell which received snapshots cover them. Called while the store opens."""
        self.high_seqno = self.rows.seqnos[-1] if self.rows.seqnos else 0
        self.flushed_rows = len(self.rows.seqnos)
        self.log.tail_start = self.rows.end
        purging.purge_again(self, self._lock)
        self.max_deleted_rev = max(self.max_deleted_rev, purging.highest_deleted_rev(self))
        self._persisted_seqno = self.high_seqno
        self._marks = [(0, None)]
        for seqno, start, end in marks[-MAX_SNAPSHOTS:]:
            row = self.rows.row_after(seqno - 1)
            snapshot = None if (start, end) == NO_SNAPSHOT else SnapshotRange(start, end)
            if self._marks[-1][0] == row:
                self._marks.pop()
            self._marks.append((row, snapshot))
        if len(marks) >= MAX_SNAPSHOTS and len(self._marks) > 1:
            # Older ones may be forgotten; of what came before, only that it came in snapshots is known then.
            self._marks[0] = (0, SnapshotRange(0, self.rows.seqnos[self._marks[1][0] - 1] + 1))
        self._persisted_snapshot = self._snapshot_at(self.flushed_rows)


def _first_row(mark: tuple[int, SnapshotRange | None]) -> int:
    return mark[0]


def fields_of(frame: Buffer, kinds: int) -> tuple[int, int]:
    """Revision and time of a stored frame, as the index has them."""
    if not kinds & NOT_A_DOCUMENT:
        revision, _, time = _document_fields(frame, FIELDS_AT)
    elif kinds & (SYSTEM | PREPARE):
        return UNTOLD_REVISION, 0
    else:
        revision, time = _tombstone_fields(frame, FIELDS_AT)
    return min(UNTOLD_REVISION, revision), time


def _columns_of(data: bytes | bytearray, sizes: Sequence[int]) -> tuple[array[int], array[int]]:
    """Expiration and revision of many documents' frames, which follow each other."""
    times, revisions = array("I"), array("I")
    if np is None or len(sizes) < COLUMNS_AT_ONCE:
        for start in accumulate(sizes[:-1], initial=0):
            revision, _, time = _document_fields(data, start + FIELDS_AT)
            times.append(time)
            revisions.append(min(revision, UNTOLD_REVISION))
        return times, revisions
    fields = np.cumsum(sizes) - np.asarray(sizes) + FIELDS_AT
    whole = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
    times.frombytes((whole[fields + 8] & 0xFFFFFFFF).astype(np.uint32).tobytes())
    revisions.frombytes(np.minimum(whole[fields], UNTOLD_REVISION).astype(np.uint32).tobytes())
    return times, revisions
