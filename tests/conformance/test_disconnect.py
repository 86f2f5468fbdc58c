"""Rules of ending connections, and of what does not end them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dcpstream.wire import Opcode, OpenFlag, Status, encode_response
from dcpstream.wire.keys import encode_frame_info
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import REPLICA, WITHOUT_XERROR, dcp_names, of, opcodes

TO_A_PRODUCER: dict[str, tuple[int, dict[str, Any]]] = {
    "add stream": (Opcode.DCP_ADD_STREAM, {"extras": bytes(4)}),
    "stream end": (Opcode.DCP_STREAM_END, {"extras": bytes(4)}),
    "marker": (Opcode.DCP_SNAPSHOT_MARKER, {"extras": bytes(20)}),
    "mutation": (Opcode.DCP_MUTATION, {"extras": bytes(7) + b"\1" + bytes(23), "key": b"\0k"}),
    "deletion": (Opcode.DCP_DELETION, {"extras": bytes(7) + b"\1" + bytes(13), "key": b"\0k"}),
    "expiration": (Opcode.DCP_EXPIRATION, {"extras": bytes(7) + b"\1" + bytes(12), "key": b"\0k"}),
    "state": (Opcode.DCP_SET_VBUCKET_STATE, {"extras": b"\1"}),
    "system event": (Opcode.DCP_SYSTEM_EVENT, {"extras": bytes(7) + b"\1" + bytes(5), "value": bytes(16)}),
    "prepare": (Opcode.DCP_PREPARE, {"extras": bytes(7) + b"\1" + bytes(22) + b"\1", "key": b"\0k", "cas": 1}),
    "commit": (Opcode.DCP_COMMIT, {"extras": bytes(7) + b"\1" + bytes(7) + b"\2", "key": b"\0k"}),
    "abort": (Opcode.DCP_ABORT, {"extras": bytes(7) + b"\1" + bytes(7) + b"\2", "key": b"\0k"}),
    "noop": (Opcode.DCP_NOOP, {}),
}
TO_A_CONSUMER: dict[str, tuple[int, dict[str, Any]]] = {
    "stream request": (Opcode.DCP_STREAM_REQ, {"extras": bytes(48)}),
    "failover log": (Opcode.DCP_GET_FAILOVER_LOG, {}),
    "control": (Opcode.DCP_CONTROL, {"key": b"enable_noop", "value": b"true"}),
    "ack": (Opcode.DCP_BUFFER_ACK, {"extras": bytes(4)}),
    "seqno acknowledged": (Opcode.DCP_SEQNO_ACKNOWLEDGED, {"extras": bytes(8)}),
}
STREAM_MESSAGES = (0x57, 0x58, 0x59, 0x5F, 0x60, 0x62, 0x63)
SETTINGS = b"ep.so\0dbname=db/b2;max_vbuckets=64"
CACHE_MESSAGES = (Opcode.DCP_CACHE_TRANSFER, Opcode.DCP_CACHE_TRANSFER_END)
ALWAYS_FINE = (Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH)
OLDER_CODES = (Status.KEY_EEXISTS, Status.KEY_ENOENT)
NEVER_FINE = (
    Status.EINVAL,
    Status.ERANGE,
    Status.TMPFAIL,
    Status.UNKNOWN_COMMAND,
    Status.EACCESS,
    Status.UNKNOWN_COLLECTION,
)


def answered(node: SimulatedNode, opcode: int, statuses: Iterable[int], *, has_v7_codes: bool = False) -> list[bool]:
    """True if a producer drops clients of which each answers with one of these statuses."""
    controls = [(b"v7_dcp_status_codes", b"true")] if has_v7_codes else []
    peers = []
    for status in statuses:
        peer = node.producer(b"reader-%d" % status, controls=controls)
        peer.stream(1)
        assert peer.send_bytes(encode_response(opcode, status=status, opaque=0x77)) == []
        peers.append(peer)
    node.advance(0)
    return [peer.closed for peer in peers]


@rule("DIS-01")
def test_a_drop_is_without_a_last_word() -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    peer = node.producer(controls=[(b"send_stream_end_on_client_close_stream", b"true")])
    assert len(of(peer.stream(1), Opcode.DCP_MUTATION)) == 5
    peer.stream(2, opaque=2)
    assert peer.send(Opcode.DCP_NOOP) == []
    assert peer.closed
    displaced = node.producer(b"same")
    displaced.stream(1)
    node.producer(b"same")
    assert displaced.closed
    assert displaced.take() == []


@rule("DIS-02")
@each_case("name", TO_A_CONSUMER)
def test_a_consumer_takes_no_command_of_producers(name: str) -> None:
    opcode, fields = TO_A_CONSUMER[name]
    peer = SimulatedNode().consumer()
    assert peer.send(opcode, vbid=1, **fields) == []
    assert peer.closed


@rule("DIS-03")
@each_case("name", TO_A_PRODUCER)
def test_a_producer_takes_no_command_of_consumers(name: str) -> None:
    opcode, fields = TO_A_PRODUCER[name]
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
    peer = SimulatedNode().producer(flags=flags)
    assert peer.send(opcode, vbid=1, **fields) == []
    assert peer.closed


@rule("DIS-03")
@each_case("opcode", [0x66, 0x67])
def test_cache_transfer_is_unknown_to_a_producer(opcode: int) -> None:
    peer = SimulatedNode().producer()
    assert peer.call(opcode).status == Status.UNKNOWN_COMMAND
    assert not peer.closed


@rule("DIS-04")
def test_both_kinds_take_close_stream() -> None:
    node = SimulatedNode()
    producer, consumer = node.producer(), node.consumer()
    for peer in (producer, consumer):
        assert peer.close_stream(3)[0].status == Status.KEY_ENOENT
        assert not peer.closed
    producer.stream(1)
    assert producer.close_stream(1)[0].status == Status.SUCCESS
    assert not producer.closed


@rule("DIS-05")
@each_case("flags", [0, 1])
def test_a_displaced_connection_is_gone_before_its_next_command(flags: int) -> None:
    node = SimulatedNode()
    older = node.connect()
    older.dcp_open(b"same", 1)
    node.connect().dcp_open(b"same", flags)
    before = len(older.received)
    assert older.send(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true") == []
    assert older.closed
    assert len(older.received) == before


@rule("DIS-05")
def test_a_displaced_connection_that_does_not_read_sends_nothing_more() -> None:
    node = SimulatedNode()
    older = node.producer(b"same")
    older.stream(1)
    older.is_reading = False
    node.set_doc(1, "k")
    node.producer(b"same")
    older.is_reading = True
    node.pump()
    assert older.closed
    assert of(older.take(), Opcode.DCP_MUTATION) == []


@rule("DIS-06")
@each_case("opcode", STREAM_MESSAGES)
def test_answers_that_a_producer_lives_with(node: SimulatedNode, opcode: int) -> None:
    assert not any(answered(node, opcode, [*ALWAYS_FINE, Status.KEY_EEXISTS]))
    assert all(answered(node, opcode, NEVER_FINE))
    is_commit = opcode in (Opcode.DCP_COMMIT, Opcode.DCP_ABORT)
    assert answered(node, opcode, [Status.KEY_ENOENT]) == [is_commit]


@rule("DIS-07")
@each_case("opcode", STREAM_MESSAGES)
def test_with_codes_of_its_own_the_older_ones_drop(node: SimulatedNode, opcode: int) -> None:
    assert all(answered(node, opcode, OLDER_CODES, has_v7_codes=True))
    assert not any(answered(node, opcode, ALWAYS_FINE, has_v7_codes=True))


@rule("DIS-08")
@each_case("opcode", STREAM_MESSAGES)
def test_success_need_not_be_answered_but_may(opcode: int) -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    peer = node.producer()
    for frame in peer.stream(1):
        if frame.is_request:
            assert peer.answer(frame) == []
    peer.send_bytes(encode_response(opcode, opaque=0x77))
    assert not peer.closed
    node.set_doc(1, "more")
    assert Opcode.DCP_MUTATION in opcodes(peer.take())


@rule("DIS-06", "DIS-08")
@of_release("7.2", "8.0")
@each_case("opcode", CACHE_MESSAGES)
def test_answers_to_messages_of_later_releases_drop(node: SimulatedNode, opcode: int) -> None:
    assert all(answered(node, opcode, [Status.SUCCESS, Status.ENOMEM, Status.NOT_MY_VBUCKET]))


@rule("DIS-06", "DIS-07", "DIS-09")
@of_release("8.5")
def test_answers_to_cache_transfer(node: SimulatedNode) -> None:
    for opcode in CACHE_MESSAGES:
        assert not any(answered(node, opcode, ALWAYS_FINE))
        assert all(answered(node, opcode, NEVER_FINE))
        assert all(answered(node, opcode, OLDER_CODES, has_v7_codes=True))
    for has_v7_codes in (False, True):
        values, end = (answered(node, opcode, [Status.ENOMEM], has_v7_codes=has_v7_codes) for opcode in CACHE_MESSAGES)
        assert (values, end) == ([False], [True])


@rule("DIS-09")
def test_no_memory_for_documents_is_a_reason_to_part(node: SimulatedNode) -> None:
    assert answered(node, Opcode.DCP_MUTATION, [Status.ENOMEM]) == [True]


def trigger(peer: Peer, status: int) -> list[int]:
    """Do what this status answers; the statuses that come."""
    if status in (Status.EACCESS, Status.NO_BUCKET):
        frames = peer.send(Opcode.DCP_OPEN, key=b"n", extras=bytes(8))
    elif status == Status.DCP_STREAMID_INVALID:
        peer.dcp_open(b"n", 1)
        frames = peer.close_stream(1, framing=b"\x22\0\1")
    else:
        framing = encode_frame_info(1, b"\1" if status == Status.DURABILITY_IMPOSSIBLE else b"\7")
        frames = peer.send(Opcode.SET, vbid=1, framing=framing, key=b"\0k", extras=bytes(8), value=b"v")
    return [frame.status for frame in frames]


@rule("DIS-10")
@each_case(
    ("status", "user", "bucket"),
    [
        (Status.EACCESS, "writer", "default"),
        (Status.NO_BUCKET, "admin", None),
        (Status.DCP_STREAMID_INVALID, "admin", "default"),
        (Status.DURABILITY_IMPOSSIBLE, "admin", "default"),
    ],
)
def test_what_came_with_xerror_is_a_drop_without_it(status: int, user: str, bucket: str | None) -> None:
    node = SimulatedNode()
    peer = node.connect(user=user, bucket=bucket, features=USUAL_FEATURES)
    assert trigger(peer, status) == [status]
    assert not peer.closed
    plain = node.connect(user=user, bucket=bucket, features=WITHOUT_XERROR)
    assert trigger(plain, status) == []
    assert plain.closed


@rule("DIS-10")
def test_what_is_wrong_before_anything_is_done_needs_no_xerror() -> None:
    peer = SimulatedNode().connect(features=WITHOUT_XERROR)
    assert trigger(peer, Status.DURABILITY_INVALID_LEVEL) == [Status.DURABILITY_INVALID_LEVEL]
    assert not peer.closed


@rule("DIS-10")
def test_older_statuses_are_sent_without_xerror() -> None:
    peer = SimulatedNode().producer(features=WITHOUT_XERROR)
    assert peer.control(b"bogus", b"x").status == Status.EINVAL
    assert peer.stream(99)[0].status == Status.NOT_MY_VBUCKET
    assert peer.close_stream(1)[0].status == Status.KEY_ENOENT
    assert peer.control(b"stream_buffer_size", b"1").status == Status.NOT_SUPPORTED
    assert not peer.closed


@rule("DIS-11")
def test_closing_the_socket_releases_everything() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    peer = node.producer(b"gone")
    peer.stream(1)
    peer.stream(2, opaque=2)
    assert node.stats("dcp")["ep_dcp_count"] == "1"
    peer.disconnect()
    for _ in range(30):
        node.advance(0.1)
        if not dcp_names(node):
            break
    stats = node.stats("dcp")
    assert stats["ep_dcp_count"] == "0"
    assert not [name for name in stats if name.startswith("eq_dcpq:")]
    node.set_doc(1, "later")
    again = node.producer(b"gone")
    assert len(of(again.stream(1), Opcode.DCP_MUTATION)) == 4
    assert not again.closed


@rule("DIS-12")
def test_deleting_the_bucket_closes_its_connections() -> None:
    node = SimulatedNode()
    node.host_buckets()
    elsewhere = node.connect(bucket=None)
    assert elsewhere.call(Opcode.CREATE_BUCKET, key=b"b2", value=SETTINGS).status == 0
    idle, producer, consumer = (node.connect(bucket="b2") for _ in range(3))
    assert idle.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\1").status == 0
    assert (producer.dcp_open(b"reader", 1).status, consumer.dcp_open(b"source", 0).status) == (0, 0)
    assert producer.control(b"enable_noop", b"true").status == 0
    assert producer.stream(1)[0].status == 0
    before = [len(peer.received) for peer in (producer, consumer, idle)]
    assert elsewhere.call(Opcode.DELETE_BUCKET, key=b"b2").status == 0
    assert all(peer.closed for peer in (producer, consumer, idle))
    assert [len(peer.received) for peer in (producer, consumer, idle)] == before, "without a word"
    assert not elsewhere.closed
    assert elsewhere.call(Opcode.SELECT_BUCKET, key=b"b2").status != 0


@rule("DIS-13")
def test_a_fault_of_one_stream_leaves_the_others() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    peer = node.producer()
    assert len(of(peer.stream(1, opaque=1), Opcode.DCP_MUTATION)) == 2
    vbuuid = node.vbucket(2).vbuuid
    answers = [
        (peer.stream(1, opaque=2)[0], Status.KEY_EEXISTS),
        (peer.stream(99, opaque=3)[0], Status.NOT_MY_VBUCKET),
        (peer.stream(2, start=9, end=5, vbuuid=vbuuid, opaque=4)[0], Status.ERANGE),
        (peer.stream(2, start=9, vbuuid=vbuuid, opaque=5)[0], Status.ROLLBACK),
        (peer.close_stream(3)[0], Status.KEY_ENOENT),
    ]
    for frame, status in answers:
        assert frame.status == status
    node.set_vbucket(2, REPLICA)
    node.set_doc(1, "after")
    assert [frame.opaque for frame in of(peer.take(), Opcode.DCP_MUTATION)] == [1]
    assert not peer.closed


@rule("DIS-12")
@of_release("7.2", "8.0")
def test_a_manager_makes_and_deletes_a_bucket(release: str) -> None:
    node = SimulatedNode()
    node.host_buckets()
    manager = node.connect(user="@admin", bucket=None)
    assert manager.call(Opcode.CREATE_BUCKET, key=b"b2", value=b"memcached.so\0").status == Status.EINVAL
    assert manager.call(Opcode.DELETE_BUCKET, key=b"b2").status == Status.KEY_ENOENT
    assert manager.call(Opcode.CREATE_BUCKET, key=b"b2", value=SETTINGS).status == 0
    assert manager.call(Opcode.CREATE_BUCKET, key=b"b2", value=SETTINGS).status == Status.KEY_EEXISTS
    user = node.connect(bucket="b2")
    assert user.call(Opcode.GET_VBUCKET, vbid=0).status == Status.NOT_MY_VBUCKET, "it begins without vbuckets"
    assert user.call(Opcode.SET_VBUCKET, vbid=64, extras=b"\1").status == Status.ERANGE
    assert user.call(Opcode.SET_VBUCKET, vbid=63, extras=b"\1").status == 0
    reader = node.connect(bucket="b2")
    assert reader.dcp_open().status == 0
    options = b"force=false" if release == "7.2" else b'{"force":false}'
    assert manager.call(Opcode.DELETE_BUCKET, key=b"b2", value=options).status == 0
    assert user.closed
    assert reader.closed
    assert not manager.closed
    assert manager.call(Opcode.SELECT_BUCKET, key=b"b2").status == Status.KEY_ENOENT
    plain = node.connect(user="producer", bucket=None)
    assert plain.call(Opcode.DELETE_BUCKET, key=b"default").status == Status.EACCESS


@rule("DIS-12")
def test_settings_with_which_no_bucket_can_be_made() -> None:
    node = SimulatedNode()
    node.host_buckets()
    for count in (b"0", b"x"):
        value = b"ep.so\0dbname=db/b2;max_vbuckets=" + count
        assert node.admin.call(Opcode.CREATE_BUCKET, key=b"b2", value=value).status == Status.NOT_STORED


@rule("DIS-12")
def test_without_a_host_no_bucket_is_made_or_deleted() -> None:
    node = SimulatedNode()
    assert node.engine.bucket_host is None
    assert node.admin.call(Opcode.CREATE_BUCKET, key=b"b2", value=SETTINGS).status == Status.NOT_SUPPORTED
    assert node.admin.call(Opcode.DELETE_BUCKET, key=b"b2").status == Status.NOT_SUPPORTED
