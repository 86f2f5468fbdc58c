"""Rules of stream ids: several streams of one vbucket on one connection."""

from __future__ import annotations

import json

from dcpstream.wire import Frame, Magic, Opcode, Status, decode_frame, encode_request
from dcpstream.wire.keys import decode_frame_infos
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import (
    DISK,
    FRUIT_KEY,
    VEG_KEY,
    answer,
    collection,
    drain,
    end,
    garden,
    manifest,
    new_checkpoint,
    purged,
    scope,
    sent,
    set_manifest,
    set_parameter,
)

WITH_IDS = (b"enable_stream_id", b"true")


def sid(number: object, **more: object) -> bytes:
    """A STREAM_REQ's value."""
    return json.dumps({"sid": number, **more}).encode()


def reader(node: SimulatedNode, name: bytes = b"reader", *controls: tuple[bytes, bytes]) -> Peer:
    return node.producer(name, controls=[WITH_IDS, *controls])


@rule("SID-01")
@each_case("value", [b"", b'{"uid":"0"}', b'{"collections":["0"]}'])
def test_every_request_needs_one(value: bytes) -> None:
    peer = reader(SimulatedNode())
    assert answer(peer.stream(1, value=value))[0] == Status.DCP_STREAMID_INVALID
    assert answer(peer.stream(1, value=sid(1)))[0] == 0


@rule("SID-02")
def test_none_without_the_control() -> None:
    peer = SimulatedNode().producer()
    assert answer(peer.stream(1, value=sid(1)))[0] == Status.DCP_STREAMID_INVALID
    assert answer(peer.stream(1))[0] == 0


@rule("SID-03")
def test_0_is_none() -> None:
    node = SimulatedNode()
    for peer in (reader(node), node.producer(b"without")):
        assert answer(peer.stream(1, value=sid(0)))[0] == Status.DCP_STREAMID_INVALID


@rule("SID-04")
@each_case("number", ["1", 1.5, -1, True, None, [1]])
def test_only_unsigned_integers(number: object) -> None:
    peer = reader(SimulatedNode())
    assert answer(peer.stream(1, value=sid(number)))[0] == Status.EINVAL
    assert not peer.closed


@rule("SID-05")
@each_case(("number", "status"), [(1, 0), (65535, 0), (65536, Status.DCP_STREAMID_INVALID), (65537, 0), (131072, 0x8D)])
def test_16_bits_count(number: int, status: int) -> None:
    node = SimulatedNode()
    node.fill(1, 1)
    frames = reader(node).stream(1, value=sid(number))
    assert answer(frames)[0] == status
    for frame in frames[1:]:
        assert frame.framing == b"\x22" + (number & 0xFFFF).to_bytes(2, "big")


@rule("SID-06")
def test_a_vbucket_several_times() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    peer = reader(node)
    for number in (1, 2, 65535):
        assert sent(peer.stream(1, value=sid(number)))[1:] == [1, 2]
    for number in (1, 2, 65535):
        assert answer(peer.stream(1, value=sid(number)))[0] == Status.KEY_EEXISTS
    assert answer(peer.stream(2, value=sid(1)))[0] == 0
    node.set_vbucket(1, 2)
    assert answer(peer.stream(1, value=sid(1)))[0] == 0, "an ended one makes place"


@rule("SID-07", "SID-09")
def test_every_message_carries_it() -> None:
    opcodes, frames = with_ids(garden(), flags=0x01)
    assert opcodes == {0x55, 0x56, 0x57, 0x58, 0x5F, 0x64, 0x65}
    check_ids(frames)


@rule("SID-07", "SID-09")
def test_deletions_with_times_and_expirations_carry_it() -> None:
    node = garden()
    assert node.engine is not None, "a server leaves the size of the framing extras of these out of the header"
    opcodes, frames = with_ids(node, flags=0x21)
    assert opcodes == {0x55, 0x56, 0x57, 0x58, 0x59, 0x5F, 0x64, 0x65}
    check_ids(frames)


def with_ids(node: SimulatedNode, flags: int) -> tuple[set[int], list[Frame]]:
    """What three streams with ids send, with a deletion and an expiration."""
    set_parameter(node, b"dcp_oso_backfill", b"enabled")
    node.delete_doc(1, "ap0", collection=FRUIT_KEY)
    node.set_doc(1, "old", expiration=1)
    node.advance(2)
    node.admin.call(Opcode.GET, vbid=1, key=b"\0old")
    new_checkpoint(node)
    peer = node.connect()
    peer.dcp_open(flags=flags)
    for key, value in (
        (b"enable_noop", b"true"),
        WITH_IDS,
        (b"enable_expiry_opcode", b"true"),
        (b"enable_out_of_order_snapshots", b"true_with_seqno_advanced"),
    ):
        assert peer.control(key, value).status == 0
    frames = peer.stream(1, value=sid(0x1234))[1:]
    frames += peer.stream(1, value=sid(0x1234 + 1, collections=["8"]))[1:]
    frames += peer.stream(1, end=1, value=sid(0x1234 + 2))[1:]
    return {frame.opcode for frame in frames}, frames


