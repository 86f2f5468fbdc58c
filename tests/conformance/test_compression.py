"""Rules of snappy: who gets compressed values, and which."""

from __future__ import annotations

from typing import Any

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.model import MAX_SEQNO
from dcpstream.wire import Datatype, Feature, Opcode, OpenFlag, Status, decode_frame
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.values import encode_xattrs, snappy_compress, snappy_uncompress
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.lists import ListSource, ListVBucket, frame_of, frames_in
from tests.kit.rules import rule
from tests.kit.streams import REPLICA, read

LONG = b"hello hello hello hello hello hello hello hello"
PACKED = snappy_compress(LONG)
FORCE = (b"force_value_compression", b"true")
WITHOUT_SNAPPY = tuple(
    feature for feature in USUAL_FEATURES if feature not in (Feature.SNAPPY, Feature.SNAPPY_EVERYWHERE)
)
JSON, SNAPPY, XATTR = 1, 2, 4


def streamed(vbucket: ListVBucket, features: tuple[int, ...], flags: int = 1, *controls: tuple[bytes, bytes]) -> list:
    """The data of a stream of everything, from a list: a bucket may hold what a client sent compressed."""
    machine = ProducerConnection(Opening("c", flags, features), ListSource(vbucket), 0.0)
    for key, value in ((b"enable_noop", b"true"), *controls):
        machine.handle(frame_of(Opcode.DCP_CONTROL, key=key, value=value), 0.0)
    request = StreamRequest(
        vbid=0, opaque=7, flags=0, start_seqno=0, end_seqno=MAX_SEQNO, vbuuid=0, snapshot_start=0, snapshot_end=0
    )
    machine.handle(decode_frame(request.encode()), 0.0)
    pieces: list = []
    while data := machine.data_to_send(1 << 20, 0.0):
        pieces += data
    return [frame for frame in frames_in(pieces) if frame.opcode in (0x57, 0x58, 0x59)]


def stored() -> ListVBucket:
    """A compressed value, a plain one, an empty one, a compressed one with xattrs, and xattrs alone."""
    vbucket = ListVBucket()
    vbucket.set(b"packed", PACKED, datatype=SNAPPY)
    vbucket.set(b"plain", LONG)
    vbucket.set(b"empty", b"")
    section = encode_xattrs({"_sync": b'{"rev":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}'})
    vbucket.set(b"both", snappy_compress(section + LONG), datatype=SNAPPY | XATTR)
    vbucket.set(b"section", section, datatype=XATTR)
    return vbucket


@rule("CMP-01")
@each_case("flags", [1, 1 | OpenFlag.INCLUDE_XATTRS, 1 | OpenFlag.NO_VALUE])
def test_without_snappy_all_is_inflated(flags: int) -> None:
    frames = streamed(stored(), (Feature.XATTR, Feature.JSON), flags)
    assert len(frames) == 5
    assert not any(frame.datatype & SNAPPY for frame in frames)
    if flags == 1:
        assert [frame.value for frame in frames] == [LONG, LONG, b"", LONG, b""]
    for feature in (Feature.SNAPPY, Feature.SNAPPY_EVERYWHERE):
        frames = streamed(stored(), (Feature.XATTR, Feature.JSON, feature), 1)
        assert frames[0].datatype & SNAPPY, "either feature will do"


@rule("CMP-02")
def test_with_snappy_values_come_as_they_are_stored() -> None:
    frames = streamed(stored(), USUAL_FEATURES, 1 | OpenFlag.INCLUDE_XATTRS)
    assert [frame.datatype for frame in frames] == [SNAPPY, 0, 0, SNAPPY | XATTR, XATTR]
    assert frames[0].value == PACKED
    assert frames[1].value == LONG


@rule("CMP-03")
def test_forced_where_it_makes_a_value_smaller() -> None:
    vbucket = stored()
    vbucket.set(b"short", b"v")
    frames = streamed(vbucket, USUAL_FEATURES, 1 | OpenFlag.INCLUDE_XATTRS, FORCE)
    assert [bool(frame.datatype & SNAPPY) for frame in frames] == [True, True, False, True, True, False]
    assert snappy_uncompress(frames[1].value) == LONG
    assert snappy_uncompress(frames[4].value).endswith(b"\0")
    assert frames[5].value == b"v", "compressed it would be longer"
    assert all(len(frame.value) < len(snappy_uncompress(frame.value)) for frame in frames if frame.datatype & SNAPPY)


