"""A bucket on this node: its vbuckets, manifest and settings, and the sessions that use it.

`dirty` collects the vbuckets that changed during one turn of the event loop, so that DCP connections are notified once
per vbucket and turn, not once per write.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from dcpstream.dcp.producer.connection import DEFAULT_LIMITS, ProducerLimits
from dcpstream.model import BucketSettings, Collection, Manifest, NodeAddress, Persist, VbucketState
from dcpstream.runtime import Random
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule
from dcpstream_node.engine.bucket import manifest as manifests
from dcpstream_node.engine.bucket.durability import Durability
from dcpstream_node.engine.bucket.range_scans import RangeScans
from dcpstream_node.engine.bucket.retention import keep_history
from dcpstream_node.engine.bucket.topology import Meta
from dcpstream_node.engine.bucket.vbucket import Fetcher, VBucket, new_failover_log
from dcpstream_node.engine.bucket.waiting_clients import WaitingClients

if TYPE_CHECKING:
    from dcpstream.wire.system_events import CollectionEvent
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import BucketStore, CompactionOrder

THIS_NODE = "this node"
"""The name of this node in the topologies that it makes; it is never compared."""

OPCODES = 256

CATCH_UP_VBUCKETS = 64
"""Vbuckets that take in a new manifest in one step, which takes less than a millisecond."""
CATCH_UP_KEYS = 20_000
"""A step ends with the vbucket at which it passes this many keys: dropping a collection reads each of them."""


def as_float32(value: float) -> float:
    """The number as a server keeps a fraction in its configuration: in 32 bits."""
    (kept,) = struct.unpack("f", struct.pack("f", value))
    return float(kept)


CONSUMER_BUFFER_RATIO = as_float32(0.05)
"""Part of the quota for the buffers of consumers; 4 GiB have 214748368 bytes, as recorded, not 214748364."""


@dataclass(slots=True)
class Parameters:
    """Parameters of a bucket that can be changed and are not kept with its store.

    Attributes:
        lock_default_s, lock_max_s: duration of a lock by default, and at most.
        seqno_persistence_timeout_s: time-out of SEQNO_PERSISTENCE.
        scan_life_s: age at which a range scan is cancelled.
        compression_ratio_min: ratio of inflated to compressed size from which a value is stored compressed.
        strips_deletions: whether DELETE_WITH_META drops a body; if not, it refuses one.
        producer: bounds of DCP connections that are opened from now on.
        oso_backfill: "enabled", "auto" or "disabled": whether streams may get out-of-order snapshots if they asked.
        oso_small_value_ratio, oso_large_value_ratio: with auto, the share of the vbucket's documents below which a
            collection of small or large documents comes out of order.
        oso_small_item_bytes: mean size of documents below which they are small.
        consumer_buffer_ratio: part of the quota that the flow-control windows of all consumers have together.
    """

    lock_default_s: int = 15
    lock_max_s: int = 30
    seqno_persistence_timeout_s: float = 30.0
    scan_life_s: float = 180.0
    strips_deletions: bool = True
    compression_ratio_min: float = 1.2
    producer: ProducerLimits = field(default=DEFAULT_LIMITS)
    oso_backfill: str = "auto"
    oso_small_value_ratio: float = 0.005
    oso_large_value_ratio: float = 0.04
    oso_small_item_bytes: int = 256
    consumer_buffer_ratio: float = CONSUMER_BUFFER_RATIO


def _alone(replicas: int) -> str:
    """The topology of a vbucket without any of its replicas."""
    return json.dumps([[THIS_NODE, *[None] * replicas]], separators=(",", ":"))


def _no_commit() -> None:
    """Default of `Bucket.commit_soon`: nothing commits."""


class Bucket:
    """A bucket: vbuckets on a store, and the sessions that use them.

    Attributes:
        vbuckets: by vbid; None where this node holds no copy.
        manifest: the scopes and collections.
        answers_when_durable: whether writes are answered only once they are durable.
        keeps_compressed: whether values that come compressed are stored so.
        dirty: vbuckets that changed since the last turn.
        dcp_sessions: DCP connection name → the session that has it.
        sessions: every session that selected the bucket.
        is_warm: whether `open` is through; a consumer can be opened only then.
        is_persisting: False between STOP_PERSISTENCE and START_PERSISTENCE.
        durable: vbuckets with durable writes.
        fetcher: reads history from disk for the streams of all vbuckets; see `set_fetcher`.
        commits_begun, commits_done: numbers of the last commit that began, and of the last that is through.
        turns_kept: turns of the loop whose writes count as persisted at once, because the store has no files.
        expired_by_pager: documents that expired without having been read.
        holding: sessions with answers that wait for a commit.
        commit_soon: asks for a commit at once; set by the task that commits.
        compact: asks for a compaction and calls back with its error or None; returns False if too many wait. None
            without a task that compacts.
        waiters: sessions that wait for a seqno to be persisted, or for a pending vbucket.
        collections: those of the manifest, by id.
        system_collections: ids of those that only users with privileges of their own see; none before 7.6.
        behind: active vbuckets whose history does not have the newest manifest yet; see `catch_up`.
        has_forgotten_manifest: clients see the default collection alone, as by a server that has restarted and
            waits for its manager. Its vbuckets know their collections, so documents and streams are there as before.
        takes_traffic: False between DISABLE_TRAFFIC and ENABLE_TRAFFIC. Present documents can then be read and deleted;
            other requests for documents are TMPFAIL, as while a server warms up.
        is_paused: between PAUSE_BUCKET and RESUME_BUCKET. The bucket cannot be selected, and is not listed.
        range_scans: the open scans.
        parameters: values of SET_PARAM that are not kept with the store.
        release: that of the node.
        has_cache_transfer: whether streams get cached documents first if they asked for it.
        out_of_order_collections_max: most collections in the filter of such a stream.
        ops: requests of its sessions, by opcode.
        config_rev: revision of the cluster configuration when something of this bucket changed last.
        given_chains: the vbucket map of a cluster manager; None on a node that is a cluster of its own.
        given_nodes: the nodes that the numbers in `given_chains` mean; the maps of two buckets may name other ones.
        given_this_node: which of `given_nodes` this is.
        resting: vbuckets that were active when the bucket was closed cleanly, and have had no role since: see
            `stand_down`.
    """

    def __init__(
        self,
        name: str,
        uuid: str,
        store: BucketStore,
        *,
        random: Random,
        release: Release = DEFAULT_RELEASE,
    ) -> None:
        self.name = name
        self.uuid = uuid
        self.store = store
        self.manifest = store.manifest
        self._read_settings()
        self._random = random
        self.vbuckets: list[VBucket | None] = [None] * store.vbucket_count
        self.dirty: set[int] = set()
        self.dcp_sessions: dict[str, Session] = {}
        self.sessions: set[Session] = set()
        self.is_warm = False
        self.is_persisting = True
        self.durable: set[int] = set()
        self.fetcher: Fetcher | None = None
        self.commits_begun = 0
        self.commits_done = 0
        self.turns_kept = 0
        self.expired_by_pager = 0
        self.holding: set[Session] = set()
        self.commit_soon: Callable[[], None] = _no_commit
        self.compact: Callable[[CompactionOrder, Callable[[Exception | None], None]], bool] | None = None
        self.waiters = WaitingClients()
        self.collections: dict[int, Collection] = {}
        self.system_collections: frozenset[int] = frozenset()
        self.behind: dict[int, None] = {}
        self._event_seqnos: dict[int, int] = {}
        self._steps: dict[int, tuple[Manifest, list[CollectionEvent]]] = {}
        self.release = release
        self._checkpoints_age = release.has(Rule.CHECKPOINTS_AGE)
        self.has_cache_transfer: bool = True
        self.out_of_order_collections_max = 1
        self.has_forgotten_manifest = False
        self.takes_traffic = True
        self.is_paused = False
        self.range_scans = RangeScans()
        self.parameters = Parameters()
        self.config_rev = 0
        self.given_chains: list[list[int]] | None = None
        self.given_nodes: list[NodeAddress] = []
        self.given_this_node = 0
        self.resting: set[int] = set()
        self.ops = [0] * OPCODES

    @property
    def vbucket_count(self) -> int:
        """The number of vbuckets of the bucket, on all nodes."""
        return len(self.vbuckets)

    @property
    def shown_manifest(self) -> Manifest:
        """The collections that clients see."""
        return Manifest.DEFAULT if self.has_forgotten_manifest else self.manifest

    @property
    def settings(self) -> BucketSettings:
        """The bucket's settings, as given when it was made or changed since."""
        return self.store.settings

    def _read_settings(self) -> None:
        """Note what each request asks of the settings."""
        settings = self.store.settings
        self.keeps_compressed = settings.compression != "off"
        self.answers_when_durable = self.store.is_durable and settings.persist is Persist.EVERY

    def update_sessions(self) -> None:
        """Have every session choose the plain requests that it may make."""
        for session in self.sessions:
            session.update_plain()

    @property
    def compresses_values(self) -> bool:
        """Whether clients that negotiated compression get all values compressed, also those stored without."""
        return self.settings.compression == "active"

    @property
    def keeps_history(self) -> bool:
        """Whether superseded versions are kept for streams of changes."""
        return self.settings.keeps_history

    @property
    def collections_without_history(self) -> frozenset[int]:
        """Collections that keep no history; the default collection follows the default for new ones."""
        kept = {number for number, item in self.collections.items() if item.history}
        if self.settings.history_default:
            kept.add(0)
        return frozenset(self.collections.keys() - kept)

    @property
    def is_short_of_memory(self) -> bool:
        """Whether streams should read nothing more, because writes wait for the disk."""
        return not self.store.has_room

    def change_settings(self, settings: BucketSettings) -> None:
        """Change the settings durably.

        Raises:
            StoreError: they could not be made durable; nothing has changed.
        """
        before = self.settings
        self.store.settings = settings
        self._read_settings()
        if settings.replicas != before.replicas:
            self._lead_alone(_alone(before.replicas))
        if settings.ram_quota_bytes != before.ram_quota_bytes:
            self.share_buffers()
        self.update_sessions()

    def flush(self, now: float) -> None:
        """Delete every document: each vbucket begins a new history in its present role.

        A crash in between leaves the bucket as it was. Streams out of it end. Collections and topologies stay.
        """
        with self.store.metadata_batch():
            for vbid, vbucket in enumerate(self.vbuckets):
                if vbucket is None:
                    continue
                state, topology = vbucket.state, vbucket.topology
                self.durable.discard(vbid)
                self.delete_vbucket(vbid, now, is_replaced=True)
                self.notify_state_changed(vbid, now)  # consumers that fill the vbucket stop
                self._create(vbid, state).topology = topology
        for vbucket in self.vbuckets:
            if vbucket is not None:
                self.catch_up(vbucket)

    def lead_alone(self) -> None:
        """Give active vbuckets without a topology one that names this node alone, as a cluster manager would.

        It has none of the replicas that the settings ask for.
        """
        self._lead_alone("")

    def _lead_alone(self, instead_of: str) -> None:
        topology = _alone(self.settings.replicas)
        for vbucket in self.vbuckets:
            if vbucket is not None and vbucket.is_active and vbucket.topology == instead_of:
                vbucket.topology = topology
                if vbucket.durability is not None:
                    vbucket.durability.topology_changed()

    def set_manifest(self, manifest: Manifest) -> None:
        """Change the manifest durably.

        `catch_up` writes it into the history of each active vbucket: before the vbucket is used, else in steps.
        """
        self.catch_up_all()
        self.store.manifest = self.manifest = manifest
        self.has_forgotten_manifest = False
        self._manifest_changed()

    def adopt_manifest(self, manifest: Manifest) -> None:
        """Have a manifest whose events come with the history from elsewhere: no vbucket writes them itself."""
        if manifest == self.manifest:
            return
        self.store.manifest = self.manifest = manifest
        self._manifest_changed()
        self.behind = {}
        for vbucket in self.vbuckets:
            if vbucket is not None:
                vbucket.manifest = manifest

    def _manifest_changed(self) -> None:
        self._note_collections()
        self.update_sessions()
        self._steps = {}
        self._event_seqnos = {}
        self.behind = {each.vbid: None for each in self.vbuckets if each is not None and each.is_active}

    def _note_collections(self) -> None:
        self.collections = {item.collection_id: item for _, item in self.manifest.collections()}
        has_system = self.release.has(Rule.SYSTEM_COLLECTIONS)
        self.system_collections = frozenset(
            number for number, item in self.collections.items() if has_system and item.is_system
        )

    def catch_up_some(self) -> None:
        """Catch up a limited number of vbuckets, so that other sessions do not wait long."""
        looked = 0
        for vbid in list(islice(self.behind, CATCH_UP_VBUCKETS)):
            self.catch_up_at(vbid)
            vbucket = self.vbuckets[vbid]
            looked += vbucket.log.key_count if vbucket is not None else 0
            if looked >= CATCH_UP_KEYS:
                break

    def catch_up_all(self) -> None:
        """Catch up every vbucket, before a request that reads the whole bucket."""
        for vbid in list(self.behind):
            self.catch_up_at(vbid)

    def catch_up_at(self, vbid: int) -> None:
        """Catch up one vbucket, before a request that uses it."""
        if vbid in self.behind:
            vbucket = self.vbuckets[vbid]
            if vbucket is not None:
                self.catch_up(vbucket)
            self.behind.pop(vbid, None)

    def catch_up(self, vbucket: VBucket) -> None:
        """Write the changes of the manifest into an active vbucket's history."""
        self.behind.pop(vbucket.vbid, None)
        if vbucket.is_active and self.manifest.uid and vbucket.manifest is not self.manifest:
            self._take_in(vbucket)

    def _take_in(self, vbucket: VBucket) -> None:
        manifest, known = self.manifest, vbucket.manifest or manifests.manifest_in(vbucket.log)
        if vbucket.manifest is None and known is not Manifest.DEFAULT:
            events = self._events_between(known)
        else:
            # Nearly all vbuckets know the same one. It is kept, so that no other object gets its number.
            step = self._steps.get(id(known))
            if step is None:
                step = self._steps[id(known)] = known, self._events_between(known)
            events = step[1]
        vbucket.manifest = manifest
        if events:
            begins_checkpoints = self.release.has(Rule.EVENTS_BEGIN_CHECKPOINTS)
            vbucket.append_events(events, self._event_seqnos, begins_checkpoints=begins_checkpoints)
            self.dirty.add(vbucket.vbid)

    def _events_between(self, known: Manifest) -> list[CollectionEvent]:
        return manifests.events_between(
            known,
            self.manifest,
            in_reverse=self.release.has(Rule.EVENTS_IN_REVERSE),
            has_system=self.release.has(Rule.SYSTEM_COLLECTIONS),
        )

    def open(self, *, is_filled: bool = True) -> None:
        """Take over what the store holds; in an empty store every vbucket is created, active.

        A store that was not closed cleanly may have lost its last writes, which clients may have seen. Every active
        vbucket then begins a new branch at the first seqno that may be lost.
        """
        held = dict(self.store.vbuckets)
        with self.store.metadata_batch():
            for vbid in range(self.vbucket_count) if is_filled and not held else ():
                self._create(vbid, VbucketState.ACTIVE)
        # A node with a full disk still serves its data. A branch that is not on disk is safe: after a crash, clients
        # that know it are rolled back to 0.
        with self.store.metadata_batch(may_wait=True):
            for vbid, log in held.items():
                keep_history(log, self.settings)
                vbucket = VBucket(log)
                self.vbuckets[vbid] = vbucket
                if log.has_prepares:
                    self.durability_of(vbucket)
                if vbucket.is_active and not self.store.was_clean:
                    vbucket.begin_branch(self._random)
        self._note_collections()
        if self.manifest.uid:
            self._manifest_changed()
            self.catch_up_all()
        self.is_warm = True

    def stand_down(self) -> None:
        """Make active and pending copies dead: another node may have become active while this one was down.

        A copy that was active when the bucket was closed cleanly lacks nothing. If its first role is active again, it
        goes on with its branch, as on a node that is a cluster of its own.
        """
        with self.store.metadata_batch(may_wait=True):
            for vbucket in self.vbuckets:
                if vbucket is not None and vbucket.state in (VbucketState.ACTIVE, VbucketState.PENDING):
                    if vbucket.is_active and self.store.was_clean:
                        self.resting.add(vbucket.vbid)
                    vbucket.set_state(VbucketState.DEAD, self._random)

    def _create(self, vbid: int, state: VbucketState) -> VBucket:
        log = self.store.create_vbucket(vbid, state, new_failover_log(self._random))
        keep_history(log, self.settings)
        vbucket = VBucket(log)
        vbucket.fetcher = self.fetcher
        self.vbuckets[vbid] = vbucket
        return vbucket

    def vbucket(self, vbid: int) -> VBucket | None:
        """The copy on this node, or None."""
        return self.vbuckets[vbid] if vbid < len(self.vbuckets) else None

    def chooses_out_of_order(self, vbid: int, collection_ids: frozenset[int]) -> bool:
        """Decide whether a first snapshot of these collections is sent in any order to a client that asked for it.

        In any order a collection is read by its keys, which is slower than the whole file if it has many documents.
        """
        parameters, vbucket = self.parameters, self.vbucket(vbid)
        if parameters.oso_backfill != "auto" or vbucket is None:
            return parameters.oso_backfill == "enabled"
        count = vbucket.log.item_count
        is_small = count > 0 and vbucket.log.live_bytes / count < parameters.oso_small_item_bytes
        ratio = parameters.oso_small_value_ratio if is_small else parameters.oso_large_value_ratio
        return vbucket.log.share_of(collection_ids) < ratio

    def active(self, vbid: int) -> VBucket | None:
        """The active copy, or None if it is not here."""
        vbucket = self.vbucket(vbid)
        return vbucket if vbucket is not None and vbucket.is_active else None

    def set_vbucket(self, vbid: int, state: VbucketState, meta: Meta, now: float) -> bool:
        """SET_VBUCKET: create the vbucket or change its role; every change of role ends the DCP streams out of it.

        Returns: False if the server would give up the connection, because the topology is none.
        """
        vbucket = self.vbucket(vbid)
        goes_on = vbid in self.resting
        self.resting.discard(vbid)
        if vbucket is None:
            vbucket = self._create(vbid, state)
            vbucket.topology = meta.topology
            self.catch_up(vbucket)
            return not (meta.is_refused or meta.is_unusable)
        if meta.is_refused:
            return False
        if vbucket.state != state:
            vbucket.set_state(state, self._random, is_takeover=meta.is_unusable or goes_on)
            self.notify_state_changed(vbid, now)
            vbucket.topology = ""
        self.catch_up(vbucket)
        if meta.topology:
            vbucket.topology = meta.topology
            if vbucket.durability is not None and not meta.is_unusable:
                vbucket.durability.topology_changed()
        return not meta.is_unusable

    def delete_vbucket(self, vbid: int, now: float, *, is_replaced: bool = False) -> None:
        """DEL_VBUCKET: made dead first, which ends its streams, then forgotten.

        Args:
            is_replaced: the store keeps it until the caller creates its successor, which is one step.
        """
        vbucket = self.vbuckets[vbid]
        assert vbucket is not None, "the caller looks first"
        if vbucket.state != VbucketState.DEAD:
            vbucket.set_state(VbucketState.DEAD, self._random)
        self.notify_state_changed(vbid, now)  # also of a dead one: after a takeover it still has streams
        self.vbuckets[vbid] = None
        self.resting.discard(vbid)
        if not is_replaced:
            self.store.delete_vbucket(vbid)
        self.persisted([])

    def notify_state_changed(self, vbid: int, now: float) -> None:
        """Notify every DCP connection and every waiting session that a vbucket's role changed."""
        for session in list(self.dcp_sessions.values()):
            if session.dcp is not None:
                session.dcp.vbucket_state_changed(vbid, now)
                session.wake()
        self.notify_role_lost(vbid)

    def notify_role_lost(self, vbid: int) -> None:
        """Notify those who wait for a vbucket or scan it that it has its role no longer; its streams go on."""
        self.range_scans.drop_vbucket(vbid)
        self.waiters.role_changed(vbid)

    def notify_rolled_back(self, vbid: int, now: float) -> None:
        """Notify every DCP connection that a vbucket's history was cut."""
        for session in list(self.dcp_sessions.values()):
            if session.dcp is not None:
                session.dcp.vbucket_rolled_back(vbid, now)
                session.wake()

    # ------------------------------------------------------------------------------------------------ durable writes

    def durability_of(self, vbucket: VBucket) -> Durability:
        """The durable writes of a vbucket; made with the first one."""
        if vbucket.durability is None:
            vbucket.durability = Durability(vbucket, self._note_changed, self._commit_soon)
            self.durable.add(vbucket.vbid)
        return vbucket.durability

    def _commit_soon(self) -> None:
        self.commit_soon()

    def _note_changed(self, vbid: int) -> None:
        self.dirty.add(vbid)

    def _durabilities(self) -> list[Durability]:
        found = [self.vbuckets[vbid] for vbid in self.durable]
        return [item.durability for item in found if item is not None and item.durability is not None]

    def next_timeout(self) -> float | None:
        """The next deadline, monotonic seconds: of a durable write, a range scan, or a waiting session."""
        if not (self.durable or self.waiters.for_seqnos or self.range_scans.by_id):
            return None
        times = [item.next_timeout() for item in self._durabilities()]
        times += [self.waiters.next_timeout(), self.range_scans.next_timeout()]
        return min((at for at in times if at is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """End what is past its deadline."""
        for item in self._durabilities():
            item.handle_timeout(now)
        self.range_scans.handle_timeout(now)
        self.waiters.handle_timeout(now)

    # ----------------------------------------------------------------------------------------------- DCP connections

    def is_streamed_into(self, vbid: int) -> bool:
        """Whether some DCP connection has a living stream into the vbucket."""
        return any(
            session.dcp is not None and session.dcp.is_streaming_into(vbid) for session in self.dcp_sessions.values()
        )

    def share_buffers(self) -> None:
        """Notify every DCP connection that the windows of consumers change: by their number, or by the quota."""
        for session in list(self.dcp_sessions.values()):
            if session.dcp is not None and session.dcp.buffer_changed():
                session.wake()

    def end_turn(self, now: float) -> None:
        """Notify every DCP connection of the vbuckets that changed since the last turn."""
        dirty, self.dirty = self.dirty, set()
        self.turns_kept += bool(dirty) and not self.store.is_durable
        for vbid in dirty if self._checkpoints_age else ():
            changed = self.vbuckets[vbid]
            if changed is not None:
                changed.age_checkpoint(now)
        for session in list(self.dcp_sessions.values()):
            dcp, has_output = session.dcp, False
            if dcp is not None:
                for vbid in dirty:
                    has_output |= dcp.vbucket_changed(vbid, now)
            if has_output:
                session.wake()

    def set_fetcher(self, fetcher: Fetcher) -> None:
        """Set the task that reads history from disk for streams."""
        self.fetcher = fetcher
        for vbucket in self.vbuckets:
            if vbucket is not None:
                vbucket.fetcher = fetcher

    def hold(self, session: Session) -> None:
        """A session has answers that wait for a commit."""
        self.holding.add(session)
        self.commit_soon()

    def begin_commit(self) -> int:
        """Begin a commit of everything written so far; returns its number."""
        self.commits_begun += 1
        return self.commits_begun

    def end_commit(self, number: int) -> None:
        """Send the answers that waited for the commit."""
        self.commits_done = number
        holding, self.holding = self.holding, set()
        for session in holding:
            session.wake()

    def fail_commit(self, reason: str) -> None:
        """A commit failed: close the sessions that wait for it, because the outcome of their writes is unknown."""
        holding, self.holding = self.holding, set()
        for session in holding:
            session.drop_held(reason)

    def wait_for_persistence(self, session: Session, vbid: int, seqno: int, deadline: float) -> bool:
        """Resume the session when the seqno is persisted; False if too many wait already.

        Args:
            deadline: monotonic seconds; then it is resumed with TMPFAIL.
        """
        is_waiting = self.waiters.add_for_seqno(session, vbid, seqno, deadline)
        if is_waiting:
            self.commit_soon()
        return is_waiting

    def wait_for_role(self, session: Session, vbid: int) -> bool:
        """Resume the session when the vbucket's role changed; False if too many wait already."""
        return self.waiters.add_for_role(session, vbid)

    def persisted(self, vbids: list[int]) -> None:
        """Note that these vbuckets were persisted further."""
        self.dirty.update(vbids)
        for vbid in vbids:
            vbucket = self.vbuckets[vbid]
            if vbucket is not None:
                vbucket.age_memory()
                if vbucket.durability is not None:
                    vbucket.durability.decide()
        self.waiters.persisted(self._persisted_seqno_of)

    def _persisted_seqno_of(self, vbid: int) -> int | None:
        vbucket = self.vbuckets[vbid]
        return None if vbucket is None else vbucket.persisted_seqno

    def chains(self) -> list[list[int]]:
        """The vbucket map, with one place for each copy.

        A cluster manager's map is given as it is. Without one, this node, 0, stands first where it has the active copy,
        and second where it has a replica; the nodes of the other copies are not known then.
        """
        if self.given_chains is not None:
            return self.given_chains
        replicas = self.settings.replicas
        missing = [-1] * replicas
        return [
            [-1, 0, *missing[1:]]
            if replicas and vbucket is not None and vbucket.state == VbucketState.REPLICA
            else [0 if vbucket is not None and vbucket.is_active else -1, *missing]
            for vbucket in self.vbuckets
        ]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, but for the scopes and collections that a new bucket has."""
        is_new = self.manifest in (Manifest.DEFAULT, Manifest.WITH_SYSTEM_SCOPE)
        events = len(manifests.events_between(Manifest.DEFAULT, self.manifest)) if is_new else 0
        return is_new and all(vbucket is None or vbucket.high_seqno <= events for vbucket in self.vbuckets)

    def item_count(self) -> int:
        """Documents in active vbuckets."""
        return sum(vbucket.log.item_count for vbucket in self.vbuckets if vbucket is not None and vbucket.is_active)