def check_ids(frames: list[Frame]) -> None:
    """Each has the id of its stream in the framing extras."""
    for frame in frames:
        assert frame.magic == Magic.FLEX_REQUEST == 0x08
        ((info_id, data),) = decode_frame_infos(frame.framing)
        assert (info_id, frame.framing[0], len(data)) == (2, 0x22, 2)
        assert 0x1234 <= int.from_bytes(data, "big") <= 0x1236
        raw = frame.encode()
        assert (raw[2], raw[3]) == (3, len(frame.key)), "framing extras, then the key's length in one byte"


@rule("SID-08")
def test_answers_do_not() -> None:
    node = SimulatedNode()
    peer = reader(node)
    (opened,) = peer.stream(1, value=sid(7), opaque=0x55)
    assert (opened.magic, opened.framing, opened.opaque) == (0x81, b"", 0x55)
    close = encode_request(Opcode.DCP_CLOSE_STREAM, vbid=1, opaque=0x66, framing=b"\x22\0\7")
    assert decode_frame(close).magic == 0x08
    (closed,) = peer.send_bytes(close)
    assert (closed.magic, closed.framing, closed.opaque, closed.status) == (0x81, b"", 0x66, 0)


@rule("SID-09")
def test_the_key_of_a_flexible_request_has_one_byte_for_its_length() -> None:
    frame = decode_frame(encode_request(Opcode.GET, key=b"k" * 5, framing=b"\x22\0\7"))
    assert frame.encode()[:4] == bytes((0x08, 0x00, 3, 5))
    assert (frame.key, frame.framing) == (b"k" * 5, b"\x22\0\7")


@rule("SID-10")
def test_each_has_its_own_filter_position_and_snapshots() -> None:
    node = garden()
    new_checkpoint(node)
    peer = reader(node)
    assert sent(peer.stream(1, value=sid(1, collections=["8"]))) == [
        (0, 10, DISK), ("event", 3, 0), 4, 6, 8, ("advanced", 10),
    ]  # fmt: skip
    assert sent(peer.stream(1, value=sid(2, collections=["a"]))) == [
        (0, 10, DISK), ("event", 2, 0), 5, 7, 9, ("advanced", 10),
    ]  # fmt: skip
    assert sent(peer.stream(1, 9, value=sid(3))) == [(9, 10, DISK), 10]
    assert answer(peer.stream(1, 20, value=sid(4)))[0] == Status.ROLLBACK
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    found = {int.from_bytes(frame.framing[1:], "big") for frame in peer.take() if frame.opcode == 0x57}
    assert found == {1, 3}
    node.set_doc(1, "cax", collection=VEG_KEY)
    assert {int.from_bytes(frame.framing[1:], "big") for frame in peer.take() if frame.opcode == 0x57} == {2, 3}
    without = manifest(2, scope("s1", 9, collection("veg", 0xA)))
    set_manifest(node, without)
    assert drain(peer).count(end(7)) == 1, "only the stream of that collection ends"  # type: ignore[arg-type]


@rule("SID-11")
@each_case("order", [0, 1])
def test_not_with_durable_writes(order: int) -> None:
    peer = SimulatedNode().producer()
    first, second = [(WITH_IDS), (b"enable_sync_writes", b"true")][:: 1 if order else -1]
    assert peer.control(*first).status == 0
    assert peer.control(*second).status == Status.NOT_SUPPORTED


@rule("SID-12")
def test_it_counts_three_bytes() -> None:
    node = purged()
    size = {}
    for name, controls, value in ((b"without", [], b""), (b"with", [WITH_IDS], sid(9))):
        peer = node.producer(name, controls=[*controls, (b"connection_buffer_size", b"1")])
        (_, first) = peer.stream(1, end=1, value=value)
        found = [first.size]
        while more := peer.buffer_ack(found[-1]):
            assert len(more) == 1
            found.append(more[0].size)
        size[name] = found
    assert len(size[b"with"]) == 5, "marker, three documents, end"
    assert [after - before for after, before in zip(size[b"with"], size[b"without"], strict=True)] == [3] * 5
