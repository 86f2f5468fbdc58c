"""The history of one vbucket: frames in seqno order, the newest version of each key, received snapshots, rollback.

`VBucketLog` joins an index (`rows`), the stream of stored frames (`log`) and the snapshots that a copy received. The
memory store and the disk store use the same class; the bucket store behind it (`base.BucketStore`) decides what durable
means. The class knows nothing about DCP streams, connections and time.

Threads: one thread may append and read while others commit and compact. Every change of rows or buffers, and every look
at rows that takes more than one step, happens under the bucket's lock, because a compaction changes row numbers. The
lock is held for microseconds. Files are read outside of it.

Memory: each append adds a row (32 bytes) and the frame; each new key about 140 bytes. Superseded rows and their frames
stay until the store is compacted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

import numpy as np

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import FailoverLog, SnapshotRange, VbucketState
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.stored.block import EMPTY_BLOCK, FrameBlock, ScatteredBlock, event_at
from dcpstream_node.store.index.key_scan import KeySeqnos, finish, walk_collections, walk_range
from dcpstream_node.store.index.queries import (
    HistoryStart,
    covering,
    first_repeated,
    is_void,
    select,
    timed_rows,
    within,
)
from dcpstream_node.store.index.rows import KIND_SHIFT, LIVE, POSITION_MASK, RowTable, collection_of
from dcpstream_node.store.index.snapshots import ReceivedSnapshots
from dcpstream_node.store.items import (
    DELETED,
    META_BYTES,
    NOT_A_DOCUMENT,
    PREPARE,
    PREPARE_NAMESPACE,
    REVISION_AT,
    SYSTEM,
    SYSTEM_COLLECTION,
    UNTOLD_REVISION,
    ItemMeta,
    StoredItem,
    columns_of,
    document_halves,
    fields_of,
    index_key,
    is_collection_end,
    prepare_key,
    prepares_of,
    read_item,
    read_meta,
    tombstone_revision,
)
from dcpstream_node.store.log.blocks import Mark, Page
from dcpstream_node.store.log.frame_log import FrameLog
from dcpstream_node.store.log.segment_file import Piece

if TYPE_CHECKING:
    from dcpstream_node.store.base import BucketStore

SHARE_SAMPLE = 10_000
"""Keys by which the share of a collection is estimated: about 2 ms, in which the node serves nobody."""

_NO_COLLECTIONS = frozenset((SYSTEM_COLLECTION, PREPARE_NAMESPACE))
"""First bytes of index keys that are no documents."""

READ_BYTES = 1024 * 1024
"""Default limit of `read`: large enough that the cost per block does not count, small against a flow-control window."""

BATCH_ROWS = 16
"""`append_many` appends smaller batches one by one: the fixed cost of the bulk path would be larger."""

STEP_ROWS = 4096
"""Rows whose frames are read in one step of a purge or of a search for expired documents: some milliseconds."""

_new_tuple = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""


_NO_NUMBERS: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())


class NotAtHand(Exception):
    """A read that must not wait needs `pieces` from the disk. Have them fetched (`BucketStore.fetch`) and try again."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(f"{len(pieces)} pieces")
        self.pieces = pieces


class Brief(NamedTuple):
    """A document's fields in the index: `BlockKind` bits, revision, expiration (of a tombstone its delete time)."""

    kinds: int
    revision: int
    time: int


class View:
    """A state of the past that a reader uses; compactions keep its rows while this object lives."""

    __slots__ = ("__weakref__", "seqno")

    def __init__(self, seqno: int) -> None:
        self.seqno = seqno


