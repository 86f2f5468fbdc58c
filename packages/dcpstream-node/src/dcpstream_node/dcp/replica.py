"""Changes of a bucket by DCP: rows from other nodes, failover logs, rollbacks, roles that are handed over.

The consumer machine decides; this module changes the bucket's vbuckets. When a vbucket's role changed or its history
was cut, DCP connections that stream out of it are notified; clients learn of roles by a new cluster configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.errors import ConfigError
from dcpstream.model import FailoverEntry, FailoverLog, SnapshotRange, VbucketState
from dcpstream.runtime import new_vbuuid
from dcpstream.wire import HEADER_BYTES, decode_frame
from dcpstream.wire.stored.block import BlockKind
from dcpstream.wire.stored.durable import read_prepare
from dcpstream.wire.system_events import read_event
from dcpstream_node.engine.bucket.documents import collection_of
from dcpstream_node.engine.bucket.manifest import KnownIds, manifest_in
from dcpstream_node.engine.bucket.vbucket import MAX_TRUSTED_CAS, VBucket, new_failover_log

if TYPE_CHECKING:
    from dcpstream.dcp.bucket import Change, VBucketView
    from dcpstream.wire.stored.durable import StoredPrepare
    from dcpstream.wire.system_events import CollectionEvent
    from dcpstream_node.engine import Bucket, Engine

__all__ = ["Replicas", "Takeovers"]

MAX_BUFFER_BYTES = (1 << 32) - 1
"""The largest window that a producer takes."""

IMPOSSIBLE_CAS = frozenset((0, 2**64 - 1))
"""No document has such a CAS; a row with one gets another."""

CAS_AT = HEADER_BYTES - 8


# Plain ints: enum arithmetic is slow, and every row is looked at.
_PREPARE, _SYSTEM_EVENT = int(BlockKind.PREPARE), int(BlockKind.SYSTEM_EVENT)
_WITHOUT_CAS = _SYSTEM_EVENT | _PREPARE
"""Rows that are not documents; the machine refuses prepares without a CAS, and aborts have none."""


class Replicas:
    """One bucket, as one consumer connection changes it (see `ReplicaBucket`)."""

    def __init__(self, bucket: Bucket, engine: Engine) -> None:
        self._bucket = bucket
        self._engine = engine

    @property
    def buffer_bytes(self) -> int:
        """A share of the quota for all consumers, divided among them; the same number as at a server."""
        sessions = self._bucket.dcp_sessions.values()
        consumers = sum(isinstance(session.dcp, ConsumerConnection) for session in sessions)
        share = int(self._bucket.settings.ram_quota_bytes * self._bucket.parameters.consumer_buffer_ratio)
        return max(1, min(share // max(1, consumers), MAX_BUFFER_BYTES))

    @property
    def has_room(self) -> bool:
        """Whether the store accepts more data."""
        return self._bucket.store.has_room

    @property
    def unix_s(self) -> int:
        """Seconds since 1970."""
        return self._engine.unix_s

    def vbucket(self, vbid: int) -> VBucket | None:
        """The copy on this node, or None."""
        return self._bucket.vbucket(vbid)

    def is_streamed_into(self, vbid: int) -> bool:
        """Whether some consumer connection of the bucket has a living stream into the vbucket."""
        return self._bucket.is_streamed_into(vbid)

    # ---------------------------------------------------------------------------------------------------------- rows

    def received_snapshot(self, view: VBucketView) -> SnapshotRange:
        """The source's bounds; after a restart those of the store."""
        vbucket = _own(view)
        return vbucket.received or vbucket.snapshot

    def begin_snapshot(
        self, view: VBucketView, announced: SnapshotRange, consistent_seqno: int, *, is_initial_from_disk: bool
    ) -> None:
        """Rows stored from now on belong to this snapshot."""
        vbucket = _own(view)
        vbucket.received = announced
        vbucket.is_receiving_initial_snapshot = is_initial_from_disk or vbucket.is_receiving_initial_snapshot
        vbucket.log.set_snapshot(SnapshotRange(min(consistent_seqno, announced.end_seqno), announced.end_seqno))

    def learn_purge_seqno(self, view: VBucketView, seqno: int) -> None:
        """Deletions up to `seqno` may never come."""
        log = _own(view).log
        log.set_purge_seqno(max(log.purge_seqno, seqno))

    def end_snapshot(self, view: VBucketView) -> None:
        """All rows of the snapshot were stored."""
        _own(view).is_receiving_initial_snapshot = False

    def store(self, view: VBucketView, change: Change) -> None:
        """Append a row."""
        vbucket = _own(view)
        frame = change.frame
        if change.cas in IMPOSSIBLE_CAS and not change.kinds & _WITHOUT_CAS:
            cas = vbucket.next_cas(self._engine.unix_ns)
            frame = b"".join((frame[:CAS_AT], cas.to_bytes(8, "big"), frame[HEADER_BYTES:]))
        durability, kinds = vbucket.durability, change.kinds
        if durability is None and kinds & _PREPARE:
            durability = self._bucket.durability_of(vbucket)
        if durability is not None and not kinds & _WITHOUT_CAS:
            kinds |= durability.kinds_of(change.key)
        vbucket.log.append(frame, change.key, change.seqno, kinds=kinds)
        if kinds & _SYSTEM_EVENT and vbucket.known_ids is not None:
            vbucket.known_ids.take(_event_of(change))
        if durability is not None:
            durability.stored(frame, change.key, change.seqno)
        if vbucket.max_cas < change.cas <= MAX_TRUSTED_CAS:
            vbucket.max_cas = change.cas
        if change.is_deleted:
            vbucket.max_deleted_rev = max(vbucket.max_deleted_rev, change.rev_seqno)
        self._bucket.dirty.add(vbucket.vbid)

    def prepare_of(self, view: VBucketView, key: bytes) -> StoredPrepare | None:
        """The undecided prepare of a document."""
        durability = _own(view).durability
        waiting = None if durability is None else durability.undecided.get(key)
        return None if waiting is None else waiting.prepare

    def version_seqno(self, view: VBucketView, key: bytes) -> int:
        """The seqno of a document's present version."""
        meta = _own(view).log.meta(key)
        return 0 if meta is None else meta.seqno

    def last_undecided_seqno(self, view: VBucketView) -> int:
        """The seqno of the last prepare that is not decided."""
        durability = _own(view).durability
        return 0 if durability is None else durability.last_undecided_seqno

    def has_collection_of(self, view: VBucketView, key: bytes) -> bool:
        """Whether the history of the copy has the key's collection."""
        return collection_of(key) in self._known_ids(view).collections

    def has_place_for(self, view: VBucketView, change: Change) -> bool:
        """Whether the event of a scope or collection may follow in the history of the copy."""
        return self._known_ids(view).fits(_event_of(change))

    def _known_ids(self, view: VBucketView) -> KnownIds:
        vbucket = _own(view)
        if vbucket.known_ids is None:
            vbucket.known_ids = KnownIds(manifest_in(vbucket.log))
        return vbucket.known_ids

    def collections_uid(self, view: VBucketView) -> int:
        """The version of the manifest that the history of the copy has reached."""
        return manifest_in(_own(view).log).uid

    def high_prepared_seqno(self, view: VBucketView) -> int:
        """The seqno of the last prepare of all documents."""
        log = _own(view).log
        if not log.has_prepares:
            return 0
        return max((read_prepare(stored).prepared_seqno for stored in log.prepares()), default=0)

    # ------------------------------------------------------------------------------------------------ history, roles

    def adopt_failover_log(self, view: VBucketView, log: FailoverLog) -> None:
        """Take the source's log over."""
        vbucket = _own(view)
        vbucket.log.adopt_failover_log(log)
        vbucket.vbuuid = log.newest.vbuuid

    def roll_back(self, view: VBucketView, seqno: int) -> int:
        """Cut the history, end the streams out of it; an empty vbucket begins with a log of its own."""
        vbucket, random = _own(view), self._engine.random
        reached = vbucket.log.rollback(seqno)
        if reached:
            log = vbucket.failover_log.pruned(reached) or FailoverLog((FailoverEntry(new_vbuuid(random), reached),))
        else:
            log = new_failover_log(random)
        vbucket.received = None
        vbucket.known_ids = None
        vbucket.is_receiving_initial_snapshot = False
        vbucket.close_checkpoint()
        if vbucket.durability is not None:
            vbucket.durability.reload()
        vbucket.log.failover_log = log
        vbucket.vbuuid = log.newest.vbuuid
        self._bucket.notify_rolled_back(vbucket.vbid, self._engine.now)
        return reached

    def set_state(self, view: VBucketView, state: VbucketState) -> None:
        """Change the role within a takeover: history continues.

        A copy that becomes active is made durable first, because its source is dead by then and may be removed. The
        loop waits for the disk, once for each moved vbucket.

        Raises: StoreError: it could not be made durable; the role is what it was.
        """
        vbucket = _own(view)
        if vbucket.state == state:
            return
        if state is VbucketState.ACTIVE and self._bucket.is_persisting:
            moved = [vbid for vbid, _ in self._bucket.store.commit()]
            self._bucket.persisted(moved)
        vbucket.set_state(state, self._engine.random, is_takeover=True)
        self._bucket.catch_up(vbucket)
        self._bucket.notify_state_changed(vbucket.vbid, self._engine.now)
        self._engine.topology_changed(self._bucket)


