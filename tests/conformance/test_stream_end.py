"""STREAM_END: its bytes, every reason on the producer, and what consumers and clients make of it."""

from __future__ import annotations

import pytest

from dcpstream.client.machine.connection.events import StreamOpened, StreamStopped
from dcpstream.errors import StoreError
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.wire import Opcode, Status, StreamEndReason, StreamFlag, decode_frame, encode_request, encode_response
from dcpstream_node.testing.simulation import (
    USUAL_FEATURES,
    WITHOUT_COLLECTIONS,
    Peer,
    PretendWire,
    ScriptedProducer,
    SimulatedNode,
)
from tests.kit.cases import each_case
from tests.kit.client_machines import pump, ready_connection
from tests.kit.messages import accepted, stream_end
from tests.kit.rules import of_release, rule
from tests.kit.streams import DEAD, PENDING, REPLICA, dcp_stat, of, opcodes

STREAM_END_CONTROL = (b"send_stream_end_on_client_close_stream", b"true")


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    node.fill(1, 5)
    return node


def reasons(frames) -> list[int]:
    return [int.from_bytes(frame.extras, "big") for frame in of(frames, Opcode.DCP_STREAM_END)]


# ------------------------------------------------------------------------------------------------------- the packet


@rule("END-01")
def test_the_published_example() -> None:
    example = bytes.fromhex("805500000400000000000004deadbeef000000000000000000000000")
    assert encode_request(Opcode.DCP_STREAM_END, opaque=0xDEADBEEF, extras=bytes(4)) == example
    assert len(example) == 28
    assert decode_frame(example).extras == bytes(4)


@rule("END-02")
@pytest.mark.parametrize(
    "fields", [{"extras": b""}, {"extras": bytes(5)}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}]
)
def test_a_receiver_refuses_another_shape(node: SimulatedNode, fields) -> None:
    node.set_vbucket(2, REPLICA)
    source = ScriptedProducer(node)
    source.accept(2)
    answers = source.send(Opcode.DCP_STREAM_END, 2, **{"extras": bytes(4), **fields})
    assert [frame.status for frame in answers] == [Status.EINVAL]
    source.snapshot(b"a", start=1, vbid=2)  # the stream goes on


@rule("END-03")
def test_its_header(node: SimulatedNode) -> None:
    peer = node.producer()
    (end,) = of(peer.stream(1, end=5, opaque=0x1234), Opcode.DCP_STREAM_END)
    assert (end.vbid, end.opaque, end.cas, end.datatype, end.key, end.value) == (1, 0x1234, 0, 0, b"", b"")


@rule("END-20", "END-21")
def test_with_a_stream_id_and_what_it_counts(node: SimulatedNode) -> None:
    peer = node.producer(controls=[(b"enable_stream_id", b"true"), (b"connection_buffer_size", b"100000")])
    frames = peer.stream(1, end=5, value=b'{"sid":258}')
    end = frames[-1]
    assert end.encode()[:2] == b"\x08\x55"
    assert (end.framing, end.extras, end.encode()[8:12]) == (b"\x22\1\2", bytes(4), b"\0\0\0\7")
    total = sum(frame.size for frame in frames[1:])
    assert dcp_stat(node, "unacked_bytes") == str(total)
    peer.buffer_ack(total - 31)
    assert (dcp_stat(node, "unacked_bytes"), end.size) == ("31", 31)


# ------------------------------------------------------------------------------------------------------ the reasons


@rule("END-05")
def test_ok_when_all_was_sent(tmp_path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 5)
    node.flush()
    peer = node.producer()
    assert reasons(peer.stream(1, end=5)) == [0]
    assert reasons(peer.stream(1, flags=StreamFlag.DISK_ONLY)) == [0]
    assert reasons(peer.stream(1, flags=StreamFlag.TO_LATEST)) == [0]
    new = SimulatedNode()
    new.set_vbucket(1, PENDING)
    link = PretendWire(node, new)
    link.add_stream(1, StreamFlag.TAKEOVER)
    link.run()
    assert reasons(frame for _, frame in link.passed) == [0]


@rule("END-06")
def test_closed(node: SimulatedNode) -> None:
    peer = node.producer(controls=[STREAM_END_CONTROL])
    peer.stream(1)
    assert reasons(peer.close_stream(1)) == [1]


