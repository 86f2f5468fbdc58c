"""ADD_STREAM: what a consumer answers at once, what it asks its producer, and what the flags do."""

from __future__ import annotations

import pytest

from dcpstream.model import MAX_SEQNO, FailoverLog
from dcpstream.wire import (
    Feature,
    Opcode,
    Status,
    StreamFlag,
    decode_frame,
    decode_message,
    encode_request,
    encode_response,
)
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation import (
    USUAL_FEATURES,
    WITHOUT_COLLECTIONS,
    PretendWire,
    ScriptedProducer,
    SimulatedNode,
)
from tests.kit.rules import of_release, rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA, of, opcodes

QUESTIONS = [Opcode.DCP_CONTROL, Opcode.GET_ERROR_MAP]
"""The requests of a consumer before its first STREAM_REQ. A 7.2 begins with both."""


def begun(release: str) -> list[Opcode]:
    """The requests with which a consumer begins."""
    return QUESTIONS if release == "7.2" else [Opcode.GET_ERROR_MAP]


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    for vbid in (1, 2):
        node.set_vbucket(vbid, REPLICA)
    return node


def requested(frame) -> StreamRequest:
    message = decode_message(frame)
    assert isinstance(message, StreamRequest)
    return message


# ------------------------------------------------------------------------------------------------------- the packets


@rule("ADD-01")
def test_the_published_request() -> None:
    example = bytes.fromhex("80510000040000050000000400000001000000000000000000000001")
    assert encode_request(Opcode.DCP_ADD_STREAM, vbid=5, opaque=1, extras=b"\0\0\0\1") == example
    frame = decode_frame(example)
    assert (frame.vbid, frame.opaque, frame.extras) == (5, 1, StreamFlag.TAKEOVER.to_bytes(4, "big"))


@rule("ADD-02", "ADD-14")
def test_the_published_answer() -> None:
    example = bytes.fromhex("81510000040000000000000400000001000000000000000000001000")
    assert encode_response(Opcode.DCP_ADD_STREAM, opaque=1, extras=b"\0\0\x10\0") == example
    frame = decode_frame(example)
    assert (frame.status, int.from_bytes(frame.extras, "big"), frame.value) == (0, 0x1000, b"")


@rule("ADD-03", "ADD-04", "ADD-05", "ADD-06")
@pytest.mark.parametrize(
    "fields", [{"extras": b""}, {"extras": bytes(8)}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}]
)
def test_what_is_malformed_is_invalid_and_asks_nothing(node: SimulatedNode, fields) -> None:
    source = ScriptedProducer(node)
    (answer,) = source.add(**{"extras": bytes(4), **fields})
    assert (answer.status, answer.extras) == (Status.EINVAL, b"")
    assert source.accept().status == Status.SUCCESS


@rule("ADD-08", "ADD-09")
@pytest.mark.parametrize("flags", [8, 9, 0x200, 0x80000000])
def test_flags_that_are_gone_or_unknown_are_invalid(node: SimulatedNode, flags: int) -> None:
    source = ScriptedProducer(node)
    assert [(frame.status, frame.extras) for frame in source.add(flags=flags)] == [(Status.EINVAL, b"")]
    assert source.accept().status == Status.SUCCESS


