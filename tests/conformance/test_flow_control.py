"""Rules of flow control."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.errors import RemoteProtocolError
from dcpstream.wire import LAYOUTS, Opcode, OpenFlag, Status, encode_request, encode_response
from dcpstream.wire.messages.dcp import CacheTransferEnd, OsoSnapshot, SeqnoAdvanced, SetVbucketState
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS, Peer, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.client_machines import client_of_streams
from tests.kit.rules import of_release, rule
from tests.kit.streams import REPLICA, of, opcodes

VALUE = b"v" * 100
ITEM_BYTES = 24 + 31 + len(b"\0k0") + len(VALUE)
MARKER_BYTES = 24 + 20
COUNTED = {
    Opcode.DCP_STREAM_END: {28},
    Opcode.DCP_SNAPSHOT_MARKER: {44, 25 + 36, 25 + 44, 25 + 52},
    Opcode.DCP_MUTATION: {55},
    Opcode.DCP_DELETION: {42, 45},
    Opcode.DCP_EXPIRATION: {44},
    Opcode.DCP_SET_VBUCKET_STATE: {25},
    Opcode.DCP_SYSTEM_EVENT: {37},
    Opcode.DCP_PREPARE: {55},
    Opcode.DCP_COMMIT: {40},
    Opcode.DCP_ABORT: {40},
    Opcode.DCP_SEQNO_ADVANCED: {32},
    Opcode.DCP_OSO_SNAPSHOT: {28},
    Opcode.DCP_CACHE_TRANSFER: {24},
    Opcode.DCP_CACHE_TRANSFER_END: {24},
}
"""Bytes on the wire before the key and the rest of the value, by opcode."""


def unacked(node: SimulatedNode, name: str = "reader") -> int:
    stats = node.stats("dcp")
    if stats[f"eq_dcpq:{name}:flow_control"] == "disabled":
        return 0  # without a limit there is no such name
    return int(stats[f"eq_dcpq:{name}:unacked_bytes"])


def window(size: int, *, items: int = 9) -> tuple[SimulatedNode, Peer]:
    """A node with documents in vbucket 1, and a producer connection with a buffer of that size."""
    node = SimulatedNode()
    node.fill(1, items, value=VALUE)
    return node, node.producer(controls=[(b"connection_buffer_size", b"%d" % size)])


@rule("FLC-01")
@each_case("controls", [[], [(b"connection_buffer_size", b"0")]])
def test_without_a_buffer_everything_is_sent(controls: list[tuple[bytes, bytes]]) -> None:
    node = SimulatedNode()
    node.fill(1, 200, value=b"v" * 10_000)
    peer = node.producer(controls=controls)
    assert len(of(peer.stream(1), Opcode.DCP_MUTATION)) == 200
    assert unacked(node) == 0


@rule("FLC-02", "FLC-03")
@each_case("size", [1, MARKER_BYTES, MARKER_BYTES + 1, 300, 1024])
def test_a_message_may_start_while_less_than_the_buffer_is_outstanding(size: int) -> None:
    node, peer = window(size)
    sizes = [frame.size for frame in peer.stream(1) if frame.is_request]
    assert sum(sizes[:-1]) < size <= sum(sizes)
    assert unacked(node) == sum(sizes)
    node.fill(2, 3)
    assert opcodes(peer.stream(2, opaque=2)) == [Opcode.DCP_STREAM_REQ], "only the answer"
    node.advance(20)
    assert opcodes(peer.take()) == [Opcode.DCP_NOOP]
    over = sum(sizes) - size
    assert peer.buffer_ack(over) == []
    more = peer.buffer_ack(1)
    assert len(more) == 1
    assert unacked(node) == size - 1 + more[0].size


@rule("FLC-04")
@each_case(
    "fields",
    [{"extras": b""}, {"extras": bytes(3)}, {"extras": bytes(8)}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}],
)
def test_an_acknowledgement_has_4_bytes(fields: dict[str, Any]) -> None:
    node, peer = window(1)
    peer.stream(1)
    before = unacked(node)
    answer = peer.call(Opcode.DCP_BUFFER_ACK, **{"extras": b"\0\0\0\1", **fields})
    assert answer.status == Status.EINVAL
    assert unacked(node) == before
    assert not peer.closed


@rule("FLC-05", "FLC-06")
def test_the_bytes_of_an_acknowledgement_of_4096() -> None:
    data = bytes.fromhex("80 5d 0000 04 00 0000 00000004 00000000 0000000000000000 00001000")
    assert encode_request(Opcode.DCP_BUFFER_ACK, extras=(4096).to_bytes(4, "big")) == data
    node = SimulatedNode()
    node.fill(1, 100, value=VALUE)
    peer = node.producer(controls=[(b"connection_buffer_size", b"5000")])
    peer.stream(1)
    before = unacked(node)
    answers = peer.send_bytes(data)
    assert set(opcodes(answers)) == {Opcode.DCP_MUTATION}, "more messages, and no answer"
    assert unacked(node) == before - 4096 + sum(frame.size for frame in answers)


@rule("FLC-06")
def test_an_acknowledgement_is_not_answered() -> None:
    _, peer = window(1 << 20)
    peer.stream(1)
    for count in (0, 1, 1, 0xFFFFFFFF):
        assert peer.buffer_ack(count) == []
    assert not peer.closed


@rule("FLC-07")
def test_too_much_acknowledged_counts_as_all() -> None:
    node, peer = window(1024, items=30)
    peer.stream(1)
    frames = peer.buffer_ack(1_000_000)
    sent = sum(frame.size for frame in frames)
    assert unacked(node) == sent
    assert 1024 <= sent < 1024 + ITEM_BYTES + 1, "the surplus was not kept"


@rule("FLC-08")
def test_without_flow_control_acknowledgements_are_ignored() -> None:
    node = SimulatedNode()
    peer = node.producer()
    assert peer.buffer_ack(1000) == []
    assert not peer.closed
    node.fill(1, 9, value=VALUE)
    peer.control(b"connection_buffer_size", b"300")
    frames = peer.stream(1)
    assert unacked(node) == sum(frame.size for frame in frames if frame.is_request) >= 300


@rule("FLC-09")
def test_a_consumer_takes_no_acknowledgement() -> None:
    peer = SimulatedNode().consumer()
    assert peer.buffer_ack(1) == []
    assert peer.closed


@rule("FLC-10")
def test_the_window_is_the_connections() -> None:
    node, peer = window(300)
    node.fill(2, 9, value=VALUE)
    peer.stream(1)
    peer.stream(2, opaque=2)
    before = unacked(node)
    assert before >= 300
    frames = peer.buffer_ack(before, vbid=999, opaque=0xABCDEF)
    assert frames
    assert unacked(node) == sum(frame.size for frame in frames)


@rule("FLC-11", "FLC-13")
def test_what_counts_is_what_was_sent_for_streams() -> None:
    node = SimulatedNode()
    node.set_doc(1, "mutation", VALUE)
    node.set_doc(1, "deletion")
    node.delete_doc(1, "deletion")
    node.set_doc(1, "expiration", expiration=1)
    node.advance(3)
    node.admin.call(Opcode.GET, vbid=1, key=b"\0expiration")
    collections = b'[{"name":"_default","uid":"0"},{"name":"more","uid":"8"}]'
    manifest = b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":%b}]}' % collections
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=manifest).status == 0
    node.set_doc(1, "inside", VALUE, collection=b"\x08")
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
    peer = node.producer(
        flags=flags, controls=[(b"enable_expiry_opcode", b"true"), (b"connection_buffer_size", b"1000000")]
    )
    frames = peer.stream(1, end=node.vbucket(1).high_seqno)
    kinds = [frame.opcode for frame in frames if frame.is_request]
    assert set(kinds) == {0x55, 0x56, 0x57, 0x58, 0x59, 0x5F}
    assert unacked(node) == sum(len(frame.encode()) for frame in frames if frame.is_request)
    (inside,) = [frame for frame in frames if frame.key == b"\x08inside"]
    assert inside.size == 24 + 31 + 7 + 100
    (end,) = of(frames, Opcode.DCP_STREAM_END)
    assert end.size == 28


@rule("FLC-11", "FLC-12")
def test_the_table_of_messages_says_which_count() -> None:
    sizes: dict[int, set[int]] = {}
    for layout in LAYOUTS:
        if layout.flow_controlled:
            sizes.setdefault(layout.opcode, set()).add(24 + layout.extras_bytes + layout.value_bytes)
    assert sizes == COUNTED


@rule("FLC-12")
def test_noops_and_answers_do_not_count() -> None:
    node, peer = window(1_000_000, items=0)
    peer.stream(1)
    peer.close_stream(1)
    peer.control(b"enable_noop", b"true")
    peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1)
    peer.stream(99)
    node.advance(20)
    assert len(of(peer.take(), Opcode.DCP_NOOP)) == 1
    assert unacked(node) == 0


@rule("FLC-13")
@each_case(("features", "prefix"), [(None, 1), (WITHOUT_COLLECTIONS, 0)])
def test_the_prefix_of_a_key_counts(features: tuple[int, ...] | None, prefix: int) -> None:
    node = SimulatedNode()
    node.set_doc(1, "key", b"value")
    controls = [(b"connection_buffer_size", b"1000")]
    peer = node.producer(controls=controls) if features is None else node.producer(controls=controls, features=features)
    peer.stream(1)
    assert unacked(node) == MARKER_BYTES + 24 + 31 + prefix + 3 + 5


@rule("FLC-13")
def test_a_stream_id_counts() -> None:
    node = SimulatedNode()
    node.set_doc(1, "key", b"value")
    peer = node.producer(controls=[(b"connection_buffer_size", b"1000"), (b"enable_stream_id", b"true")])
    peer.stream(1, value=b'{"sid":7}')
    assert unacked(node) == 3 + MARKER_BYTES + 3 + 24 + 31 + 1 + 3 + 5


def acknowledged(data: bytes) -> int:
    """The number of bytes that our client acknowledges for what it received."""
    client = client_of_streams(buffer_bytes=1, out_of_order=True)
    stream = client.stream(end=1 << 60)
    value = (0xA).to_bytes(8, "big") + bytes(8)
    client.receive(encode_response(Opcode.DCP_STREAM_REQ, opaque=stream.opaque, value=value))
    marker = encode_request(Opcode.DCP_SNAPSHOT_MARKER, vbid=1, opaque=OPAQUE, extras=bytes(15) + b"\x63\0\0\0\1")
    for piece in (marker, data):
        client.sent()
        for event in client.receive(piece.replace(b"OPAQ", stream.opaque.to_bytes(4, "big"))):
            if isinstance(event, RowsReceived):
                client.session.consumed(event.flow_bytes)
    return sum(int.from_bytes(frame.extras, "big") for frame in of(client.sent(), Opcode.DCP_BUFFER_ACK))


OPAQUE = int.from_bytes(b"OPAQ", "big")


@rule("FLC-14")
def test_a_prepare_counts_two_bytes_more_than_it_has() -> None:
    extras = (1).to_bytes(8, "big") + bytes(23)
    data = encode_request(Opcode.DCP_PREPARE, vbid=1, opaque=OPAQUE, extras=extras, key=b"\0key", value=b"value")
    assert len(data) == 55 + 4 + 5
    assert acknowledged(data) == 57 + 4 + 5


@rule("FLC-15")
@each_case(
    ("message", "size", "is_for_clients"),
    [
        (SetVbucketState(vbid=1, opaque=OPAQUE, state=1), 25, False),
        (OsoSnapshot(vbid=1, opaque=OPAQUE, flags=1), 28, True),
        (SeqnoAdvanced(vbid=1, opaque=OPAQUE, by_seqno=9), 32, True),
        (CacheTransferEnd(vbid=1, opaque=OPAQUE), 24, False),
    ],
)
def test_sizes_of_messages_without_a_document(message: object, size: int, is_for_clients: bool) -> None:
    data = message.encode()  # type: ignore[attr-defined]
    assert len(data) == size
    if is_for_clients:
        assert acknowledged(data) == size
    else:
        with pytest.raises(RemoteProtocolError, match="which a producer does not send"):
            acknowledged(data)


@rule("FLC-16")
def test_the_buffer_can_change_at_any_time() -> None:
    node, peer = window(300)
    peer.stream(1)
    before = unacked(node)
    assert opcodes(frames := peer.send(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=b"500"))[1:]
    assert unacked(node) == before + sum(frame.size for frame in frames if frame.is_request) >= 500
    assert opcodes(peer.send(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=b"50")) == [0x5E]
    assert unacked(node) >= 500
    frames = peer.send(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=b"0")
    assert len(of(frames, Opcode.DCP_MUTATION)) > 1, "the rest, at once"
    since = sum(frame.size for frame in frames if frame.is_request)
    peer.control(b"connection_buffer_size", b"1000000")
    node.set_doc(1, "after", b"v")
    since += sum(frame.size for frame in peer.take() if frame.is_request)
    assert unacked(node) == since, "counted from 0, also while there was no limit"
    peer.control(b"connection_buffer_size", b"0")
    node.set_doc(1, "again", b"v")
    peer.control(b"connection_buffer_size", b"0")
    peer.control(b"connection_buffer_size", b"1000000")
    assert unacked(node) == 0, "a second 0 starts from 0, too"


def stuck(name: bytes) -> tuple[SimulatedNode, Peer]:
    node = SimulatedNode()
    node.fill(1, 9, value=VALUE)
    peer = node.connect()
    assert peer.dcp_open(name).status == 0
    peer.control(b"enable_noop", b"true")
    peer.control(b"connection_buffer_size", b"300")
    peer.stream(1)
    return node, peer


def live_on(node: SimulatedNode, peer: Peer, seconds: int) -> None:
    """Time passes while the peer answers NOOPs and acknowledges nothing."""
    for _ in range(seconds // 20):
        node.advance(20)
        for noop in of(peer.take(), Opcode.DCP_NOOP):
            peer.answer(noop)


@rule("FLC-20")
def test_a_full_window_that_nobody_empties_ends_some_connections() -> None:
    node, peer = stuck(b"secidx:proj-1")
    live_on(node, peer, 700)
    assert node.stats("dcp")["eq_dcpq:secidx:proj-1:should_disconnect_when_stuck"] == "true"
    assert not peer.closed
    peer.buffer_ack(10)
    live_on(node, peer, 700)
    assert not peer.closed, "an acknowledgement is life"
    live_on(node, peer, 40)
    assert peer.closed


@rule("FLC-20")
def test_other_names_may_stay_stuck() -> None:
    node, peer = stuck(b"reader")
    assert node.stats("dcp")["eq_dcpq:reader:should_disconnect_when_stuck"] == "false"
    live_on(node, peer, 3000)
    assert not peer.closed


CONSUMER_BUFFER_BYTES = 50 * 1024 * 1024


def replica() -> tuple[SimulatedNode, ScriptedProducer]:
    """A node's copy of vbucket 1, and its source, with nothing left to acknowledge."""
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept()
    node.advance(10)
    source.peer.take()
    return node, source


