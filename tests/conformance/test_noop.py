"""Rules of NOOPs and of silent peers."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.errors import DeadConnection
from dcpstream.wire import Frame, Opcode, Status, encode_request, encode_response
from dcpstream_node.testing.simulation import Peer, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.client_machines import client_of_streams
from tests.kit.rules import of_release, rule
from tests.kit.streams import REPLICA, of, opcodes

IDLE_S = 360


def noops(peer: Peer) -> list[bytes]:
    """The opaques of the NOOPs that came since the last look, as bytes of the header."""
    return [frame.encode()[12:16] for frame in of(peer.take(), Opcode.DCP_NOOP)]


def opened(node: SimulatedNode, *controls: tuple[bytes, bytes]) -> Peer:
    """A producer connection without any control but these."""
    peer = node.connect()
    assert peer.dcp_open().status == 0
    for key, value in controls:
        assert peer.control(key, value).status == 0
    return peer


ENABLE = (b"enable_noop", b"true")
EVERY_SECOND = (b"set_noop_interval", b"1")


def next_noop(node: SimulatedNode, peer: Peer, within_s: float = 3) -> Frame:
    """The next NOOP of a connection on which nothing else comes; a server may look for its time once a second."""
    for _ in range(int(within_s * 10)):
        node.advance(0.1)
        if frames := peer.take():
            (noop,) = frames
            assert noop.opcode == Opcode.DCP_NOOP
            return noop
    raise AssertionError("no NOOP comes")


def set_idle_timeout(node: SimulatedNode, seconds: int) -> None:
    """SET_PARAM of the bucket's DCP connections, also of those that are open."""
    found = node.admin.call(
        Opcode.SET_PARAM, key=b"dcp_idle_timeout", value=str(seconds).encode(), extras=(4).to_bytes(4, "big")
    )
    assert found.status == 0, found
    node.pump()


def answer_all(peer: Peer) -> int:
    """Answer the NOOPs that wait; how many there were."""
    requests = of(peer.take(), Opcode.DCP_NOOP)
    for request in requests:
        peer.answer(request)
    return len(requests)


@rule("NOP-01")
def test_a_noop_is_a_bare_header_and_so_is_its_answer() -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE, EVERY_SECOND)
    noop = next_noop(node, peer)
    assert noop.encode() == bytes.fromhex("80 5c 0000 00 00 0000 00000000 81969800 0000000000000000")
    assert peer.answer(noop) == []
    assert not peer.closed
    client = client_of_streams()
    assert client.receive(noop.encode()) == []
    (answer,) = client.sent()
    assert answer.encode() == bytes.fromhex("81 5c 0000 00 00 0000 00000000 81969800 0000000000000000")


@rule("NOP-02", "NOP-09")
def test_off_until_enabled_and_then_nobody_is_dropped() -> None:
    node = SimulatedNode()
    set_idle_timeout(node, 2)
    silent = opened(node, EVERY_SECOND)
    for _ in range(2):
        node.advance(3)
        assert silent.take() == []
    assert not silent.closed
    silent.control(*ENABLE)
    node.advance(1.5)
    assert len(of(silent.received, Opcode.DCP_NOOP)) == 1


@rule("NOP-09")
def test_switched_off_again_nobody_is_dropped() -> None:
    node = SimulatedNode()
    set_idle_timeout(node, 2)
    peer = opened(node, EVERY_SECOND, ENABLE, (b"enable_noop", b"false"))
    for _ in range(2):
        node.advance(3)
        assert peer.take() == []
    assert not peer.closed


@rule("NOP-03")
def test_every_20_seconds_by_default() -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE)
    for _ in range(3):
        node.advance(19.9)
        assert answer_all(peer) == 0
        node.advance(0.1)
        assert answer_all(peer) == 1


@rule("NOP-03")
def test_it_may_be_a_second_early_or_late() -> None:
    node = SimulatedNode()
    peer = opened(node, (b"set_noop_interval", b"3"), ENABLE)
    node.advance(1.5)
    assert answer_all(peer) == 0
    next_noop(node, peer, within_s=2.6)


