"""DCP SET_VBUCKET_STATE: what a consumer does with it, and how it differs from the ordinary SET_VBUCKET."""

from __future__ import annotations

import pytest

from dcpstream.wire import Opcode, Status, decode_frame, encode_request, encode_response
from dcpstream_node.testing.simulation import ScriptedProducer, SimulatedNode
from tests.kit.rules import rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA, of, statuses, without_control


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    return node


@pytest.fixture
def source(node: SimulatedNode) -> ScriptedProducer:
    source = ScriptedProducer(node)
    source.accept()
    return source


@rule("SVS-01", "SVS-07")
@pytest.mark.parametrize(
    "fields",
    [
        {"extras": b""},
        {"extras": b"\2\0\0\0"},
        {"extras": b"\0"},
        {"extras": b"\5"},
        {"key": b"k"},
        {"value": b'{"topology":[["a"]]}'},
        {"datatype": 1},
    ],
)
def test_another_shape_or_state_is_invalid(source: ScriptedProducer, fields) -> None:
    assert statuses(source.set_state(PENDING, **fields)) == [Status.EINVAL]
    assert source.node.vbucket(1).state == REPLICA
    assert not source.closed


@rule("SVS-02")
def test_the_published_example() -> None:
    example = bytes.fromhex("805b00000100000000000001deadbeef000000000000000004")
    assert encode_request(Opcode.DCP_SET_VBUCKET_STATE, opaque=0xDEADBEEF, extras=b"\4") == example
    assert decode_frame(example).extras == bytes([DEAD])


@rule("SVS-03")
@pytest.mark.parametrize("state", [ACTIVE, REPLICA, PENDING, DEAD])
def test_the_state_is_applied_and_answered(source: ScriptedProducer, state: int) -> None:
    answers = source.set_state(state)
    expected = encode_response(Opcode.DCP_SET_VBUCKET_STATE, opaque=source.opaque)
    assert [frame.encode() for frame in answers] == [expected]
    assert source.node.vbucket(1).state == state


@rule("SVS-04")
def test_without_a_stream_or_with_another_opaque(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    assert statuses(source.set_state(ACTIVE)) == [Status.KEY_ENOENT]
    source.accept()
    assert statuses(source.set_state(ACTIVE, 2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert statuses(source.set_state(ACTIVE, opaque=0x999)) == [Status.OPAQUE_NO_MATCH]
    old = ScriptedProducer(node, b"old")
    node.set_vbucket(3, REPLICA)
    (request,) = old.negotiate(old.add(3), without_control(b"v7_dcp_status_codes"))
    old.peer.answer(request, value=bytes(7) + b"\1" + bytes(8))
    assert statuses(old.set_state(ACTIVE, 3, opaque=0x999)) == [Status.KEY_EEXISTS]
    assert node.vbucket(1).state == node.vbucket(3).state == REPLICA


@rule("SVS-05")
def test_active_by_stream_keeps_the_stream_and_the_branch(node: SimulatedNode, source: ScriptedProducer) -> None:
    source.snapshot(b"a", b"b", start=1)
    log = node.failover_log(1)
    assert statuses(source.set_state(ACTIVE)) == [Status.SUCCESS]
    assert node.failover_log(1) == log
    assert statuses(source.set_state(ACTIVE)) == [Status.SUCCESS]  # the stream is still there
    assert source.end() == []
    node.set_doc(1, "own")
    assert node.vbucket(1).high_seqno == 3


@rule("SVS-06")
def test_a_producer_drops_the_connection(node: SimulatedNode) -> None:
    peer = node.producer()
    peer.stream(2)
    assert peer.send(Opcode.DCP_SET_VBUCKET_STATE, vbid=2, extras=b"\1") == []
    assert peer.closed


@rule("SVS-08")
@pytest.mark.parametrize("state", [ACTIVE, PENDING, DEAD])
def test_the_ordinary_command_closes_the_stream_in_only_when_active(
    node: SimulatedNode, source: ScriptedProducer, state: int
) -> None:
    source.snapshot(b"a", start=1)
    reader = node.producer()
    reader.stream(1)
    node.set_vbucket(1, state)
    assert [frame.extras for frame in of(reader.take(), Opcode.DCP_STREAM_END)] == [b"\0\0\0\2"]
    expected = [Status.DCP_STREAM_NOT_FOUND] if state == ACTIVE else []
    assert statuses(source.marker(2, 2)) == expected
