"""One vbucket of a bucket: its role, its history in the store, and the rules of writing to it.

The history itself (rows, index, failover log on disk) is the store's; this adds what a server decides: the next CAS,
what still counts as being in memory, when a new branch begins. Knows nothing of connections.

Source: kv_engine engines/ep/src/vbucket.cc, hlc.h (CAS), failover-table.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from dcpstream.model import FailoverEntry, FailoverLog, Manifest, SnapshotRange, VbucketState
from dcpstream.runtime import Random, new_vbuuid
from dcpstream.wire import HEADER, SystemEventId
from dcpstream.wire.stored.block import BlockKind, FrameBlock
from dcpstream.wire.system_events import encode_stored_event
from dcpstream_node.engine.bucket.durability import Durability
from dcpstream_node.engine.bucket.fresh_deletions import FreshDeletions
from dcpstream_node.engine.bucket.locks import Locks
from dcpstream_node.engine.bucket.manifest import KnownIds
from dcpstream_node.store.items import prepares_of
from dcpstream_node.store.vbucket import NotAtHand

if TYPE_CHECKING:
    from dcpstream.wire.system_events import CollectionEvent
    from dcpstream_node.store import VBucketLog
    from dcpstream_node.store.log.segment_file import Piece

MAX_TRUSTED_CAS = (1 << 63) - 1
"""A CAS is nanoseconds since 1970; one above this is no time, and the next one here would not be above it for long."""

CAS_COUNTER_MASK = 0xFFFF
"""The low 16 bits of a CAS count writes within one tick of the clock."""

MEMORY_ITEMS = 10_000
"""Newest items of a vbucket that count as in memory: a stream that starts further back gets a disk snapshot first.
The server's limit is in bytes of checkpoints; the number is about what its default holds."""


CHECKPOINT_AGE_MAX_S = 5.0
"""Age of a checkpoint at which the next write begins a new one: the server's chk_period."""

CHECKPOINTS_REMEMBERED = 256
"""Beginnings of checkpoints that are remembered. Each is sent in snapshots of its own, so older ones count as having
left memory, and a stream that is further back goes on from disk."""


class Fetcher(Protocol):
    """Fetches from the disk what streams want to read, without letting anybody else wait for it."""

    def fetch(self, vbid: int, after_seqno: int, pieces: list[Piece]) -> None:
        """Fetch the pieces; then mark the vbucket as changed."""
        ...

    def has_fetched(self, vbid: int, after_seqno: int) -> bool:
        """Whether what follows that seqno was just fetched; true once."""
        ...


def _of_log(name: str, what: str) -> Any:
    """A fact of the vbucket's history. Streams read some for each message, and a method would cost more than that."""
    return property(attrgetter(f"log.{name}"), doc=what)


