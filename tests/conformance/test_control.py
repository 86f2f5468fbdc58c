"""Rules of DCP_CONTROL."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.dcp.controls import ProducerSettings, apply_control
from dcpstream.errors import RemoteProtocolError
from dcpstream.wire import Datatype, Feature, Frame, Opcode, OpenFlag, Status, encode_request, encode_response
from dcpstream.wire.release import RELEASES
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.client_machines import client_of_streams, ready_connection
from tests.kit.fake_node import FakeNode
from tests.kit.rules import of_release, rule
from tests.kit.streams import of, opcodes

OK, EINVAL, NOT_SUPPORTED = Status.SUCCESS, Status.EINVAL, Status.NOT_SUPPORTED
NO_SNAPPY = tuple(feature for feature in USUAL_FEATURES if feature != Feature.SNAPPY)
SWITCHES = {
    b"enable_noop": "noop_enabled",
    b"force_value_compression": "force_value_compression",
    b"supports_cursor_dropping": "cursor_dropping",
    b"supports_cursor_dropping_vulcan": "cursor_dropping",
    b"enable_expiry_opcode": "enable_expiry_opcode",
}


def setting(node: SimulatedNode, name: str) -> str:
    """The stats of the connection `reader`."""
    stats = node.stats("dcp")
    if name == "max_buffer_bytes" and stats["eq_dcpq:reader:flow_control"] == "disabled":
        return "0"  # without a limit there is no such name
    return stats[f"eq_dcpq:reader:{name}"]


@rule("CTL-01")
@each_case(
    "fields",
    [
        {"key": b"", "value": b"true"},
        {"key": b"enable_noop", "value": b""},
        {"key": b"", "value": b""},
        {"key": b"enable_noop", "value": b"true", "extras": bytes(4)},
        {"key": b"enable_noop", "value": b"true", "extras": b"x"},
    ],
)
def test_key_and_value_and_nothing_else(fields: dict[str, Any]) -> None:
    node = SimulatedNode()
    peer = node.connect()
    peer.dcp_open()
    assert peer.call(Opcode.DCP_CONTROL, **fields).status == EINVAL
    assert setting(node, "noop_enabled") == "false"
    assert peer.control(b"enable_noop", b"true").status == OK


@rule("CTL-02", "CTL-03")
def test_the_bytes_of_enable_noop() -> None:
    data = bytes.fromhex("80 5e 000b 00 00 0005 0000000f 00000010 0000000000000000") + b"enable_nooptrue"
    assert encode_request(Opcode.DCP_CONTROL, vbid=5, opaque=16, key=b"enable_noop", value=b"true") == data
    node = SimulatedNode()
    peer = node.connect()
    peer.dcp_open()
    (answer,) = peer.send_bytes(data)
    assert answer.encode() == bytes.fromhex("81 5e 0000 00 00 0000 00000000 00000010 0000000000000000")
    assert setting(node, "noop_enabled") == "true"


@rule("CTL-04")
@each_case(
    "key", [b"bogus", b"set_window", b"include_xattrs", b"enable_ext_metadata", b"enable_noopx", b"\xff\0", b"k" * 250]
)
def test_an_unknown_key_is_invalid(key: bytes) -> None:
    peer = SimulatedNode().producer()
    assert peer.control(key, b"true").status == EINVAL
    assert not peer.closed
    assert peer.control(b"enable_noop", b"true").status == OK


@rule("CTL-05", "CTL-30")
@each_case("key", SWITCHES)
@each_case("value", [b"false", b"0", b"TRUE", b"True", b"true ", b"xyz", b"\0", b"1"])
def test_a_switch_takes_any_text_and_only_true_means_on(key: bytes, value: bytes) -> None:
    node = SimulatedNode()
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
    peer = node.producer(flags=flags)
    assert peer.control(key, b"true").status == OK
    assert setting(node, SWITCHES[key]) == "true"
    assert peer.control(key, value).status == OK
    assert setting(node, SWITCHES[key]) == "false"


@rule("CTL-05")
@each_case(
    ("key", "value"),
    [
        (b"connection_buffer_size", b"abc"),
        (b"set_noop_interval", b"soon"),
        (b"set_priority", b"bogus"),
        (b"backfill_order", b"x"),
        (b"enable_stream_id", b"false"),
        (b"enable_sync_writes", b"false"),
        (b"enable_out_of_order_snapshots", b"false"),
        (b"v7_dcp_status_codes", b"false"),
        (b"flatbuffers_system_events", b"false"),
        (b"change_streams", b"false"),
        (b"include_deleted_user_xattrs", b"false"),
    ],
)
def test_what_a_key_does_not_take_is_invalid(key: bytes, value: bytes) -> None:
    peer = SimulatedNode().producer()
    assert peer.control(key, value).status == EINVAL
    assert not peer.closed


@rule("CTL-06")
@each_case("key", [b"enable_noop", b"connection_buffer_size", b"bogus"])
def test_a_consumer_takes_no_control(key: bytes) -> None:
    peer = SimulatedNode().consumer()
    assert peer.send(Opcode.DCP_CONTROL, key=key, value=b"true") == []
    assert peer.closed


@rule("CTL-07")
@each_case(("value", "is_on"), [(b"true", True), (b"false", False), (b"on", False), (b"TRUE", False)])
def test_enable_noop(value: bytes, is_on: bool) -> None:
    node = SimulatedNode()
    peer = node.connect()
    peer.dcp_open()
    assert peer.control(b"set_noop_interval", b"1").status == OK
    assert peer.control(b"enable_noop", value).status == OK
    node.advance(1.5)
    assert opcodes(peer.take()) == [Opcode.DCP_NOOP] * is_on


@rule("CTL-08")
@each_case(
    ("value", "status"),
    [(b"0.1", OK), (b"1.5", OK), (b"100000", OK), (b"0.099", EINVAL), (b"0", EINVAL), (b"-1", EINVAL), (b"x", EINVAL)],
)
def test_the_noop_interval_may_be_a_fraction_since_76(value: bytes, status: Status) -> None:
    assert SimulatedNode(release="8.0").producer().control(b"set_noop_interval", value).status == status


@rule("CTL-08")
@each_case(
    ("value", "status"),
    [
        (b"1", OK), (b"20", OK), (b"180", OK), (b"10800", OK), (b"0", OK), (b"100000", OK),
        (b"-1", EINVAL), (b"1.5", EINVAL), (b"0.5", EINVAL), (b"abc", EINVAL), (b"0x10", EINVAL), (b"", EINVAL),
    ],
)  # fmt: skip
@of_release("7.2")
def test_the_noop_interval_has_whole_seconds(value: bytes, status: Status) -> None:
    node = SimulatedNode()
    peer = node.producer()
    assert peer.control(b"set_noop_interval", value).status == status


@rule("CTL-08")
@each_case("seconds", [1, 20, 180])
@of_release("7.2")
def test_noops_come_at_the_interval(seconds: int) -> None:
    node = SimulatedNode()
    peer = node.producer(controls=[(b"set_noop_interval", b"%d" % seconds)])
    if seconds > 1:
        node.advance(seconds - 1)
        assert peer.take() == []
    node.advance(2.2)
    assert opcodes(peer.received)[-1] == Opcode.DCP_NOOP


@rule("CTL-09")
@each_case(
    ("value", "status", "size"),
    [
        (b"1", OK, 1), (b"1048576", OK, 1 << 20), (b"4294967295", OK, 0xFFFFFFFF), (b"4294967296", OK, 0),
        (b"4294967301", OK, 5),
        (b"10 ", OK, 10), (b"0", OK, 0),
        (b"-5", EINVAL, 77), (b"abc", EINVAL, 77), (b"0x10", EINVAL, 77), (b"1.5", EINVAL, 77), (b"1,000", EINVAL, 77),
    ],
)  # fmt: skip
@of_release("7.2")
def test_the_buffer_size_is_a_number(value: bytes, status: Status, size: int) -> None:
    node = SimulatedNode()
    peer = node.producer(controls=[(b"connection_buffer_size", b"77")])
    assert peer.control(b"connection_buffer_size", value).status == status
    assert setting(node, "max_buffer_bytes") == str(size)
    assert setting(node, "flow_control") == ("enabled" if size else "disabled")


@rule("CTL-10")
@each_case("value", [b"0", b"1024", b"true", b"x"])
def test_there_is_no_buffer_for_a_stream(value: bytes) -> None:
    peer = SimulatedNode().producer()
    assert peer.control(b"stream_buffer_size", value).status == NOT_SUPPORTED
    assert not peer.closed


@rule("CTL-11")
def test_three_priorities() -> None:
    node = SimulatedNode()
    peer = node.producer()
    assert setting(node, "priority") == "Medium"
    for value in (b"high", b"low", b"medium"):
        assert peer.control(b"set_priority", value).status == OK
        assert setting(node, "priority") == value.decode().capitalize()
    for value in (b"HIGH", b"Low", b"medium ", b"1", b"bogus"):
        assert peer.control(b"set_priority", value).status == EINVAL
        assert setting(node, "priority") == "Medium"


@rule("CTL-12")
@each_case("value", [b"true", b"false", b"x"])
def test_forced_compression_needs_snappy(value: bytes) -> None:
    node = SimulatedNode()
    assert node.producer(b"other", features=NO_SNAPPY).control(b"force_value_compression", value).status == EINVAL
    peer = node.producer()
    assert peer.control(b"force_value_compression", value).status == OK
    assert setting(node, "force_value_compression") == ("true" if value == b"true" else "false")


@rule("CTL-13")
def test_two_names_of_cursor_dropping() -> None:
    node = SimulatedNode()
    peer = node.producer()
    for on in (b"supports_cursor_dropping", b"supports_cursor_dropping_vulcan"):
        for off in (b"supports_cursor_dropping", b"supports_cursor_dropping_vulcan"):
            assert peer.control(on, b"true").status == OK
            assert setting(node, "cursor_dropping") == "true"
            assert peer.control(off, b"whatever").status == OK
            assert setting(node, "cursor_dropping") == "false"


@rule("CTL-14")
@each_case("value", [b"true", b"false", b"x"])
def test_hifi_mfu_changes_one_byte_at_most(value: bytes) -> None:
    node = SimulatedNode()
    node.set_doc(1, "k")
    (plain,) = of(node.producer(b"plain").stream(1), Opcode.DCP_MUTATION)
    peer = node.producer(controls=[(b"supports_hifi_MFU", value)])
    (item,) = of(peer.stream(1), Opcode.DCP_MUTATION)
    assert item.extras[:30] == plain.extras[:30]
    assert (item.key, item.value, item.cas, item.datatype) == (plain.key, plain.value, plain.cas, plain.datatype)


@rule("CTL-15")
def test_stream_end_on_close_cannot_be_switched_off() -> None:
    node = SimulatedNode()
    peer = node.producer()
    key = b"send_stream_end_on_client_close_stream"
    for value in (b"false", b"x", b"TRUE"):
        assert peer.control(key, value).status == OK
        peer.stream(1)
        assert opcodes(peer.close_stream(1)) == [Opcode.DCP_CLOSE_STREAM]
    assert peer.control(key, b"true").status == OK
    for value in (b"true", b"false", b"x"):
        assert peer.control(key, value).status == OK
        for vbid in (1, 2):
            peer.stream(vbid)
            assert opcodes(peer.close_stream(vbid)) == [Opcode.DCP_CLOSE_STREAM, Opcode.DCP_STREAM_END]


class OlderNode(FakeNode):
    """A server that does not know one of the controls."""

    unknown = b"send_stream_end_on_client_close_stream"

    def _answer(self, frame: Frame) -> bytes:
        answer = super()._answer(frame)
        if frame.key == self.unknown:
            return encode_response(frame.opcode, status=EINVAL, opaque=frame.opaque)
        return answer


@rule("CTL-16")
def test_the_client_lives_with_a_server_that_sends_no_end_on_close() -> None:
    connection, node = ready_connection(OlderNode())
    assert OlderNode.unknown in [frame.key for frame in node.asked(Opcode.DCP_CONTROL)]
    assert connection.is_ready


@rule("CTL-16")
def test_the_client_expects_no_end_after_it_closed_a_stream() -> None:
    client = client_of_streams()
    stream = client.opened()
    client.session.close_stream(stream)
    (close,) = client.sent()
    assert close.opcode == Opcode.DCP_CLOSE_STREAM
    assert client.receive(encode_response(Opcode.DCP_CLOSE_STREAM, opaque=close.opaque)) == []
    assert client.session.streams == []
    with pytest.raises(RemoteProtocolError, match="which no request has"):  # nothing more is expected for the stream
        client.receive(encode_response(Opcode.DCP_CLOSE_STREAM, opaque=close.opaque))


def expiry_opcodes(flags: int, value: bytes) -> tuple[int, list[int]]:
    """Status of enable_expiry_opcode, and how an expired document then comes."""
    node = SimulatedNode()
    node.set_doc(1, "k", expiration=1)
    node.advance(3)
    node.admin.call(Opcode.GET, vbid=1, key=b"\0k")
    peer = node.producer(flags=flags)
    status = peer.control(b"enable_expiry_opcode", value).status
    return status, opcodes(peer.stream(1))[2:]


@rule("CTL-17")
@each_case("flags", [OpenFlag.PRODUCER, OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES])
@each_case("value", [b"true", b"false", b"x"])
def test_the_expiry_opcode_needs_delete_times(flags: int, value: bytes) -> None:
    is_on = value == b"true" and bool(flags & OpenFlag.INCLUDE_DELETE_TIMES)
    expected = Opcode.DCP_EXPIRATION if is_on else Opcode.DCP_DELETION
    assert expiry_opcodes(flags, value) == (OK, [expected])


@rule("CTL-18", "CTL-19")
@each_case(
    ("first", "second"), [(b"enable_stream_id", b"enable_sync_writes"), (b"enable_sync_writes", b"enable_stream_id")]
)
def test_stream_ids_and_sync_writes_exclude_each_other(first: bytes, second: bytes) -> None:
    names = {b"enable_stream_id": "enable_stream_id", b"enable_sync_writes": "synchronous_writes"}
    node = SimulatedNode()
    peer = node.producer()
    for value in (b"false", b"TRUE", b"1"):
        assert peer.control(first, value).status == EINVAL
        assert setting(node, names[first]) == "false"
    assert peer.control(first, b"true").status == OK
    assert setting(node, names[first]) == "true"
    assert peer.control(second, b"true").status == NOT_SUPPORTED
    assert setting(node, names[second]) == "false"
    assert peer.control(first, b"false").status == EINVAL
    assert setting(node, names[first]) == "true"
    assert peer.control(first, b"true").status == OK


@rule("CTL-20")
@each_case("order", [(b"consumer_name", b"enable_sync_writes"), (b"enable_sync_writes", b"consumer_name")])
def test_a_name_and_sync_writes_make_a_replica(order: tuple[bytes, bytes]) -> None:
    values = {b"consumer_name": b"replica", b"enable_sync_writes": b"true"}
    node = SimulatedNode()
    peer = node.producer()
    peer.stream(1)
    acknowledge: dict[str, Any] = {"extras": bytes(8), "vbid": 1, "opaque": 0x77}
    for key in order:
        assert setting(node, "synchronous_replication") == "false"
        assert opcodes(peer.send(Opcode.DCP_SEQNO_ACKNOWLEDGED, **acknowledge)) == [Opcode.DCP_SEQNO_ACKNOWLEDGED]
        assert peer.control(key, values[key]).status == OK
    assert setting(node, "synchronous_replication") == "true"
    assert peer.send(Opcode.DCP_SEQNO_ACKNOWLEDGED, **acknowledge) == []
    assert not peer.closed


@rule("CTL-21")
@each_case(
    ("value", "status"),
    [(b"true", OK), (b"true_with_seqno_advanced", OK), (b"false", EINVAL), (b"TRUE", EINVAL), (b"true_", EINVAL)],
)
def test_out_of_order_snapshots(value: bytes, status: Status) -> None:
    settings = ProducerSettings()
    assert apply_control(settings, b"enable_out_of_order_snapshots", value)[0] == status
    assert settings.out_of_order == (value.decode() if status == OK else "")
    assert SimulatedNode().producer().control(b"enable_out_of_order_snapshots", value).status == status


@rule("CTL-22")
@each_case(
    ("flags", "value", "status"),
    [(0x105, b"true", OK), (0x105, b"false", EINVAL), (0x5, b"true", EINVAL), (0x1, b"true", EINVAL)],
)
def test_user_xattrs_of_deletions_are_a_probe(flags: int, value: bytes, status: Status) -> None:
    peer = SimulatedNode().producer(flags=flags)
    assert peer.control(b"include_deleted_user_xattrs", value).status == status
    assert not peer.closed


@rule("CTL-23", "CTL-24")
@each_case(
    ("key", "name"),
    [(b"v7_dcp_status_codes", "v7_status_codes"), (b"flatbuffers_system_events", "flatbuffers_system_events")],
)
def test_what_can_only_be_switched_on(key: bytes, name: str) -> None:
    settings = ProducerSettings()
    for value in (b"false", b"TRUE", b"true ", b"1", b"x"):
        assert apply_control(settings, key, value)[0] == EINVAL
        assert getattr(settings, name) is False
        assert SimulatedNode().producer().control(key, value).status == EINVAL
    assert apply_control(settings, key, b"true")[0] == OK
    assert getattr(settings, name) is True
    peer = SimulatedNode().producer()
    assert peer.control(key, b"true").status == OK
    assert peer.control(key, b"false").status == EINVAL


@rule("CTL-25")
def test_this_storage_keeps_no_history() -> None:
    peer = SimulatedNode().producer()
    assert peer.control(b"change_streams", b"true").status == NOT_SUPPORTED
    for value in (b"false", b"TRUE", b"x"):
        assert peer.control(b"change_streams", value).status == EINVAL
    assert not peer.closed


@rule("CTL-26")
@each_case("value", [b"2.2", b"2.0", b"2.1", b"2.3", b"true", b"1"])
@of_release("7.2")
def test_a_later_marker_version_cannot_be_asked_for(value: bytes) -> None:
    # Recorded with 2.2: the key is of a later version, so it is unknown, with collections as without.
    peer = SimulatedNode().producer()
    assert peer.control(b"max_marker_version", value).status == EINVAL
    assert not peer.closed


@rule("CTL-27")
@each_case("value", [b"true", b"false", b"x"])
def test_cache_transfer_depends_on_the_bucket_only(value: bytes) -> None:
    # The key is of release 8.5, so it is unknown to older ones.
    peer = SimulatedNode().producer()
    assert peer.control(b"cache_transfer", value).status == EINVAL
    assert not peer.closed
    for has_it, status in ((True, OK), (False, NOT_SUPPORTED)):
        settings = ProducerSettings(release=RELEASES["8.5"], has_cache_transfer=has_it)
        assert apply_control(settings, b"cache_transfer", value)[0] == status


@rule("CTL-28")
def test_backfill_orders() -> None:
    node = SimulatedNode()
    peer = node.producer()
    assert setting(node, "backfill_order") == "round-robin"
    for value in (b"sequential", b"round-robin"):
        assert peer.control(b"backfill_order", value).status == OK
        assert setting(node, "backfill_order") == value.decode()
    for value in (b"x", b"Sequential", b"random"):
        answer = peer.control(b"backfill_order", value)
        assert (answer.status, answer.datatype) == (EINVAL, Datatype.JSON)
        assert b"backfill_order" in answer.value
        assert b'"context"' in answer.value
        assert setting(node, "backfill_order") == "round-robin"


def snappy_items(peer: Peer, vbid: int) -> list[int]:
    """The datatypes of a vbucket's documents as a new stream sends them."""
    return [frame.datatype for frame in of(peer.stream(vbid), Opcode.DCP_MUTATION)]


