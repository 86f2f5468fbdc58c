"""The node as a consumer: its controls, what it makes of a stream's messages, and what ends its connection."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from dcpstream.model import FailoverLog
from dcpstream.wire import Feature, Opcode, Status, decode_message, encode_request, encode_response
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.system_events import CollectionEvent, flatbuffer_of
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation import USUAL_FEATURES, WITHOUT_COLLECTIONS, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA, item_count, of, opcodes, statuses, without_control

BUFFER = (b"connection_buffer_size", b"52428800")
FIRST = [
    (b"enable_noop", b"true"),
    (b"set_noop_interval", b"1"),
    (b"set_priority", b"high"),
    (b"supports_cursor_dropping_vulcan", b"true"),
    (b"supports_hifi_MFU", b"true"),
    (b"send_stream_end_on_client_close_stream", b"true"),
    (b"enable_expiry_opcode", b"true"),
]
OF_DURABILITY = [(b"enable_sync_writes", b"true"), (b"consumer_name", b"node-a")]
LAST = [
    (b"include_deleted_user_xattrs", b"true"),
    (b"v7_dcp_status_codes", b"true"),
    (b"flatbuffers_system_events", b"true"),
    (b"change_streams", b"true"),
]
BUFFER_80 = (b"connection_buffer_size", b"107374184")
"""5 % of the quota of the bucket of a simulated node, which is 2 GiB."""
NAMED: dict[str, Any] = {"value": b'{"consumer_name":"node-a"}', "datatype": 1}


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    for vbid in (1, 2):
        node.set_vbucket(vbid, REPLICA)
    return node


@pytest.fixture
def source(node: SimulatedNode) -> ScriptedProducer:
    source = ScriptedProducer(node)
    source.accept()
    return source


def asked_by(release: str, *of_durability: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The controls of a consumer of a release, in their order."""
    if release == "7.2":
        return [BUFFER, *FIRST, *of_durability, *LAST]
    first = [(key, b"0.100000" if key == b"set_noop_interval" else value) for key, value in FIRST]
    return [*first, *of_durability, *LAST, (b"max_marker_version", b"2.2"), BUFFER_80]


def controls_of(source: ScriptedProducer) -> list[tuple[bytes, bytes]]:
    return [(frame.key, frame.value) for frame in of(source.peer.received, Opcode.DCP_CONTROL)]


# ------------------------------------------------------------------------------------------------------ the controls


@rule("CON-01", "CON-02")
@pytest.mark.parametrize("is_named", [False, True])
@of_release("7.2", "8.0")
def test_the_controls_in_the_recorded_order(node: SimulatedNode, is_named: bool, release: str) -> None:
    source = ScriptedProducer(node, **(NAMED if is_named else {}))
    source.request()
    assert controls_of(source) == asked_by(release, *(OF_DURABILITY if is_named else []))
    # A 7.2 asks for the error map second, later releases first, and nothing goes on before it is answered.
    begun = [Opcode.DCP_CONTROL, Opcode.GET_ERROR_MAP][release != "7.2" :]
    assert opcodes(source.peer.received[-len(controls_of(source)) - 2 :])[: len(begun)] == begun


GIB = 1 << 30
SHARES = {1: 214748368, 2: 107374184, 3: 71582789, 4: 53687092, 5: 42949673}
"""Of 4 GiB, by the number of consumers, as recorded from 8.0.1."""


def node_of_80(quota: int = 4 * GIB, release: str = "8.0") -> SimulatedNode:
    node = SimulatedNode(release=release)
    node.set_vbucket(1, REPLICA)
    node.bucket.change_settings(replace(node.bucket.settings, ram_quota_bytes=quota))
    return node


def buffers_of(source: ScriptedProducer) -> list[int]:
    """The sizes of its buffer that a consumer has asked for."""
    source.peer.take()
    return [int(value) for key, value in controls_of(source) if key == b"connection_buffer_size"]


@rule("CON-01")
@each_case("release", ["7.6", "8.0"])
def test_consumers_share_a_part_of_the_quota_and_learn_of_each_other_since_76(release: str) -> None:
    node = node_of_80(release=release)
    sources = [ScriptedProducer(node, b"source-%d" % number) for number in range(5)]
    (idle, first, *others) = sources
    first.accept(1)
    assert buffers_of(first) == [SHARES[5]]
    assert buffers_of(idle) == [], "nothing is asked before the first ADD_STREAM"
    for count, gone in enumerate(reversed(others), 1):
        gone.peer.disconnect()
        node.pump()
        (asked,) = of(first.peer.take(), Opcode.DCP_CONTROL)
        assert asked.value == b"%d" % SHARES[5 - count]
        first.peer.answer(asked)
    idle.peer.disconnect()
    node.pump()
    (asked,) = of(first.peer.take(), Opcode.DCP_CONTROL)
    first.peer.answer(asked)
    assert buffers_of(first) == [SHARES[count] for count in (5, 4, 3, 2, 1)]