def acks(source: ScriptedProducer) -> list[int]:
    """The bytes that the node has acknowledged since the last look."""
    return [int.from_bytes(frame.extras, "big") for frame in of(source.peer.take(), Opcode.DCP_BUFFER_ACK)]


def mutation_bytes(key: bytes, value: bytes) -> int:
    return 24 + 31 + len(key) + len(value)


@rule("FLC-17")
@of_release("7.2")
def test_a_consumer_acknowledges_a_fifth_of_its_buffer() -> None:
    _, source = replica()
    value = b"v" * (1 << 20)
    sent = 0
    answers = source.marker(1, 30)  # acknowledged alone: nothing was for more than 5 seconds
    assert opcodes(answers) == [Opcode.DCP_BUFFER_ACK]
    for seqno in range(1, 31):
        sent += mutation_bytes(b"k", value)
        answers = source.mutation(b"k", seqno, value=value)
        if answers:
            break
    assert opcodes(answers) == [Opcode.DCP_BUFFER_ACK]
    assert int.from_bytes(answers[0].extras, "big") == sent
    assert sent - mutation_bytes(b"k", value) < CONSUMER_BUFFER_BYTES / 5 < sent


@rule("FLC-17")
def test_a_consumer_acknowledges_the_rest_after_5_seconds() -> None:
    node, source = replica()
    node.advance(100)
    assert acks(source) == [], "nothing came, so there is nothing to acknowledge"
    answers = source.marker(1, 5)
    answers += source.mutation(b"k", 1)
    first = sum(int.from_bytes(frame.extras, "big") for frame in of(answers, Opcode.DCP_BUFFER_ACK))
    node.advance(5)
    assert first + sum(acks(source)) == MARKER_BYTES + mutation_bytes(b"k", b"v")
    source.mutation(b"l", 2)
    node.advance(4.9)
    assert acks(source) == []
    node.advance(0.1)
    assert acks(source) == [mutation_bytes(b"l", b"v")]