@rule("NOP-03")
@each_case("seconds", [7, 180])
def test_an_interval_can_be_set(seconds: int) -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE, (b"set_noop_interval", b"%d" % seconds))
    for _ in range(3):
        node.advance(seconds - 0.1)
        assert answer_all(peer) == 0
        node.advance(0.1)
        assert answer_all(peer) == 1


@rule("NOP-04")
def test_opaques_count_from_10000001_per_connection() -> None:
    # In the byte order of the server's machine, which is little-endian, as recorded.
    node = SimulatedNode()
    for name in (b"first", b"second"):
        peer = node.connect()
        peer.dcp_open(name)
        peer.control(*EVERY_SECOND)
        peer.control(*ENABLE)
        seen = []
        for _ in range(5):
            noop = next_noop(node, peer)
            seen.append(int.from_bytes(noop.encode()[12:16], "little"))
            peer.answer(noop)
        assert seen == [10000001, 10000002, 10000003, 10000004, 10000005]


@rule("NOP-05")
def test_data_does_not_postpone_a_noop() -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE, EVERY_SECOND)
    peer.stream(1)
    came: list[int] = []
    for number in range(10):
        node.advance(0.3)
        node.set_doc(1, f"k{number}")
        came += opcodes(peer.take())
        assert Opcode.DCP_MUTATION in came
    assert came.count(Opcode.DCP_NOOP) == 1, "never while one is unanswered"


@rule("NOP-05")
def test_no_noop_while_one_is_unanswered() -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE, EVERY_SECOND)
    noop = next_noop(node, peer)
    node.advance(2.5)
    assert peer.take() == []
    if not peer.answer(noop):
        next_noop(node, peer, within_s=1)  # more than an interval has passed


@rule("NOP-06")
def test_noops_pass_a_full_window_and_do_not_count() -> None:
    node = SimulatedNode()
    node.fill(1, 10, value=b"v" * 100)
    peer = opened(node, ENABLE, EVERY_SECOND, (b"connection_buffer_size", b"100"))
    assert len(of(peer.stream(1), Opcode.DCP_MUTATION)) == 1
    unacked = node.stats("dcp")["eq_dcpq:reader:unacked_bytes"]
    assert int(unacked) >= 100
    node.advance(2.5)
    (noop,) = of(peer.received, Opcode.DCP_NOOP)
    peer.take()
    for _ in range(2):
        noop = (of(peer.answer(noop), Opcode.DCP_NOOP) or [next_noop(node, peer)])[0]
    assert node.stats("dcp")["eq_dcpq:reader:unacked_bytes"] == unacked


@rule("NOP-07")
def test_360_seconds_of_silence_end_the_connection() -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE)
    node.advance(IDLE_S - 0.1)
    assert len(noops(peer)) == 1, "one that is not answered for many intervals drops nobody"
    assert not peer.closed
    node.advance(0.1)
    assert peer.closed
    assert peer.take() == []


@rule("NOP-08")
@each_case("kind", ["control", "ack", "noop", "answer", "failover log"])
def test_whatever_comes_in_counts_as_life(kind: str) -> None:
    node = SimulatedNode()
    set_idle_timeout(node, 3)
    peer = opened(node, ENABLE, EVERY_SECOND)
    noop = next_noop(node, peer, within_s=2.2)
    if kind == "control":
        peer.control(*ENABLE)
    elif kind == "ack":
        peer.buffer_ack(1)
    elif kind == "noop":
        peer.answer(noop)
    elif kind == "answer":
        peer.send_bytes(encode_response(Opcode.DCP_MUTATION, opaque=5))
    else:
        peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1)
    node.advance(2.2)
    assert not peer.closed
    node.advance(2)
    assert peer.closed


@rule("NOP-10")
@each_case("shift", [1, -1, 1 << 24])
def test_an_answer_with_another_opaque_drops(shift: int) -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE, EVERY_SECOND)
    noop = next_noop(node, peer)
    peer.send_bytes(encode_response(Opcode.DCP_NOOP, opaque=noop.opaque + shift & 0xFFFFFFFF))
    assert peer.closed