@rule("CTL-29")
def test_a_stream_keeps_the_form_it_was_made_with() -> None:
    node = SimulatedNode()
    text = b"compressible " * 100
    peer = node.producer()
    assert snappy_items(peer, 1) == []
    assert peer.control(b"force_value_compression", b"true").status == OK
    node.set_doc(1, "k", text)
    node.set_doc(2, "k", text)
    assert [frame.datatype for frame in of(peer.take(), Opcode.DCP_MUTATION)] == [0], "the stream of before"
    assert snappy_items(peer, 2) == [Datatype.SNAPPY], "a stream of after"


@rule("CTL-29")
def test_sync_writes_shape_only_later_markers() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k")
    node.set_doc(2, "k")
    peer = node.producer()
    (before,) = of(peer.stream(1), Opcode.DCP_SNAPSHOT_MARKER)
    peer.control(b"enable_sync_writes", b"true")
    peer.control(b"consumer_name", b"replica")
    node.set_doc(1, "l")
    (still,) = of(peer.take(), Opcode.DCP_SNAPSHOT_MARKER)
    (after,) = of(peer.stream(2), Opcode.DCP_SNAPSHOT_MARKER)
    assert [len(before.extras), len(still.extras), len(after.extras)] == [20, 20, 1]


@rule("CTL-30")
@each_case(
    "key",
    [b"ENABLE_NOOP", b"Enable_Noop", b"enable_noop ", b"set_Priority", b"supports_hifi_mfu", b"V7_DCP_STATUS_CODES"],
)
def test_keys_are_compared_byte_for_byte(key: bytes) -> None:
    peer = SimulatedNode().producer()
    assert peer.control(key, b"true").status == EINVAL


@rule("CTL-30")
@each_case(
    ("key", "value", "status"),
    [
        (b"e", b"true", OK),
        (b"enable_noo", b"true", OK),
        (b"c", b"5", OK),
        (b"connection_buffer_siz", b"5", OK),
        (b"s", b"true", NOT_SUPPORTED),
        (b"x", b"true", EINVAL),
    ],
)
def test_three_keys_match_by_their_beginning(key: bytes, value: bytes, status: Status) -> None:
    assert SimulatedNode().producer().control(key, value).status == status
