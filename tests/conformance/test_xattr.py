"""Rules of extended attributes."""

from __future__ import annotations

import struct
from typing import Any

from dcpstream.wire import Datatype, Feature, Frame, Opcode, OpenFlag, Status
from dcpstream.wire.stored.block import Version, encode_stored_deletion, frame_kinds
from dcpstream.wire.values import decode_xattrs, encode_xattrs, snappy_compress, snappy_uncompress
from dcpstream_node.testing.simulation import USUAL_FEATURES, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import REPLICA, of

XATTRS = int(OpenFlag.INCLUDE_XATTRS)
USER_XATTRS = int(OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETED_USER_XATTRS)
WANTS_USER_XATTRS = ((b"include_deleted_user_xattrs", b"true"),)
BODY = b'{"body":1}'


def set_xattr(node: SimulatedNode, key: bytes, path: bytes, text: bytes, body: bytes | None = None) -> None:
    """SUBDOC_MULTI_MUTATION: an attribute, and the body too if one is given."""
    specs = struct.pack(">BBHI", Opcode.SUBDOC_DICT_UPSERT, 5, len(path), len(text)) + path + text
    if body is not None:
        specs += struct.pack(">BBHI", Opcode.SET, 0, 0, len(body)) + body
    fields: dict[str, Any] = {"key": b"\0" + key, "extras": b"\1", "value": specs}
    answer = node.admin.call(Opcode.SUBDOC_MULTI_MUTATION, vbid=1, **fields)
    assert answer.status == 0, answer


def bury(node: SimulatedNode, value: bytes, datatype: int) -> None:
    """A tombstone with this value, as another node may have made it."""
    vbucket = node.vbucket(1)
    seqno = vbucket.high_seqno + 1
    frame = encode_stored_deletion(Version(b"\0k", value, 1, datatype=datatype, time=1), vbid=1, by_seqno=seqno, cas=1)
    kinds = int(frame_kinds(Opcode.DCP_DELETION, datatype, b"\0k"))
    vbucket.log.append(frame, b"\0k", seqno, kinds=kinds)


def last(node: SimulatedNode, flags: int = XATTRS, **fields: Any) -> Frame:
    """The last message of a new stream."""
    peer = node.producer(f"reader-{len(node.peers)}".encode(), flags, **fields)
    return peer.stream(1)[-1]


@rule("XAT-01", "XAT-02")
@of_release("7.2", "8.0")
def test_the_section_to_the_byte(release: str) -> None:
    node = SimulatedNode()
    set_xattr(node, b"k", b"txn", b'{"id":1}', BODY)
    set_xattr(node, b"k", b"_a", b"2")
    frame = last(node)
    txn, a = b"\0\0\0\x0dtxn\0" + b'{"id":1}' + b"\0", b"\0\0\0\5_a\0" + b"2" + b"\0"
    pairs = txn + a if release == "7.2" else a + txn
    assert frame.value == len(pairs).to_bytes(4, "big") + pairs + BODY
    assert frame.datatype == Datatype.XATTR | Datatype.JSON


@rule("XAT-03")
@each_case(
    "value",
    [b"\0\0", b"\0\0\0\xff", b"\0\0\0\5\0\0\0\x09k", b"\0\0\0\7\0\0\0\3kv\0", b"\0\0\0\x08\0\0\0\4k\0vx"],
    ids=["too short", "beyond the value", "pair beyond the section", "no separator", "no zero byte at the end"],
)
def test_a_section_that_does_not_parse(value: bytes) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept()
    source.marker(1, 2)
    assert [frame.status for frame in source.mutation(b"k", 1, value=value, datatype=4)] == [Status.XATTR_EINVAL]
    assert node.vbucket(1).high_seqno == 0
    assert source.mutation(b"k", 1, value=encode_xattrs({"a": b"1"}), datatype=4) == []
    assert node.vbucket(1).high_seqno == 1


@rule("XAT-03")
def test_nor_as_a_version_from_elsewhere() -> None:
    extras = struct.pack(">IIQQ", 0, 0, 1, 1)
    fields: dict[str, Any] = {"key": b"\0k", "extras": extras, "datatype": 4}
    answer = SimulatedNode().admin.call(Opcode.SET_WITH_META, vbid=1, value=b"\0\0\0\xff", **fields)
    assert answer.status == Status.XATTR_EINVAL