@rule("FLC-18")
def test_what_was_refused_is_acknowledged_too() -> None:
    node, source = replica()
    refused = [
        source.mutation(b"nostream", 1, vbid=2),
        source.mutation(b"nosnapshot", 1),
        source.mutation(b"opaque", 1, opaque=0xBAD),
    ]
    answers = [frame for frames in refused for frame in frames]
    assert all(frame.status for frame in answers if frame.is_response)
    assert len([frame for frame in answers if frame.is_response]) == 3
    first = sum(int.from_bytes(frame.extras, "big") for frame in of(answers, Opcode.DCP_BUFFER_ACK))
    node.advance(5)
    keys = (b"nostream", b"nosnapshot", b"opaque")
    assert first + sum(acks(source)) == sum(mutation_bytes(key, b"v") for key in keys)


@rule("FLC-19")
def test_a_consumer_without_room_takes_what_comes_and_holds_back_the_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, source = replica()
    monkeypatch.setattr(type(node.store), "has_room", False)
    assert source.marker(1, 2) == []
    assert source.mutation(b"k", 1) == [], "not refused"
    assert node.vbucket(1).high_seqno == 1
    node.advance(60)
    assert acks(source) == []
    monkeypatch.setattr(type(node.store), "has_room", True)
    node.advance(5)
    assert acks(source) == [MARKER_BYTES + mutation_bytes(b"k", b"v")]
