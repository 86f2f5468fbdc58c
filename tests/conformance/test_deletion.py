"""Rules of DCP_DELETION."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from dcpstream.wire import Datatype, Frame, Opcode, OpenFlag, Status, values
from dcpstream.wire.stored import block
from dcpstream.wire.stored.block import Version, encode_stored_deletion
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import (
    START_UNIX_S,
    USUAL_FEATURES,
    WITHOUT_COLLECTIONS,
    ScriptedProducer,
    SimulatedNode,
)
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import REPLICA, item_count, of, stored

V1 = struct.Struct(">QQH")
V2 = struct.Struct(">QQIB")
SYSTEM = {"_sync": b"1"}
BOTH = {"_sync": b"1", "mine": b"2"}


def deletions(node: SimulatedNode, *, flags: int = 0, features: tuple[int, ...] = USUAL_FEATURES) -> list[Frame]:
    """The deletions that a new producer connection gets of vbucket 1."""
    peer = node.producer(f"reader-{len(node.peers)}".encode(), flags | OpenFlag.PRODUCER, features=features)
    return of(peer.stream(1), Opcode.DCP_DELETION)


def bury(node: SimulatedNode, value: bytes, datatype: int, *, key: bytes = b"\0k") -> None:
    """A tombstone with any value, straight into the history."""
    vbucket = node.vbucket(1)
    seqno = vbucket.high_seqno + 1
    frame = encode_stored_deletion(
        Version(key, value, 2, datatype=datatype, time=5), vbid=1, by_seqno=seqno, cas=seqno << 16
    )
    kinds = block.frame_kinds(Opcode.DCP_DELETION, datatype, key)
    vbucket.log.append(frame, key, seqno, kinds=kinds)


def replica(
    features: tuple[int, ...] = WITHOUT_COLLECTIONS, *, flags: int = 0
) -> tuple[SimulatedNode, ScriptedProducer]:
    """A copy in the middle of a snapshot 1..9 that holds `k` at seqno 1."""
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=features, flags=flags)
    source.accept()
    source.marker(1, 9)
    assert source.mutation(b"k", 1) == []
    return node, source


def send(source: ScriptedProducer, extras: bytes, *, key: bytes = b"k", **fields: Any) -> list[Frame]:
    prefix = b"\0" if source.has_collections else b""
    fields.setdefault("cas", 0x5000)
    return source.send(Opcode.DCP_DELETION, key=prefix + key, extras=extras, **fields)


@rule("DEL-01", "DEL-02")
@each_case("features", [USUAL_FEATURES, WITHOUT_COLLECTIONS])
def test_the_layout_follows_the_open_flag(features: tuple[int, ...]) -> None:
    node = SimulatedNode()
    node.set_doc(1, "k")
    node.delete_doc(1, "k")
    (first,) = deletions(node, features=features)
    assert V1.unpack(first.extras) == (2, 2, 0)
    (second,) = deletions(node, features=features, flags=OpenFlag.INCLUDE_DELETE_TIMES)
    seqno, rev, _, zero = V2.unpack(second.extras)
    assert (seqno, rev, zero) == (2, 2, 0)


@rule("DEL-03")
@each_case(
    ("features", "flags", "wanted"),
    [
        (WITHOUT_COLLECTIONS, 0, V1.pack(2, 2, 0)),
        (WITHOUT_COLLECTIONS, OpenFlag.INCLUDE_DELETE_TIMES, V2.pack(2, 2, 5, 0)),
        (USUAL_FEATURES, 0, V2.pack(2, 2, 5, 0)),
    ],
)
def test_which_layout_a_consumer_wants(features: tuple[int, ...], flags: int, wanted: bytes) -> None:
    node, source = replica(features, flags=flags)
    other = V1.pack(2, 2, 0) if len(wanted) == V2.size else V2.pack(2, 2, 5, 0)
    (answer,) = send(source, other)
    assert answer.status == Status.EINVAL
    assert node.vbucket(1).high_seqno == 1
    assert send(source, wanted) == []
    assert node.vbucket(1).high_seqno == 2


@rule("DEL-04")
def test_the_time_of_a_deletion(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_doc(1, "k")
    node.advance(50)
    node.delete_doc(1, "k")
    node.flush()
    for _ in range(2):
        (frame,) = deletions(node, flags=OpenFlag.INCLUDE_DELETE_TIMES)
        assert abs(V2.unpack(frame.extras)[2] - (START_UNIX_S + 50)) <= 5
        node.restart()


@rule("DEL-05")
def test_a_deletion_may_carry_xattrs() -> None:
    node = SimulatedNode()
    bury(node, encode_xattrs(BOTH), Datatype.XATTR)
    (frame,) = deletions(node, flags=OpenFlag.INCLUDE_XATTRS)
    assert (frame.value, frame.datatype) == (encode_xattrs(SYSTEM), Datatype.XATTR)
    peer = node.producer(
        b"all",
        OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETED_USER_XATTRS,
        controls=[(b"include_deleted_user_xattrs", b"true")],
    )
    (frame,) = of(peer.stream(1), Opcode.DCP_DELETION)
    assert (frame.value, frame.datatype) == (encode_xattrs(BOTH), Datatype.XATTR)


@rule("DEL-06")
@each_case("datatype", range(8))
def test_datatypes_of_a_deletion(datatype: int) -> None:
    node, source = replica(USUAL_FEATURES)
    value = encode_xattrs(SYSTEM) if datatype & Datatype.XATTR else b""
    if datatype & Datatype.SNAPPY:
        value = values.snappy_compress(value)
    answers = send(source, V2.pack(2, 2, 5, 0), value=value, datatype=datatype)
    if datatype in (Datatype.JSON, Datatype.JSON | Datatype.SNAPPY):
        assert [answer.status for answer in answers] == [Status.EINVAL]
        assert node.vbucket(1).high_seqno == 1
    else:
        assert answers == []
        assert node.vbucket(1).high_seqno == 2


@rule("DEL-07")
def test_a_body_is_stripped_and_xattrs_are_kept() -> None:
    node, source = replica(USUAL_FEATURES)
    value = encode_xattrs(SYSTEM, b"body")
    assert send(source, V2.pack(2, 2, 5, 0), value=value, datatype=Datatype.XATTR) == []
    assert send(source, V2.pack(3, 2, 5, 0), key=b"other", value=b"body") == []
    (kept, bare) = deletions(node, flags=OpenFlag.INCLUDE_XATTRS)
    assert (kept.value, kept.datatype) == (encode_xattrs(SYSTEM), Datatype.XATTR)
    assert (bare.value, bare.datatype) == (b"", 0)


@rule("DEL-08")
@each_case(("seqno", "status"), [(0, Status.EINVAL), (1, Status.ERANGE)])
def test_seqnos_that_may_not_be(seqno: int, status: int) -> None:
    node, source = replica()
    (answer,) = send(source, V1.pack(seqno, 2, 0))
    assert answer.status == status
    assert item_count(node) == 1


@rule("DEL-09")
def test_a_key_that_is_not_there() -> None:
    node, source = replica()
    assert send(source, V1.pack(2, 2, 0), key=b"nobody") == []
    assert stored(node, b"\0nobody").opcode == Opcode.DCP_DELETION


@rule("DEL-10")
def test_nmeta_must_be_zero() -> None:
    node, source = replica()
    (answer,) = send(source, V1.pack(2, 2, 1))
    assert answer.status == Status.EINVAL
    assert node.vbucket(1).high_seqno == 1


@rule("DEL-12")
def test_seqno_and_revision_of_a_deletion() -> None:
    node = SimulatedNode()
    for _ in range(3):
        node.set_doc(1, "k")
    node.set_doc(1, "other")
    node.delete_doc(1, "k")
    (frame,) = deletions(node)
    assert V1.unpack(frame.extras) == (5, 4, 0)


@rule("DEL-11")
def test_tombstones_are_part_of_every_backfill(tmp_path: Path) -> None:
    peer = SimulatedNode().connect()
    answer = peer.dcp_open(b"n", OpenFlag.PRODUCER | OpenFlag.SKIP_DELETES_IN_BACKFILL)
    assert answer.status == Status.EINVAL
    node = SimulatedNode(path=tmp_path)
    node.set_doc(1, "k")
    node.delete_doc(1, "k")
    node.flush()
    node.restart()
    assert len(deletions(node)) == 1
