"""CLOSE_STREAM: on a producer with and without a STREAM_END that follows, with stream ids, and on a consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.wire import Frame, Opcode, OpenFlag, Status, decode_frame, encode_request, encode_response
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, ScriptedProducer, SimulatedNode
from tests.kit.client_machines import pump, ready_connection
from tests.kit.lists import frames_in
from tests.kit.messages import accepted, marker, mutation
from tests.kit.rules import of_release, rule
from tests.kit.streams import DEAD, REPLICA, WITHOUT_XERROR, new_checkpoint, of, opcodes, without_control

STREAM_END_CONTROL = (b"send_stream_end_on_client_close_stream", b"true")
STREAM_IDS = (b"enable_stream_id", b"true")


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    node.fill(1, 5)
    return node


def consumer(node: SimulatedNode, **options: object) -> ScriptedProducer:
    node.set_vbucket(2, REPLICA)
    return ScriptedProducer(node, **options)  # type: ignore[arg-type]


def with_ids(node: SimulatedNode, *ids: int) -> Peer:
    """A producer connection with a stream of vbucket 1 for each id; the opaque is 0x70 + id."""
    peer = node.producer(controls=[STREAM_IDS, STREAM_END_CONTROL])
    for stream_id in ids:
        assert peer.stream(1, value=b'{"sid":%d}' % stream_id, opaque=0x70 + stream_id)[0].status == 0
    return peer


def acknowledged(peer: Peer) -> list[Frame]:
    """The messages through a small window that is opened again and again."""
    return [frame for _ in range(20) for frame in peer.buffer_ack(1000)]


def status(frames) -> list[int]:
    return [frame.status for frame in frames]


# ------------------------------------------------------------------------------------------------------- the packets


@rule("CLS-01")
def test_the_published_request() -> None:
    example = bytes.fromhex("805200000000000500000000deadbeef0000000000000000")
    assert encode_request(Opcode.DCP_CLOSE_STREAM, vbid=5, opaque=0xDEADBEEF) == example
    assert len(example) == 24
    frame = decode_frame(example)
    assert (frame.opcode, frame.vbid, frame.opaque) == (Opcode.DCP_CLOSE_STREAM, 5, 0xDEADBEEF)


@rule("CLS-02", "CLS-03", "CLS-04", "CLS-05")
@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("fields", [{"extras": bytes(4)}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}])
def test_more_than_a_header_is_invalid_and_closes_nothing(node: SimulatedNode, role: str, fields) -> None:
    if role == "producer":
        peer = node.producer()
        peer.stream(1)
        assert status(peer.close_stream(1, **fields)) == [Status.EINVAL]
        node.set_doc(1, "still")
        assert of(peer.take(), Opcode.DCP_MUTATION)
    else:
        source = consumer(node)
        source.accept(2)
        assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2, **fields)) == [Status.EINVAL]
        source.snapshot(b"k", start=1, vbid=2)
        assert node.vbucket(2).high_seqno == 1


@rule("CLS-06", "CLS-07")
def test_it_is_answered_with_a_bare_header_whatever_its_opaque(node: SimulatedNode) -> None:
    expected = encode_response(Opcode.DCP_CLOSE_STREAM, opaque=0x99)
    peer = node.producer()
    peer.stream(1, opaque=0x77)
    assert [frame.encode() for frame in peer.close_stream(1, opaque=0x99)] == [expected]
    source = consumer(node)
    source.accept(2)
    assert [frame.encode() for frame in source.send(Opcode.DCP_CLOSE_STREAM, 2, opaque=0x99)] == [expected]


@rule("CLS-30")
def test_before_dcp_open(node: SimulatedNode) -> None:
    peer = node.connect()
    assert status(peer.close_stream(1)) == [Status.EINVAL]
    assert not peer.closed


@rule("CLS-31")
def test_it_needs_the_privilege_of_a_producer_on_both_ends(node: SimulatedNode) -> None:
    source = consumer(node, user="consumer")
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2)) == [Status.EACCESS]
    peer = node.producer()
    peer.stream(1)
    assert peer.session.identity.user is not None
    peer.session.identity.user = node.engine.users.find("consumer")  # as if the rights were taken away
    peer.session.identity.update(peer.session.bucket)
    assert status(peer.close_stream(1)) == [Status.EACCESS]


@rule("CLS-29")
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_name_taken_over_answers_nothing(node: SimulatedNode, role: str) -> None:
    if role == "producer":
        older = node.producer(b"same")
        older.stream(1)
        vbid = 1
    else:
        source = consumer(node, name=b"same")
        source.accept(2)
        older, vbid = source.peer, 2
    node.producer(b"same")
    older.take()
    assert older.close_stream(vbid) == []
    assert older.closed


# ------------------------------------------------------------------------------------------------------- a producer


@rule("CLS-08")
def test_without_a_stream(node: SimulatedNode) -> None:
    peer = node.producer()
    assert status(peer.close_stream(1)) == [Status.KEY_ENOENT]
    node.producer(b"other").stream(1)
    assert status(peer.close_stream(1)) == [Status.KEY_ENOENT]


@rule("CLS-09")
def test_an_ended_stream_whose_end_is_not_sent_yet(node: SimulatedNode) -> None:
    peer = node.producer(controls=[STREAM_END_CONTROL, (b"connection_buffer_size", b"50")])
    peer.stream(1)
    node.set_vbucket(1, REPLICA)  # ends the stream, and the window is full
    assert of(peer.received, Opcode.DCP_STREAM_END) == []
    assert status(peer.close_stream(1)) == [Status.KEY_ENOENT]


@rule("CLS-10", "CLS-15")
def test_with_the_control_one_end_follows_each_close(node: SimulatedNode) -> None:
    peer = node.producer(controls=[STREAM_END_CONTROL])
    node.fill(2, 1)
    peer.stream(1, opaque=0x71)
    peer.stream(2, opaque=0x72)
    for vbid in (1, 2):
        answer, end = peer.close_stream(vbid, opaque=0x99)
        assert (answer.opcode, answer.status) == (Opcode.DCP_CLOSE_STREAM, 0)
        assert (end.opcode, end.extras, end.opaque) == (Opcode.DCP_STREAM_END, b"\0\0\0\1", 0x70 + vbid)
    node.set_doc(1, "more")
    assert peer.take() == []


@rule("CLS-11")
def test_without_the_control_there_is_no_end(node: SimulatedNode) -> None:
    peer = node.producer(controls=[(STREAM_END_CONTROL[0], b"no")])
    peer.stream(1)
    assert opcodes(peer.close_stream(1)) == [Opcode.DCP_CLOSE_STREAM]
    node.set_doc(1, "more")
    node.advance(60)
    assert of(peer.received, Opcode.DCP_STREAM_END) == []


@rule("CLS-12")
def test_a_consumer_takes_what_comes_between_the_answer_and_the_end(node: SimulatedNode) -> None:
    source = consumer(node)
    source.accept(2)
    source.snapshot(b"a", start=1, vbid=2)
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2)) == [Status.SUCCESS]
    assert source.marker(2, 2, vbid=2) == []
    assert source.mutation(b"b", 2, vbid=2) == []
    assert source.end(1, 2) == []
    assert not source.closed


@rule("CLS-13")
def test_a_client_drops_what_was_under_way() -> None:
    connection, fake = ready_connection()
    assert connection.session is not None
    stream = connection.session.open_stream(0, StreamOffset.ZERO, MAX_SEQNO, 0.0)
    pump(connection, fake)
    connection.receive_data(accepted(stream.opaque), 0.0)
    list(connection.events())
    connection.session.close_stream(stream)
    (request,) = [frame for frame in frames_in([connection.data_to_send()]) if frame.opcode == Opcode.DCP_CLOSE_STREAM]
    closed = encode_response(Opcode.DCP_CLOSE_STREAM, opaque=request.opaque)
    connection.receive_data(closed + marker(stream.opaque, 0, 1) + mutation(stream.opaque, 1), 0.0)
    assert not any(isinstance(event, RowsReceived) for event in connection.events())


@rule("CLS-14")
def test_answers_until_the_end_are_tolerated(node: SimulatedNode) -> None:
    peer = node.producer(controls=[STREAM_END_CONTROL, (b"connection_buffer_size", b"50")])
    peer.stream(1, opaque=0x77)
    peer.close_stream(1)
    late = (
        encode_response(Opcode.DCP_MUTATION, status=Status.KEY_ENOENT, opaque=0x77),
        encode_response(Opcode.DCP_SNAPSHOT_MARKER, status=Status.KEY_ENOENT, opaque=0x77),
        encode_response(Opcode.DCP_DELETION, status=Status.KEY_EEXISTS, opaque=0x77),
    )
    for data in late:
        assert peer.send_bytes(data) == []
    assert not peer.closed
    peer.control(b"connection_buffer_size", b"0")
    assert opcodes(peer.received)[-1] == Opcode.DCP_STREAM_END


@rule("CLS-16")
@pytest.mark.parametrize("controls", [[], [STREAM_END_CONTROL]])
def test_other_ends_are_sent_with_and_without_the_control(node: SimulatedNode, controls) -> None:
    peer = node.producer(controls=controls)
    peer.stream(1)
    node.set_vbucket(1, DEAD)
    assert [frame.extras for frame in of(peer.take(), Opcode.DCP_STREAM_END)] == [b"\0\0\0\2"]


@rule("CLS-17")
def test_the_vbucket_can_be_streamed_again_at_once(node: SimulatedNode) -> None:
    peer = node.producer()
    peer.stream(1, opaque=0x77)
    peer.close_stream(1)
    frames = peer.stream(1, opaque=0x78)
    assert frames[0].status == 0
    assert len(of(frames, Opcode.DCP_MUTATION)) == 5


@rule("CLS-18")
def test_a_new_request_takes_the_place_of_an_end_that_was_not_sent(node: SimulatedNode) -> None:
    peer = node.producer(controls=[STREAM_END_CONTROL, (b"connection_buffer_size", b"50")])
    peer.stream(1, opaque=0x77)
    peer.close_stream(1)
    assert peer.stream(1, opaque=0x78)[0].status == 0
    peer.control(b"connection_buffer_size", b"0")
    node.set_doc(1, "more")
    assert {frame.opaque for frame in of(peer.received, Opcode.DCP_MUTATION)} >= {0x78}
    assert of(peer.received, Opcode.DCP_STREAM_END) == []


@rule("CLS-32")
def test_its_end_waits_for_the_window_and_counts(node: SimulatedNode) -> None:
    peer = node.producer(controls=[STREAM_END_CONTROL, (b"connection_buffer_size", b"100")])
    sent = sum(frame.size for frame in peer.stream(1)[1:])
    assert opcodes(peer.close_stream(1)) == [Opcode.DCP_CLOSE_STREAM]
    frames: list[Frame] = []
    while not of(frames, Opcode.DCP_STREAM_END):
        frames = peer.buffer_ack(sent)
        assert frames, "it never came"
        sent = sum(frame.size for frame in frames)
    assert (frames[-1].opcode, frames[-1].size) == (Opcode.DCP_STREAM_END, 28)
    ids = with_ids(node, 1)
    (_, with_id) = ids.close_stream(1, framing=b"\x22\0\1")
    assert with_id.size == 31


@rule("CLS-10", "CLS-11")
@pytest.mark.parametrize("has_control", [True, False])
def test_in_the_middle_of_a_backfill(tmp_path: Path, has_control: bool) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 20)
    new_checkpoint(node)
    controls = [STREAM_END_CONTROL] if has_control else []
    peer = node.producer(controls=[*controls, (b"connection_buffer_size", b"200")])
    frames = peer.stream(1)
    assert of(frames, Opcode.DCP_SNAPSHOT_MARKER)[0].extras[16:] == b"\0\0\0\x06"
    assert 0 < len(of(frames, Opcode.DCP_MUTATION)) < 20
    assert opcodes(peer.close_stream(1)) == [Opcode.DCP_CLOSE_STREAM]
    assert opcodes(peer.buffer_ack(10_000)) == ([Opcode.DCP_STREAM_END] if has_control else [])
    assert peer.stream(1, opaque=0x78)[0].status == 0


@rule("CLS-09")
@pytest.mark.parametrize("has_control", [True, False])
def test_a_stream_that_has_queued_everything_up_to_its_end(node: SimulatedNode, has_control: bool) -> None:
    """The server has ended it. What is queued comes as the window opens, unless the client wants no STREAM_END."""
    controls = [STREAM_END_CONTROL] if has_control else []
    peer = node.producer(controls=[*controls, (b"connection_buffer_size", b"100")])
    frames = peer.stream(1, end=3)
    assert 0 < len(of(frames, Opcode.DCP_MUTATION)) < 3
    assert status(peer.close_stream(1)) == [Status.KEY_ENOENT]
    rest = acknowledged(peer)
    if has_control:
        assert len(of(frames + rest, Opcode.DCP_MUTATION)) == 5, "the whole snapshot, beyond the end"
        assert (rest[-1].opcode, rest[-1].extras) == (Opcode.DCP_STREAM_END, bytes(4))
    else:
        assert rest == []
    assert peer.stream(1, opaque=0x78)[0].status == 0


@rule("CLS-09")
def test_a_stream_that_has_queued_everything_gives_way_to_another(node: SimulatedNode) -> None:
    peer = node.producer(controls=[STREAM_END_CONTROL, (b"connection_buffer_size", b"100")])
    assert len(of(peer.stream(1, end=5, opaque=0x71), Opcode.DCP_MUTATION)) < 5
    assert peer.stream(1, end=5, opaque=0x72)[0].status == 0
    rest = acknowledged(peer)
    assert {frame.opaque for frame in rest} == {0x72}
    assert rest[-1].opcode == Opcode.DCP_STREAM_END


# ------------------------------------------------------------------------------------------------------ stream ids


@rule("CLS-19", "CLS-20")
def test_an_id_where_none_may_be_and_none_where_one_must(node: SimulatedNode) -> None:
    plain = node.producer()
    plain.stream(1)
    assert status(plain.close_stream(1, framing=b"\x22\0\1")) == [Status.DCP_STREAMID_INVALID]
    assert status(with_ids(node, 1).close_stream(1)) == [Status.DCP_STREAMID_INVALID]


@rule("CLS-21")
def test_the_id_0_is_none(node: SimulatedNode) -> None:
    plain = node.producer()
    plain.stream(1)
    assert status(plain.close_stream(1, framing=b"\x22\0\0")) == [Status.SUCCESS]
    assert status(with_ids(node, 1).close_stream(1, framing=b"\x22\0\0")) == [Status.DCP_STREAMID_INVALID]


@rule("CLS-22")
def test_an_id_that_no_stream_has(node: SimulatedNode) -> None:
    peer = with_ids(node, 1)
    assert status(peer.close_stream(1, framing=b"\x22\0\2")) == [Status.DCP_STREAMID_INVALID]
    assert status(peer.close_stream(2, framing=b"\x22\0\1")) == [Status.KEY_ENOENT]


@rule("CLS-23")
def test_the_other_ids_stream_on(node: SimulatedNode) -> None:
    peer = with_ids(node, 1, 2)
    assert opcodes(peer.close_stream(1, framing=b"\x22\0\1")) == [Opcode.DCP_CLOSE_STREAM, Opcode.DCP_STREAM_END]
    node.set_doc(1, "more")
    assert {frame.opaque for frame in of(peer.take(), Opcode.DCP_MUTATION)} == {0x72}


@rule("CLS-24")
@pytest.mark.parametrize("has_xerror", [True, False])
def test_only_clients_with_extended_errors_get_the_status(node: SimulatedNode, has_xerror: bool) -> None:
    peer = node.producer(features=USUAL_FEATURES if has_xerror else WITHOUT_XERROR)
    peer.stream(1)
    answers = peer.close_stream(1, framing=b"\x22\0\1")
    assert status(answers) == ([Status.DCP_STREAMID_INVALID] if has_xerror else [])
    assert peer.closed != has_xerror


# ------------------------------------------------------------------------------------------------------- a consumer


@rule("CLS-25", "CLS-26")
def test_a_closed_stream_takes_nothing_and_says_nothing(node: SimulatedNode) -> None:
    source = consumer(node)
    source.accept(2)
    source.snapshot(b"a", start=1, vbid=2)
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2)) == [Status.SUCCESS]
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2)) == [Status.SUCCESS]  # as recorded
    assert source.marker(2, 2, vbid=2) == []
    assert source.mutation(b"b", 2, vbid=2) == []
    assert node.vbucket(2).high_seqno == 1
    assert source.end(0, 2) == []
    assert status(source.marker(2, 2, vbid=2)) == [Status.DCP_STREAM_NOT_FOUND]


@rule("CLS-27")
def test_a_consumer_without_a_stream(node: SimulatedNode) -> None:
    source = consumer(node)
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2)) == [Status.KEY_ENOENT]
    source.accept(2)
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 3)) == [Status.DCP_STREAM_NOT_FOUND]
    refused = consumer(node, name=b"old")
    node.set_vbucket(3, REPLICA)
    refused.negotiate(refused.add(3), without_control(b"v7_dcp_status_codes"))
    assert status(refused.send(Opcode.DCP_CLOSE_STREAM, 4)) == [Status.KEY_ENOENT]


@rule("CLS-28")
@of_release("7.2", "8.0")
def test_a_consumer_knows_no_stream_ids(node: SimulatedNode) -> None:
    source = consumer(node)
    source.accept(2)
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2, framing=b"\x22\0\1")) == [Status.SUCCESS]
    assert status(source.send(Opcode.DCP_CLOSE_STREAM, 2)) == [Status.SUCCESS], "it is swallowed until STREAM_END"


@rule("CLS-10", "CLS-25")
def test_during_a_takeover(node: SimulatedNode) -> None:
    peer = node.producer(flags=OpenFlag.PRODUCER, controls=[STREAM_END_CONTROL])
    frames = peer.stream(1, flags=1)
    assert len(of(frames, Opcode.DCP_MUTATION)) == 5
    answer, end = peer.close_stream(1)
    assert (answer.status, end.extras) == (0, b"\0\0\0\1")
    assert peer.send_bytes(encode_response(Opcode.DCP_SNAPSHOT_MARKER, opaque=0x77)) == []
    assert peer.send_bytes(encode_response(Opcode.DCP_SET_VBUCKET_STATE, opaque=0x77)) == []
    assert node.vbucket(1).is_active
