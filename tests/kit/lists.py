"""Buckets of lists that producer and consumer machines work on: slow, obvious, and the model for their results."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.dcp.opening import Opening
from dcpstream.dcp.window import CONSUMER_BUFFER_BYTES
from dcpstream.model import FailoverEntry, FailoverLog, Manifest, SnapshotRange, VbucketState
from dcpstream.wire import Feature, Frame, Opcode, decode_frame, encode_request, encode_response
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.stored.block import EMPTY_BLOCK, Version, encode_stored_deletion, encode_stored_mutation
from dcpstream.wire.stored.durable import read_prepare
from dcpstream.wire.system_events import encode_stored_event
from dcpstream_node.store import index_key
from dcpstream_node.store.index.rows import collection_of
from dcpstream_node.testing.simulation.replication import ProducerScript
from tests.kit.blocks import block_of

UUID = 0xABCDEF012345


@dataclass
class ListVBucket:
    """A vbucket whose history is a list of (seqno, key, frame)."""

    vbid: int = 0
    state: VbucketState = VbucketState.ACTIVE
    failover_log: FailoverLog = field(default_factory=lambda: FailoverLog.of((UUID, 0)))
    memory_start_seqno: int = 1
    purge_seqno: int = 0
    persisted: int | None = None
    receiving: SnapshotRange | None = None
    rows: list = field(default_factory=list)
    gap: int = 1
    reads: int = 0
    is_receiving_initial_snapshot: bool = False
    evicted_seqno: int = 0
    checkpoints: list = field(default_factory=list)
    durability: object = None

    @property
    def high_seqno(self):
        return self.rows[-1][0] if self.rows else 0

    @property
    def persisted_seqno(self):
        return self.high_seqno if self.persisted is None else self.persisted

    @property
    def snapshot(self):
        return self.receiving or SnapshotRange(self.high_seqno, self.high_seqno)

    def high_seqno_of(self, collection_ids):
        wanted = set(collection_ids)
        return max((seqno for seqno, key, _ in self.rows if collection_of(key) in wanted), default=0)

    def set(self, key, value=b"v", *, collection_id=0, cas=None, nru=0, expiration=0, **fields):
        full_key, seqno = leb128_encode(collection_id) + key, self.high_seqno + self.gap
        version = Version(full_key, value, time=expiration, **{"rev_seqno": 1} | fields)
        cas = seqno << 16 if cas is None else cas
        frame = encode_stored_mutation(version, vbid=self.vbid, by_seqno=seqno, cas=cas, nru=nru)
        self.rows.append((seqno, full_key, frame))
        return seqno

    def delete(self, key, *, collection_id=0, delete_time=77):
        full_key, seqno = leb128_encode(collection_id) + key, self.high_seqno + self.gap
        frame = encode_stored_deletion(
            Version(full_key, b"", 2, time=delete_time), vbid=self.vbid, by_seqno=seqno, cas=seqno << 16
        )
        self.rows.append((seqno, full_key, frame))
        return seqno

    def event(self, event):
        seqno = self.high_seqno + self.gap
        if not event.is_of_scope:
            self.new_checkpoint()
        frame = encode_stored_event(event, vbid=self.vbid, by_seqno=seqno)
        self.rows.append((seqno, index_key(frame), frame))
        return seqno

    def new_checkpoint(self):
        self.memory_start_seqno = self.high_seqno + 1
        self.checkpoints.append(self.memory_start_seqno)

    def checkpoint_at(self, seqno):
        return max((start for start in (*self.checkpoints, self.memory_start_seqno) if start <= seqno), default=0)

    def hold(self, seqno):
        return seqno

    def checkpoint_after(self, seqno):
        return min((start for start in self.checkpoints if start > seqno), default=None)

    def newest(self, after, end, snapshot_end):
        """Rows of after < seqno <= end that nothing up to `snapshot_end` supersedes."""
        latest = {key: seqno for seqno, key, _ in self.rows if seqno <= snapshot_end}
        return [row for row in self.rows if after < row[0] <= end and latest[row[1]] == row[0]]

    def read(self, after_seqno, end_seqno, *, snapshot_end, max_bytes):
        self.reads += 1
        out = b""
        for _, _, frame in self.newest(after_seqno, end_seqno, snapshot_end or end_seqno):
            if out and len(out) + len(frame) > max_bytes:
                break
            out += frame
        return block_of(out) if out else EMPTY_BLOCK


class ListSource:
    """A bucket of such vbuckets."""

    def __init__(self, *vbuckets, manifest=Manifest.DEFAULT):
        self.vbuckets = {vbucket.vbid: vbucket for vbucket in vbuckets}
        self.manifest = manifest
        self.vbucket_count = 1024
        self.is_short_of_memory = False
        self.allows_out_of_order = True
        self.out_of_order_collections_max = 1
        self.has_cache_transfer = True
        self.keeps_history = False
        self.collections_without_history = frozenset()
        self.compresses_values = False

    def vbucket(self, vbid):
        return self.vbuckets.get(vbid)

    def chooses_out_of_order(self, vbid, collection_ids):
        return self.allows_out_of_order


def frame_of(opcode, **fields) -> Frame:
    """A request as the shell hands it over."""
    return decode_frame(encode_request(opcode, **fields))


def frames_in(pieces) -> list[Frame]:
    """All frames of what goes out."""
    data, frames, at = b"".join(pieces), [], 0
    while at < len(data):
        frames.append(decode_frame(data, at))
        at += frames[-1].size
    return frames


class ListReplicas(ListSource):
    """Records what is done to it."""

    def __init__(self, *vbuckets, manifest=Manifest.DEFAULT):
        super().__init__(*vbuckets, manifest=manifest)
        self.has_room = True
        self.buffer_bytes = CONSUMER_BUFFER_BYTES
        self.unix_s = 1000
        self.reached_uid = 0
        self.machines = []
        self.received = {}
        self.marks = []

    def is_streamed_into(self, vbid):
        return any(machine.is_streaming_into(vbid) for machine in self.machines)

    def received_snapshot(self, view):
        return self.received.get(view.vbid) or view.snapshot

    def begin_snapshot(self, view, announced, consistent_seqno, *, is_initial_from_disk):
        self.received[view.vbid] = announced
        self.marks.append((announced.start_seqno, announced.end_seqno, consistent_seqno))
        view.is_receiving_initial_snapshot = view.is_receiving_initial_snapshot or is_initial_from_disk
        view.receiving = SnapshotRange(consistent_seqno, announced.end_seqno)

    def learn_purge_seqno(self, view, seqno):
        view.purge_seqno = max(view.purge_seqno, seqno)

    def end_snapshot(self, view):
        view.is_receiving_initial_snapshot = False

    def store(self, view, change):
        view.rows.append((change.seqno, change.key, change.frame))

    def prepare_of(self, view, key):
        found = [frame for _, row_key, frame in view.rows if row_key == key]
        return read_prepare(found[-1]) if found and found[-1][1] == Opcode.DCP_PREPARE else None

    def version_seqno(self, view, key):
        hidden = (Opcode.DCP_PREPARE, Opcode.DCP_ABORT)
        return max(
            (seqno for seqno, row_key, frame in view.rows if row_key == key and frame[1] not in hidden), default=0
        )

    def last_undecided_seqno(self, view):
        keys = {key for _, key, _ in view.rows}
        return max((found.seqno for key in keys if (found := self.prepare_of(view, key)) is not None), default=0)

    def has_collection_of(self, view, key):
        return key[0] == 0

    def has_place_for(self, view, change):
        return True

    def collections_uid(self, view):
        return self.reached_uid

    def high_prepared_seqno(self, view):
        return max((seqno for seqno, _, frame in view.rows if frame[1] == Opcode.DCP_PREPARE), default=0)

    def adopt_failover_log(self, view, log):
        view.failover_log = log

    def roll_back(self, view, seqno):
        view.rows = [row for row in view.rows if row[0] <= seqno]
        reached = view.high_seqno
        self.received.pop(view.vbid, None)
        view.receiving = None
        view.failover_log = view.failover_log.pruned(reached) or FailoverLog((FailoverEntry(0xFE, reached),))
        return reached

    def set_state(self, view, state):
        view.state = state


def replica(vbid=1, state=VbucketState.REPLICA, **fields):
    """A copy that may be streamed into."""
    return ListVBucket(vbid, state, **fields)


class MachineProducer(ProducerScript):
    """Plays the producer and the cluster manager for a consumer machine on `ListReplicas`."""

    def __init__(self, *vbuckets, features=(Feature.XATTR, Feature.SNAPPY, Feature.JSON), consumer_name="", **fields):
        self.replicas = ListReplicas(*(vbuckets or (replica(),)))
        self.machine = ConsumerConnection(
            Opening("c", features=frozenset(features), consumer_name=consumer_name), self.replicas, 0.0, **fields
        )
        self.replicas.machines.append(self.machine)
        self.now = 0.0

    @property
    def closed(self):
        return self.machine.close_reason is not None

    def take(self):
        """The frames that the consumer sends now."""
        return frames_in(self.machine.data_to_send(1 << 20, self.now))

    def send_request(self, opcode, **fields):
        self.machine.handle(decode_frame(encode_request(opcode, **fields)), self.now)
        return self.take()

    def send_answer(self, request, *, status=0, value=b"", datatype=0):
        data = encode_response(request.opcode, status=status, opaque=request.opaque, value=value, datatype=datatype)
        self.machine.handle(decode_frame(data), self.now)
        return self.take()
