"""Rules of the packet: header, framing extras, datatype, and what is wrong with a packet before anybody reads it."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from dcpstream.client.machine.connection.events import RowsReceived, StreamOpened, StreamRefused
from dcpstream.errors import FieldError, FrameError
from dcpstream.wire import Datatype, Feature, FrameReader, Opcode, Status, decode_frame, encode_request, encode_response
from dcpstream.wire.keys import decode_frame_infos, encode_frame_info
from dcpstream.wire.values import snappy_compress
from dcpstream_node.testing.simulation import USUAL_FEATURES, WITHOUT_COLLECTIONS, Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.client_machines import client_of_streams
from tests.kit.rules import rule
from tests.kit.streams import is_plain

NO_FEATURES = (Feature.XERROR, Feature.SELECT_BUCKET)
NOOP = encode_request(Opcode.NOOP, opaque=0xA11CE)
SET_EXTRAS = bytes(8)


def is_alive(peer: Peer) -> bool:
    """Whether the connection still answers."""
    return not peer.closed and [frame.opaque for frame in peer.send_bytes(NOOP)] == [0xA11CE]


@rule("HDR-01", "HDR-02")
def test_the_header_is_24_bytes_with_each_field_at_its_place() -> None:
    header = struct.pack(">BBHBBHIIQ", 0x80, 0x01, 3, 8, 0x01, 0x0203, 8 + 3 + 5, 0x04050607, 0x08090A0B0C0D0E0F)
    data = header + b"extras__" + b"key" + b"value"
    assert len(header) == 24
    frame = decode_frame(data)
    assert (frame.magic, frame.opcode, frame.datatype, frame.vbid) == (0x80, 0x01, 0x01, 0x0203)
    assert (frame.opaque, frame.cas) == (0x04050607, 0x08090A0B0C0D0E0F)
    assert (frame.extras, frame.key, frame.value) == (b"extras__", b"key", b"value")
    assert frame.encode() == data
    fields: dict[str, Any] = {"vbid": 0x0203, "opaque": 0x04050607, "cas": 0x08090A0B0C0D0E0F, "datatype": 1}
    assert encode_request(1, extras=b"extras__", key=b"key", value=b"value", **fields) == data
    answer = encode_response(0x53, status=0x23, opaque=7, value=b"12345678")
    assert answer == struct.pack(">BBHBBHIIQ", 0x81, 0x53, 0, 0, 0, 0x23, 8, 7, 0) + b"12345678"
    assert decode_frame(answer).status == 0x23


@rule("HDR-02")
@each_case("value", [b"", b"v", b"v" * 1000])
def test_a_value_is_what_the_body_has_beyond_the_other_parts(value: bytes) -> None:
    peer = SimulatedNode().connect(features=WITHOUT_COLLECTIONS)
    assert peer.call(Opcode.SET, vbid=1, key=b"key", value=value, extras=SET_EXTRAS).status == 0
    answer = peer.call(Opcode.GET, vbid=1, key=b"key")
    assert (answer.extras, answer.key, answer.value) == (bytes(4), b"", value)
    whole = encode_request(
        Opcode.SET, vbid=1, key=b"key", value=value, extras=SET_EXTRAS, framing=b"\x22\0\1"
    )  # fmt: skip
    assert struct.unpack_from(">I", whole, 8)[0] == 3 + 8 + 3 + len(value)
    assert decode_frame(whole).size == 24 + 3 + 8 + 3 + len(value)


@rule("HDR-03")
@each_case("magic", [0x00, 0x07, 0x09, 0x17, 0x19, 0x7F, 0x84, 0xFF])
def test_another_magic_closes_without_an_answer(magic: int) -> None:
    peer = SimulatedNode().producer()
    assert peer.send_bytes(bytes([magic]) + NOOP[1:]) == []
    assert peer.closed
    with pytest.raises(FrameError, match="magic"):
        decode_frame(bytes([magic]) + NOOP[1:])


@rule("HDR-03")
@each_case("magic", [0x80, 0x81, 0x08, 0x18, 0x82, 0x83])
def test_six_magics_are_legal(magic: int) -> None:
    assert decode_frame(bytes([magic]) + NOOP[1:]).magic == magic


@rule("HDR-04")
@each_case(
    "header",
    [
        struct.pack(">BBHBBHIIQ", 0x80, 0x5E, 11, 0, 0, 0, 10, 1, 0),
        struct.pack(">BBHBBHIIQ", 0x80, 0x5E, 0, 16, 0, 0, 15, 1, 0),
        struct.pack(">BBHBBHIIQ", 0x80, 0x5E, 8, 8, 0, 0, 15, 1, 0),
        struct.pack(">BBHBBHIIQ", 0x80, 0x5D, 0, 4, 0, 0, 0, 1, 0),
        struct.pack(">BBBBBBHIIQ", 0x08, 0x52, 4, 1, 0, 0, 0, 4, 1, 0),
    ],
)
def test_parts_longer_than_the_body_close_without_an_answer(header: bytes) -> None:
    peer = SimulatedNode().producer()
    body = struct.unpack_from(">I", header, 8)[0]
    assert peer.send_bytes(header + bytes(body) + NOOP) == []
    assert peer.closed
    with pytest.raises(FrameError):
        decode_frame(header + bytes(body))


@rule("HDR-04")
def test_parts_as_long_as_the_body_are_fine() -> None:
    peer = SimulatedNode().producer()
    (answer,) = peer.send_bytes(struct.pack(">BBHBBHIIQ", 0x80, 0x5E, 8, 8, 0, 0, 16, 1, 0) + bytes(16))
    assert answer.status == Status.EINVAL
    assert is_alive(peer)


@rule("HDR-05")
def test_with_framing_extras_the_key_length_has_one_byte() -> None:
    data = struct.pack(">BBBBBBHIIQ", 0x08, 0x01, 2, 3, 4, 0, 9, 2 + 4 + 3 + 1, 7, 0) + b"FF" + b"EXTR" + b"KEY" + b"V"
    frame = decode_frame(data)
    assert (frame.framing, frame.extras, frame.key, frame.value) == (b"FF", b"EXTR", b"KEY", b"V")
    assert encode_request(1, framing=b"FF", extras=b"EXTR", key=b"KEY", value=b"V", vbid=9, opaque=7) == data
    answer = bytes([0x18, *data[1:]])
    assert decode_frame(answer).is_response
    assert encode_response(1, framing=b"FF", extras=b"EXTR", key=b"KEY", value=b"V", status=9, opaque=7) == answer


@rule("HDR-05")
def test_the_node_reads_a_key_behind_framing_extras() -> None:
    node = SimulatedNode()
    peer = node.connect(features=WITHOUT_COLLECTIONS)
    framing = encode_frame_info(5, b"")
    assert peer.call(Opcode.SET, vbid=1, framing=framing, key=b"key", extras=SET_EXTRAS, value=b"v").status == 0
    assert peer.call(Opcode.GET, vbid=1, key=b"key").value == b"v"


@rule("HDR-06")
@each_case(
    ("data", "infos"),
    [
        (b"\x22\x00\x07", [(2, b"\x00\x07")]),
        (b"\x00", [(0, b"")]),
        (b"\xe1a", [(14, b"a")]),
        (b"\xf1\x00a", [(15, b"a")]),
        (b"\xf1\x05a", [(20, b"a")]),
        (b"\x4f\x00" + b"n" * 15, [(4, b"n" * 15)]),
        (b"\x4f\x02" + b"n" * 17, [(4, b"n" * 17)]),
        (b"\xff\x01\x02" + b"n" * 17, [(16, b"n" * 17)]),
        (b"\x50\x22\x00\x01", [(5, b""), (2, b"\x00\x01")]),
    ],
)
def test_frame_infos_escape_at_15(data: bytes, infos: list[tuple[int, bytes]]) -> None:
    assert list(decode_frame_infos(data)) == infos
    assert b"".join(encode_frame_info(info_id, content) for info_id, content in infos) == data


OVERRUNS = [b"\x22\x00", b"\x22", b"\xf1\x00", b"\xf0", b"\x4f", b"\x4f\x00" + b"n" * 14, b"\x22\x00\x01\x11"]


@rule("HDR-07")
@each_case("framing", OVERRUNS)
def test_a_frame_info_beyond_the_section_is_invalid(framing: bytes) -> None:
    with pytest.raises(FieldError):
        list(decode_frame_infos(framing))
    peer = SimulatedNode().producer()
    for opcode in (Opcode.DCP_GET_FAILOVER_LOG, Opcode.DCP_CLOSE_STREAM, Opcode.NOOP):
        assert peer.call(opcode, framing=framing).status == Status.EINVAL
    assert is_alive(peer)


@rule("HDR-08")
@each_case("framing", [b"\x70", b"\x72ab", b"\xe0", b"\xf1\x00\x00"])
def test_an_unassigned_frame_info_has_a_status_of_its_own(framing: bytes) -> None:
    peer = SimulatedNode().producer()
    for opcode in (Opcode.DCP_GET_FAILOVER_LOG, Opcode.DCP_CLOSE_STREAM, Opcode.NOOP):
        assert peer.call(opcode, framing=framing).status == Status.UNKNOWN_FRAME_INFO
    assert is_alive(peer)


@rule("HDR-09")
def test_a_stream_id_is_two_bytes() -> None:
    assert encode_frame_info(2, b"\x12\x34") == b"\x22\x12\x34"
    node = SimulatedNode()
    peer = node.producer(controls=[(b"enable_stream_id", b"true")])
    assert peer.stream(1, value=b'{"sid":4660}')[0].status == 0
    for framing in (b"\x20", b"\x21\x12", b"\x23\x12\x34\x56"):
        assert peer.close_stream(1, framing=framing)[0].status == Status.EINVAL
    assert peer.close_stream(1, framing=b"\x22\x12\x35")[0].status != 0
    assert peer.close_stream(1, framing=b"\x22\x12\x34")[0].status == 0


@rule("HDR-10")
@each_case("opcode", [Opcode.DCP_GET_FAILOVER_LOG, Opcode.NOOP])
def test_a_barrier_carries_no_data(opcode: int) -> None:
    peer = SimulatedNode().producer()
    assert peer.call(opcode, framing=b"\x01x").status == Status.EINVAL
    assert peer.call(opcode, framing=b"\x00").status == Status.SUCCESS


@rule("HDR-11")
@each_case("framing", [b"\x11\x01", b"\x13\x01\x00\x10"])
def test_durability_belongs_to_writes_only(framing: bytes) -> None:
    node = SimulatedNode()
    peer = node.producer()
    assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, framing=framing).status == Status.EINVAL
    assert peer.close_stream(1, framing=framing)[0].status == Status.EINVAL
    assert peer.call(Opcode.DCP_CONTROL, framing=framing, key=b"enable_noop", value=b"true").status == Status.EINVAL
    assert peer.call(Opcode.NOOP, framing=framing).status == Status.EINVAL
    plain = node.connect()
    opening = plain.dcp_open(b"x", framing=framing)
    assert opening.status == Status.EINVAL
    assert is_plain(plain)


@rule("HDR-12")
@each_case("opaque", [0, 1, 0x01020304, 0x80000000, 0xFFFFFFFF])
def test_an_answer_has_the_bytes_of_the_opaque(opaque: int) -> None:
    peer = SimulatedNode().producer()
    for opcode in (Opcode.DCP_GET_FAILOVER_LOG, Opcode.NOOP, Opcode.DCP_CLOSE_STREAM, 0xEE):
        (answer,) = peer.send(opcode, opaque=opaque)
        assert answer.opaque == opaque
        assert answer.encode()[12:16] == opaque.to_bytes(4, "big")


@rule("HDR-13")
@each_case("datatype", [0x08, 0x0F, 0x10, 0x80, 0xFF])
def test_a_datatype_above_7_is_invalid(datatype: int) -> None:
    node = SimulatedNode()
    peer = node.producer()
    assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, datatype=datatype).status == Status.EINVAL
    assert peer.call(Opcode.NOOP, datatype=datatype).status == Status.EINVAL
    assert peer.call(Opcode.SET, vbid=1, key=b"\0k", extras=SET_EXTRAS, datatype=datatype).status == Status.EINVAL
    assert is_alive(peer)
    assert node.connect().dcp_open(b"x", 0, datatype=datatype, value=b'{"consumer_name":"c"}').status == Status.EINVAL


@rule("HDR-14")
@each_case(
    ("feature", "datatype"),
    [(Feature.JSON, Datatype.JSON), (Feature.SNAPPY, Datatype.SNAPPY), (Feature.XATTR, Datatype.XATTR)],
)
def test_a_datatype_that_hello_did_not_enable_is_invalid(feature: Feature, datatype: Datatype) -> None:
    node = SimulatedNode()
    plain = snappy_compress(b"{}") if datatype == Datatype.SNAPPY else b"{}"
    value = b"\0\0\0\0{}" if datatype == Datatype.XATTR else plain
    fields: dict[str, Any] = {"vbid": 1, "key": b"k", "extras": SET_EXTRAS, "value": value, "datatype": datatype}
    without = [item for item in WITHOUT_COLLECTIONS if item != feature]
    peer = node.connect(features=without)
    assert peer.call(Opcode.SET, **fields).status == Status.EINVAL
    assert peer.call(Opcode.GET, vbid=1, key=b"k").status == Status.KEY_ENOENT
    assert is_alive(peer)
    if datatype == Datatype.JSON:
        opening = peer.dcp_open(b"x", 0, value=b'{"consumer_name":"c"}', datatype=1)
        assert opening.status == Status.EINVAL
    if datatype != Datatype.XATTR:
        assert node.connect(features=WITHOUT_COLLECTIONS).call(Opcode.SET, **fields).status == 0


@rule("HDR-15")
@each_case("value", [b"", b"\xff\xff\xff\xff\xff\xff", b"no snappy at all", b"\x05ab"])
def test_snappy_that_cannot_be_inflated_is_invalid(value: bytes) -> None:
    peer = SimulatedNode().connect()
    fields: dict[str, Any] = {"vbid": 1, "key": b"\0k", "extras": SET_EXTRAS}
    assert peer.call(Opcode.SET, value=value, datatype=Datatype.SNAPPY, **fields).status == Status.EINVAL
    assert peer.call(Opcode.GET, vbid=1, key=b"\0k").status == Status.KEY_ENOENT
    good = snappy_compress(b"some text")
    assert peer.call(Opcode.SET, value=good, datatype=Datatype.SNAPPY, **fields).status == 0


@rule("HDR-16")
@each_case(("features", "prefix"), [(WITHOUT_COLLECTIONS, b""), (USUAL_FEATURES, b"\0")])
def test_a_key_has_at_most_250_bytes(features: tuple[Feature, ...], prefix: bytes) -> None:
    peer = SimulatedNode().connect(features=features)
    for opcode, extras in ((Opcode.SET, SET_EXTRAS), (Opcode.GET, b""), (Opcode.DELETE, b"")):
        longest = prefix + b"k" * 250
        assert peer.call(opcode, vbid=1, key=longest, extras=extras).status == 0
        assert peer.call(opcode, vbid=1, key=longest + b"k", extras=extras).status == Status.EINVAL
    name = b"n" * (len(prefix) + 250)  # the byte of the collection counts for every key
    assert peer.dcp_open(name + b"n").status == Status.EINVAL
    assert peer.dcp_open(name).status == 0
    assert b"Key length" in peer.call(Opcode.DCP_CONTROL, key=name + b"n", value=b"v").value
    assert b"Key length" not in peer.call(Opcode.DCP_CONTROL, key=name, value=b"v").value


@rule("HDR-17")
@each_case("opcode", [0x66, 0x6F, 0xD8, 0xEE, 0xFF])
def test_an_unknown_opcode_leaves_the_connection_open(opcode: int) -> None:
    for peer in (SimulatedNode().connect(), SimulatedNode().producer(), SimulatedNode().consumer()):
        assert peer.call(opcode).status == Status.UNKNOWN_COMMAND
        assert is_alive(peer)


@rule("HDR-18")
@each_case(
    ("opcode", "fields"),
    [
        (Opcode.DCP_OPEN, {"key": b"x", "extras": bytes(7)}),
        (Opcode.DCP_ADD_STREAM, {"extras": bytes(5)}),
        (Opcode.DCP_CLOSE_STREAM, {"key": b"k"}),
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(47)}),
        (Opcode.DCP_GET_FAILOVER_LOG, {"value": b"v"}),
        (Opcode.DCP_STREAM_END, {"extras": b""}),
        (Opcode.DCP_SNAPSHOT_MARKER, {"extras": bytes(19)}),
        (Opcode.DCP_MUTATION, {"extras": bytes(31)}),
        (Opcode.DCP_DELETION, {"extras": bytes(19), "key": b"k"}),
        (Opcode.DCP_EXPIRATION, {"extras": bytes(21), "key": b"k"}),
        (Opcode.DCP_SET_VBUCKET_STATE, {"extras": bytes(2)}),
        (Opcode.DCP_NOOP, {"extras": b"x"}),
        (Opcode.DCP_BUFFER_ACK, {"extras": bytes(3)}),
        (Opcode.DCP_CONTROL, {"key": b"k"}),
        (Opcode.DCP_SYSTEM_EVENT, {"extras": bytes(12)}),
        (Opcode.DCP_PREPARE, {"extras": bytes(30), "key": b"k"}),
        (Opcode.DCP_SEQNO_ACKNOWLEDGED, {"extras": bytes(7)}),
        (Opcode.DCP_COMMIT, {"extras": bytes(16)}),
        (Opcode.DCP_ABORT, {"extras": bytes(17), "key": b"k"}),
        (Opcode.GET, {"key": b"", "extras": b""}),
        (Opcode.SET, {"key": b"k", "extras": bytes(4)}),
    ],
)
def test_what_is_malformed_is_refused_and_the_connection_stays(opcode: int, fields: dict[str, Any]) -> None:
    for peer in (SimulatedNode().connect(), SimulatedNode().producer(), SimulatedNode().consumer()):
        assert peer.call(opcode, **fields).status == Status.EINVAL
        assert is_alive(peer)


@rule("HDR-19")
@each_case("opcode", [0x01, 0x02, Opcode.DCP_NOOP, 0xEE])
def test_a_request_with_the_servers_magic_closes(opcode: int) -> None:
    peer = SimulatedNode().producer()
    assert peer.send_bytes(struct.pack(">BBHBBHIIQ", 0x82, opcode, 0, 0, 0, 0, 0, 1, 0)) == []
    assert peer.closed


@rule("HDR-20")
@each_case("magic", [0x81, 0x18])
@each_case("opcode", [Opcode.GET, Opcode.SET, Opcode.NOOP, Opcode.HELLO, 0xEE])
def test_an_answer_that_has_no_handler_closes(magic: int, opcode: int) -> None:
    for peer in (SimulatedNode().connect(), SimulatedNode().producer()):
        assert peer.send_bytes(struct.pack(">BBHBBHIIQ", magic, opcode, 0, 0, 0, 0, 0, 1, 0) + NOOP) == []
        assert peer.closed


@rule("HDR-21")
def test_a_frame_above_30_mib_closes() -> None:
    limit = 30 * 1024 * 1024
    header = struct.pack(">BBHBBHIIQ", 0x80, 0x5E, 11, 0, 0, 0, limit - 24 + 1, 1, 0)
    peer = SimulatedNode().producer()
    assert peer.send_bytes(header) == []
    assert peer.closed
    with pytest.raises(FrameError, match="allowed"):
        reader_of(header).next_frame()
    peer = SimulatedNode().producer()
    at_limit = struct.pack(">BBHBBHIIQ", 0x80, 0x5E, 11, 0, 0, 0, limit - 24, 1, 0)
    assert peer.send_bytes(at_limit) == []
    assert not peer.closed
    assert reader_of(at_limit).next_frame() is None


def reader_of(data: bytes) -> FrameReader:
    reader = FrameReader()
    reader.receive_data(data)
    return reader


@rule("HDR-22")
def test_the_client_reads_the_status_and_not_the_text_of_an_error() -> None:
    # 32 bytes of JSON: as long as a failover log of two entries; and 8 bytes, as long as a rollback's seqno.
    for status in (Status.EINVAL, Status.KEY_EEXISTS, Status.UNKNOWN_COLLECTION, Status.EACCESS, 0x7777):
        for body in (b'{"error":{"context":"012345678"}}'[:-1] + b"}", b'{"a":"b"', b""):
            client = client_of_streams()
            stream = client.stream()
            data = encode_response(Opcode.DCP_STREAM_REQ, status=status, opaque=stream.opaque, datatype=1, value=body)
            (refused,) = client.receive(data)
            assert isinstance(refused, StreamRefused)
            assert (refused.status, refused.rollback_seqno) == (status, None)
            assert stream.log is None
            assert client.session.streams == []


@rule("HDR-23")
def test_flush_is_not_supported() -> None:
    for peer in (SimulatedNode().connect(), SimulatedNode().producer(), SimulatedNode().consumer()):
        assert peer.call(Opcode.DCP_FLUSH).status == Status.NOT_SUPPORTED
        assert is_alive(peer)


@rule("HDR-24")
@each_case(("opcode", "extras"), [(0x64, bytes(8)), (0x65, bytes(4)), (0x64, b""), (0x65, b"")])
def test_what_a_node_only_produces_is_unknown_to_it(opcode: int, extras: bytes) -> None:
    for peer in (SimulatedNode().connect(), SimulatedNode().producer(), SimulatedNode().consumer()):
        assert peer.call(opcode, extras=extras).status == Status.UNKNOWN_COMMAND
        assert is_alive(peer)


@rule("HDR-25")
def test_the_client_distinguishes_requests_from_answers_by_the_magic() -> None:
    client = client_of_streams()
    stream = client.stream()
    # A NOOP with the opaque that the client waits for is a request nevertheless, and is answered.
    assert client.receive(encode_request(Opcode.DCP_NOOP, opaque=stream.opaque)) == []
    (noop,) = client.sent()
    assert (noop.magic, noop.opcode, noop.opaque) == (0x81, Opcode.DCP_NOOP, stream.opaque)
    log = (0xA).to_bytes(8, "big") + bytes(8)
    # With framing extras the magic is another one and an answer is an answer.
    answer = encode_response(Opcode.DCP_STREAM_REQ, framing=b"\x02\x00\x07", opaque=stream.opaque, value=log)
    (opened,) = client.receive(answer)
    assert isinstance(opened, StreamOpened)
    marker = encode_request(0x56, vbid=1, opaque=stream.opaque, extras=struct.pack(">QQI", 0, 1, 1))
    extras = struct.pack(">QQIIIHB", 1, 1, 0, 0, 0, 0, 0)
    item = encode_request(0x57, vbid=1, opaque=stream.opaque, key=b"\0k", extras=extras, framing=b"\x22\0\1")
    (rows,) = client.receive(marker + item)
    assert isinstance(rows, RowsReceived)


@rule("HDR-25")
def test_the_node_distinguishes_requests_from_answers_by_the_magic() -> None:
    node = SimulatedNode()
    consumer = node.consumer()
    assert consumer.call(Opcode.DCP_NOOP).status == 0
    producer = node.producer(controls=[(b"set_noop_interval", b"1")])
    node.advance(1)
    (noop,) = [frame for frame in producer.take() if frame.is_request]
    assert (noop.magic, noop.opcode) == (0x80, Opcode.DCP_NOOP)
    assert producer.answer(noop) == []
    assert is_alive(producer)
    assert producer.send(Opcode.DCP_NOOP, opaque=noop.opaque) == []  # as a request it is none that a producer takes
    assert producer.closed


@rule("HDR-01", "HDR-02")
@each_case("length", [0, 1, 23, 24, 25, 30])
def test_less_than_a_frame_is_none(length: int) -> None:
    whole = encode_request(Opcode.DCP_CONTROL, key=b"key", value=b"value")
    assert len(whole) > length
    with pytest.raises(FrameError):
        decode_frame(whole[:length])
    with pytest.raises(FrameError):
        decode_frame(b"before" + whole[:length], 6)
    reader = reader_of(whole[:length])
    assert reader.next_frame() is None
    reader.receive_data(whole[length:])
    assert reader.next_frame() == decode_frame(whole) == decode_frame(b"before" + whole, 6)
    assert reader.pending_bytes == 0
    node = SimulatedNode()
    peer = node.producer()
    assert peer.send_bytes(whole[:length]) == []
    (answer,) = peer.send_bytes(whole[length:])
    assert answer.status == Status.EINVAL
