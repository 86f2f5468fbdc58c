"""A producer that hands a vbucket over: every state of its stream and every answer."""

from hypothesis import given
from hypothesis import strategies as st

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.connection import ProducerConnection, ProducerHost
from dcpstream.dcp.producer.states import STREAM, Phase
from dcpstream.model import MAX_SEQNO, VbucketState
from dcpstream.wire import Opcode, OpenFlag, StreamFlag, decode_frame, encode_response
from dcpstream.wire.messages.dcp import StreamRequest
from tests.kit.lists import ListSource, ListVBucket, frames_in

OPAQUE = 0x77


class Host:
    """Remembers what was asked of it, and does it."""

    def __init__(self, vbucket):
        self.vbucket, self.put_off = vbucket, []

    def hand_over(self, vbid):
        assert vbid == self.vbucket.vbid
        self.vbucket.state = VbucketState.DEAD

    def put_off_writes(self, vbid, *, is_on):
        self.put_off.append(is_on)


class Takeover:
    def __init__(self, documents=2, flags=StreamFlag.TAKEOVER):
        self.vbucket = ListVBucket()
        for number in range(documents):
            self.vbucket.set(b"k%d" % number)
        self.host = Host(self.vbucket)
        self.machine = ProducerConnection(
            Opening("p", OpenFlag.PRODUCER), ListSource(self.vbucket), 0.0, host=ProducerHost(takeovers=self.host)
        )
        request = StreamRequest(
            opaque=OPAQUE, flags=flags, start_seqno=0, end_seqno=MAX_SEQNO, vbuuid=0,
            snapshot_start=0, snapshot_end=0,
        )  # fmt: skip
        self.machine.handle(decode_frame(request.encode()), 0.0)
        self.stream = self.machine.stream(0)
        self.phases = [self.stream.at.phase]

    def take(self):
        frames = frames_in(self.machine.data_to_send(1 << 20, 0.0))
        if self.stream.at.phase is not self.phases[-1]:
            self.phases.append(self.stream.at.phase)
        return frames

    def answer(self, opcode, status=0):
        self.machine.handle(decode_frame(encode_response(opcode, status=status, opaque=OPAQUE)), 0.0)
        return self.take()


def test_its_states_in_order():
    takeover = Takeover()
    takeover.take()
    takeover.answer(Opcode.DCP_SNAPSHOT_MARKER)
    assert takeover.stream.at.phase is Phase.PENDING_ASKED
    takeover.answer(Opcode.DCP_SET_VBUCKET_STATE)
    assert takeover.vbucket.state is VbucketState.DEAD
    (end,) = takeover.answer(Opcode.DCP_SET_VBUCKET_STATE)
    assert end.opcode == Opcode.DCP_STREAM_END
    assert takeover.machine.stream_count == 0
    sent = [Phase.PENDING, Phase.TAKEOVER_SEND, Phase.PENDING_ASKED, Phase.ACTIVE_ASKED, Phase.FINISHED]
    assert takeover.phases == sent


def test_a_takeover_of_what_is_on_disk_sends_nothing_until_the_vbucket_changes():
    takeover = Takeover(flags=StreamFlag.TAKEOVER | StreamFlag.DISK_ONLY | StreamFlag.TO_LATEST)
    assert [frame.opcode for frame in takeover.take()] == [Opcode.DCP_STREAM_REQ]
    assert takeover.stream.at.phase is Phase.BACKFILLING
    takeover.vbucket.set(b"more")
    takeover.machine.vbucket_changed(0, 0.0)
    assert takeover.take() == []
    takeover.machine.vbucket_state_changed(0, 0.0)
    assert [frame.opcode for frame in takeover.take()] == [Opcode.DCP_STREAM_END]


EVENTS = ("marker", "state", "write", "time", "outside", "close", "later")


@given(st.lists(st.sampled_from(EVENTS), max_size=14), st.integers(0, 3))
def test_any_sequence_of_answers_and_events(events, documents):
    takeover = Takeover(documents)
    machine, seen, now = takeover.machine, takeover.take(), 0.0
    for event in events:
        if event == "marker":
            seen += takeover.answer(Opcode.DCP_SNAPSHOT_MARKER)
        elif event == "state":
            seen += takeover.answer(Opcode.DCP_SET_VBUCKET_STATE)
        elif event == "write" and takeover.vbucket.state is VbucketState.ACTIVE:
            takeover.vbucket.set(b"new")
            machine.vbucket_changed(0, now)
        elif event == "time":
            now += 61.0
            machine.handle_timeout(now)
        elif event == "outside":
            machine.vbucket_state_changed(0, now)
        elif event == "later":
            machine.data_to_send(10, now)
        seen += takeover.take()
        stream = machine.stream(0)
        if stream is not None:
            assert stream.at.phase in STREAM.rows
    asked = [frame.extras for frame in seen if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE]
    assert asked in ([], [b"\3"], [b"\3", b"\1"])
    assert len([frame for frame in seen if frame.opcode == Opcode.DCP_STREAM_END]) <= 1
    if takeover.vbucket.state is VbucketState.DEAD:
        assert asked[:1] == [b"\3"]
    machine.close("done")
    assert takeover.host.put_off.count(True) == takeover.host.put_off.count(False)