@rule("END-07")
@pytest.mark.parametrize("state", [REPLICA, PENDING, DEAD, None])
def test_state_changed(node: SimulatedNode, state: int | None) -> None:
    peers = [node.producer(b"one"), node.producer(b"two")]
    for peer in peers:
        peer.stream(1)
    if state is None:
        node.delete_vbucket(1)
    else:
        node.set_vbucket(1, state)
    assert [reasons(peer.take()) for peer in peers] == [[2], [2]]


@rule("END-07")
def test_also_when_a_copy_becomes_active(node: SimulatedNode) -> None:
    node.set_vbucket(1, REPLICA)
    peer = node.producer()
    peer.stream(1)
    node.set_vbucket(1, 1)
    assert reasons(peer.take()) == [2]


@rule("END-08", "END-09")
@each_case("reason", [StreamEndReason.DISCONNECTED, StreamEndReason.TOO_SLOW])
def test_reasons_of_older_servers_reach_the_user_of_a_client(reason: StreamEndReason) -> None:
    connection, fake = ready_connection()
    assert connection.session is not None
    stream = connection.session.open_stream(0, StreamOffset.ZERO, MAX_SEQNO, 0.0)
    pump(connection, fake)
    connection.receive_data(accepted(stream.opaque), 0.0)
    list(connection.events())
    connection.receive_data(stream_end(stream.opaque, reason), 0.0)
    assert list(connection.events()) == [StreamStopped(stream, reason)]
    assert connection.is_ready


@rule("END-08", "END-09")
def test_a_node_does_not_send_them(node: SimulatedNode) -> None:
    peer = node.producer(controls=[(b"connection_buffer_size", b"50")])
    peer.stream(1)
    node.advance(300)  # a slow client
    newer = node.producer(b"reader")  # takes the name over
    assert peer.closed
    assert reasons(peer.received) == []
    assert not newer.closed