class Takeovers:
    """The effects of a takeover on the vbucket that is handed over; for one producer connection."""

    def __init__(self, bucket: Bucket, engine: Engine) -> None:
        self._bucket = bucket
        self._engine = engine

    def hand_over(self, vbid: int) -> None:
        """Another node has everything but the data in flight: stop serving the vbucket.

        As on a server, its other streams go on, with nothing more to send, until its role changes again or it is
        deleted. The manager does one of both when the map names the new node.
        """
        vbucket = self._bucket.vbucket(vbid)
        if vbucket is None or vbucket.state == VbucketState.DEAD:
            return
        vbucket.set_state(VbucketState.DEAD, self._engine.random)
        self._bucket.notify_role_lost(vbid)
        self._engine.topology_changed(self._bucket)

    def put_off_writes(self, vbid: int, *, is_on: bool) -> None:
        """Answer writes with TMPFAIL, or no longer."""
        vbucket = self._bucket.vbucket(vbid)
        if vbucket is not None:
            vbucket.is_backed_up = is_on


def _event_of(change: Change) -> CollectionEvent:
    frame = decode_frame(change.frame)
    return read_event(frame.extras, frame.key, frame.value)


def _own(view: VBucketView) -> VBucket:
    assert isinstance(view, VBucket), "the views of a node are its vbuckets"
    return view


def fail_over_to_stale_copy(engine: Engine, bucket: Bucket, vbid: int, seqno: int) -> None:
    """Have an active vbucket as after a failover to a replica that had less: streams end, and a new branch begins.

    Args:
        seqno: the last one that the replica has.

    Raises: ConfigError: the vbucket is not active here.
    """
    vbucket = bucket.vbucket(vbid)
    if vbucket is None or vbucket.state != VbucketState.ACTIVE:
        raise ConfigError("vbid", vbid, "a vbucket that is active on this node")
    topology = vbucket.topology
    vbucket.set_state(VbucketState.REPLICA, engine.random)
    bucket.notify_state_changed(vbid, engine.now)
    Replicas(bucket, engine).roll_back(vbucket, seqno)
    vbucket.set_state(VbucketState.ACTIVE, engine.random)
    vbucket.topology = topology
    bucket.catch_up(vbucket)
    engine.topology_changed(bucket)