class VBucket:
    """A vbucket on this node; also what a DCP producer reads from.

    Attributes:
        vbid: u16.
        log: its history in the store.
        memory_start_seqno: first seqno that counts as being in memory.
        checkpoint_start_seqno: first seqno of the open checkpoint, to which the next write belongs.
        fetcher: reads history from disk for streams; None if reads may block instead.
        evicted_seqno: items up to here have left memory, although streams may not have read them yet.
        manifest: the collections according to the history; None until it is read.
        known_ids: scopes and collections of a copy according to its history; None until it is read.
        max_cas: the highest CAS given so far.
        max_deleted_rev: the highest revision of a tombstone made here; a new key begins above it, so that a document
            that was deleted, forgotten and written again never repeats a revision.
        topology: chains of node names as SET_VBUCKET gave them, JSON text; empty if none.
        vbuuid: the branch that is written now.
        received: bounds of the snapshot that was received last, as its source gave them; None if there was none.
        is_receiving_initial_snapshot: this copy was empty and is being filled from its source's disk.
        durability: its durable writes; None before the first one.
        locks: of its documents.
        fresh_deletions: deletions that may not be persisted.
        is_backed_up: whether writes are refused until a takeover ends.
    """

    __slots__ = (
        "_aging_since",
        "_aging_start",
        "_checkpoint_events",
        "_checkpoints",
        "_notified_seqno",
        "checkpoint_start_seqno",
        "durability",
        "evicted_seqno",
        "expired_count",
        "fetcher",
        "fresh_deletions",
        "is_active",
        "is_backed_up",
        "is_receiving_initial_snapshot",
        "known_ids",
        "locks",
        "log",
        "manifest",
        "max_cas",
        "max_deleted_rev",
        "memory_start_seqno",
        "received",
        "topology",
        "vbid",
        "vbuuid",
    )

    def __init__(self, log: VBucketLog) -> None:
        self.vbid = log.vbid
        self.log = log
        self.max_cas = 0
        self.max_deleted_rev = log.max_deleted_rev
        self.memory_start_seqno = self.checkpoint_start_seqno = log.high_seqno + 1
        self.evicted_seqno = log.high_seqno
        self.expired_count = 0
        self.fetcher: Fetcher | None = None
        self.manifest: Manifest | None = None
        self.known_ids: KnownIds | None = None
        self._checkpoint_events: tuple[tuple[int, bool], ...] = ()
        self._checkpoints: deque[int] = deque(maxlen=CHECKPOINTS_REMEMBERED)
        self._notified_seqno = log.high_seqno
        self._aging_start, self._aging_since = 0, 0.0
        self.topology = ""
        self.received: SnapshotRange | None = None
        self.is_receiving_initial_snapshot = False
        self.durability: Durability | None = None
        self.locks = Locks()
        self.fresh_deletions = FreshDeletions()
        self.is_backed_up = False
        self.is_active = log.state == VbucketState.ACTIVE
        self.vbuuid = log.failover_log.newest.vbuuid

    # ------------------------------------------------------------------------------------- what a producer asks for

    state: VbucketState = _of_log("state", "The role of this copy.")
    high_seqno: int = _of_log("high_seqno", "The last seqno given.")
    persisted_seqno: int = _of_log("persisted_seqno", "The last seqno that survives a crash.")
    purge_seqno: int = _of_log("purge_seqno", "Tombstones up to here may be gone.")
    failover_log: FailoverLog = _of_log("failover_log", "The branches, newest first.")
    snapshot: SnapshotRange = _of_log("snapshot", "The snapshot that covers the last item; (high, high) if active.")

    def high_seqno_of(self, collection_ids: Iterable[int]) -> int:
        """The last seqno in one of these collections."""
        return self.log.high_seqno_of(collection_ids)

    def high_seqno_with_prepares(self, collection_id: int) -> int:
        """The last seqno in a collection, prepares and aborts included."""
        return self.log.high_seqno_of((collection_id, prepares_of(collection_id)))

    def numbers_without_system(self) -> frozenset[int]:
        """The numbers in the history of collections, and of events of scopes, that are not the system's."""
        return self.log.numbers_without_system()

    def hold(self, seqno: int) -> object:
        """Keep the state at a seqno from being compacted until the result is released."""
        return self.log.hold(seqno)

    def read(self, after_seqno: int, end_seqno: int, *, snapshot_end: int | None, max_bytes: int) -> FrameBlock | None:
        """Items with after_seqno < seqno <= end_seqno that are the newest of their key at snapshot_end.

        None: they are on the disk alone, and are being fetched; the vbucket counts as changed when they are there.
        """
        fetcher = self.fetcher
        # What was fetched is read in any case: the system may have had to forget it again.
        may_wait = fetcher is None or fetcher.has_fetched(self.vbid, after_seqno)
        try:
            return self.log.read(
                after_seqno, end_seqno, snapshot_end=snapshot_end, max_bytes=max_bytes, may_wait=may_wait
            )
        except NotAtHand as waiting:
            assert fetcher is not None, "else it waits"
            fetcher.fetch(self.vbid, after_seqno, waiting.pieces)
            return None

    @property
    def history_start_seqno(self) -> int | None:
        """First seqno from which on every version is kept; None if the bucket keeps no history."""
        return None if not self.log.keeps_history else self.log.history_start_seqno()

    def read_history(self, after_seqno: int, end_seqno: int, *, max_bytes: int) -> FrameBlock:
        """Every version that is kept with after_seqno < seqno <= end_seqno."""
        return self.log.read_history(after_seqno, end_seqno, max_bytes=max_bytes)

    def first_repeated_seqno(self, after_seqno: int, end_seqno: int) -> int | None:
        """The lowest seqno up to `end_seqno` that is another version of a key above `after_seqno`; None if none is."""
        return self.log.first_repeated_seqno(after_seqno, end_seqno)

    # --------------------------------------------------------------------------------------------------- what changes

    def next_cas(self, unix_ns: int) -> int:
        """A CAS above every other of this vbucket: nanoseconds since 1970, the low 16 bits a counter."""
        last, cas = self.max_cas, unix_ns & ~CAS_COUNTER_MASK
        if cas <= last:
            cas = last + 1
        elif not last:
            cas = self.coming_cas(unix_ns)
        self.max_cas = cas
        return cas

    def coming_cas(self, unix_ns: int) -> int:
        """The CAS that the next write gets if it is made at this time, for values that contain their own CAS."""
        if self.max_cas == 0 and self.log.high_seqno:
            self.max_cas = self._last_cas()
        cas = unix_ns & ~CAS_COUNTER_MASK
        return cas if cas > self.max_cas else self.max_cas + 1

    def _last_cas(self) -> int:
        """CAS of the last item: after a restart the clock may be behind the one that gave it."""
        last = self.log.high_seqno
        block = self.log.read(last - 1, last, max_bytes=1)
        cas = int(HEADER.unpack_from(block.data)[-1]) if block.count else 0
        return cas if cas <= MAX_TRUSTED_CAS else 0

    def note_deletion(self, key: bytes, seqno: int, time: int, unix_ns: int) -> None:
        """Remember the time that answers show for a tombstone until it is persisted."""
        self.fresh_deletions.add(key, seqno, time, unix_ns, self._written_seqno)

    def shown_delete_time(self, key: bytes, seqno: int, delete_time: int, unix_ns: int) -> int:
        """The time that answers show for a tombstone: that of the deletion once persisted, until then the noted one."""
        return self.fresh_deletions.time_of(key, seqno, delete_time, unix_ns, self._written_seqno)

    @property
    def _written_seqno(self) -> int | None:
        """The persisted seqno; None in memory, where nothing is ever written."""
        return self.log.persisted_seqno if self.log.is_durable else None

    def set_state(self, state: VbucketState, random: Random, *, is_takeover: bool = False) -> None:
        """Change the role; becoming active other than by takeover begins a new branch."""
        failover_log = self.log.failover_log
        if state == VbucketState.ACTIVE and not self.is_active:
            if not is_takeover:
                failover_log = self._branched(random)
            self.close_checkpoint()
        self.log.set_state(state, failover_log)
        self.is_active = state == VbucketState.ACTIVE
        if self.durability is not None and not self.is_active:
            self.durability.leave_active()
        self.manifest = None
        self.known_ids = None
        self.locks.clear()
        self.fresh_deletions.clear()
        if self.is_active:
            self.log.set_snapshot(None)
            self.received = None
            self.is_receiving_initial_snapshot = False
        self.vbuuid = failover_log.newest.vbuuid

    def begin_branch(self, random: Random) -> None:
        """Push a new entry on the failover log: a crash may have lost writes that clients have seen."""
        self.log.failover_log = self._branched(random)
        self.vbuuid = self.log.failover_log.newest.vbuuid

    def _branched(self, random: Random) -> FailoverLog:
        return self.log.failover_log.pushed(FailoverEntry(new_vbuuid(random), self.log.branch_seqno))

    def close_checkpoint(self) -> None:
        """Begin a checkpoint: present items count as being on disk from now on, persisted or not.

        A server waits for the disk; here a producer reads both alike, and the line lies where it was drawn also if
        more is written before the next commit.
        """
        self._begin_checkpoint(self.log.high_seqno + 1)

    def _begin_checkpoint(self, start: int) -> None:
        self.memory_start_seqno = self.checkpoint_start_seqno = start
        self._checkpoint_events = ()
        if not self._checkpoints or self._checkpoints[-1] < start:
            self._checkpoints.append(start)
            if len(self._checkpoints) == CHECKPOINTS_REMEMBERED:
                self.evicted_seqno = max(self.evicted_seqno, self._checkpoints[0] - 1)

    def append_events(
        self, events: Iterable[CollectionEvent], seqnos: dict[int, int], *, begins_checkpoints: bool = True
    ) -> None:
        """Write system events into the history of an active copy.

        Args:
            begins_checkpoints: whether every event about a collection begins a checkpoint. Else one does of which the
                checkpoint has an event already, so that none is the later version of another one in its snapshot;
                modifications of a collection have a key of their own.
            seqnos: of the same events in other vbuckets. Equal ones are the same object, which saves 32 bytes each.
        """
        self.log.defer_ends()
        try:
            for event in events:
                topic = event.number, event.event == SystemEventId.MODIFY_COLLECTION
                is_second = topic in self._checkpoint_events
                if is_second or (begins_checkpoints and not event.is_of_scope):
                    self.close_checkpoint()
                if not begins_checkpoints:
                    self._checkpoint_events += (topic,)
                seqno = self.log.high_seqno + 1
                seqno = seqnos.setdefault(seqno, seqno)
                frame = encode_stored_event(event, vbid=self.vbid, by_seqno=seqno)
                self.log.append(frame, b"", seqno, kinds=int(BlockKind.SYSTEM_EVENT))
        finally:
            self.log.carry_out_ends()

    def age_checkpoint(self, now: float) -> None:
        """Begin a checkpoint with what was written since the last call, if the present one is old.

        Called once in a turn that wrote something, before DCP connections are notified; so no write reads the clock.

        Args:
            now: monotonic seconds.
        """
        start, notified = self.memory_start_seqno, self._notified_seqno
        self._notified_seqno = self.log.high_seqno
        if start != self._aging_start:
            self._aging_start, self._aging_since = start, now
        elif (
            now - self._aging_since >= CHECKPOINT_AGE_MAX_S
            and start <= notified < self._notified_seqno
            and self.is_active
        ):
            self._begin_checkpoint(notified + 1)
            self._aging_start, self._aging_since = notified + 1, now

    @property
    def checkpoint_number(self) -> int:
        """The number of the newest checkpoint, counted from 1 as far as they are remembered."""
        return len(self._checkpoints) + 1

    def checkpoint_at(self, seqno: int) -> int:
        """The start of the checkpoint that holds `seqno`; 0 if it is not remembered."""
        if self.memory_start_seqno <= seqno:
            return self.memory_start_seqno
        return next((start for start in reversed(self._checkpoints) if start <= seqno), 0)

    def checkpoint_after(self, seqno: int) -> int | None:
        """The start of the next checkpoint above `seqno`; None if none is remembered."""
        if not self._checkpoints or self._checkpoints[-1] <= seqno:
            return None  # most often
        return next(start for start in self._checkpoints if start > seqno)

    def age_memory(self) -> None:
        """Move the start of memory behind old, persisted items; called after a commit."""
        high, start = self.log.high_seqno, self.memory_start_seqno
        if high - start >= 2 * MEMORY_ITEMS:
            self.memory_start_seqno = max(start, min(self.log.persisted_seqno, high - MEMORY_ITEMS) + 1)
            self.evicted_seqno = self.memory_start_seqno - 1


def new_failover_log(random: Random) -> FailoverLog:
    """The log of a vbucket without history."""
    return FailoverLog.of((new_vbuuid(random), 0))
