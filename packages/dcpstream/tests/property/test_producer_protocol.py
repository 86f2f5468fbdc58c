"""A producer against a model: whatever happens in whatever order, the client ends with the vbucket's state.

The machine is driven by random writes, deletions, checkpoints, acknowledgements, reads of any size and reconnections in
the middle of snapshots. A client applies what it gets, and the checks are the promises of the protocol: every message
inside its marker, seqnos rising, no key twice in a snapshot, the state at each snapshot's end that of the history
there, and a window that is overshot by one message at most.
"""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.connection import ProducerConnection, ProducerLimits
from dcpstream.model import MAX_SEQNO
from dcpstream.wire import Feature, Opcode, OpenFlag, decode_frame, decode_message
from dcpstream.wire.messages.dcp import StreamRequest
from tests.kit.lists import UUID, ListSource, ListVBucket, frame_of, frames_in

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
SIZES = st.integers(1, 400)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.binary(max_size=60)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("read"), SIZES),
    st.tuples(st.just("ack"), SIZES),
    st.tuples(st.just("reconnect")),
    st.tuples(st.just("window"), st.sampled_from([0, 1, 60, 200, 1000])),
)
FEATURES = frozenset((Feature.XERROR, Feature.COLLECTIONS))


class Reader:
    """A client that checks what it gets, and resumes where it stands."""

    def __init__(self, vbucket, source):
        self.vbucket, self.source = vbucket, source
        self.seqno = self.snapshot_start = self.snapshot_end = 0
        self.state = {}
        self.seen = set()
        self.connect()

    def connect(self):
        self.machine = ProducerConnection(
            Opening("c", OpenFlag.PRODUCER, FEATURES), self.source, 0.0, ProducerLimits(turn_bytes=150)
        )
        self.window, self.outstanding, self.opaque = 0, 0, 5
        self.control(b"enable_noop", b"true")
        self.has_marker = False
        self.marker_start = self.marker_end = 0
        request = StreamRequest(
            opaque=self.opaque,
            start_seqno=self.seqno,
            end_seqno=MAX_SEQNO,
            vbuuid=UUID if self.seqno else 0,
            snapshot_start=self.snapshot_start,
            snapshot_end=self.snapshot_end,
        )
        self.machine.handle(decode_frame(request.encode()), 0.0)

    def control(self, key, value):
        self.machine.handle(frame_of(Opcode.DCP_CONTROL, key=key, value=value), 0.0)

    def read(self, max_bytes):
        pieces = self.machine.data_to_send(max_bytes, 0.0)
        for frame in frames_in(pieces):
            if frame.is_response:
                assert frame.status == 0
                continue
            assert frame.opaque == self.opaque
            assert not self.window or self.outstanding < self.window
            self.outstanding += frame.size
            self.take(frame)
        return bool(pieces)

    def take(self, frame):
        message: Any = decode_message(frame)
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            assert self.has_marker is False or self.seqno == self.marker_end, "a snapshot was cut short"
            assert message.start_seqno <= self.seqno + 1
            assert message.end_seqno > self.seqno
            self.marker_start, self.marker_end, self.has_marker = message.start_seqno, message.end_seqno, True
            self.seen = set()
            return
        assert self.has_marker
        assert self.seqno < message.by_seqno <= self.marker_end
        assert message.by_seqno >= self.marker_start
        assert frame.key not in self.seen, "a key came twice in a snapshot"
        self.seen.add(frame.key)
        self.seqno, self.snapshot_start, self.snapshot_end = message.by_seqno, self.marker_start, self.marker_end
        if frame.opcode == Opcode.DCP_MUTATION:
            self.state[frame.key] = frame.value
        else:
            self.state.pop(frame.key, None)
        if self.seqno == self.snapshot_end:
            assert self.state == state_at(self.vbucket, self.seqno)


def state_at(vbucket, end):
    state = {}
    for seqno, key, data in vbucket.rows:
        if seqno <= end:
            frame = decode_frame(data)
            if frame.opcode == Opcode.DCP_MUTATION:
                state[key] = frame.value
            else:
                state.pop(key, None)
    return state


@given(st.lists(STEPS, max_size=40), st.integers(1, 3))
@example([("delete", b"a"), ("read", 65), ("window", 0), ("window", 1)], 1)
def test_the_client_ends_with_the_vbuckets_state(steps, gap):
    vbucket = ListVBucket(gap=gap)
    source = ListSource(vbucket)
    reader = Reader(vbucket, source)
    for name, *arguments in steps:
        if name == "set":
            vbucket.set(*arguments)
            reader.machine.vbucket_changed(0, 0.0)
        elif name == "delete":
            vbucket.delete(*arguments)
            reader.machine.vbucket_changed(0, 0.0)
        elif name == "checkpoint":
            vbucket.new_checkpoint()
        elif name == "read":
            reader.read(*arguments)
        elif name == "ack":
            reader.machine.handle(frame_of(Opcode.DCP_BUFFER_ACK, extras=arguments[0].to_bytes(4, "big")), 0.0)
            if reader.window:
                reader.outstanding = max(0, reader.outstanding - arguments[0])
        elif name == "reconnect":
            reader.connect()
        elif name == "window":
            reader.control(b"connection_buffer_size", b"%d" % arguments[0])
            reader.window = arguments[0]
            if not arguments[0]:
                reader.outstanding = 0
        assert reader.machine.close_reason is None
        if reader.window:
            assert reader.machine.window.outstanding_bytes == reader.outstanding
    reader.control(b"connection_buffer_size", b"0")
    reader.window = 0
    for _ in range(1000):
        if not reader.read(300):
            break
    assert reader.seqno == vbucket.high_seqno
    assert reader.state == state_at(vbucket, vbucket.high_seqno)


REQUESTS = st.one_of(
    st.builds(
        lambda opcode, extras, key, value, datatype, framing: frame_of(
            opcode, extras=extras, key=key, value=value, datatype=datatype, framing=framing
        ),
        st.integers(0x50, 0x67),
        st.one_of(st.binary(max_size=60), st.sampled_from([bytes(4), bytes(8), bytes(48), bytes(31)])),
        st.binary(max_size=20),
        st.one_of(st.binary(max_size=30), st.just(b'{"sid":1}'), st.just(b'{"collections":["0"]}')),
        st.integers(0, 7),
        st.sampled_from([b"", b"\x22\x00\x01", b"\xf1\x00\x00", b"\x2f"]),
    ),
)


@given(st.lists(REQUESTS, max_size=12), st.booleans())
def test_no_request_breaks_the_machine(requests, has_stream_ids):
    vbucket = ListVBucket()
    vbucket.set(b"k")
    machine = ProducerConnection(Opening("c", OpenFlag.PRODUCER, FEATURES), ListSource(vbucket), 0.0)
    controls = [(b"enable_noop", b"true")] + [(b"enable_stream_id", b"true")] * has_stream_ids
    for key, value in controls:
        machine.handle(frame_of(Opcode.DCP_CONTROL, key=key, value=value), 0.0)
    machine.data_to_send(1000, 0.0)
    for request in requests:
        machine.handle(request, 0.0)
        answers = [frame for frame in frames_in(machine.data_to_send(1 << 20, 0.0)) if frame.is_response]
        assert len(answers) <= 1
        assert all((answer.opcode, answer.opaque) == (request.opcode, request.opaque) for answer in answers)
        assert answers or machine.close_reason or request.opcode in (Opcode.DCP_BUFFER_ACK, 0x61)
