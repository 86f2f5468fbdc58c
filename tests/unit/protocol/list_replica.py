"""A bucket of lists that a consumer can write to, and a peer that plays its producer."""

from dcpstream.model import FailoverEntry, FailoverLog, Manifest, SnapshotRange, VbucketState
from dcpstream.protocol.consumer.connection import ConsumerConnection
from dcpstream.wire import Feature, Opcode, decode_frame, encode_request, encode_response
from dcpstream.wire.stored.durable import read_prepare
from dcpstream.wire.values import encode_failover_log
from tests.unit.protocol.list_history import ListSource, ListVBucket, frames_in

PREPARES = (Opcode.DCP_PREPARE, Opcode.DCP_ABORT)
LOG = FailoverLog.of((0xABCDEF, 0))


class ListReplicas(ListSource):
    """Records what is done to it."""

    def __init__(self, *vbuckets, manifest=Manifest.DEFAULT):
        super().__init__(*vbuckets, manifest=manifest)
        self.has_room = True
        self.unix_s = 1000
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

    def last_undecided_seqno(self, view):
        keys = {key for _, key, _ in view.rows}
        return max((found.seqno for key in keys if (found := self.prepare_of(view, key)) is not None), default=0)

    def has_collection_of(self, view, key):
        return key[0] == 0

    def has_place_for(self, view, change):
        return True

    def collections_uid(self, view):
        return 0

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


class Source:
    """Plays the producer (and the manager) for a consumer machine."""

    def __init__(self, *vbuckets, features=(Feature.XATTR, Feature.SNAPPY, Feature.JSON), **fields):
        self.replicas = ListReplicas(*(vbuckets or (replica(),)))
        self.machine = ConsumerConnection("c", self.replicas, 0.0, features=frozenset(features), **fields)
        self.replicas.machines.append(self.machine)
        self.now = 0.0
        self.opaque = 0

    @property
    def closed(self):
        return self.machine.close_reason is not None

    def take(self):
        """What the consumer has to say."""
        return frames_in(self.machine.data_to_send(1 << 20, self.now))

    def send(self, opcode, **fields):
        """A request; what comes of it."""
        self.machine.handle(decode_frame(encode_request(opcode, **fields)), self.now)
        return self.take()

    def answer(self, request, status=0, value=b"", datatype=0):
        """An answer; what comes of it."""
        data = encode_response(request.opcode, status=status, opaque=request.opaque, value=value, datatype=datatype)
        self.machine.handle(decode_frame(data), self.now)
        return self.take()

    def add(self, vbid=1, flags=0, opaque=0x51, **fields):
        """ADD_STREAM alone."""
        fields.setdefault("extras", flags.to_bytes(4, "big"))
        return self.send(Opcode.DCP_ADD_STREAM, vbid=vbid, opaque=opaque, **fields)

    def negotiate(self, frames, status=0):
        """Answer every question in `frames` and what follows; the controls asked, and what else was said."""
        asked, rest, waiting = [], [], list(frames)
        while waiting:
            frame = waiting.pop(0)
            if frame.is_request and frame.opcode in (Opcode.DCP_CONTROL, Opcode.GET_ERROR_MAP):
                asked.append(frame)
                waiting += self.answer(frame, status if frame.opcode == Opcode.DCP_CONTROL else 0)
            else:
                rest.append(frame)
        return asked, rest

    def request(self, vbid=1, flags=0, opaque=0x51):
        """ADD_STREAM up to the STREAM_REQ it leads to."""
        _, rest = self.negotiate(self.add(vbid, flags, opaque))
        (request,) = [frame for frame in rest if frame.opcode == Opcode.DCP_STREAM_REQ]
        return request

    def accept(self, vbid=1, flags=0, log=LOG, opaque=0x51):
        """ADD_STREAM up to its answer; later messages carry the stream's opaque."""
        request = self.request(vbid, flags, opaque)
        self.opaque = request.opaque
        return self.answer(request, value=encode_failover_log(log))

    def message(self, opcode, vbid=1, **fields):
        """A message of the stream."""
        fields.setdefault("opaque", self.opaque)
        return self.send(opcode, vbid=vbid, **fields)

    def marker(self, start, end, flags=1, vbid=1, **fields):
        extras = start.to_bytes(8, "big") + end.to_bytes(8, "big") + flags.to_bytes(4, "big")
        return self.message(Opcode.DCP_SNAPSHOT_MARKER, vbid, extras=extras, **fields)

    def mutation(self, key, seqno, vbid=1, value=b"v", rev=1, **fields):
        extras = seqno.to_bytes(8, "big") + rev.to_bytes(8, "big") + bytes(15)
        fields.setdefault("cas", 0x1000 + seqno)
        return self.message(Opcode.DCP_MUTATION, vbid, key=key, value=value, extras=extras, **fields)