@rule("NOP-10")
def test_an_answer_that_nothing_waits_for_drops() -> None:
    node = SimulatedNode()
    peer = opened(node, ENABLE)
    peer.send_bytes(encode_response(Opcode.DCP_NOOP, opaque=0x81969800))
    assert peer.closed
    twice = node.connect()
    twice.dcp_open(b"twice")
    twice.control(b"set_noop_interval", b"4")
    twice.control(*ENABLE)
    noop = next_noop(node, twice, within_s=6)
    assert twice.answer(noop) == []
    assert not twice.closed
    twice.answer(noop)
    assert not twice.closed, "the opaque is that of the last NOOP still"
    next_noop(node, twice, within_s=6)
    twice.answer(noop)
    assert twice.closed


@rule("NOP-12")
def test_a_client_gives_up_after_two_intervals_of_silence() -> None:
    client = client_of_streams(noop_interval_s=20)
    session, start = client.session, client.now
    assert session.next_timeout() >= start + 40
    session.handle_timeout(start + 40)
    with pytest.raises(DeadConnection):
        session.handle_timeout(start + 50)
    client.now = start + 39
    client.receive(encode_request(Opcode.DCP_NOOP, opaque=1))
    session.handle_timeout(start + 79)
    with pytest.raises(DeadConnection):
        session.handle_timeout(start + 39 + 50)


@rule("NOP-13")
def test_only_a_consumer_answers_a_noop() -> None:
    node = SimulatedNode()
    consumer = node.consumer()
    answer = consumer.call(Opcode.DCP_NOOP, opaque=0x51)
    assert answer.encode() == bytes.fromhex("81 5c 0000 00 00 0000 00000000 00000051 0000000000000000")
    assert not consumer.closed
    producer = opened(node)
    assert producer.send(Opcode.DCP_NOOP) == []
    assert producer.closed


@rule("NOP-14")
@each_case("fields", [{"extras": b"x"}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}])
def test_a_noop_has_no_parts(fields: dict[str, Any]) -> None:
    node = SimulatedNode()
    for peer in (node.consumer(), opened(node), node.connect()):
        assert peer.call(Opcode.DCP_NOOP, **fields).status == Status.EINVAL
        assert not peer.closed


@rule("NOP-11")
def test_a_consumer_gives_up_a_silent_source() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept()
    source.peer.send(Opcode.DCP_NOOP)
    set_idle_timeout(node, 6)
    node.advance(2.9)
    assert not source.closed
    source.peer.send(Opcode.DCP_NOOP)
    node.advance(2.9)
    assert not source.closed, "a message is life"
    source.marker(1, 1)
    source.mutation(b"k", 1)
    node.advance(2.9)
    assert not source.closed
    node.advance(2.9)
    node.advance(1.5)
    assert source.closed


@rule("NOP-11")
def test_a_consumer_gives_up_after_360_seconds_unless_told_otherwise() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept()
    node.advance(IDLE_S - 0.1)
    assert not source.closed
    node.advance(0.1)
    assert source.closed


@rule("NOP-07", "NOP-11")
def test_the_idle_timeout_may_be_set_and_holds_for_open_connections() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source, before_any_stream = ScriptedProducer(node), node.consumer(b"idle")
    source.accept()
    producer = opened(node, ENABLE)
    source.peer.send(Opcode.DCP_NOOP)
    set_idle_timeout(node, 6)
    node.advance(1.5)
    assert not source.closed
    assert not producer.closed
    for _ in range(3):
        node.advance(2.9)
    assert source.closed
    assert producer.closed
    assert not before_any_stream.closed, "it waits for nothing yet"


@rule("NOP-11")
@of_release("7.2")
def test_only_requests_of_the_source_break_its_silence() -> None:
    node = SimulatedNode()
    set_idle_timeout(node, 6)
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    buffer, error_map = source.add()
    for _ in range(2):
        node.advance(2.5)
    assert not source.closed, "it is not watched before it was asked for NOOPs"
    source.peer.send(Opcode.DCP_NOOP)
    source.peer.answer(buffer)
    asked = source.peer.answer(error_map)
    for _ in range(2):
        node.advance(1.2)
        asked += source.peer.answer(asked.pop(0))
    assert not source.closed
    node.advance(2.9)
    node.advance(2.9)
    assert source.closed, "answers do not count"