@rule("XAT-04")
def test_compression_covers_section_and_body() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept()
    source.marker(1, 1)
    whole = encode_xattrs({"a": b'"%s"' % (b"x" * 300)}) + BODY
    assert source.mutation(b"k", 1, value=snappy_compress(whole), datatype=7) == []
    kept = last(node)
    assert (kept.datatype, snappy_uncompress(kept.value)) == (7, whole), "as it came"
    assert node.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0k").value == BODY
    packed = last(node, controls=((b"force_value_compression", b"true"),))
    assert packed.datatype == 7
    assert len(packed.value) < len(whole)
    assert snappy_uncompress(packed.value) == whole
    assert decode_xattrs(snappy_uncompress(packed.value))[1] == BODY


@rule("XAT-05")
@each_case("flags", [XATTRS, USER_XATTRS])
def test_a_delete_keeps_system_xattrs(flags: int) -> None:
    node = SimulatedNode()
    set_xattr(node, b"k", b"_sync", b"1", BODY)
    set_xattr(node, b"k", b"mine", b"2")
    node.delete_doc(1, "k")
    controls = WANTS_USER_XATTRS if flags == USER_XATTRS else ()
    frame = last(node, flags, controls=controls)
    assert frame.opcode == Opcode.DCP_DELETION
    assert (frame.datatype, frame.value) == (Datatype.XATTR, encode_xattrs({"_sync": b"1"}))


@rule("XAT-05")
def test_a_delete_without_system_xattrs_keeps_nothing() -> None:
    node = SimulatedNode()
    set_xattr(node, b"k", b"mine", b"2", BODY)
    node.delete_doc(1, "k")
    frame = last(node)
    assert (frame.opcode, frame.datatype, frame.value) == (Opcode.DCP_DELETION, 0, b"")


@rule("XAT-06")
def test_user_xattrs_of_deletions_are_for_those_who_asked() -> None:
    node = SimulatedNode()
    both = encode_xattrs({"_sync": b"1", "mine": b"2"})
    bury(node, both, 4)
    assert last(node).value == encode_xattrs({"_sync": b"1"})
    frame = last(node, USER_XATTRS, controls=WANTS_USER_XATTRS)
    assert (frame.datatype, frame.value) == (4, both)
    assert last(node, 0).value == b""


@rule("XAT-07")
@each_case(
    ("flags", "datatype"),
    [(OpenFlag.NO_VALUE, 0), (OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE, 5)],
)
def test_an_item_without_value(flags: int, datatype: int) -> None:
    node = SimulatedNode()
    set_xattr(node, b"k", b"mine", b"2", BODY)
    frame = last(node, int(flags))
    assert (frame.value, frame.datatype) == (b"", datatype)


@rule("XAT-08")
@each_case(
    ("xattrs", "value", "datatype"),
    [
        ({"_sync": b"1", "mine": b"2"}, encode_xattrs({"_sync": b"1"}), Datatype.XATTR),
        ({"mine": b"2"}, b"", Datatype.RAW),
    ],
    ids=["a system xattr remains", "none remains"],
)
def test_the_datatype_after_user_xattrs_were_stripped(xattrs: dict[str, bytes], value: bytes, datatype: int) -> None:
    node = SimulatedNode()
    bury(node, encode_xattrs(xattrs), int(Datatype.XATTR | Datatype.JSON))
    frame = last(node)
    assert frame.opcode == Opcode.DCP_DELETION
    assert (frame.value, frame.datatype) == (value, datatype)


@rule("XAT-09")
def test_the_open_flag_is_enough() -> None:
    node = SimulatedNode()
    set_xattr(node, b"k", b"mine", b"2", BODY)
    features = tuple(feature for feature in USUAL_FEATURES if feature != Feature.XATTR)
    frame = last(node, features=features)
    assert (frame.datatype, frame.value) == (5, encode_xattrs({"mine": b"2"}) + BODY)


@rule("XAT-10")
def test_streams_with_xattrs_need_noops() -> None:
    node = SimulatedNode()
    features = tuple(feature for feature in USUAL_FEATURES if feature != Feature.COLLECTIONS)
    for flags, status in ((XATTRS, Status.NOT_SUPPORTED), (0, Status.SUCCESS)):
        peer = node.connect(features=features)
        assert peer.dcp_open(b"reader", flags | OpenFlag.PRODUCER).status == 0
        answer = peer.stream(1)[0]
        assert (answer.opcode, answer.status) == (Opcode.DCP_STREAM_REQ, status)
        if status:
            assert peer.control(b"enable_noop", b"true").status == 0
            assert of(peer.stream(1), Opcode.DCP_STREAM_REQ)[0].status == 0