@rule("ADD-28")
@of_release("7.2", "8.0")
def test_a_stream_id_means_nothing(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    (request,) = source.negotiate(source.add(framing=b"\x22\0\1"))
    assert (request.opcode, request.framing, request.value) == (Opcode.DCP_STREAM_REQ, b"", b"")


@rule("ADD-08")
def test_the_flag_that_is_gone_is_refused_by_name(node: SimulatedNode) -> None:
    (answer,) = ScriptedProducer(node).add(flags=8)
    assert b"no longer used" in answer.value


@rule("ADD-10")
@pytest.mark.parametrize("flags", [0x100, 0x101, 0x110, 0x111, 0x102, 0x104, 0x120])
def test_cache_transfer_came_later(node: SimulatedNode, flags: int) -> None:
    assert [frame.status for frame in ScriptedProducer(node).add(2, flags)] == [Status.EINVAL]


@rule("ADD-42")
def test_the_cas_is_not_looked_at(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    (request,) = source.negotiate(source.add(cas=77))
    assert request.opcode == Opcode.DCP_STREAM_REQ


# ------------------------------------------------------------------------------------------------------ the handshake


@rule("ADD-07")
@pytest.mark.parametrize("flags", [0, 0x01, 0x02, 0x04, 0x10, 0x20, 0x80, 0x37, 0xB7])
def test_flags_are_passed_on_unchanged(node: SimulatedNode, flags: int) -> None:
    assert requested(ScriptedProducer(node).request(1, flags)).flags == flags


@rule("ADD-11", "ADD-12", "ADD-13")
def test_one_request_with_an_opaque_of_its_own_and_the_answer_after_its_answer(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    request = source.request(opaque=0x51)
    assert request.vbid == 1
    assert request.opaque != 0x51
    assert of(source.peer.received, Opcode.DCP_ADD_STREAM) == []
    assert len(of(source.peer.received, Opcode.DCP_STREAM_REQ)) == 1
    (answer,) = source.peer.answer(request, value=encode_failover_log(FailoverLog.of((7, 0))))
    assert answer.opaque == 0x51
    # The server writes its counter in its own byte order into headers, and in network order into this answer.
    assert answer.extras == request.opaque.to_bytes(4, "little")
    assert source.marker(1, 1) == []
    assert [frame.status for frame in source.marker(2, 2, opaque=0x51)] == [Status.OPAQUE_NO_MATCH]


@rule("ADD-15", "ADD-16")
def test_a_second_one_for_the_vbucket_exists_already(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    request = source.request()
    assert [(frame.status, frame.extras) for frame in source.add(opaque=2)] == [(Status.KEY_EEXISTS, b"")]
    source.peer.answer(request, value=encode_failover_log(FailoverLog.of((7, 0))))
    assert [frame.status for frame in source.add(opaque=3)] == [Status.KEY_EEXISTS]
    source.snapshot(b"a", b"b", start=1)
    assert node.vbucket(1).high_seqno == 2


@rule("ADD-17")
def test_another_connection_has_it_already(node: SimulatedNode) -> None:
    first, second = ScriptedProducer(node, b"first"), ScriptedProducer(node, b"second")
    first.accept(1)
    assert [frame.status for frame in second.add(1)] == [Status.KEY_EEXISTS]
    assert second.accept(2).status == Status.SUCCESS


@rule("ADD-18", "ADD-21")
@pytest.mark.parametrize(
    "status",
    [
        Status.KEY_EEXISTS,
        Status.NOT_MY_VBUCKET,
        Status.ERANGE,
        Status.EINVAL,
        Status.TMPFAIL,
        Status.NOT_SUPPORTED,
        Status.UNKNOWN_COLLECTION,
    ],
)
def test_a_refusal_of_the_producer_is_passed_on(node: SimulatedNode, status: Status) -> None:
    source = ScriptedProducer(node)
    request = source.request()
    (answer,) = source.peer.answer(request, status=status)
    assert (answer.opcode, answer.status, answer.opaque) == (Opcode.DCP_ADD_STREAM, status, 0x51)
    assert answer.extras == request.opaque.to_bytes(4, "little")
    assert source.marker(1, 1) == []  # the stream is dead: what comes for it is swallowed
    assert source.mutation(b"k", 1) == []
    assert node.vbucket(1).high_seqno == 0
    assert source.accept().status == Status.SUCCESS


@rule("ADD-19")
@pytest.mark.parametrize("vbid", [3, 4, 1023])
def test_a_vbucket_that_is_not_here(node: SimulatedNode, vbid: int) -> None:
    node.delete_vbucket(3)
    source = ScriptedProducer(node)
    answers = source.add(vbid)
    assert [(frame.opcode, frame.status, frame.extras) for frame in answers] == [
        (Opcode.DCP_ADD_STREAM, Status.NOT_MY_VBUCKET, b"")
    ]


@rule("ADD-20")
@pytest.mark.parametrize("state", [ACTIVE, REPLICA, PENDING, DEAD])
def test_roles_that_may_be_streamed_into(node: SimulatedNode, state: int) -> None:
    node.set_vbucket(1, state)
    source = ScriptedProducer(node)
    frames = source.negotiate(source.add())
    if state == ACTIVE:
        assert [frame.status for frame in frames] == [Status.NOT_MY_VBUCKET]
    else:
        assert opcodes(frames) == [Opcode.DCP_STREAM_REQ]


@rule("ADD-22")
def test_a_rollback_is_carried_out_before_the_answer(node: SimulatedNode) -> None:
    source = ScriptedProducer(node, b"one")
    source.accept()
    source.snapshot(
        *[b"k%d" % number for number in range(8)], start=1
    )  # more than goes: a server may drop the rest too
    node.flush()
    source.snapshot(b"c", b"d", start=9)
    source.peer.disconnect()
    again = ScriptedProducer(node, b"two")
    request = again.request()
    assert requested(request).start_seqno == 10
    (second,) = again.peer.answer(request, status=Status.ROLLBACK, value=(8).to_bytes(8, "big"))
    assert (second.opcode, second.opaque) == (Opcode.DCP_STREAM_REQ, request.opaque)
    assert (requested(second).start_seqno, requested(second).snapshot_end) == (8, 8)
    assert node.vbucket(1).high_seqno == 8
    (answer,) = again.peer.answer(second, value=encode_failover_log(FailoverLog.of((9, 0))))
    assert (answer.opcode, answer.status) == (Opcode.DCP_ADD_STREAM, Status.SUCCESS)


@rule("ADD-23")
@of_release("7.2", "8.0")
def test_refusals_at_once_have_no_extras_also_while_controls_are_under_way(node: SimulatedNode, release: str) -> None:
    source = ScriptedProducer(node)
    asked = source.add(1)
    assert opcodes(asked) == begun(release)
    for vbid, status in ((1, Status.KEY_EEXISTS), (3, Status.NOT_MY_VBUCKET)):
        answers = source.add(vbid, opaque=0x60 + vbid)
        assert [(frame.status, frame.extras) for frame in answers] == [(status, b"")]
    assert opcodes(source.negotiate(asked)) == [Opcode.DCP_STREAM_REQ]


@rule("ADD-24")
def test_a_producer_drops_the_connection(node: SimulatedNode) -> None:
    peer = node.producer()
    assert peer.send(Opcode.DCP_ADD_STREAM, vbid=1, extras=bytes(4)) == []
    assert peer.closed


@rule("ADD-25")
def test_a_producer_says_first_that_a_consumer_streams_the_vbucket(node: SimulatedNode) -> None:
    ScriptedProducer(node).accept(1)
    peer = node.producer()
    assert peer.call(Opcode.DCP_ADD_STREAM, vbid=1, extras=bytes(4)).status == Status.KEY_EEXISTS
    assert not peer.closed


@rule("ADD-26")
def test_a_name_taken_over_answers_nothing(node: SimulatedNode) -> None:
    older = ScriptedProducer(node, b"same")
    ScriptedProducer(node, b"same")
    assert older.add() == []
    assert older.closed


@rule("ADD-27")
def test_before_dcp_open(node: SimulatedNode) -> None:
    peer = node.connect()
    assert peer.call(Opcode.DCP_ADD_STREAM, vbid=1, extras=bytes(4)).status == Status.EINVAL
    assert not peer.closed


@rule("ADD-29")
@of_release("7.2", "8.0")
def test_nothing_is_said_before_the_first_one(node: SimulatedNode, release: str) -> None:
    source = ScriptedProducer(node)
    node.advance(600)
    source.peer.session.dcp.handle_timeout(node.now)  # nobody asked for it
    node.pump()
    assert source.peer.take() == []
    assert not source.closed
    assert opcodes(source.add()) == begun(release)


@rule("ADD-30")
@of_release("7.2", "8.0")
def test_controls_one_at_a_time_and_then_the_requests_in_order(node: SimulatedNode, release: str) -> None:
    source = ScriptedProducer(node)
    waiting = [*source.add(2), *source.add(1, opaque=0x52)]
    assert opcodes(waiting) == begun(release)
    asked = 0
    while waiting and waiting[0].opcode in QUESTIONS:
        came = source.peer.answer(waiting.pop(0))
        asked += 1
        assert waiting or len(came) == (8 if asked == 2 and release == "7.2" else 1) or asked >= 13
        waiting += came
    assert asked == {"7.2": 13, "8.0": 14}[release]
    assert [(frame.opcode, frame.vbid) for frame in waiting] == [
        (Opcode.DCP_STREAM_REQ, 2),
        (Opcode.DCP_STREAM_REQ, 1),
    ]


@rule("ADD-31")
@pytest.mark.parametrize("how", ["closed", "ended"])
def test_after_its_end_the_vbucket_can_be_added_again(node: SimulatedNode, how: str) -> None:
    source = ScriptedProducer(node)
    first = source.accept()
    if how == "closed":
        assert [frame.status for frame in source.send(Opcode.DCP_CLOSE_STREAM)] == [Status.SUCCESS]
    else:
        assert source.end() == []
    second = source.accept(opaque=0x52)
    assert second.extras != first.extras


@rule("ADD-32")
def test_two_vbuckets_are_answered_in_the_order_of_the_producer(node: SimulatedNode) -> None:
    source = ScriptedProducer(node)
    first = source.request(1, opaque=0x61)
    second = source.request(2, opaque=0x62)
    assert first.opaque != second.opaque
    log = encode_failover_log(FailoverLog.of((7, 0)))
    answers = [*source.peer.answer(second, value=log), *source.peer.answer(first, status=Status.ERANGE)]
    assert [(frame.opaque, frame.status) for frame in answers] == [(0x62, 0), (0x61, Status.ERANGE)]


@rule("ADD-40")
@pytest.mark.parametrize("features", [USUAL_FEATURES, WITHOUT_COLLECTIONS])
def test_what_an_empty_copy_asks_for(node: SimulatedNode, features) -> None:
    request = requested(ScriptedProducer(node, features=features).request())
    assert (request.start_seqno, request.end_seqno, request.vbuuid) == (0, MAX_SEQNO, 0)
    assert request.value == b""  # as recorded: there is no manifest yet


@rule("ADD-40", "ADD-41")
def test_what_a_copy_with_data_asks_for(node: SimulatedNode) -> None:
    source = ScriptedProducer(node, b"one")
    source.accept(log=FailoverLog.of((0x22, 1), (0x11, 0)))
    source.snapshot(b"a", b"b", start=1)
    source.peer.disconnect()
    whole = requested(ScriptedProducer(node, b"two").request())
    assert (whole.start_seqno, whole.snapshot_start, whole.snapshot_end, whole.vbuuid) == (2, 2, 2, 0x22)


@rule("ADD-41")
def test_what_a_copy_in_the_middle_of_a_snapshot_asks_for(node: SimulatedNode) -> None:
    source = ScriptedProducer(node, b"one")
    source.accept()
    source.snapshot(b"a", b"b", start=1)
    assert source.marker(3, 6, 5) == []
    assert source.mutation(b"c", 3) == []
    assert source.mutation(b"d", 4) == []
    source.peer.disconnect()
    request = requested(ScriptedProducer(node, b"two").request())
    assert (request.start_seqno, request.snapshot_start, request.snapshot_end) == (4, 3, 6)


@rule("ADD-43")
def test_it_needs_the_privilege_of_a_producer(node: SimulatedNode) -> None:
    source = ScriptedProducer(node, user="consumer")
    assert [frame.status for frame in source.add()] == [Status.EACCESS]
    assert not source.closed
    without_xerror = tuple(code for code in WITHOUT_COLLECTIONS if code != Feature.XERROR)
    dropped = ScriptedProducer(node, b"other", user="consumer", features=without_xerror)
    assert dropped.add() == []
    assert dropped.closed


# ----------------------------------------------------------------------------------- what the flags do at the source


def filled(path=None) -> SimulatedNode:
    node = SimulatedNode(path=path)
    node.fill(1, 5)
    return node


def copy() -> SimulatedNode:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    return node


@rule("ADD-33")
def test_takeover_hands_the_vbucket_over() -> None:
    old, new = filled(), copy()
    link = PretendWire(old, new)
    link.add_stream(1, StreamFlag.TAKEOVER)
    link.run()
    assert (old.vbucket(1).state, new.vbucket(1).state) == (DEAD, ACTIVE)
    assert [frame.extras for frame in link.sent("old", Opcode.DCP_SET_VBUCKET_STATE)] == [b"\3", b"\1"]
    assert new.vbucket(1).high_seqno == 5


@rule("ADD-34")
def test_disk_only_sends_what_is_persisted(tmp_path) -> None:
    old, new = filled(tmp_path), copy()
    old.flush()
    old.set_doc(1, "late")
    link = PretendWire(old, new)
    link.add_stream(1, StreamFlag.DISK_ONLY)
    link.run()
    assert new.vbucket(1).high_seqno == 5
    assert [frame.extras for frame in link.sent("old", Opcode.DCP_STREAM_END)] == [bytes(4)]


@rule("ADD-35")
def test_to_latest_ends_at_the_present_high_seqno() -> None:
    old, new = filled(), copy()
    link = PretendWire(old, new)
    link.add_stream(1, StreamFlag.TO_LATEST)
    link.run()
    assert new.vbucket(1).high_seqno == 5
    assert [frame.extras for frame in link.sent("old", Opcode.DCP_STREAM_END)] == [bytes(4)]


@rule("ADD-36")
def test_active_only_does_not_stream_from_a_copy() -> None:
    old, new = filled(), copy()
    old.set_vbucket(1, REPLICA)
    link = PretendWire(old, new)
    link.add_stream(1, StreamFlag.ACTIVE_ONLY)
    link.run()
    assert [frame.status for frame in link.answers] == [Status.NOT_MY_VBUCKET]


@rule("ADD-37")
def test_strict_vbuuid_looks_at_the_branch_also_at_0() -> None:
    old = filled()
    peer = old.producer()
    strict = StreamFlag.STRICT_VBUUID
    answer = peer.stream(1, vbuuid=0xBAD, flags=strict)[0]
    assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(8))
    assert peer.stream(1, vbuuid=0, flags=strict)[0].status == Status.SUCCESS
    peer.close_stream(1)
    assert peer.stream(1, vbuuid=old.vbucket(1).vbuuid, flags=strict)[0].status == Status.SUCCESS


@rule("ADD-38")
@of_release("7.2")
def test_from_latest_came_later() -> None:
    (answer,) = filled().producer().stream(1, 2, vbuuid=0, flags=StreamFlag.FROM_LATEST)
    assert answer.status == Status.EINVAL
    assert [frame.status for frame in ScriptedProducer(copy()).add(1, StreamFlag.FROM_LATEST)] == [Status.EINVAL]


@rule("ADD-39")
def test_ignoring_purged_tombstones_excuses_nothing_else() -> None:
    old = filled()
    old.delete_doc(1, "k0")
    old.set_doc(1, "k5")
    old.vbucket(1).log.set_purge_seqno(6)
    peer = old.producer()
    flags = StreamFlag.IGNORE_PURGED_TOMBSTONES
    assert peer.stream(1, 3)[0].status == Status.ROLLBACK
    assert peer.stream(1, 3, vbuuid=0xBAD, flags=flags)[0].status == Status.ROLLBACK
    assert peer.stream(1, 3, flags=flags)[0].status == Status.SUCCESS
