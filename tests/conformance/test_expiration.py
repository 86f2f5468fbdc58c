"""Rules of DCP_EXPIRATION."""

from __future__ import annotations

import struct

from dcpstream.wire import Datatype, Frame, Opcode, OpenFlag, Status
from dcpstream.wire.stored import block
from dcpstream.wire.stored.block import Version, encode_stored_expiration
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import START_UNIX_S, WITHOUT_COLLECTIONS, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import REPLICA, item_count

EXTRAS = struct.Struct(">QQI")
ENABLE = (b"enable_expiry_opcode", b"true")
WITH_TIMES = OpenFlag.INCLUDE_DELETE_TIMES


def changes(
    node: SimulatedNode, flags: int = WITH_TIMES, controls: tuple[tuple[bytes, bytes], ...] = (ENABLE,)
) -> list[Frame]:
    """The messages that a new producer connection gets of vbucket 1, without markers."""
    peer = node.producer(f"reader-{len(node.peers)}".encode(), flags | OpenFlag.PRODUCER, controls=controls)
    wanted = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)
    return [frame for frame in peer.stream(1) if frame.is_request and frame.opcode in wanted]


def expire(node: SimulatedNode) -> None:
    """A document whose time is over, and somebody who looks for it."""
    node.set_doc(1, "k", expiration=10)
    node.advance(60)
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").status == Status.KEY_ENOENT


@rule("EXP-01", "EXP-03")
def test_the_extras() -> None:
    node = SimulatedNode()
    expire(node)
    (frame,) = changes(node)
    assert frame.opcode == Opcode.DCP_EXPIRATION
    assert len(frame.extras) == 20
    seqno, rev, when = EXTRAS.unpack(frame.extras)
    assert (seqno, rev) == (2, 2)
    assert START_UNIX_S <= when <= START_UNIX_S + 61


@rule("EXP-02")
@each_case(
    ("flags", "controls", "opcode", "extras_bytes"),
    [
        (WITH_TIMES, (ENABLE,), Opcode.DCP_EXPIRATION, 20),
        (WITH_TIMES, (), Opcode.DCP_DELETION, 21),
        (0, (ENABLE,), Opcode.DCP_DELETION, 18),
        (0, (), Opcode.DCP_DELETION, 18),
    ],
)
def test_only_with_flag_and_control(
    flags: int, controls: tuple[tuple[bytes, bytes], ...], opcode: int, extras_bytes: int
) -> None:
    node = SimulatedNode()
    expire(node)
    (frame,) = changes(node, flags, controls)
    assert (frame.opcode, len(frame.extras)) == (opcode, extras_bytes)


@rule("EXP-04")
def test_it_may_carry_system_xattrs() -> None:
    node = SimulatedNode()
    value = encode_xattrs({"_sync": b"1"})
    vbucket = node.vbucket(1)
    frame = encode_stored_expiration(
        Version(b"\0k", value, 2, datatype=Datatype.XATTR, time=7), vbid=1, by_seqno=1, cas=9
    )
    kinds = block.frame_kinds(Opcode.DCP_EXPIRATION, Datatype.XATTR, b"\0k")
    vbucket.log.append(frame, b"\0k", 1, kinds=kinds)
    (sent,) = changes(node, WITH_TIMES | OpenFlag.INCLUDE_XATTRS)
    assert (sent.opcode, sent.value, sent.datatype) == (Opcode.DCP_EXPIRATION, value, Datatype.XATTR)


@rule("EXP-05")
def test_an_explicit_delete_stays_a_deletion() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k", expiration=1000)
    node.delete_doc(1, "k")
    (frame,) = changes(node)
    assert frame.opcode == Opcode.DCP_DELETION


def replica() -> tuple[SimulatedNode, ScriptedProducer]:
    """A copy in the middle of a snapshot 1..9 that holds `k` at seqno 1."""
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=WITHOUT_COLLECTIONS)
    source.accept()
    source.marker(1, 9)
    assert source.mutation(b"k", 1) == []
    return node, source


@rule("EXP-06")
@each_case(
    ("extras", "key"),
    [(b"", b"k"), (bytes(18), b"k"), (EXTRAS.pack(2, 2, 7) + b"\0", b"k"), (EXTRAS.pack(2, 2, 7), b"")],
)
def test_other_shapes_are_refused(extras: bytes, key: bytes) -> None:
    node, source = replica()
    (answer,) = source.send(Opcode.DCP_EXPIRATION, key=key, extras=extras, cas=9)
    assert answer.status == Status.EINVAL
    assert node.vbucket(1).high_seqno == 1


@rule("EXP-07")
def test_a_copy_applies_it_and_hands_it_on() -> None:
    node, source = replica()
    assert source.send(Opcode.DCP_EXPIRATION, key=b"k", extras=EXTRAS.pack(2, 5, 7), cas=9) == []
    assert item_count(node) == 0
    (frame,) = changes(node)
    assert (frame.opcode, frame.extras, frame.cas) == (Opcode.DCP_EXPIRATION, EXTRAS.pack(2, 5, 7), 9)
