"""The history of one vbucket: frames in seqno order, the newest version of each key, snapshots, rollback.

The same class serves the memory and the disk store; its owner, a bucket store, says what durable means. The object
refuses to know about streams, connections and time. How it changes is said here; what is in it, and how that is read,
in `dcpstream.store.contents`.

Threads: appends and reads may come from one thread while others commit and compact. Everything that changes rows or
buffers, and every look at rows that takes more than one step (a compaction changes their numbers), happens under the
bucket's lock, which is held for microseconds; files are read outside of it.

What grows: with every append a row (32 bytes) and the frame; with every new key about 140 bytes. Superseded rows and
their frames stay until the store is compacted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import itemgetter

from dcpstream.errors import StoreError
from dcpstream.model import FailoverLog, SnapshotRange, VbucketState
from dcpstream.store.compact import purging
from dcpstream.store.compact.choosing import Rules
from dcpstream.store.contents import READ_BYTES, Brief, VBucketContents, View
from dcpstream.store.index.fields import FIELDS_AT, columns_of, document_halves, fields_of
from dcpstream.store.index.horizon import next_horizon, rollback_bytes
from dcpstream.store.index.rows import DELETED, NOT_A_DOCUMENT, PREPARE, SYSTEM, UNTOLD_REVISION, collection_of
from dcpstream.store.index.snapshots import ReceivedSnapshots
from dcpstream.store.items import index_key, is_collection_end, tombstone_revision
from dcpstream.store.log.blocks import Mark, Page
from dcpstream.store.owner import NotAtHand, Owner
from dcpstream.wire.stored.block import BlockKind

__all__ = ["READ_BYTES", "Brief", "NotAtHand", "Owner", "VBucketLog", "View"]

BATCH_ROWS = 16
"""Below this many rows `append_many` appends one by one: the bulk path's fixed cost would be larger."""


_first_byte = itemgetter(0)


