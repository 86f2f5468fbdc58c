"""STREAM_REQs of a consumer: order, closed streams, answers."""

from collections import deque

from dcpstream.dcp.consumer.requests import StreamRequests
from dcpstream.dcp.consumer.stream import ConsumerState, ConsumerStream, StreamEvent
from dcpstream.wire import Opcode, Status, decode_frame, encode_response
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.replication import LOG
from tests.kit.cases import each_case
from tests.kit.lists import ListReplicas, replica


class Requests:
    """Requests for streams 1, 2, … of vbuckets with these numbers."""

    def __init__(self, count=2, *, has_collections=False):
        self.replicas = ListReplicas(*(replica(vbid) for vbid in range(1, count + 1)))
        self.out = deque()
        self.machine = StreamRequests(self.replicas, self.out, has_collections=has_collections)
        self.streams = {
            vbid: ConsumerStream(self.replicas.vbuckets[vbid], self.replicas, vbid, vbid << 24, 0x50 + vbid, 0)
            for vbid in range(1, count + 1)
        }

    def take(self):
        frames = [decode_frame(data) for data in self.out]
        self.out.clear()
        return frames

    def answer(self, opaque, status=0, value=b""):
        frame = decode_frame(encode_response(Opcode.DCP_STREAM_REQ, status=status, opaque=opaque, value=value))
        return self.machine.answered(frame, self.streams.get)


def test_they_go_out_in_order_without_those_that_were_closed():
    requests = Requests(3)
    for stream in requests.streams.values():
        requests.machine.add(stream)
    assert not requests.machine.is_idle
    requests.streams[2].go(StreamEvent.CLOSED)
    requests.machine.send_waiting()
    assert [frame.vbid for frame in requests.take()] == [1, 3]
    requests.machine.clear()
    assert requests.machine.is_idle


@each_case(("uid", "has_collections", "value"), [(0, True, b""), (26, True, b'{"uid":"1a"}'), (26, False, b"")])
def test_they_name_the_manifest_that_the_copy_has_reached(uid, has_collections, value):
    requests = Requests(1, has_collections=has_collections)
    requests.replicas.reached_uid = uid
    requests.machine.add(requests.streams[1])
    requests.machine.send_waiting()
    (frame,) = requests.take()
    assert frame.value == value


@each_case("status", [0, Status.ERANGE, Status.ROLLBACK])
def test_the_answer_to_a_stream_that_was_closed_says_nothing(status):
    requests = Requests(1)
    requests.machine.add(requests.streams[1])
    requests.machine.send_waiting()
    requests.take()
    requests.streams[1].go(StreamEvent.CLOSED)
    value = encode_failover_log(LOG) if not status else bytes(8)
    assert requests.answer(1 << 24, status, value) is None
    assert requests.take() == []
    assert requests.streams[1].state is ConsumerState.DEAD