@rule("CON-01")
def test_the_share_follows_the_quota_and_the_ratio() -> None:
    node = node_of_80()
    source = ScriptedProducer(node)
    source.accept(1)

    def asked_after(group: int, name: bytes, value: bytes) -> bytes:
        assert node.admin.call(Opcode.SET_PARAM, key=name, value=value, extras=struct.pack(">I", group)).status == 0
        (asked,) = of(source.peer.take(), Opcode.DCP_CONTROL)
        source.peer.answer(asked)
        return asked.value

    assert asked_after(1, b"max_size", b"%d" % (2 * GIB)) == b"107374184"
    assert asked_after(4, b"dcp_consumer_buffer_ratio", b"0.1") == b"214748368"
    assert asked_after(4, b"dcp_consumer_buffer_ratio", b"0") == b"1"
    for value in (b"0.21", b"-0.1", b"x", b"nan"):
        extras = struct.pack(">I", 4)
        answer = node.admin.call(Opcode.SET_PARAM, key=b"dcp_consumer_buffer_ratio", value=value, extras=extras)
        assert answer.status == Status.EINVAL


@rule("CON-01")
def test_no_share_is_larger_than_a_producer_takes() -> None:
    source = ScriptedProducer(node_of_80(1 << 40))
    source.accept(1)
    assert buffers_of(source) == [0xFFFFFFFF]


@rule("FLC-17")
def test_a_fifth_of_the_present_share_is_acknowledged() -> None:
    node = node_of_80(256 * (1 << 20))
    source = ScriptedProducer(node)
    source.accept(1)
    source.marker(1, 9)
    node.advance(6)
    value = b"v" * (2 << 20)
    assert of(source.mutation(b"k", 1, value=value), Opcode.DCP_BUFFER_ACK) == [], "2 of 13 MB"
    ScriptedProducer(node, b"another")
    assert of(source.peer.take(), Opcode.DCP_BUFFER_ACK), "2 of 6.7 MB"


@rule("CON-01")
@of_release("7.2", "8.0")
def test_controls_wait_for_the_answer_to_the_one_before(node: SimulatedNode, release: str) -> None:
    source = ScriptedProducer(node)
    *buffer, error_map = source.add()
    assert [frame.key for frame in buffer] == [b"connection_buffer_size"] * (release == "7.2")
    assert [source.peer.answer(frame) for frame in buffer] == [[]] * len(buffer)
    asked, rounds = source.peer.answer(error_map), []
    while asked[0].opcode == Opcode.DCP_CONTROL:
        node.advance(0.5)
        assert source.peer.take() == []
        *others, last = asked
        rounds.append(len(asked))
        assert [source.peer.answer(frame) for frame in others] == [[]] * len(others), "the last one is waited for"
        asked = source.peer.answer(last)
    assert opcodes(asked) == [Opcode.DCP_STREAM_REQ]
    assert rounds == ([8, 1, 1, 1] if release == "7.2" else [1] * len(asked_by(release)))


@rule("CON-03", "CON-04")
@pytest.mark.parametrize("status", [Status.EINVAL, Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED])
@of_release("7.2", "8.0")
def test_a_refused_control_is_only_noted(node: SimulatedNode, status: Status, release: str) -> None:
    source = ScriptedProducer(node)
    # From 8.0 on it does not do without an interval for NOOPs.
    accepted = (b"set_noop_interval",) if release == "8.0" else ()
    frames = source.negotiate(
        source.add(), lambda frame: status if frame.opcode == Opcode.DCP_CONTROL and frame.key not in accepted else 0
    )
    assert opcodes(frames) == [Opcode.DCP_STREAM_REQ]
    assert controls_of(source) == asked_by(release)  # none is repeated
    assert not source.closed