@rule("CMP-03")
def test_the_same_of_a_whole_node() -> None:
    node = SimulatedNode()
    node.set_doc(1, "long", LONG)
    node.set_doc(1, "short", b"v")
    peer = node.producer(controls=[FORCE])
    found = [frame for frame in peer.stream(1) if frame.opcode == Opcode.DCP_MUTATION]
    assert [(frame.datatype & SNAPPY, frame.value) for frame in found] == [(SNAPPY, PACKED), (0, b"v")]
    assert node.connect(features=WITHOUT_SNAPPY).dcp_open(b"x").status == 0
    other = node.producer(b"other", features=WITHOUT_SNAPPY)
    assert other.control(*FORCE).status == Status.EINVAL


@rule("CMP-04")
def test_empty_values_are_never_compressed() -> None:
    for controls in ((), (FORCE,)):
        empty = streamed(stored(), USUAL_FEATURES, 1, *controls)[2]
        assert (empty.value, empty.datatype) == (b"", 0)
        without = streamed(stored(), USUAL_FEATURES, 1 | OpenFlag.NO_VALUE, *controls)
        assert {(frame.value, frame.datatype) for frame in without} == {(b"", 0)}
    kept = streamed(stored(), USUAL_FEATURES, 1 | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE)
    assert (kept[0].value, kept[0].datatype) == (b"", SNAPPY)


@rule("CMP-05")
def test_the_format_is_the_raw_block() -> None:
    # A varint with the length, then literals (here all of one) and copies; no stream identifier, no checksums.
    assert snappy_uncompress(b"\x05\x10hello") == b"hello"
    assert snappy_uncompress(b"\x17\x14hello B\x06\x00") == b"hello hello hello hello"
    assert snappy_compress(LONG)[0] == len(LONG)
    assert b"sNaPpY" not in snappy_compress(LONG)
    node = SimulatedNode()
    node.set_doc(1, "k", b"\x17\x14hello B\x06\x00", datatype=SNAPPY)
    peer = node.producer(features=WITHOUT_SNAPPY)
    assert peer.stream(1)[-1].value == b"hello hello hello hello"
    framed = b"\xff\x06\0\0sNaPpY"
    answered = node.admin.call(Opcode.SET, vbid=1, key=b"\0k", value=framed, datatype=SNAPPY, extras=bytes(8))
    assert answered.status == Status.EINVAL


@rule("CMP-06")
def test_markers_and_events_are_never_compressed() -> None:
    from tests.kit.streams import collection, manifest, set_manifest

    node = SimulatedNode()
    set_manifest(node, manifest(1, default=[collection("a" * 200, 8)]))
    for controls in ([FORCE], [FORCE, (b"flatbuffers_system_events", b"true")]):
        peer: Peer = node.producer(controls=controls)
        frames = [frame for frame in peer.stream(1) if frame.is_request]
        assert [frame.opcode for frame in frames] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SYSTEM_EVENT]
        assert [frame.datatype for frame in frames] == [0, 0]
        assert frames[1].key == b"a" * 200


@rule("CMP-07")
@each_case("is_forced", [False, True])
def test_the_compressed_size_counts(is_forced: bool) -> None:
    node = SimulatedNode()
    node.set_doc(1, "long", LONG * 10)
    peer = node.producer(controls=[*([FORCE] if is_forced else []), (b"connection_buffer_size", b"1")])
    marker = peer.stream(1, end=1)[1]
    (document,) = peer.buffer_ack(marker.size)
    size = 55 + len(b"\0long") + (len(snappy_compress(LONG * 10)) if is_forced else len(LONG * 10))
    assert document.size == size
    assert peer.buffer_ack(size - 1) == []
    assert read(peer.buffer_ack(1)) == [("end", 0)]


@rule("CMP-08")
@each_case("has_snappy", [False, True])
@each_case("opcode", [Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION])
def test_a_copy_takes_compressed_values_from_who_negotiated_them(has_snappy: bool, opcode: int) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    features = (Feature.XERROR, Feature.XATTR, Feature.JSON, *((Feature.SNAPPY,) if has_snappy else ()))
    source = ScriptedProducer(node, features=features)
    source.accept(1)
    assert source.marker(1, 2) == []
    section = encode_xattrs({"_sync": b'"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"'})
    value, datatype = (PACKED, SNAPPY)
    extras = {Opcode.DCP_MUTATION: 31, Opcode.DCP_DELETION: 18, Opcode.DCP_EXPIRATION: 20}[Opcode(opcode)]
    if opcode != Opcode.DCP_MUTATION:
        value, datatype = snappy_compress(section), SNAPPY | XATTR
    fields: dict[str, Any] = {"extras": b"\0" * 7 + b"\1" + bytes(extras - 8), "cas": 0x1001, "key": b"k"}
    frames = source.send(opcode, value=value, datatype=datatype, **fields)
    assert read(frames) == ([] if has_snappy else [("answer", Status.EINVAL)])
    assert node.vbucket(1).high_seqno == has_snappy
    assert Datatype(datatype) & SNAPPY
