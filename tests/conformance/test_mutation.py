"""Rules of DCP_MUTATION."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dcpstream import wire
from dcpstream.wire import Datatype, Frame, Opcode, OpenFlag, Status
from dcpstream.wire.messages import dcp
from dcpstream.wire.stored import block
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import USUAL_FEATURES, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import REPLICA, of, stored

EXTRAS = struct.Struct(">QQIIIHB")
XATTRS = {"_sync": b'{"rev":"1"}', "mine": b"2"}


def mutations(node: SimulatedNode, vbid: int = 1, *, flags: int = 0) -> list[Frame]:
    """The mutations that a new producer connection gets of a vbucket."""
    peer = node.producer(f"reader-{len(node.peers)}".encode(), flags | OpenFlag.PRODUCER)
    return of(peer.stream(vbid), Opcode.DCP_MUTATION)


def put(node: SimulatedNode, value: bytes, datatype: int, *, key: bytes = b"\0k", vbid: int = 1) -> None:
    """A document with any datatype, straight into the history."""
    vbucket = node.vbucket(vbid)
    seqno = vbucket.high_seqno + 1
    frame = encode_stored_mutation(
        Version(key, value, 1, datatype=datatype), vbid=vbid, by_seqno=seqno, cas=seqno << 16
    )
    vbucket.log.append(frame, key, seqno, kinds=block.frame_kinds(Opcode.DCP_MUTATION, datatype, key))


def replica(**fields: object) -> tuple[SimulatedNode, ScriptedProducer]:
    """A copy that has accepted a stream."""
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, **fields)  # type: ignore[arg-type]
    source.accept()
    return node, source


@rule("MUT-01", "MUT-03")
@each_case("flags", [0, 6, 0x02000000, 0xFFFFFFFF, 0x01020304])
def test_the_extras(flags: int) -> None:
    node = SimulatedNode()
    expiration = 1_800_000_000
    node.set_doc(1, "k")
    node.set_doc(1, "k", flags=flags, expiration=expiration)
    (frame,) = mutations(node)
    assert len(frame.extras) == 31
    seqno, rev, sent_flags, sent_expiration, lock_time, nmeta, _ = EXTRAS.unpack(frame.extras)
    assert (seqno, rev, sent_flags, sent_expiration, lock_time, nmeta) == (2, 2, flags, expiration, 0, 0)


@rule("MUT-02")
def test_the_documented_example() -> None:
    data = bytes.fromhex(
        "80 57 0005 1f 00 0210 00000029 00001210 0000000000000000"
        "0000000000000004 0000000000000001 00000000 00000000 00000000 0000 00"
        "68656c6c6f 776f726c64"
    )
    message = wire.decode_message(wire.decode_frame(data), strict=True)
    assert isinstance(message, dcp.Mutation)
    assert (message.vbid, message.opaque, message.by_seqno, message.rev_seqno) == (0x210, 0x1210, 4, 1)
    assert (message.key, message.value) == (b"hello", b"world")
    assert (
        dcp.Mutation(vbid=0x210, opaque=0x1210, by_seqno=4, rev_seqno=1, key=b"hello", value=b"world").encode() == data
    )


@rule("MUT-04")
def test_nmeta_is_zero_and_must_be() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k")
    assert EXTRAS.unpack(mutations(node)[0].extras)[5] == 0
    copy, source = replica()
    source.marker(1, 5)
    (answer,) = source.mutation(b"k", 1, extras=EXTRAS.pack(1, 1, 0, 0, 0, 7, 0))
    assert answer.status == Status.EINVAL
    assert copy.vbucket(1).high_seqno == 0


@rule("MUT-05", "MUT-06")
def test_neither_without_a_seqno_nor_without_a_key() -> None:
    node, source = replica()
    source.marker(0, 5)
    (answer,) = source.mutation(b"k", 0)
    assert answer.status == Status.EINVAL
    (answer,) = source.mutation(b"", 1)
    assert answer.status == Status.EINVAL
    assert not source.closed
    assert node.vbucket(1).high_seqno == 0


@rule("MUT-07")
@each_case(("value", "datatype"), [(b'{"a":1}', Datatype.JSON), (b"text", Datatype.RAW), (b"", 0)])
def test_cas_and_datatype_are_those_of_the_document(value: bytes, datatype: int) -> None:
    node = SimulatedNode()
    node.set_doc(1, "k", value)
    document = node.admin.call(Opcode.GET, vbid=1, key=b"\0k")
    (frame,) = mutations(node)
    assert frame.cas == document.cas != 0
    assert (frame.value, frame.datatype) == (value, datatype)


@rule("MUT-08")
def test_an_accepted_mutation_is_not_answered() -> None:
    node, source = replica()
    assert source.marker(1, 2) == []
    assert source.mutation(b"k", 1) == []
    assert source.mutation(b"l", 2) == []
    assert node.vbucket(1).high_seqno == 2


@rule("MUT-09")
@each_case("seqno", [1, 2, 3])
def test_a_seqno_that_does_not_rise(seqno: int) -> None:
    node, source = replica()
    source.marker(1, 9)
    source.mutation(b"k", 3)
    (answer,) = source.mutation(b"k", seqno, value=b"older")
    assert answer.status == Status.ERANGE
    source.mutation(b"other", 9)
    assert stored(node, b"\0k").value == b"v"


@rule("MUT-10")
@each_case("seqno", [4, 11])
def test_a_seqno_outside_the_marker(seqno: int) -> None:
    node, source = replica()
    source.marker(5, 10)
    (answer,) = source.mutation(b"k", seqno)
    assert answer.status == Status.ERANGE
    assert node.vbucket(1).high_seqno == 0
    assert source.mutation(b"k", 10) == []


@rule("MUT-11")
@each_case("cas", [0, 2**64 - 1])
def test_an_impossible_cas_is_replaced(cas: int) -> None:
    node, source = replica()
    source.marker(1, 1)
    assert source.mutation(b"k", 1, cas=cas) == []
    assert stored(node, b"\0k").cas not in (0, 2**64 - 1)


@rule("MUT-12")
def test_without_values() -> None:
    node = SimulatedNode()
    put(node, encode_xattrs(XATTRS, b'{"a":1}'), Datatype.JSON | Datatype.XATTR)
    put(node, b'{"b":1}', Datatype.JSON, key=b"\0plain")
    plain = mutations(node, flags=OpenFlag.NO_VALUE)
    assert [(frame.value, frame.datatype) for frame in plain] == [(b"", 0), (b"", 0)]
    xattrs = mutations(node, flags=OpenFlag.NO_VALUE | OpenFlag.INCLUDE_XATTRS)
    assert [(frame.value, frame.datatype) for frame in xattrs] == [(encode_xattrs(XATTRS), Datatype.XATTR), (b"", 0)]


def of_two_documents(node: SimulatedNode, flags: int, vbid: int = 1) -> list[tuple[object, ...]]:
    """The messages that a new connection gets of a document and of a deletion in a vbucket, without their times."""
    peer = node.producer(f"reader-{len(node.peers)}".encode(), flags | OpenFlag.PRODUCER)
    frames = [frame for frame in peer.stream(vbid) if frame.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION)]
    return [(frame.opcode, frame.key, frame.extras, frame.value, frame.datatype, frame.cas > 0) for frame in frames]


@rule("MUT-12")
@each_case("options", [0, OpenFlag.INCLUDE_DELETE_TIMES])
def test_keys_from_disk_have_lost_their_metadata_since_76(options: int) -> None:
    found = {}
    for release in ("7.2", "7.6"):
        node = SimulatedNode(release=release)
        node.set_doc(1, "gone")
        node.delete_doc(1, "gone")
        node.set_doc(1, "kept", b"1", flags=7, expiration=1_800_000_000)
        from_memory = of_two_documents(node, OpenFlag.NO_VALUE | options)
        assert [row[0] for row in from_memory] == [Opcode.DCP_DELETION, Opcode.DCP_MUTATION]
        node.vbucket(1).close_checkpoint()
        for more in (OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE, OpenFlag.NO_VALUE | OpenFlag.INCLUDE_XATTRS):
            rows = of_two_documents(node, more | options)
            assert [(*row[:4], row[5]) for row in rows] == [(*row[:4], row[5]) for row in from_memory]
        found[release] = of_two_documents(node, OpenFlag.NO_VALUE | options)
    assert found["7.2"] == from_memory
    assert found["7.6"] == [
        (Opcode.DCP_MUTATION, b"\0gone", EXTRAS.pack(2, 1, 0, 0, 0, 0, 2), b"", 0, False),
        (Opcode.DCP_MUTATION, b"\0kept", EXTRAS.pack(3, 1, 0, 0, 0, 0, 2), b"", 0, False),
    ]


@rule("MUT-12")
def test_from_memory_the_metadata_come_again_also_to_a_filtered_stream() -> None:
    node = SimulatedNode(release="7.6")
    node.set_doc(1, "gone")
    node.vbucket(1).close_checkpoint()
    peer = node.producer(b"reader", OpenFlag.PRODUCER | OpenFlag.NO_VALUE)
    (frame,) = of(peer.stream(1, value=b'{"collections":["0"]}'), Opcode.DCP_MUTATION)
    assert (frame.cas, EXTRAS.unpack(frame.extras)[1]) == (0, 1)
    node.set_doc(1, "kept", flags=7)
    node.delete_doc(1, "gone")
    kept, gone = (frame for frame in peer.take() if frame.opcode != Opcode.DCP_SNAPSHOT_MARKER)
    assert (kept.opcode, EXTRAS.unpack(kept.extras)[2], kept.cas > 0) == (Opcode.DCP_MUTATION, 7, True)
    assert (gone.opcode, gone.cas > 0) == (Opcode.DCP_DELETION, True)


@rule("MUT-13")
def test_without_values_but_with_their_datatype() -> None:
    node = SimulatedNode()
    put(node, b'{"b":1}', Datatype.JSON)
    put(node, encode_xattrs(XATTRS, b'{"a":1}'), Datatype.JSON | Datatype.XATTR, key=b"\0x")
    frames = mutations(node, flags=OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE)
    assert [(frame.value, frame.datatype) for frame in frames] == [
        (b"", Datatype.JSON),
        (b"", Datatype.JSON | Datatype.XATTR),
    ]


@rule("MUT-14")
def test_without_xattrs() -> None:
    node = SimulatedNode()
    put(node, encode_xattrs(XATTRS, b'{"a":1}'), Datatype.JSON | Datatype.XATTR)
    put(node, encode_xattrs(XATTRS, b"text"), Datatype.XATTR, key=b"\0text")
    assert [(frame.value, frame.datatype) for frame in mutations(node)] == [(b'{"a":1}', Datatype.JSON), (b"text", 0)]


@rule("MUT-15")
def test_an_expired_document_that_nobody_has_looked_at() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k", expiration=10)
    node.advance(1000)
    (frame,) = mutations(node)
    assert EXTRAS.unpack(frame.extras)[3] > 0


@rule("MUT-16")
@pytest.mark.parametrize("from_disk", [False, True])
def test_a_durable_write_is_a_plain_mutation(from_disk: bool, tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, 1, b'{"topology":[["active"]]}')
    answer = node.admin.call(Opcode.SET, vbid=1, key=b"\0k", value=b"v", extras=bytes(8), framing=bytes.fromhex("1101"))
    assert answer.status == 0
    controls = [(b"enable_sync_writes", b"true")] if from_disk else []
    node.flush()
    if from_disk:
        node.restart()
    frames = node.producer(controls=controls).stream(1)
    assert [frame.value for frame in of(frames, Opcode.DCP_MUTATION)] == [b"v"]
    assert not of(frames, Opcode.DCP_PREPARE)
    assert not of(frames, Opcode.DCP_COMMIT)


@rule("MUT-17")
def test_a_mutation_to_a_producer() -> None:
    peer = SimulatedNode().producer()
    assert peer.send(Opcode.DCP_MUTATION, vbid=1, key=b"\0k", extras=EXTRAS.pack(1, 1, 0, 0, 0, 0, 0), cas=1) == []
    assert peer.closed


@rule("MUT-07")
def test_the_copy_keeps_cas_flags_and_revision() -> None:
    node, source = replica(features=USUAL_FEATURES)
    source.marker(1, 1)
    assert source.mutation(b"k", 1, extras=EXTRAS.pack(1, 9, 7, 0, 0, 0, 0), cas=0x1234) == []
    (frame,) = mutations(node)
    assert frame.cas == 0x1234
    assert EXTRAS.unpack(frame.extras)[1:3] == (9, 7)