@rule("CON-03")
@of_release("7.2")
def test_a_producer_without_an_error_map_is_asked_for_rare_noops(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    source.negotiate(source.add(), lambda frame: Status.UNKNOWN_COMMAND if frame.opcode == Opcode.GET_ERROR_MAP else 0)
    assert (b"set_noop_interval", b"180") in controls_of(source)


@rule("CON-05")
@of_release("7.2", "8.0")
def test_an_answer_to_a_control_that_was_not_asked(node: SimulatedNode, release: str) -> None:
    source = ScriptedProducer(node)
    source.add()
    other = 0x12345678
    assert source.peer.send_bytes(encode_response(Opcode.DCP_CONTROL, opaque=other)) == []
    assert not source.closed, "no control waits yet"
    asked = source.peer.send_bytes(encode_response(Opcode.GET_ERROR_MAP, opaque=other))
    assert set(opcodes(asked)) == {Opcode.DCP_CONTROL}, "the opaque of this answer means nothing"
    assert source.peer.send_bytes(encode_response(Opcode.GET_ERROR_MAP, opaque=other)) == []
    assert not source.closed, "nor does a second one"
    assert source.peer.send_bytes(encode_response(Opcode.DCP_CONTROL, opaque=other)) == []
    assert source.closed == (release == "8.0")


@rule("CON-06")
def test_opaques_come_from_one_counter(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    source.accept(1)
    source.accept(2, opaque=0x52)
    source.snapshot(b"a", start=1, vbid=2)
    node.advance(6)
    asked = [frame for frame in source.peer.received if frame.is_request]
    numbers = [int.from_bytes(frame.opaque.to_bytes(4, "big"), "little") for frame in asked]
    assert sorted(numbers) == list(range(1, len(asked) + 1))
    assert of(asked, Opcode.DCP_BUFFER_ACK)


# ------------------------------------------------------------------------------------------- messages out of place


@rule("CON-07")
def test_without_a_stream(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    assert statuses(source.marker(1, 2)) == [Status.KEY_ENOENT]
    assert statuses(source.mutation(b"a", 1)) == [Status.KEY_ENOENT]
    source.accept()
    assert statuses(source.marker(1, 2, vbid=2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert statuses(source.mutation(b"a", 1, vbid=2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert statuses(source.set_state(REPLICA, 2)) == [Status.DCP_STREAM_NOT_FOUND]


@rule("CON-08")
@pytest.mark.parametrize("has_v7", [True, False])
def test_another_opaque(node: SimulatedNode, has_v7: bool) -> None:
    source = ScriptedProducer(node)
    (request,) = source.negotiate(source.add(), 0 if has_v7 else without_control(b"v7_dcp_status_codes"))
    source.opaque = request.opaque
    source.peer.answer(request, value=encode_failover_log(FailoverLog.of((1, 0))))
    assert source.marker(1, 5) == []
    wanted = Status.OPAQUE_NO_MATCH if has_v7 else Status.KEY_EEXISTS
    (answer,) = source.mutation(b"a", 1, opaque=0x999)
    assert (answer.status, answer.opaque) == (wanted, 0x999)
    assert statuses(source.marker(6, 9, opaque=0x999)) == [wanted]
    assert node.vbucket(1).high_seqno == 0


@rule("CON-09")
def test_a_dead_stream_swallows(source: ScriptedProducer) -> None:
    source.send(Opcode.DCP_CLOSE_STREAM)
    assert source.marker(1, 2) == []
    assert source.mutation(b"a", 1) == []
    assert source.set_state(ACTIVE) == []
    assert source.node.vbucket(1).high_seqno == 0
    assert source.node.vbucket(1).state == REPLICA


@rule("CON-09", "CLS-26")
def test_a_dead_stream_is_gone_with_its_vbucket(node: SimulatedNode, source: ScriptedProducer) -> None:
    source.send(Opcode.DCP_CLOSE_STREAM)
    node.set_vbucket(1, DEAD)
    node.delete_vbucket(1)
    assert statuses(source.marker(1, 2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert statuses(source.mutation(b"a", 1)) == [Status.DCP_STREAM_NOT_FOUND]
    node.set_vbucket(1, REPLICA)
    assert statuses(source.marker(1, 2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert node.vbucket(1).high_seqno == 0


@rule("CON-09", "CLS-26")
@pytest.mark.parametrize("is_again", [False, True])
def test_a_living_stream_is_gone_with_its_vbucket(
    node: SimulatedNode, source: ScriptedProducer, is_again: bool
) -> None:
    source.snapshot(b"a", start=1)
    node.set_vbucket(1, DEAD)
    node.delete_vbucket(1)
    if is_again:
        node.set_vbucket(1, REPLICA)
    assert statuses(source.marker(2, 3)) == [Status.DCP_STREAM_NOT_FOUND]
    assert statuses(source.mutation(b"b", 2)) == [Status.DCP_STREAM_NOT_FOUND]
    node.set_vbucket(1, REPLICA)
    assert statuses(source.mutation(b"b", 2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert node.vbucket(1).high_seqno == 0


@rule("CON-10")
@pytest.mark.parametrize("how", ["unknown opaque", "answered twice", "replaced"])
def test_an_answer_to_no_stream_request(node: SimulatedNode, how: str) -> None:
    source = ScriptedProducer(node)
    request = source.request()
    log = encode_failover_log(FailoverLog.of((1, 0)))
    opaque = request.opaque
    if how == "unknown opaque":
        opaque ^= 0x70
    elif how == "answered twice":
        source.peer.answer(request, value=log)
    else:
        source.end()
    assert source.peer.send_bytes(encode_response(Opcode.DCP_STREAM_REQ, opaque=opaque, value=log)) == []
    assert source.closed


@rule("CON-11")
@pytest.mark.parametrize("size", [0, 8, 15, 17, 24])
def test_a_success_without_a_sound_failover_log(node: SimulatedNode, size: int) -> None:
    source = ScriptedProducer(node)
    request = source.request()
    assert source.peer.answer(request, value=bytes(size)) == []
    assert source.closed


@rule("CON-10", "CON-11")
@pytest.mark.parametrize("size", [0, 4, 9, 16])
def test_a_rollback_without_a_seqno(node: SimulatedNode, size: int) -> None:
    source = ScriptedProducer(node)
    request = source.request()
    assert source.peer.answer(request, status=Status.ROLLBACK, value=bytes(size)) == []
    assert source.closed


@rule("CON-12")
@pytest.mark.parametrize("opcode", [Opcode.DCP_BUFFER_ACK, Opcode.DCP_SEQNO_ACKNOWLEDGED])
@pytest.mark.parametrize("status", [0, Status.EINVAL, Status.KEY_ENOENT])
def test_answers_to_what_has_none_are_swallowed(source: ScriptedProducer, opcode: int, status: int) -> None:
    assert source.peer.send_bytes(encode_response(opcode, status=status, opaque=1)) == []
    assert not source.closed


@rule("CON-12")
@pytest.mark.parametrize("opcode", [Opcode.DCP_OPEN, Opcode.DCP_NOOP, Opcode.DCP_MUTATION, Opcode.DCP_STREAM_END])
def test_answers_to_what_a_consumer_never_asks(source: ScriptedProducer, opcode: int) -> None:
    assert source.peer.send_bytes(encode_response(opcode, opaque=1)) == []
    assert source.closed


# ------------------------------------------------------------------------------------------------- seqnos and markers


@rule("CON-13", "CON-14")
def test_seqnos_out_of_order_cost_their_message_only(source: ScriptedProducer) -> None:
    assert statuses(source.mutation(b"early", 1)) == [Status.ERANGE]
    assert source.marker(1, 5) == []
    assert source.mutation(b"a", 2) == []
    for seqno in (2, 1, 6):
        assert statuses(source.mutation(b"x", seqno)) == [Status.ERANGE]
    assert source.mutation(b"b", 4) == []
    assert statuses(source.marker(1, 4)) == [Status.ERANGE]
    assert source.mutation(b"c", 5) == []
    assert source.node.vbucket(1).high_seqno == 5
    assert item_count(source.node) == 3


@rule("SNP-04")
@pytest.mark.parametrize(
    ("extras", "value", "text"),
    [
        (b"\1", bytes(44), b"Unsupported dcp snapshot version:1"),
        (b"\3", bytes(52), b"Unsupported dcp snapshot version:3"),
        (b"\0", bytes(20), b"valuelen not expected:36"),
        (b"\2", bytes(36), b"valuelen not expected:52|Unsupported dcp snapshot version:2"),  # 7.2.9 has the second
        (bytes(19), b"", b""),
        (b"", bytes(36), b""),
    ],
)
def test_markers_of_no_version_are_refused_as_recorded(
    source: ScriptedProducer, extras: bytes, value: bytes, text: bytes
) -> None:
    (answer,) = source.send(Opcode.DCP_SNAPSHOT_MARKER, extras=extras, value=value)
    assert answer.status == Status.EINVAL
    assert any(one in answer.value for one in text.split(b"|"))
    assert bool(answer.value) == bool(text)
    source.snapshot(b"a", start=1)


@rule("CON-15")
def test_a_disk_marker_without_high_completed_seqno_where_writes_are_durable(node: SimulatedNode) -> None:
    plain = ScriptedProducer(node, b"plain")
    plain.accept(1)
    assert plain.marker(1, 3, 2) == []
    durable = ScriptedProducer(node, b"durable", **NAMED)
    durable.accept(2)
    assert durable.marker(1, 3, 1, vbid=2) == []
    whole = struct.pack(">QQIQQ", 1, 4, 2, 4, 0)
    assert durable.send(Opcode.DCP_SNAPSHOT_MARKER, 2, extras=b"\0", value=whole) == []
    assert not durable.closed
    assert durable.marker(1, 5, 2, vbid=2) == []
    assert durable.closed


@rule("CON-16")
@pytest.mark.parametrize("which", ["visible", "purge", "prepared"])
@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("flags", [1, 2, 6])
@of_release("8.0")
def test_a_marker_whose_claims_are_above_its_end(node: SimulatedNode, which: str, excess: int, flags: int) -> None:
    source = ScriptedProducer(node, **NAMED)
    source.accept()
    seqno = 5 + excess
    if which == "visible":
        frames = source.marker_v2(1, 5, flags, visible=seqno)
    else:
        pair = (seqno, 0) if which == "purge" else (0, seqno)
        frames = source.marker_v2(1, 5, flags, more=struct.pack(">QQ", *pair))
    assert frames == []
    assert source.closed == (bool(excess) and (which == "visible" or flags != 1)), "memory has no such seqnos"


@rule("CON-16")
@pytest.mark.parametrize("flags", [1, 2, 6])
@of_release("7.2")
def test_a_72_does_not_look_at_the_max_visible_seqno(node: SimulatedNode, flags: int) -> None:
    source = ScriptedProducer(node, **NAMED)
    source.accept()
    assert source.marker_v2(1, 5, flags, visible=6) == []
    assert not source.closed


@rule("CON-17")
@pytest.mark.parametrize(
    ("flags", "start"),
    [((1, 1), 1), ((5, 1), 1), ((1, 5), 4), ((2, 1), 4), ((1, 2), 4), ((6, 6), 4)],
)
def test_which_markers_extend_a_snapshot(node: SimulatedNode, flags: tuple[int, int], start: int) -> None:
    source = ScriptedProducer(node, b"one")
    source.accept()
    source.snapshot(b"a", b"b", b"c", start=1, flags=flags[0])
    assert source.marker(4, 9, flags[1]) == []
    assert source.mutation(b"d", 4) == []
    assert source.mutation(b"e", 6) == []
    source.peer.disconnect()
    request = decode_message(ScriptedProducer(node, b"two").request())
    assert isinstance(request, StreamRequest)
    assert (request.start_seqno, request.snapshot_start, request.snapshot_end) == (6, start, 9)


@rule("CON-18")
def test_while_its_first_disk_snapshot_comes_a_copy_is_nobodys_source(
    node: SimulatedNode, source: ScriptedProducer
) -> None:
    assert source.marker(0, 3, 2) == []
    assert source.mutation(b"a", 1) == []
    peer = node.producer()
    assert peer.stream(1)[0].status == Status.TMPFAIL
    assert source.mutation(b"b", 3) == []
    assert peer.stream(1)[0].status == Status.SUCCESS


@rule("CON-19")
@pytest.mark.parametrize("state", [DEAD, ACTIVE])
def test_data_for_a_vbucket_that_is_no_copy_any_more(source: ScriptedProducer, state: int) -> None:
    source.snapshot(b"a", start=1)
    assert source.marker(2, 3) == []
    assert statuses(source.set_state(state)) == [Status.SUCCESS]
    assert statuses(source.mutation(b"b", 2)) == [Status.NOT_MY_VBUCKET]
    assert source.node.vbucket(1).high_seqno == 1


@rule("CON-19")
def test_data_for_a_vbucket_that_was_recreated(node: SimulatedNode, source: ScriptedProducer) -> None:
    source.snapshot(b"a", b"b", start=1)
    node.set_vbucket(1, DEAD)
    node.delete_vbucket(1)
    node.set_vbucket(1, PENDING)
    assert source.marker(3, 4) != []
    assert node.vbucket(1).high_seqno == 0


def test_without_room_nothing_is_acknowledged_and_nothing_dropped(node: SimulatedNode, monkeypatch) -> None:
    source = ScriptedProducer(node)
    source.accept()
    monkeypatch.setattr(type(node.store), "has_room", property(lambda store: False))
    source.snapshot(b"a", b"b", start=1)
    node.advance(60)
    assert of(source.peer.received, Opcode.DCP_BUFFER_ACK) == []
    assert node.vbucket(1).high_seqno == 2
    assert not source.closed
    monkeypatch.undo()
    node.bucket.dirty.add(1)  # as when the disk is through
    node.pump()
    assert len(of(source.peer.received, Opcode.DCP_BUFFER_ACK)) == 1


@rule("CON-21", "CON-22")
def test_there_is_no_cache_transfer_in_this_version(source: ScriptedProducer) -> None:
    record = struct.pack(">QQQIIIHBB", 1, 1, 1, 1, 0, 0, 2, 0, 0) + b"\x08k" + b"v"
    assert statuses(source.send(Opcode.DCP_CACHE_TRANSFER, value=record)) == [Status.UNKNOWN_COMMAND]
    assert statuses(source.send(Opcode.DCP_CACHE_TRANSFER_END)) == [Status.UNKNOWN_COMMAND]
    assert not source.closed


@rule("CON-23")
def test_a_marker_is_answered_after_its_last_row_and_before_anything_newer(source: ScriptedProducer) -> None:
    assert source.marker(1, 2, 9) == []
    assert source.mutation(b"a", 1) == []
    (answer,) = source.mutation(b"b", 2)
    assert (answer.opcode, answer.status, answer.opaque) == (Opcode.DCP_SNAPSHOT_MARKER, 0, source.opaque)
    assert source.marker(3, 3, 9) == []
    last, beyond = (struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, 0, 0) for seqno in (3, 9))
    stream: dict[str, Any] = {"vbid": 1, "opaque": source.opaque}
    data = (
        encode_request(Opcode.DCP_MUTATION, key=b"c", extras=last, **stream)
        + encode_request(Opcode.DCP_SNAPSHOT_MARKER, extras=struct.pack(">QQI", 4, 4, 1), **stream)
        + encode_request(Opcode.DCP_MUTATION, key=b"d", extras=beyond, **stream)
    )
    # A server answers at once what it refuses, and sends the rest when it has read all that came.
    assert sorted(opcodes(source.peer.send_bytes(data))) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]


@rule("CON-24")
@pytest.mark.parametrize(
    ("event", "version", "key", "value"),
    [
        (0, 0, b"", struct.pack(">QII", 1, 0, 8)),  # no name
        (0, 0, b"fruit", b"short"),
        (0, 2, b"fruit", b"no flatbuffer"),
        (5, 0, b"fruit", struct.pack(">QII", 1, 0, 8)),  # modified, and not as a flatbuffer
        (2, 0, b"fruit", struct.pack(">QII", 1, 0, 8)),
        (9, 0, b"fruit", struct.pack(">QII", 1, 0, 8)),
    ],
)
def test_system_events_that_cannot_be_applied(
    node: SimulatedNode, event: int, version: int, key: bytes, value: bytes
) -> None:
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept()
    assert source.marker(1, 2) == []
    extras = struct.pack(">QIB", 1, event, version)
    assert statuses(source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, key=key, value=value)) == [Status.EINVAL]
    assert node.vbucket(1).high_seqno == 0
    sound: dict[str, Any] = {
        "extras": struct.pack(">QIB", 1, 0, 2),
        "key": b"fruit",
        "value": flatbuffer_of(FRUIT),
    }
    assert source.send(Opcode.DCP_SYSTEM_EVENT, **sound) == []
    assert node.vbucket(1).high_seqno == 1


SOUND: dict[str, Any] = {"key": b"fruit", "value": struct.pack(">QII", 1, 0, 8)}
FRUIT = CollectionEvent(0, 1, 0, 8, "fruit")


@rule("CON-24", "COL-20", "COL-21")
@pytest.mark.parametrize(
    ("seqno", "event", "version", "fields", "is_sound"),
    [
        (1, 0, 2, {"key": b"fruit", "value": flatbuffer_of(FRUIT)}, True),
        (1, 5, 2, {"key": b"fruit", "value": flatbuffer_of(FRUIT._replace(event=5))}, False),
        (1, 2, 2, {"key": b"fruit", "value": flatbuffer_of(FRUIT)}, False),
        (1, 9, 2, {"key": b"fruit", "value": flatbuffer_of(FRUIT)}, False),
        (1, 0, 3, SOUND, False),
        (1, 0, 0, SOUND, False),
        (1, 0, 1, {"key": b"fruit", "value": SOUND["value"] + bytes(4)}, False),
        (1, 1, 1, {"value": SOUND["value"] + bytes(4)}, False),
    ],
)
def test_system_events_of_every_version(
    node: SimulatedNode, seqno: int, event: int, version: int, fields, is_sound: bool
) -> None:
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept()
    assert source.marker(0, 2) == []
    extras = struct.pack(">QIB", seqno, event, version)
    answers = source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, **fields)
    assert statuses(answers) == ([] if is_sound else [Status.EINVAL])
    assert node.vbucket(1).high_seqno == int(is_sound)


@rule("CON-24", "COL-20", "COL-21")
@pytest.mark.parametrize(
    ("seqno", "event", "version", "fields", "status"),
    [
        (1, 0, 0, SOUND, None),
        (0, 0, 0, SOUND, Status.ERANGE),
        (1, 0, 1, {"key": b"fruit", "value": SOUND["value"] + bytes(4)}, None),
        (1, 1, 1, {"value": SOUND["value"]}, None),
        (1, 1, 2, {"value": SOUND["value"]}, None),
        (1, 3, 1, {"key": b"s", "value": struct.pack(">QI", 1, 9)}, None),
        (1, 4, 1, {"value": struct.pack(">QI", 1, 9)}, None),
        (1, 0, 3, SOUND, Status.EINVAL),
        (1, 2, 0, SOUND, Status.EINVAL),
        (1, 5, 0, SOUND, Status.EINVAL),
        (1, 9, 0, SOUND, Status.EINVAL),
    ],
)
def test_system_events_without_flatbuffers(
    node: SimulatedNode, seqno: int, event: int, version: int, fields, status: Status | None
) -> None:
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept(refused=b"flatbuffers_system_events")
    assert source.marker(0, 2) == []
    extras = struct.pack(">QIB", seqno, event, version)
    answers = source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, **fields)
    assert statuses(answers) == ([] if status is None else [status])
    assert node.vbucket(1).high_seqno == int(status is None)


@rule("CON-24", "COL-21")
@pytest.mark.parametrize(
    ("event", "version", "key", "value"),
    [
        (0, 0, b"fruit", b"short"),
        (0, 0, b"fruit", SOUND["value"] + bytes(4)),
        (0, 1, b"fruit", SOUND["value"]),
        (0, 2, b"fruit", flatbuffer_of(FRUIT)),
        (1, 1, b"", SOUND["value"] + bytes(4)),
        (3, 0, b"s", SOUND["value"]),
        (4, 0, b"", SOUND["value"]),
    ],
)
def test_events_of_another_size_close(node: SimulatedNode, event: int, version: int, key: bytes, value: bytes) -> None:
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept(refused=b"flatbuffers_system_events")
    assert source.marker(1, 2) == []
    extras = struct.pack(">QIB", 1, event, version)
    assert source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, key=key, value=value) == []
    assert source.closed
    assert node.vbucket(1).high_seqno == 0


@rule("CON-24")
def test_system_events_need_no_collections(node: SimulatedNode) -> None:
    source = ScriptedProducer(node, features=WITHOUT_COLLECTIONS)
    source.accept(refused=b"flatbuffers_system_events")
    assert source.marker(1, 2) == []
    assert source.send(Opcode.DCP_SYSTEM_EVENT, extras=struct.pack(">QIB", 1, 0, 0), **SOUND) == []
    assert node.vbucket(1).high_seqno == 1


@rule("CON-25")
def test_a_vbucket_that_becomes_active_here_loses_its_stream(node: SimulatedNode, source: ScriptedProducer) -> None:
    source.snapshot(b"a", start=1)
    node.set_vbucket(1, ACTIVE)
    assert statuses(source.marker(2, 2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert statuses(source.mutation(b"b", 2)) == [Status.DCP_STREAM_NOT_FOUND]
    assert node.vbucket(1).high_seqno == 1


# -------------------------------------------------------------------------------------------------------------- keys

LONG = b"k" * 251


def with_two_collections(node: SimulatedNode) -> ScriptedProducer:
    """A source that has sent the collections 8 and 255, in a snapshot up to 9."""
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept(refused=b"flatbuffers_system_events")  # events of version 0 come
    assert source.marker(1, 9) == []
    for seqno, number in ((1, 8), (2, 255)):
        fields: dict[str, Any] = {"key": b"c", "value": struct.pack(">QII", seqno, 0, number)}
        assert source.send(Opcode.DCP_SYSTEM_EVENT, extras=struct.pack(">QIB", seqno, 0, 0), **fields) == []
    return source


@rule("COL-03", "COL-05", "COL-06", "HDR-16")
@pytest.mark.parametrize("kind", ["mutation", "prepare"])
@pytest.mark.parametrize(
    ("key", "is_sound"),
    [
        (b"\0" + LONG[:250], True),
        (b"\0" + LONG, False),
        (b"\x08" + LONG[:246], True),
        (b"\x08" + LONG[:247], False),
        (b"\xff\x01" + LONG[:246], True),
        (b"\xff\x01" + LONG[:247], False),
        (b"\0k", True),
        (b"\0", False),
        (b"\x80\x01", False),
        (b"\x80\x00k", False),
        (b"\xff\xff\xff\xff\xff\x01k", False),
        (b"\xff", False),
        *((bytes([number]) + b"k", number == 8) for number in range(1, 9)),
    ],
)
def test_keys_with_collections(node: SimulatedNode, kind: str, key: bytes, is_sound: bool) -> None:
    source = with_two_collections(node)
    if kind == "mutation":
        fields: dict[str, Any] = {"extras": struct.pack(">QQIIIHB", 3, 1, 0, 0, 0, 0, 0), "cas": 1}
        answers = source.send(Opcode.DCP_MUTATION, key=key, **fields)
    else:
        fields = {"extras": struct.pack(">QQIIIBBB", 3, 1, 0, 0, 0, 0, 0, 1), "cas": 1}
        answers = source.send(Opcode.DCP_PREPARE, key=key, **fields)
    assert statuses(answers) == ([] if is_sound else [Status.EINVAL])


@rule("COL-03")
@each_case("opcode", [Opcode.DCP_COMMIT, Opcode.DCP_ABORT])
@each_case(
    ("key", "is_closing"),
    [
        *((key, False) for key in (b"\0k", b"\0", b"\x08" + LONG[:247], b"\xff\x01" + LONG[:247])),
        *((key, True) for key in (b"\x01k", b"\x07k", b"\xff", b"\xff\xff\xff\xff\xff\x01k")),
    ],
)
def test_a_decision_names_a_collection_and_its_key_is_not_checked(opcode: Opcode, key: bytes, is_closing: bool) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = with_two_collections(node)
    answers = source.send(opcode, key=key, extras=struct.pack(">QQ", 3, 4))
    assert source.closed == is_closing
    missing = Status.EINVAL if opcode == Opcode.DCP_ABORT else Status.KEY_ENOENT
    assert statuses(answers) == ([] if is_closing else [missing])


@rule("HDR-16")
@pytest.mark.parametrize(("length", "expected"), [(250, []), (251, [Status.EINVAL])])
def test_keys_without_collections(source: ScriptedProducer, length: int, expected: list[int]) -> None:
    assert source.marker(1, 9) == []
    assert statuses(source.mutation(LONG[:length], 1)) == expected


# ---------------------------------------------------------------------------------------------- flow control, silence


@of_release("7.2", "8.0")
def test_bytes_are_acknowledged_at_a_fifth_of_the_buffer_or_after_five_seconds(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    source.accept()
    value = bytes(int(dict(controls_of(source))[b"connection_buffer_size"]) // 50)
    for seqno in range(1, 10):
        source.marker(seqno, seqno)
        source.mutation(b"k", seqno, value=value)
    assert of(source.peer.received, Opcode.DCP_BUFFER_ACK) == []
    source.marker(10, 10)
    (ack,) = source.mutation(b"k", 10, value=value)
    assert int.from_bytes(ack.extras, "big") == sum([44 + 24 + 31 + 1 + len(value)] * 10)
    source.snapshot(b"small", start=11)
    node.advance(4.9)
    assert source.peer.take() == []
    node.advance(0.2)
    (ack,) = source.peer.take()
    assert int.from_bytes(ack.extras, "big") == 44 + 24 + 31 + 5 + 1


@rule("CON-12")
def test_noops_are_answered_and_silence_ends_the_connection(node: SimulatedNode, source: ScriptedProducer) -> None:
    (answer,) = source.peer.send(Opcode.DCP_NOOP, opaque=0x81969800)
    assert (answer.opcode, answer.status, answer.opaque) == (Opcode.DCP_NOOP, 0, 0x81969800)
    node.advance(359)
    assert not source.closed
    node.advance(2)
    assert source.closed


@rule("CON-08")
def test_expirations_deletions_and_features(node: SimulatedNode) -> None:
    source = ScriptedProducer(node, features=(*USUAL_FEATURES, Feature.PRESERVE_TTL), flags=0x20)
    source.accept()
    assert source.marker(1, 4) == []
    assert source.mutation(b"a", 1) == []
    deletion: dict[str, Any] = {"key": b"\0a", "extras": struct.pack(">QQIB", 2, 2, 1234, 0), "cas": 7}
    assert source.send(Opcode.DCP_DELETION, **deletion) == []
    expiration: dict[str, Any] = {"key": b"\0b", "extras": struct.pack(">QQI", 3, 2, 4321), "cas": 8}
    assert source.send(Opcode.DCP_EXPIRATION, **expiration) == []
    assert statuses(source.send(Opcode.DCP_EXPIRATION, opaque=1, **expiration)) == [Status.OPAQUE_NO_MATCH]
    log = node.vbucket(1).log
    assert [(item.is_deleted, item.delete_time) for key in (b"\0a", b"\0b") if (item := log.get(key))] == [
        (True, 1234),
        (True, 4321),
    ]