@rule("END-10")
def test_backfill_failed(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    log = node.vbucket(1).log

    def broken(*_: object, **__: object) -> None:
        raise StoreError("the disk is gone")

    peer = node.producer()
    monkeypatch.setattr(type(log), "read", broken)
    assert reasons(peer.stream(1)) == [5]


@rule("END-11")
@each_case("seqno", [8, 0])
def test_rolled_back(tmp_path, seqno: int) -> None:
    node = SimulatedNode(path=tmp_path / str(seqno))
    node.set_vbucket(2, REPLICA)
    source = ScriptedProducer(node, b"one")
    source.accept(2)
    source.snapshot(*[b"k%d" % number for number in range(8)], start=1, vbid=2)
    node.flush()
    source.snapshot(b"a", b"b", start=9, vbid=2)
    peer = node.producer()
    peer.stream(2)
    source.peer.disconnect()
    again = ScriptedProducer(node, b"two")
    again.peer.answer(again.request(2), status=Status.ROLLBACK, value=seqno.to_bytes(8, "big"))
    assert node.vbucket(2).high_seqno == seqno
    assert reasons(peer.take()) == [2]


@rule("END-11")
def test_purged(tmp_path) -> None:
    node = SimulatedNode(path=tmp_path)
    purged = node.producer(b"purged", controls=[(b"connection_buffer_size", b"60")])
    node.fill(1, 9)
    purged.stream(1, 2)
    node.vbucket(1).log.set_purge_seqno(8)
    assert reasons(purged.buffer_ack(10_000)) == [2]


@rule("END-13", "END-14", "END-15")
@pytest.mark.parametrize("features", [USUAL_FEATURES, WITHOUT_COLLECTIONS])
def test_lost_privileges_show_at_the_next_marker(node: SimulatedNode, features) -> None:
    peer = node.producer(features=features, controls=[(b"connection_buffer_size", b"150")])
    assert opcodes(peer.stream(1)) == [Opcode.DCP_STREAM_REQ, Opcode.DCP_SNAPSHOT_MARKER, *[Opcode.DCP_MUTATION] * 2]
    peer.session.identity.user = node.engine.users.find("nostream")
    # The snapshot that was announced still goes out as a whole.
    rest = peer.send(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=b"0")
    assert opcodes(rest) == [Opcode.DCP_CONTROL, *[Opcode.DCP_MUTATION] * 3]
    node.advance(10)
    assert of(peer.take(), Opcode.DCP_STREAM_END) == []
    node.set_doc(1, "more")
    (end,) = peer.take()
    assert (end.opcode, end.extras) == (
        Opcode.DCP_STREAM_END,
        b"\0\0\0\x08" if features is USUAL_FEATURES else bytes(4),
    )


@rule("END-17", "END-19")
def test_nothing_follows_and_the_vbucket_can_be_asked_for_again(node: SimulatedNode) -> None:
    peer = node.producer()
    frames = peer.stream(1, end=3, opaque=0x71)
    assert frames[-1].opcode == Opcode.DCP_STREAM_END
    node.set_doc(1, "more")
    node.advance(30)
    assert [frame for frame in peer.take() if frame.opaque == 0x71] == []
    assert peer.stream(1, opaque=0x72)[0].status == 0


@rule("END-18")
def test_one_for_each_stream_unless_the_connection_goes(node: SimulatedNode) -> None:
    peer, leaving = node.producer(b"one"), node.producer(b"two")
    for vbid in (1, 2, 3):
        peer.stream(vbid, opaque=0x70 + vbid)
        leaving.stream(vbid, opaque=0x70 + vbid)
    node.producer(b"two")
    for vbid in (1, 2, 3):
        node.set_vbucket(vbid, DEAD)
    assert sorted(frame.opaque for frame in of(peer.take(), Opcode.DCP_STREAM_END)) == [0x71, 0x72, 0x73]
    assert reasons(leaving.received) == []


@rule("END-28")
def test_a_change_of_state_ends_each_stream_id(node: SimulatedNode) -> None:
    peer = node.producer(controls=[(b"enable_stream_id", b"true")])
    for stream_id in (1, 2, 3):
        peer.stream(1, value=b'{"sid":%d}' % stream_id, opaque=0x70 + stream_id)
    node.set_vbucket(1, DEAD)
    ends = of(peer.take(), Opcode.DCP_STREAM_END)
    assert sorted(frame.framing for frame in ends) == [b"\x22\0\1", b"\x22\0\2", b"\x22\0\3"]
    assert [frame.extras for frame in ends] == [b"\0\0\0\2"] * 3


# -------------------------------------------------------------------------------------------------- those who get it


@rule("END-04")
def test_a_client_does_not_answer() -> None:
    connection, fake = ready_connection()
    assert connection.session is not None
    stream = connection.session.open_stream(0, StreamOffset.ZERO, MAX_SEQNO, 0.0)
    pump(connection, fake)
    connection.receive_data(accepted(stream.opaque), 0.0)
    assert any(isinstance(event, StreamOpened) for event in connection.events())
    connection.receive_data(stream_end(stream.opaque, StreamEndReason.CLOSED), 0.0)
    assert b"\x81\x55" not in bytes(connection.data_to_send())
    assert list(connection.events()) == [StreamStopped(stream, StreamEndReason.CLOSED)]


@rule("END-27")
def test_an_unknown_reason_ends_that_stream_only() -> None:
    connection, fake = ready_connection()
    assert connection.session is not None
    first, second = (connection.session.open_stream(vbid, StreamOffset.ZERO, MAX_SEQNO, 0.0) for vbid in (0, 1))
    pump(connection, fake)
    connection.receive_data(accepted(first.opaque), 0.0)
    list(connection.events())
    connection.receive_data(stream_end(first.opaque, 99), 0.0)
    assert list(connection.events()) == [StreamStopped(first, 99)]
    assert list(connection.session.streams) == [second]
    assert connection.is_ready


def replica(node: SimulatedNode, **options: object) -> ScriptedProducer:
    node.set_vbucket(2, REPLICA)
    source = ScriptedProducer(node, **options)  # type: ignore[arg-type]
    source.accept(2)
    return source


@rule("END-22")
def test_a_consumer_without_that_stream(node: SimulatedNode) -> None:
    fresh = ScriptedProducer(node, b"fresh")
    assert [frame.status for frame in fresh.end(0, 2)] == [Status.KEY_ENOENT]
    assert [frame.status for frame in replica(node).end(0, 3)] == [Status.DCP_STREAM_NOT_FOUND]


@rule("END-23")
def test_a_consumer_ignores_another_opaque(node: SimulatedNode) -> None:
    source = replica(node)
    assert source.end(0, 2, opaque=0x999) == []
    source.snapshot(b"a", start=1, vbid=2)
    assert node.vbucket(2).high_seqno == 1


@rule("END-24")
@each_case("reason", StreamEndReason)
def test_a_consumer_takes_every_reason(reason: int) -> None:
    node = SimulatedNode()
    source = replica(node)
    source.snapshot(b"a", start=1, vbid=2)
    assert source.end(reason, 2) == []
    assert [frame.status for frame in source.marker(2, 2, vbid=2)] == [Status.DCP_STREAM_NOT_FOUND]
    assert [frame.status for frame in source.mutation(b"b", 2, vbid=2)] == [Status.DCP_STREAM_NOT_FOUND]
    assert not source.closed
    assert node.vbucket(2).high_seqno == 1


@rule("END-24")
@of_release("7.6", "8.0", "8.5")
def test_a_consumer_closes_on_a_reason_that_nobody_knows_since_76() -> None:
    node = SimulatedNode()
    source = replica(node)
    source.snapshot(b"a", start=1, vbid=2)
    assert source.end(9, 2, opaque=0x999) == []
    assert not source.closed, "another stream's end means nothing"
    assert source.end(9, 2) == []
    assert source.closed


@rule("SID-07")
def test_a_stream_id_means_nothing_to_a_consumer(node: SimulatedNode) -> None:
    source = replica(node)
    framing = b"\x22\0\1"
    assert [frame.status for frame in source.mutation(b"a", 1, vbid=2, framing=framing)] == [Status.ERANGE]
    assert source.marker(1, 1, vbid=2, framing=framing) == []
    assert source.mutation(b"a", 1, vbid=2, framing=framing) == []
    assert node.vbucket(2).high_seqno == 1
    assert source.end(0, 2, framing=framing) == []
    assert [frame.status for frame in source.marker(2, 2, vbid=2)] == [Status.DCP_STREAM_NOT_FOUND]


@rule("END-25")
@pytest.mark.parametrize("is_open", [True, False])
def test_elsewhere_it_is_out_of_place(node: SimulatedNode, is_open: bool) -> None:
    peer: Peer = node.producer() if is_open else node.connect()
    answers = peer.send(Opcode.DCP_STREAM_END, vbid=1, extras=bytes(4))
    # A connection that is no DCP connection yet is told so.
    assert [frame.status for frame in answers] == ([] if is_open else [Status.EINVAL])
    assert peer.closed == is_open


@rule("END-26")
@pytest.mark.parametrize(
    ("status", "goes_on"),
    [
        (Status.SUCCESS, True),
        (Status.KEY_ENOENT, True),
        (Status.NOT_MY_VBUCKET, True),
        (Status.EINVAL, False),
        (Status.ENOMEM, False),
    ],
)
@pytest.mark.parametrize("has_v7", [True, False])
def test_answers_to_it_that_a_producer_tolerates(
    node: SimulatedNode, status: Status, goes_on: bool, has_v7: bool
) -> None:
    peer = node.producer(controls=[(b"v7_dcp_status_codes", b"true")] if has_v7 else [])
    peer.stream(1, end=5, opaque=0x77)
    assert peer.send_bytes(encode_response(Opcode.DCP_STREAM_END, status=status, opaque=0x77)) == []
    assert peer.closed != goes_on


@rule("END-12", "END-14", "END-16")
@each_case("features", [USUAL_FEATURES, WITHOUT_COLLECTIONS])
def test_a_filter_whose_collections_are_gone(features) -> None:
    node = SimulatedNode()
    manifest = b'{"uid":"%x","scopes":[{"name":"_default","uid":"0","collections":[%s]}]}'
    default, fruit = b'{"name":"_default","uid":"0"}', b'{"name":"fruit","uid":"8"}'
    has_collections = features is USUAL_FEATURES
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=manifest % (1, default + b"," + fruit)).status == 0
    peer = node.producer(features=features)
    if has_collections:
        peer.stream(1, value=b'{"collections":["8"]}')
    else:
        peer.stream(1)
    remaining = default if has_collections else fruit
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=manifest % (2, remaining)).status == 0
    frames = peer.take()
    assert reasons(frames) == [7 if has_collections else 0]
    if has_collections:
        assert opcodes(frames)[-2:] == [Opcode.DCP_SYSTEM_EVENT, Opcode.DCP_STREAM_END]
