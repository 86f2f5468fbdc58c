"""A node's consumer end without streams: what it answers and what drops it."""

import pytest

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.dcp.consumer.stats import consumer_stats
from dcpstream.dcp.opening import Opening
from dcpstream.model import VbucketState
from dcpstream.wire import Opcode, Status, decode_frame, encode_response
from tests.kit.lists import ListSource, ListVBucket, frame_of, frames_in


class ListReplicas(ListSource):
    """Copies into which nothing is streamed yet."""

    unix_s = 1_700_000_000

    def is_streamed_into(self, vbid):
        return False


@pytest.fixture
def machine():
    source = ListReplicas(ListVBucket(0), ListVBucket(1, VbucketState.REPLICA), ListVBucket(2, VbucketState.DEAD))
    return ConsumerConnection(Opening("consumer"), source, 0.0)  # type: ignore[arg-type] # lists do what the protocol asks


def statuses(machine, opcode, **fields):
    machine.handle(frame_of(opcode, **fields), 0.0)
    return [frame.status for frame in frames_in(machine.data_to_send(1000, 0.0))]


@pytest.mark.parametrize(
    ("opcode", "fields"),
    [
        (Opcode.DCP_CONTROL, {"key": b"enable_noop", "value": b"true"}),
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(48)}),
        (Opcode.DCP_GET_FAILOVER_LOG, {}),
        (Opcode.DCP_BUFFER_ACK, {"extras": bytes(4)}),
        (Opcode.DCP_SEQNO_ACKNOWLEDGED, {"extras": bytes(8)}),
    ],
)
def test_what_belongs_to_a_producer_drops_the_connection(machine, opcode, fields):
    assert statuses(machine, opcode, **fields) == []
    assert machine.close_reason
    assert not machine.has_output


def test_unasked_answers_drop_the_connection(machine):
    machine.handle(decode_frame(encode_response(Opcode.DCP_NOOP)), 0.0)
    assert machine.close_reason


@pytest.mark.parametrize(
    ("opcode", "fields", "status"),
    [
        (Opcode.DCP_NOOP, {}, Status.SUCCESS),
        (Opcode.DCP_OPEN, {"key": b"x", "extras": bytes(8)}, Status.EINVAL),
        (Opcode.DCP_CLOSE_STREAM, {}, Status.KEY_ENOENT),
        (Opcode.DCP_CLOSE_STREAM, {"framing": b"\x22\x00\x01"}, Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": b"\0\0\0\0\0\0\0\1" + bytes(23), "key": b"k"}, Status.KEY_ENOENT),
        (Opcode.DCP_SNAPSHOT_MARKER, {"extras": bytes(20)}, Status.KEY_ENOENT),
        (Opcode.DCP_STREAM_END, {"extras": bytes(4)}, Status.KEY_ENOENT),
        (Opcode.DCP_ADD_STREAM, {"vbid": 0, "extras": bytes(4)}, Status.NOT_MY_VBUCKET),
        (Opcode.DCP_ADD_STREAM, {"vbid": 9, "extras": bytes(4)}, Status.NOT_MY_VBUCKET),
        (Opcode.DCP_ADD_STREAM, {"vbid": 1, "extras": b"\0\0\0\x08"}, Status.EINVAL),
        (Opcode.DCP_ADD_STREAM, {"vbid": 1, "extras": b"\0\0\0\x40"}, Status.EINVAL),
        (Opcode.DCP_ADD_STREAM, {"vbid": 1}, Status.EINVAL),
        (Opcode.DCP_FLUSH, {}, Status.NOT_SUPPORTED),
    ],
)
def test_answers(machine, opcode, fields, status):
    assert statuses(machine, opcode, **fields) == [status]
    assert machine.close_reason is None


def test_stats_say_what_it_is(machine):
    assert dict(consumer_stats(machine))["eq_dcpq:consumer:type"] == "consumer"