class VBucketLog:
    """One vbucket of a bucket store.

    Attributes:
        vbid: its number.
        state: its role on this node.
        purge_seqno: the highest seqno of a purged tombstone.
        incarnation: rises each time the vbucket is created again; blocks of an older one are void.
        lock: the bucket's; guards `rows`, `log` and `snapshots`.
        high_seqno: the last seqno, 0 if empty.
        rows: the index.
        log: the bytes.
        snapshots: the snapshots that a copy received.
        flushed_rows: rows below this one are durable; always 0 in a memory store.
        horizon_seqno: states before this seqno are not kept, except for views that a reader holds.
        kept_from_seqno: every version from this seqno on is kept, for change histories.
        max_deleted_rev: the highest known revision of any tombstone that ever was in this vbucket.
    """

    __slots__ = (
        "_failover_log",
        "_history_start",
        "_host",
        "_not_system",
        "_persisted_seqno",
        "_persisted_snapshot",
        "_views",
        "flushed_rows",
        "high_seqno",
        "horizon_seqno",
        "incarnation",
        "kept_from_seqno",
        "lock",
        "log",
        "max_deleted_rev",
        "purge_seqno",
        "rows",
        "snapshots",
        "state",
        "vbid",
    )

    def __init__(
        self,
        host: BucketStore,
        vbid: int,
        state: VbucketState,
        failover_log: FailoverLog,
        *,
        purge_seqno: int = 0,
        max_deleted_rev: int = 0,
        horizon_seqno: int = 0,
        incarnation: int = 0,
    ) -> None:
        self._host = host
        self.lock = host.lock
        self.vbid = vbid
        self.incarnation = incarnation
        self.state = state
        self._failover_log = failover_log
        self.purge_seqno = purge_seqno
        self.max_deleted_rev = max_deleted_rev
        self.horizon_seqno = horizon_seqno
        self.kept_from_seqno = LIVE
        self.high_seqno = 0
        self.flushed_rows = 0
        self._persisted_seqno = 0
        self._persisted_snapshot: SnapshotRange | None = None
        self._history_start = HistoryStart()
        self._views: WeakSet[View] = WeakSet()
        self.rows = RowTable()
        self.log = FrameLog(host.files)
        self.snapshots = ReceivedSnapshots(self.rows)
        self._not_system = _NO_NUMBERS

    # ----------------------------------------------------------------------------------------------------- metadata

    @property
    def failover_log(self) -> FailoverLog:
        """The branches this copy knows; setting it is durable at once (see `BucketStore.metadata_batch`)."""
        return self._failover_log

    @failover_log.setter
    def failover_log(self, log: FailoverLog) -> None:
        self._failover_log = log
        self._host.metadata_changed(self)

    def adopt_failover_log(self, log: FailoverLog) -> None:
        """Set the failover log of a source of rows: durable with the next commit, before any of its rows.

        After a crash before that, the copy has its own log and its own rows, as before it asked the source.
        """
        self._failover_log = log
        self._host.metadata_deferred(self)

    def set_purge_seqno(self, seqno: int) -> None:
        """Set the highest seqno of a purged tombstone, durably at once."""
        self.purge_seqno = seqno
        self._host.metadata_changed(self)

    def set_state(self, state: VbucketState, failover_log: FailoverLog) -> None:
        """Set state and failover log in one durable step: a promotion writes both or neither."""
        self.state = state
        self._failover_log = failover_log
        self._host.metadata_changed(self)

    # ------------------------------------------------------------------------------------------------ counts, sizes

    @property
    def memory_bytes(self) -> int:
        """About the vbucket's share of memory: its index, and the frames that are not in files."""
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

    @property
    def is_durable(self) -> bool:
        """Whether commits write the history to files."""
        return self._host.is_durable

    @property
    def unflushed_bytes(self) -> int:
        """Frames that no commit has made durable yet; 0 in memory."""
        return self.rows.end - self.rows.start_of(self.flushed_rows) if self._host.is_durable else 0

    def high_seqno_of(self, collection_ids: Iterable[int]) -> int:
        """The highest seqno (mutation, deletion or system event) in any of these collections, 0 if none."""
        high = self.rows.collection_high
        return max((high.get(collection_id, 0) for collection_id in collection_ids), default=0)

    def numbers_without_system(self) -> frozenset[int]:
        """The numbers of collections and of scopes' events in the history, without those of the system's names.

        A name stays for life, so the answer holds until there is another number.
        """
        high = self.rows.collection_high
        known, found = self._not_system
        if known != high.keys():
            hidden = {event.number for event in map(event_at, self.collection_events()) if event.is_hidden}
            found = frozenset(number for number in high if number > prepares_of(0) and number not in hidden)
            self._not_system = frozenset(high), found
        return found

    # --------------------------------------------------------------------------------------- snapshots, persistence

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot that covers the last row.

        On an active vbucket, which has every row, it is (high, high). On a copy it is the snapshot that was set before
        the row arrived; a snapshot that was set since then counts from its first row on.
        """
        with self.lock:
            return self.snapshots.at(len(self.rows.seqnos)) or SnapshotRange(self.high_seqno, self.high_seqno)

    def set_snapshot(self, snapshot: SnapshotRange | None) -> None:
        """Rows appended from now on belong to this received snapshot; None (active): each row stands for itself."""
        with self.lock:
            self.snapshots.begin(snapshot)
            if not self._host.is_durable:
                self.snapshots.forget_before(len(self.rows.seqnos))

    @property
    def persisted_seqno(self) -> int:
        """The last seqno that survives kill -9 and a power cut; in a memory store the high seqno."""
        return self._persisted_seqno if self._host.is_durable else self.high_seqno

    @property
    def persisted_snapshot(self) -> SnapshotRange:
        """The snapshot that covers `persisted_seqno`; complete if its end is that seqno."""
        if not self._host.is_durable:
            return self.snapshot
        with self.lock:  # a commit moves the seqno and the snapshot in two steps
            return self._persisted_snapshot or SnapshotRange(self._persisted_seqno, self._persisted_seqno)

    @property
    def branch_seqno(self) -> int:
        """The seqno at which a new branch begins when this copy takes over, or after a crash.

        It is the end of the persisted snapshot if all of that snapshot is persisted, else its start: a state inside a
        snapshot was never a state of the bucket.
        """
        with self.lock:
            seqno = self.persisted_seqno
            snapshot = self._persisted_snapshot if self._host.is_durable else self.snapshots.at(len(self.rows.seqnos))
        return seqno if snapshot is None or snapshot.end_seqno <= seqno else snapshot.start_seqno

    # ------------------------------------------------------------------------------------------------------ writing

    def append(self, frame: bytes | bytearray, key: bytes, seqno: int, *, kinds: int = 0) -> None:
        """Add a frame in stored form.

        Args:
            key: with collection prefix; ignored for system events, whose index key is made from the frame.
            seqno: above `high_seqno`; may skip.
            kinds: `BlockKind` bits of the frame. A PREPARE gets an index key of its own.
        """
        if seqno <= self.high_seqno:
            raise AssertionError(f"vb {self.vbid}: seqno {seqno} does not follow {self.high_seqno}")
        if kinds:
            kinds = int(kinds)
            if kinds & (SYSTEM | PREPARE):
                key = index_key(frame)
        if kinds & NOT_A_DOCUMENT:
            revision, time = fields_of(frame, kinds)
            if kinds & DELETED and self.max_deleted_rev < revision:
                self.max_deleted_rev = tombstone_revision(frame)
        else:
            # As `fields_of`, inline: a call would cost a tenth of the whole append.
            upper, revision, _, time = document_halves(frame, REVISION_AT)
            if upper:
                revision = UNTOLD_REVISION
        collection = 0 if not key[0] else collection_of(key)
        host, rows, log, size = self._host, self.rows, self.log, len(frame)
        with self.lock:
            # The beginning of a new collection, by far the most frequent event, has nothing to end.
            had_any = kinds & SYSTEM and collection in rows.collection_high
            rows.append(key, seqno, kinds, size, collection, time, revision)
            if had_any and is_collection_end(frame):
                rows.end_collection(collection, len(rows.seqnos) - 1)
            log.append(frame)
            self.high_seqno = seqno
            if host.is_durable:
                host.dirty[self.vbid] = self
                host.pending_bytes += size

    def defer_ends(self) -> None:
        """Let ends of collections appended from now on wait for `carry_out_ends`; only ends may come before that."""
        self.rows.ending = {}

    def carry_out_ends(self) -> None:
        """Carry out the deferred ends of all collections in one pass over the keys."""
        with self.lock:
            self.rows.carry_out()

    def append_many(self, frames: Sequence[bytes], keys: Sequence[bytes], seqnos: Sequence[int]) -> None:
        """Add many frames, all documents of the default collection without further kinds; as `append` of each.

        Args:
            seqnos: rising; the first above `high_seqno`.
        """
        if len(keys) < BATCH_ROWS:
            for frame, key, seqno in zip(frames, keys, seqnos, strict=True):
                self.append(frame, key, seqno)
            return
        if seqnos[0] <= self.high_seqno:
            raise AssertionError(f"vb {self.vbid}: seqno {seqnos[0]} does not follow {self.high_seqno}")
        data, sizes = b"".join(frames), list(map(len, frames))
        starts, times, revisions = columns_of(data, sizes)
        host = self._host
        with self.lock:
            self.rows.append_documents(keys, seqnos, starts, len(data), times, revisions)
            self.rows.collection_high[0] = seqnos[-1]
            self.log.append_frames(data, sizes)
            self.high_seqno = seqnos[-1]
            if host.is_durable:
                host.dirty[self.vbid] = self
                host.pending_bytes += len(data)

    # ----------------------------------------------------------------------------------------------- reading by key

    def __contains__(self, key: bytes) -> bool:
        """Whether the key is a document now (not deleted)."""
        with self.lock:
            row = self.rows.newest(key)
            return row is not None and not self.rows.positions[row] >> KIND_SHIFT & NOT_A_DOCUMENT

    def get(self, key: bytes) -> StoredItem | None:
        """The newest version of a key, tombstones included."""
        with self.lock:
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
        return read_item(self.fetch(pieces))

    def meta(self, key: bytes) -> ItemMeta | None:
        """As `get`, without the value."""
        with self.lock:
            row = self.rows.newest(key)
            if row is None:
                return None
            start, stop = self.rows.extent(row)
            place = self.log.locate(start)
            if place is not None:
                return read_meta(*place)
            pieces = self.log.pieces(start, min(stop, start + META_BYTES))
        return read_meta(self.fetch(pieces))

    def brief(self, key: bytes) -> Brief | None:
        """The index's fields of the newest version of a key, tombstones included; the frame is not read."""
        with self.lock:
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

    # ------------------------------------------------------------------------------------------- reading many keys

    def collection_events(self) -> list[bytes]:
        """The newest event of each scope and collection, in order of seqno, as stored."""
        return self._newest_of(SYSTEM_COLLECTION)

    def prepares(self) -> list[bytes]:
        """The newest prepare or abort of each document that has one, in order of seqno, as stored."""
        return self._newest_of(PREPARE_NAMESPACE)

    def _newest_of(self, namespace: int) -> list[bytes]:
        with self.lock:
            seqnos = sorted(seqno for key, seqno in self.rows.keys.items() if key[0] == namespace)
            pieces = [self.log.pieces(*self.rows.extent(row)) for row in self.rows.rows_of(seqnos).tolist()]
        return [bytes(self.fetch(group)) for group in pieces]

    def walk_collections(self) -> Generator[None, None, dict[int, int]]:
        """The number of documents (not deleted) in each collection, in steps; the state at the first step.

        Looks at every key if there are several collections.
        """
        if all(number <= SYSTEM_COLLECTION for number in self.rows.collection_high):
            return {0: self.item_count}
        return (yield from walk_collections(*self._newest_and_hidden()))

    def share_of(self, collection_ids: frozenset[int]) -> float:
        """The share of the documents that are in some collections: of at most `SHARE_SAMPLE` keys, tombstones included.

        The keys are taken evenly from all, in the order in which they came.
        """
        with self.lock:
            keys = self.rows.keys
            step = max(1, len(keys) // SHARE_SAMPLE)
            sample = [key for key in islice(keys, 0, None, step) if key[0] not in _NO_COLLECTIONS]
        return sum(collection_of(key) in collection_ids for key in sample) / max(1, len(sample))

    def keys_between(self, first: bytes, last: bytes, limit: int | None = None) -> list[bytes]:
        """Keys of documents (not deleted) from `first` to `last`, both included, ascending; at most `limit`.

        Looks at every key and every row of the vbucket, some hundred nanoseconds each.
        """
        return finish(self.walk_keys(first, last, limit))[0]

    def walk_keys(
        self, first: bytes, last: bytes, limit: int | None = None
    ) -> Generator[None, None, tuple[list[bytes], array[int]]]:
        """As `keys_between`, in steps; the state at the first step. With the seqno of each key."""
        return (yield from walk_range(*self._newest_and_hidden(), first, last, limit))

    def deletion_count(self) -> int:
        """The number of tombstones. Looks at every key."""
        newest = list(self.rows.keys.values())
        return len(self._seqnos_of(DELETED).intersection(newest)) if len(newest) > self.item_count else 0

    def _newest_and_hidden(self) -> tuple[KeySeqnos, frozenset[int]]:
        """Each key with the seqno of its newest row, and the rows that are no documents: copies of one moment."""
        with self.lock:
            newest = list(self.rows.keys), list(self.rows.keys.values())
            has_others = len(newest[0]) > self.item_count
        return newest, self._seqnos_of(NOT_A_DOCUMENT) if has_others else frozenset()

    def _seqnos_of(self, kinds: int) -> frozenset[int]:
        """Seqnos of the rows of any of some kinds, superseded ones included."""
        with self.lock:
            seqnos, positions = self.rows.seqnos[:], self.rows.positions[:]
        is_of_kinds = np.frombuffer(positions, dtype=np.uint64) & np.uint64(kinds << KIND_SHIFT) != 0
        return frozenset(np.frombuffer(seqnos, dtype=np.uint64)[is_of_kinds].tolist())

    # --------------------------------------------------------------------------------------------- durable writes

    @property
    def has_prepares(self) -> bool:
        """Whether the kept history holds a durable write."""
        return any(collection_id <= prepares_of(0) for collection_id in self.rows.collection_high)

    @property
    def prepare_bytes(self) -> int:
        """Frames of the newest prepares and aborts."""
        return sum(map(len, self.prepares())) if self.has_prepares else 0

    def prepare(self, key: bytes) -> bytes | None:
        """The newest prepare of a document, or the abort that took its place, as stored."""
        with self.lock:
            row = self.rows.newest(prepare_key(key))
            if row is None:
                return None
            pieces = self.log.pieces(*self.rows.extent(row))
        return bytes(self.fetch(pieces))

    def visible_seqno(self, seqno: int) -> int:
        """The last seqno at or below this one that is no prepare or abort; 0 if there is none."""
        with self.lock:
            rows = self.rows
            row = rows.visible_row_at(rows.row_after(seqno) - 1)
            return rows.seqnos[row] if row >= 0 else 0

    def first_seqno_after(self, seqno: int, *, is_prepare: bool) -> int | None:
        """The first prepare or abort above a seqno, or with `is_prepare` false the first other row; None if none is."""
        with self.lock:
            rows = self.rows
            row = rows.first_row_from(rows.row_after(seqno), is_prepare=is_prepare)
            return rows.seqnos[row] if row < len(rows.seqnos) else None

    # ------------------------------------------------------------------------------------- reading in seqno order

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
            snapshot_end: the seqno of the state that is read, default `end_seqno`; rows above it hide no older ones.
            max_bytes: of the block; at least one row comes if there is any.
            may_wait: whether the read may wait for the disk.

        Returns: whole rows in seqno order; an empty block means that nothing is left.

        Raises:
            CorruptLog: the file does not hold the bytes that were written.
            StoreError: the file cannot be read.
            NotAtHand: the read would wait, and `may_wait` is false.

        Cost: one copy of the bytes, none if they lie in one sealed buffer or the block is scattered.
        """
        rows, log = self.rows, self.log
        with self.lock:
            first, stop = bisect_right(rows.seqnos, after_seqno), bisect_right(rows.seqnos, end_seqno)
            view_seqno = end_seqno if snapshot_end is None else snapshot_end
            runs, starts, seqnos, kinds = select(rows, first, stop, view_seqno, max_bytes)
            if not len(runs):
                return EMPTY_BLOCK
            is_scattered = len(runs) > 2
            if not is_scattered:
                begin, end = runs.tolist()
                limit = log.contiguous(begin, max_bytes)
                if limit < end - begin:
                    end, starts, seqnos = within(limit, begin, end, starts, seqnos)
                pieces = log.pieces(begin, end)
            else:
                covered = covering(runs)
                is_scattered = len(covered) == 1
                pieces = [piece for begin, end in covered for piece in log.pieces(begin, end)]
        if not may_wait and self._host.would_wait(pieces):
            raise NotAtHand(pieces)
        if is_scattered:
            return ScatteredBlock(self._parts(pieces, by_key=False), runs, starts, seqnos, kinds)
        return FrameBlock(self.fetch(pieces, by_key=False), starts, seqnos, kinds)

    def read_history(self, after_seqno: int, end_seqno: int, *, max_bytes: int = READ_BYTES) -> FrameBlock:
        """As `read`, with every version that is kept, not only the newest of each key.

        Purged rows, and rows that went with their collection, are left out.
        """
        # As of the moment before them nothing supersedes these rows.
        while (block := self.read(after_seqno, end_seqno, snapshot_end=after_seqno, max_bytes=max_bytes)).count:
            with self.lock:
                rows = self.rows
                are_void = [is_void(rows, rows.row_of(seqno), seqno) for seqno in block.seqnos.tolist()]
            if not any(are_void):
                return block
            if not all(are_void):
                return block.without(are_void)
            after_seqno = block.last_seqno
        return block

    def seqno_before_end(self, size: int) -> int:
        """The first seqno of the newest rows whose frames together take at most `size` bytes."""
        with self.lock:
            row = self.rows.row_at(max(self.rows.end - size, 0))
            return self.rows.seqnos[row] if row < len(self.rows.seqnos) else self.high_seqno + 1

    @property
    def keeps_history(self) -> bool:
        """Whether versions are kept for change histories."""
        return self.kept_from_seqno != LIVE

    def history_start_seqno(self) -> int:
        """The first seqno from which on every version is kept."""
        with self.lock:
            return self._history_start.find(self.rows)

    def first_repeated_seqno(self, after_seqno: int, end_seqno: int) -> int | None:
        """The lowest seqno up to `end_seqno` that is another version of a key above `after_seqno`; None if none is."""
        with self.lock:
            return first_repeated(self.rows, after_seqno, end_seqno)

    def hold(self, seqno: int) -> View:
        """Keep the state as of a seqno, for reads with that `snapshot_end`, while the returned object lives.

        A compaction keeps the rows that it shows, even if they were superseded long ago.
        """
        view = View(seqno)
        with self.lock:
            self._views.add(view)
        return view

    def held_seqnos(self) -> tuple[int, ...]:
        """Seqnos of the views that readers hold, rising, each once."""
        with self.lock:
            return self.views_held()

    def views_held(self) -> tuple[int, ...]:
        """As `held_seqnos`, under the lock."""
        return tuple(sorted({view.seqno for view in self._views}))

    # -------------------------------------------------------------------------------------------- reading by time

    def expired(self, unix_s: int, limit: int) -> list[bytes]:
        """Keys of documents whose expiration is over at `unix_s`, at most `limit`, oldest seqnos first.

        Cost: a look at 4 bytes a row, in steps of some 100 µs that leave the lock free between them; then a read of
        each frame that was found.
        """
        found: list[bytes] = []
        for seqnos in self.timed_seqnos(self.high_seqno, 0, unix_s + 1):
            at = 0
            while at < len(seqnos) and len(found) < limit:
                some = seqnos[at : at + limit - len(found)]
                found += [key for key in self.keys_of(some) if key is not None]
                at += len(some)
            if len(found) >= limit:
                break
        return found

    def timed_seqnos(self, end_seqno: int, kinds: int, before_time: int) -> Iterator[list[int]]:
        """Seqnos up to `end_seqno` of rows by kind and time (see `timed_rows`), in steps; takes the lock for each."""
        row = 0
        while True:
            with self.lock:
                stop = self.rows.row_after(end_seqno)
                seqnos, row = timed_rows(self.rows, row, stop, kinds, before_time, STEP_ROWS)
            if seqnos:
                yield seqnos
            if row >= stop:
                return

    def keys_of(self, seqnos: Sequence[int]) -> list[bytes | None]:
        """The index keys of rows, read from their frames; None for rows that are gone or damaged."""
        return [None if frame is None else index_key(frame) for frame in self.frames_of(seqnos)]

    def frames_of(self, seqnos: Sequence[int]) -> Iterator[bytes | memoryview | None]:
        """The frames of rows; None for rows that are gone or damaged."""
        for first in range(0, len(seqnos), STEP_ROWS):
            groups: list[list[Piece] | None] = []
            with self.lock:
                rows = self.rows
                for seqno in seqnos[first : first + STEP_ROWS]:
                    row = rows.row_of(seqno)
                    is_there = row < len(rows.seqnos) and rows.seqnos[row] == seqno
                    groups.append(self.log.pieces(*rows.extent(row)) if is_there else None)
            for group in groups:
                try:
                    frame = None if group is None else self.fetch(group)
                except CorruptLog:
                    frame = None  # `fetch` has noted it; the damaged row stays, and the others go on
                yield frame

    # ----------------------------------------------------------------------------------------------- reading bytes

    def fetch(self, pieces: list[Piece], *, by_key: bool = True) -> bytes | memoryview:
        """The bytes of some pieces of `log`, joined; `by_key`: through the page cache."""
        parts = self._parts(pieces, by_key=by_key)
        if len(parts) == 1:
            part = parts[0]
            return bytes(part) if isinstance(part, bytearray) else part
        return b"".join(parts)

    def _parts(self, pieces: list[Piece], *, by_key: bool) -> list[Buffer]:
        """The bytes of the pieces; damage is noted, and raised with its place."""
        if len(pieces) == 1 and not isinstance(pieces[0], tuple):
            return [pieces[0]]  # it is in memory
        try:
            return self._host.read_pieces(pieces, by_key=by_key)
        except CorruptLog as error:
            found = self._located(error)
            self._host.note_damage(found)
            raise found from None

    def _index_key_of(self, row: int) -> bytes:
        start, stop = self.rows.extent(row)
        return index_key(self.fetch(self.log.pieces(start, stop)))

    def _located(self, error: CorruptLog) -> CorruptLog:
        """The same error with the seqnos that are in the damaged page."""
        with self.lock:
            extent = self.log.extent_of(error.file, error.offset)
            if extent is None:
                return error
            first, stop = self.rows.rows_between(*extent)
            seqnos = self.rows.seqnos[first:stop]
        where = f"vbucket {self.vbid}, seqnos {min(seqnos)} to {max(seqnos)}" if seqnos else f"vbucket {self.vbid}"
        return CorruptLog(error.file, error.offset, f"{error.expected} ({where})", error.actual, error.hint)

    # ----------------------------------------------------------------------------------------------------- rollback

    def rollback(self, seqno: int) -> int:
        """Forget everything above `seqno`, durably; the rows that those had superseded are the newest again.

        A rollback into a received snapshot that is still remembered goes on to that snapshot's start. A rollback to
        below `horizon_seqno` goes to 0, because the state at that seqno is not kept.

        Returns: the high seqno reached: that of the last row kept, 0 if there is none.
        Raises: StoreError: the rollback could not be made durable, and nothing has changed.
        """
        with self.lock:
            row = self.rows.row_after(seqno)
            snapshot = self.snapshots.at(row)
            if snapshot is not None and row and self.rows.seqnos[row - 1] < snapshot.end_seqno:
                row = self.rows.row_after(min(seqno, snapshot.start_seqno))
            reached = self.reachable(self.rows.seqnos[row - 1] if row else 0)
        if reached < self.high_seqno:
            self._host.roll_back(self, reached)
            if self.purge_seqno > self.high_seqno:
                # Seqnos above are used again for new rows, which the next opening must not take for purged ones.
                self.purge_seqno = self.high_seqno
                with suppress(StoreError):  # the next change of the metadata writes it too
                    self._host.metadata_changed(self)
            reached = self.high_seqno
        return reached

    def reachable(self, seqno: int) -> int:
        """The seqno that a rollback to `seqno` reaches: 0 if it lies before the horizon."""
        return 0 if seqno < self.horizon_seqno else seqno

    def truncate(self, seqno: int) -> None:
        """The in-memory part of a rollback; called by the bucket store."""
        with self.lock:
            row = self.rows.row_after(seqno)
            self.rows.truncate(row, self._index_key_of)
            if not row:
                self.horizon_seqno = 0
            self.log.truncate(self.rows.end)
            self.high_seqno = seqno
            self.flushed_rows = min(self.flushed_rows, row)
            self.snapshots.truncate(row)
            if self._persisted_seqno > seqno:
                self._persisted_seqno = seqno
                self._persisted_snapshot = self.snapshots.at(row)

    # ----------------------------------------------------------------------- called by commit, compaction, recovery

    def rows_go(self, first: int, stop: int, kept: Sequence[int], count: int) -> None:
        """Renumber rows: of [first, stop) only the first `count` of `kept` stay. The caller holds the lock."""

        def moved(row: int) -> int:
            if row <= first:
                return row
            return row - (stop - first - count) if row >= stop else first + bisect_left(kept, row, hi=count)

        self.flushed_rows = moved(self.flushed_rows)
        self.snapshots.renumber(moved)

    def flushed(self, stop: int, pages: Iterable[Page]) -> None:
        """Rows below `stop` are durable now, in these pages. The caller holds the lock."""
        self.log.add_pages(pages)
        self.log.release(self.rows.start_of(stop))
        self.flushed_rows = stop
        self._persisted_seqno = self.rows.seqnos[stop - 1]
        self._persisted_snapshot = self.snapshots.at(stop)
        self.snapshots.forget_before(stop)

    def recovered(self, marks: Sequence[Mark]) -> None:
        """All rows are durable, and `marks` are the received snapshots that cover them. Called while a store opens."""
        self.high_seqno = self.rows.seqnos[-1] if self.rows.seqnos else 0
        self.flushed_rows = len(self.rows.seqnos)
        self.log.tail_start = self.rows.end
        self._persisted_seqno = self.high_seqno
        self.snapshots.recovered(marks)
        self._persisted_snapshot = self.snapshots.at(self.flushed_rows)