class VBucketLog(VBucketContents):
    """One vbucket of a bucket store.

    Attributes, beside those of `VBucketContents`:
        incarnation: rises each time the vbucket is created anew; blocks of an older one are void.
        max_deleted_rev: the highest revision that a tombstone ever had here, as far as it is known.
        horizon_seqno: states before this seqno are not kept, but for views that somebody holds.
        snapshots: those that were received.
    """

    __slots__ = (
        "_failover_log",
        "_persisted_seqno",
        "_persisted_snapshot",
        "_purge_seqno",
        "_state",
        "flushed_rows",
        "horizon_seqno",
        "incarnation",
        "max_deleted_rev",
        "snapshots",
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
        super().__init__(owner, vbid)
        self.incarnation = incarnation
        self._state = state
        self._failover_log = failover_log
        self._purge_seqno = purge_seqno
        self.max_deleted_rev = max_deleted_rev
        self.horizon_seqno = horizon_seqno
        self.flushed_rows = 0
        self._persisted_seqno = 0
        self._persisted_snapshot: SnapshotRange | None = None
        self.snapshots = ReceivedSnapshots(self.rows)

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

    # --------------------------------------------------------------------------------------- snapshots, persistence

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot that covers the last row.

        On an active vbucket, where every row is there, it is (high, high). On one that receives a stream it is what
        was set before the row came; a snapshot set since then counts from its first row on.
        """
        with self._lock:
            return self.snapshots.at(len(self.rows.seqnos)) or SnapshotRange(self.high_seqno, self.high_seqno)

    def set_snapshot(self, snapshot: SnapshotRange | None) -> None:
        """Rows appended from now on belong to this received snapshot; None: each row stands for itself (active)."""
        with self._lock:
            self.snapshots.begin(snapshot)
            if not self._owner.is_durable:
                self.snapshots.forget_before(len(self.rows.seqnos))

    def snapshot_at_seqno(self, seqno: int) -> SnapshotRange:
        """The snapshot that covers the last row at or below `seqno`, as far as it is remembered."""
        with self._lock:
            return self.snapshots.at(self.rows.row_after(seqno)) or SnapshotRange(seqno, seqno)

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
            snapshot = self._persisted_snapshot if self._owner.is_durable else self.snapshots.at(len(self.rows.seqnos))
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
        if kinds or is_deleted:
            kinds = int(kinds)
            if kinds & (SYSTEM | PREPARE):
                key = index_key(frame)
            elif is_deleted and not kinds & DELETED:
                kinds |= DELETED & int(BlockKind.DELETION)
            revision, time = fields_of(frame, kinds)
            if kinds & DELETED and self.max_deleted_rev < revision:
                self.max_deleted_rev = tombstone_revision(frame)
        else:
            # As `fields_of`; a call costs a tenth of all of this.
            upper, revision, _, time = document_halves(frame, FIELDS_AT)
            if upper:
                revision = UNTOLD_REVISION
        collection = 0 if not key[0] else collection_of(key)
        owner, rows, log, size = self._owner, self.rows, self.log, len(frame)
        with self._lock:
            # The beginning of a new collection, by far the most frequent event, has nothing to end.
            had_any = kinds & SYSTEM and collection in rows.collection_high
            rows.append(key, seqno, kinds, size, collection, time, revision)
            if had_any and is_collection_end(frame):
                rows.end_collection(collection, len(rows.seqnos) - 1)
            log.append(frame)
            self.high_seqno = seqno
            if owner.is_durable:
                owner.dirty[self.vbid] = self
                owner.pending_bytes += size

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
            sizes = list(map(len, frames))
        if not keys:
            return
        if not isinstance(kinds, int) and len(set(kinds)) == 1:
            kinds = int(kinds[0])
        is_bulk = (
            isinstance(kinds, int)
            and not kinds & NOT_A_DOCUMENT
            and len(keys) >= BATCH_ROWS
            and keys[0][0] < 0x80
            and len(set(map(_first_byte, keys))) == 1
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
        starts, times, revisions = columns_of(data, sizes)
        owner = self._owner
        with self._lock:
            self.rows.append_documents(keys, seqnos, int(kinds), starts, len(data), times, revisions)  # type: ignore[arg-type]
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
            snapshot = self.snapshots.at(row)
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

    @property
    def unflushed_bytes(self) -> int:
        """Frames that no commit has made durable yet; 0 in memory."""
        return self.rows.end - self.rows.start_of(self.flushed_rows) if self._owner.is_durable else 0

    # -------------------------------------------------------------------------------- rollback, compaction (owner)

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
            self.snapshots.truncate(row)
            if self._persisted_seqno > seqno:
                self._persisted_seqno = seqno
                self._persisted_snapshot = self.snapshots.at(row)

    def reachable(self, seqno: int) -> int:
        """Where a rollback to this seqno leads: to 0 if it lies before the horizon."""
        return 0 if seqno < self.horizon_seqno else seqno

    def rules(self) -> Rules:
        """What a compaction has to keep beside the newest rows. Rollbacks to below go to 0 from now on."""
        with self._lock:
            stop = self.flushed_rows if self._owner.is_durable else len(self.rows.seqnos)
            self.horizon_seqno = max(self.horizon_seqno, next_horizon(self.rows, self.snapshots, stop))
            return Rules(self.horizon_seqno, self._held(), self.kept_from_seqno)

    @property
    def rollback_bytes(self) -> int:
        """Frames up to this size are kept for rollbacks although they were superseded."""
        return rollback_bytes(self.rows)

    def rows_go(self, first: int, stop: int, kept: Sequence[int], count: int) -> None:
        """Of the rows [first, stop) only the `count` first of `kept` stay: their numbers change. Under the lock."""

        def moved(row: int) -> int:
            if row <= first:
                return row
            return row - (stop - first - count) if row >= stop else first + bisect_left(kept, row, hi=count)

        self.flushed_rows = moved(self.flushed_rows)
        self.snapshots.renumber(moved)

    # --------------------------------------------------------------------------------- hand-over to a commit (owner)

    def seal(self) -> None:
        """Freeze what is pending, so that a commit may write it while appends go on. Under the bucket's lock."""
        self.log.seal()

    def marks_of(self, first: int, stop: int) -> list[Mark]:
        """Which received snapshots cover the rows [first, stop), as a block says it; none if each stands for itself.

        Needs no lock: marks of rows that are there do not change but from the oldest on.
        """
        return self.snapshots.covering(first, stop)

    def flushed(self, stop: int, pages: Iterable[Page]) -> None:
        """Rows below `stop` are durable now, in these pages. Under the bucket's lock."""
        self.log.add_pages(pages)
        self.log.release(self.rows.start_of(stop))
        self.flushed_rows = stop
        self._persisted_seqno = self.rows.seqnos[stop - 1]
        self._persisted_snapshot = self.snapshots.at(stop)
        self.snapshots.forget_before(stop)

    def recovered(self, marks: Sequence[Mark]) -> None:
        """All rows are durable; `marks` tell which received snapshots cover them. Called while the store opens."""
        self.high_seqno = self.rows.seqnos[-1] if self.rows.seqnos else 0
        self.flushed_rows = len(self.rows.seqnos)
        self.log.tail_start = self.rows.end
        purging.purge_again(self, self._lock)
        self.max_deleted_rev = max(self.max_deleted_rev, purging.highest_deleted_rev(self))
        self._persisted_seqno = self.high_seqno
        self.snapshots.recovered(marks)
        self._persisted_snapshot = self.snapshots.at(self.flushed_rows)
