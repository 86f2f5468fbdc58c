"""Rules of durable writes: prepares, commits, aborts and acknowledgements."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from dcpstream import wire
from dcpstream.wire import Datatype, Frame, Opcode, Status, values
from dcpstream.wire.keys import encode_frame_info
from dcpstream.wire.messages import dcp
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import (
    START_UNIX_S,
    USUAL_FEATURES,
    WITHOUT_COLLECTIONS,
    Peer,
    ScriptedProducer,
    SimulatedNode,
)
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import ACTIVE, FIRST, REPLICA, dcp_stat, of, opcodes

PREPARE = struct.Struct(">QQIIIBBB")
PAIR = struct.Struct(">QQ")
MARKER_V2 = struct.Struct(">QQIQQ")
ALONE = b'{"topology":[["active"]]}'
WITH_REPLICA = b'{"topology":[["active","rep1"]]}'
SYNC = (b"enable_sync_writes", b"true")
NAME = (b"consumer_name", b"rep1")


def durable_node(topology: bytes = ALONE, **fields: Any) -> SimulatedNode:
    """A node whose vbucket 1 takes durable writes."""
    node = SimulatedNode(**fields)
    node.set_vbucket(1, ACTIVE, topology)
    return node


def requirement(level: int = 1, timeout_ms: int | None = None) -> bytes:
    """The framing extra of a durable write."""
    return encode_frame_info(1, bytes([level]) + (b"" if timeout_ms is None else timeout_ms.to_bytes(2, "big")))


def durable_set(peer: Peer, key: bytes, value: bytes = b"v", *, level: int = 1, timeout_ms: int | None = None):
    """A durable SET; what comes of it."""
    return peer.send(
        Opcode.SET, vbid=1, key=b"\0" + key, value=value, extras=struct.pack(">II", 7, 0),
        framing=requirement(level, timeout_ms),
    )  # fmt: skip


def sync_replica(node: SimulatedNode) -> Peer:
    """A connection that takes part in durable writes."""
    return node.producer(b"replica", controls=(SYNC, NAME))


def acknowledge(peer: Peer, seqno: int, *, vbid: int = 1, opaque: int = 0x77, **fields: Any) -> list[Frame]:
    """SEQNO_ACKNOWLEDGED."""
    fields.setdefault("extras", seqno.to_bytes(8, "big"))
    return peer.send(Opcode.DCP_SEQNO_ACKNOWLEDGED, vbid=vbid, opaque=opaque, **fields)


# --------------------------------------------------------------------------------------------------- what is sent


@rule("FLC-14")
def test_a_producer_counts_two_bytes_more_for_a_prepare() -> None:
    node = durable_node()
    durable_set(node.connect(), b"k", b"value")
    replica = sync_replica(node)
    replica.control(b"connection_buffer_size", b"100000")
    frames = replica.stream(1)
    counted = [frame for frame in frames if not frame.is_response]
    prepares = of(counted, Opcode.DCP_PREPARE)
    assert len(prepares) == 1
    assert dcp_stat(node, "unacked_bytes", "replica") == str(sum(frame.size for frame in counted) + 2)


@rule("DUR-01", "DUR-06", "DUR-09")
def test_a_stream_with_sync_writes_sees_prepare_and_commit() -> None:
    node = durable_node()
    node.set_doc(1, "before")
    (answer,) = durable_set(node.connect(), b"k", b"value")
    assert (answer.status, answer.extras[8:]) == (0, (2).to_bytes(8, "big"))
    frames = node.producer(controls=(SYNC,)).stream(1)
    assert opcodes(frames[1:]) == [
        Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_PREPARE, Opcode.DCP_COMMIT
    ]  # fmt: skip
    marker, prepare, commit = frames[1], frames[3], frames[4]
    assert len(prepare.extras) == 31
    assert PREPARE.unpack(prepare.extras) == (2, 1, 7, 0, 0, 2, 0, 1)
    assert (prepare.key, prepare.value, prepare.cas) == (b"\0k", b"value", answer.cas)
    assert PAIR.unpack(commit.extras) == (2, 3)
    assert (commit.key, commit.value, commit.cas) == (b"\0k", b"", 0)
    assert struct.unpack(">QQI", marker.extras)[:2] == (0, 3)


@rule("DUR-06", "DUR-07")
def test_others_see_the_document_only() -> None:
    node = durable_node(WITH_REPLICA)
    node.set_doc(1, "before")
    assert durable_set(node.connect(), b"k") == []  # it waits for the replica
    peer = node.producer(b"plain")
    frames = peer.stream(1)
    assert opcodes(frames[1:]) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_SEQNO_ADVANCED]
    assert struct.unpack(">QQI", frames[1].extras)[:2] == (0, 2)
    assert frames[-1].extras == (2).to_bytes(8, "big")
    node.advance(31)  # nobody acknowledges: aborted
    assert node.vbucket(1).high_seqno == 3
    assert [frame for frame in peer.take() if frame.opcode != Opcode.DCP_NOOP] == []


@rule("DUR-07")
def test_without_collections_nothing_is_said_of_them() -> None:
    node = durable_node(WITH_REPLICA)
    node.set_doc(1, "before")
    durable_set(node.connect(), b"k")
    frames = node.producer(features=WITHOUT_COLLECTIONS).stream(1)
    assert opcodes(frames[1:]) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    assert struct.unpack(">QQI", frames[1].extras)[:2] == (0, 1)


@rule("DUR-07")
def test_a_live_stream_gets_the_commit_only() -> None:
    node = durable_node(WITH_REPLICA)
    node.set_doc(1, "before")
    plain, replica = node.producer(b"plain"), sync_replica(node)
    plain.stream(1)
    replica.stream(1)
    durable_set(node.connect(), b"k")
    assert plain.take() == []
    acknowledge(replica, 2)
    marker, mutation = plain.take()
    assert struct.unpack(">QQI", marker.extras) == (3, 3, 1)
    assert (mutation.opcode, mutation.extras[:8]) == (Opcode.DCP_MUTATION, (3).to_bytes(8, "big"))


@rule("DUR-08")
def test_from_disk_a_commit_is_a_mutation(tmp_path: Path) -> None:
    node = durable_node(path=tmp_path)
    durable_set(node.connect(), b"k", b"value")
    node.flush()
    node.restart()
    frames = node.producer(controls=(SYNC, NAME)).stream(1)
    assert opcodes(frames[1:]) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    assert (frames[2].key, frames[2].value, frames[2].extras[:8]) == (b"\0k", b"value", (2).to_bytes(8, "big"))


@rule("DUR-08")
def test_what_is_undecided_comes_from_disk_too(tmp_path: Path) -> None:
    node = durable_node(WITH_REPLICA, path=tmp_path)
    durable_set(node.connect(), b"k")
    node.flush()
    node.restart()
    replica = sync_replica(node)
    frames = replica.stream(1)
    assert opcodes(frames[1:]) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_PREPARE]
    blocked = node.connect().send(Opcode.SET, vbid=1, key=b"\0k", extras=bytes(8))
    assert [frame.status for frame in blocked] == [Status.SYNC_WRITE_IN_PROGRESS]
    node.set_vbucket(1, ACTIVE, WITH_REPLICA)
    acknowledge(replica, 1)
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").value == b"v"


@rule("DUR-10")
def test_a_durable_deletion() -> None:
    node = durable_node(WITH_REPLICA)
    value = encode_xattrs({"_sync": b"1", "mine": b"2"}) + b'{"a":1}'
    meta = struct.pack(">IIQQ", 0, 0, 5, 0x1234)
    answer = node.admin.call(Opcode.SET_WITH_META, vbid=1, key=b"\0k", value=value, datatype=5, extras=meta)
    assert answer.status == 0
    replica = node.producer(b"replica", flags=4, controls=(SYNC, NAME))
    replica.stream(1)
    client = node.connect()
    # With system xattrs only what the bucket demands makes a deletion durable.
    node.bucket.change_settings(replace(node.bucket.settings, durability_min_level=1))
    assert client.send(Opcode.DELETE, vbid=1, key=b"\0k", framing=requirement(3)) == []
    (prepare,) = of(replica.take(), Opcode.DCP_PREPARE)
    seqno, rev_seqno, _, _, _, _, deleted, level = PREPARE.unpack(prepare.extras)
    assert (seqno, rev_seqno, deleted, level) == (2, 6, 1, 1)
    assert (prepare.datatype, prepare.value) == (Datatype.XATTR, encode_xattrs({"_sync": b"1"}))
    acknowledge(replica, 2)
    assert [frame.status for frame in client.take()] == [0]
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").status == Status.KEY_ENOENT
    deletion = node.producer(b"plain", flags=0x20).stream(1)[-1]
    assert (deletion.opcode, deletion.cas) == (Opcode.DCP_DELETION, prepare.cas)
    assert struct.unpack(">QQIB", deletion.extras) == (3, 6, START_UNIX_S, 0)


@rule("DUR-19")
def test_the_high_completed_seqno_stands_in_disk_markers_only() -> None:
    node = durable_node()
    client = node.connect()
    durable_set(client, b"k")
    memory = sync_replica(node).stream(1)[1]
    assert MARKER_V2.unpack(memory.value) == (0, 2, 5, 2, 0)
    durable_set(client, b"k")  # another prepare of the same document begins a checkpoint
    disk = sync_replica(node).stream(1)[1]
    assert MARKER_V2.unpack(disk.value) == (0, 4, 6, 4, 3)
    stats = node.stats("vbucket-seqno 1")
    assert [stats[f"vb_1:{name}"] for name in ("high_completed_seqno", "high_prepared_seqno", "max_visible_seqno")] == [
        "3", "3", "4"
    ]  # fmt: skip


@rule("DUR-04")
@each_case("kind", [dcp.Commit, dcp.Abort])
def test_the_documented_examples(kind: type) -> None:
    second = "commit_seqno" if kind is dcp.Commit else "abort_seqno"
    message = kind(vbid=0x210, opaque=0x1210, key=b"hello", prepared_seqno=4, **{second: 5})
    opcode = "62" if kind is dcp.Commit else "63"
    expected = f"80{opcode}0005100002100000001500001210" + "00" * 8 + "0000000000000004" + "0000000000000005"
    assert message.encode() == bytes.fromhex(expected) + b"hello"
    assert message.encode()[8:12] == bytes.fromhex("00000015")


# ------------------------------------------------------------------------------------------------ acknowledgements


@rule("DUR-05")
@each_case(
    "fields",
    [{"extras": b""}, {"extras": bytes(7)}, {"extras": bytes(16)}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}],
    ids=str,
)
def test_malformed_acknowledgements(fields: dict[str, Any]) -> None:
    node = durable_node(WITH_REPLICA)
    replica = sync_replica(node)
    replica.stream(1)
    (answer,) = acknowledge(replica, 1, **fields)
    assert answer.status == Status.EINVAL
    assert not replica.closed


@rule("DUR-11")
@each_case("controls", [(), (SYNC,), (NAME,)], ids=["none", "sync writes", "name"])
def test_an_acknowledgement_needs_both_controls(controls: tuple) -> None:
    node = durable_node(WITH_REPLICA)
    peer = node.producer(b"half", controls=controls)
    peer.stream(1)
    (answer,) = acknowledge(peer, 0)
    assert (answer.opcode, answer.status) == (Opcode.DCP_SEQNO_ACKNOWLEDGED, Status.EINVAL)
    assert not peer.closed


@rule("DUR-12")
def test_an_acknowledgement_for_an_unknown_vbucket() -> None:
    replica = sync_replica(durable_node(WITH_REPLICA))
    (answer,) = acknowledge(replica, 1, vbid=900)
    assert answer.status == Status.NOT_MY_VBUCKET
    assert not replica.closed


@rule("DUR-13", "DUR-15")
def test_an_acknowledgement_of_another_stream_is_ignored() -> None:
    node = durable_node(WITH_REPLICA)
    replica, client = sync_replica(node), node.connect()
    replica.stream(1)
    durable_set(client, b"k")
    assert acknowledge(replica, 1, opaque=0x99) == []
    assert client.take() == []  # nothing is decided
    assert node.vbucket(1).high_seqno == 1
    assert opcodes(acknowledge(replica, 1)) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_COMMIT]  # and no answer
    assert [frame.status for frame in client.take()] == [0]


@rule("DUR-13")
def test_an_acknowledgement_of_a_stream_that_is_over_is_ignored() -> None:
    node = durable_node(WITH_REPLICA)
    replica, client = sync_replica(node), node.connect()
    replica.stream(1)
    durable_set(client, b"k")
    replica.close_stream(1)
    assert acknowledge(replica, 1) == []
    assert client.take() == []
    assert not replica.closed


@rule("DUR-14")
@each_case(("vbid", "seqno"), [(1, 2), (2, 0)], ids=["not sent yet", "never streamed"])
def test_an_acknowledgement_that_cannot_be(vbid: int, seqno: int) -> None:
    node = durable_node(WITH_REPLICA)
    replica = sync_replica(node)
    replica.stream(1)
    durable_set(node.connect(), b"k")
    assert acknowledge(replica, seqno, vbid=vbid) == []
    assert replica.closed


@rule("DUR-15")
def test_only_who_is_in_the_chain_decides() -> None:
    node = durable_node(b'{"topology":[["active","rep2","rep3"]]}')
    client = node.connect()
    other = sync_replica(node)
    other.stream(1)
    third = node.producer(b"third", controls=(SYNC, (b"consumer_name", b"rep3")))
    third.stream(1)
    durable_set(client, b"k")
    acknowledge(other, 1)
    assert client.take() == []
    acknowledge(third, 1)
    assert [frame.status for frame in client.take()] == [0]


# ---------------------------------------------------------------------------------------------------- the consumer


def copy(**fields: Any) -> tuple[SimulatedNode, ScriptedProducer]:
    """A copy that takes part in durable writes, and its source."""
    node = SimulatedNode(**fields)
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=USUAL_FEATURES, value=b'{"consumer_name":"rep1"}', datatype=1)
    source.accept()
    return node, source


def prepare(source: ScriptedProducer, seqno: int, key: bytes = b"\0k", **fields: Any) -> list[Frame]:
    """A PREPARE."""
    cas, level, deleted = fields.pop("cas", 0x77), fields.pop("level", 1), fields.pop("deleted", 0)
    extras = PREPARE.pack(seqno, 1, 0, 0, 0, 0, deleted, level)
    return source.send(Opcode.DCP_PREPARE, key=key, value=b"v", extras=extras, cas=cas, **fields)


def decide(
    source: ScriptedProducer, opcode: int, prepared: int, seqno: int, key: bytes = b"\0k", **fields: Any
) -> list[Frame]:
    """A COMMIT or ABORT."""
    fields.setdefault("extras", PAIR.pack(prepared, seqno))
    return source.send(opcode, key=key, **fields)


@rule("DUR-02")
@each_case(
    ("seqno", "fields"),
    [(1, {"cas": 0}), (0, {}), (1, {"level": 0}), (1, {"level": 4}), (1, {"key": b""})],
    ids=["CAS", "seqno", "level 0", "level 4", "key"],
)
def test_malformed_prepares(seqno: int, fields: dict[str, Any]) -> None:
    node, source = copy()
    source.marker_v2(1, 2)
    assert [frame.status for frame in prepare(source, seqno, **fields)] == [Status.EINVAL]
    assert node.vbucket(1).high_seqno == 0
    assert not source.closed


@rule("DUR-03")
@each_case("opcode", [Opcode.DCP_COMMIT, Opcode.DCP_ABORT])
@each_case(
    "fields",
    [{"extras": bytes(8)}, {"extras": bytes(24)}, {"key": b""}, {"value": b"v"}, {"cas": 1}],
    ids=["short", "long", "key", "value", "CAS"],
)
def test_malformed_decisions(opcode: int, fields: dict[str, Any]) -> None:
    node, source = copy()
    source.marker_v2(1, 2)
    assert prepare(source, 1) == []
    assert [frame.status for frame in decide(source, opcode, 1, 2, **fields)] == [Status.EINVAL]
    assert node.vbucket(1).high_seqno == 1


@rule("DUR-09")
@each_case("opcode", [Opcode.DCP_COMMIT, Opcode.DCP_ABORT])
def test_the_second_seqno_must_lie_in_the_snapshot(opcode: int) -> None:
    node, source = copy()
    source.marker_v2(1, 1)
    assert [frame.opcode for frame in prepare(source, 1)] == [Opcode.DCP_SEQNO_ACKNOWLEDGED]
    source.marker_v2(2, 2, FIRST)
    assert decide(source, opcode, 1, 2) == []
    assert node.vbucket(1).high_seqno == 2
    assert [frame.status for frame in decide(source, opcode, 1, 2)] == [Status.ERANGE]
    node, source = copy()
    source.marker_v2(1, 1)
    assert [frame.opcode for frame in prepare(source, 1)] == [Opcode.DCP_SEQNO_ACKNOWLEDGED]
    source.marker_v2(2, 2, FIRST)
    assert decide(source, opcode, 1, 3) == []
    assert source.closed


@rule("DUR-16")
def test_prepares_are_acknowledged_at_the_end_of_their_snapshot() -> None:
    _, source = copy()
    source.marker_v2(1, 3)
    assert prepare(source, 1) == []
    assert prepare(source, 2, b"\0l") == []
    (ack,) = source.mutation(b"m", 3)
    assert (ack.opcode, ack.is_request, ack.vbid, ack.opaque) == (
        Opcode.DCP_SEQNO_ACKNOWLEDGED, True, 1, source.opaque,
    )  # fmt: skip
    assert ack.extras == (2).to_bytes(8, "big")
    source.marker_v2(4, 4)
    assert source.mutation(b"n", 4) == []  # a snapshot without a prepare


@rule("DUR-16")
def test_and_right_after_the_stream_was_accepted(tmp_path: Path) -> None:
    node, source = copy(path=tmp_path)
    source.marker_v2(1, 1)
    prepare(source, 1)
    node.flush()
    node.restart()
    again = ScriptedProducer(node, features=USUAL_FEATURES, value=b'{"consumer_name":"rep1"}', datatype=1)
    request = again.request()
    log = values.encode_failover_log(node.failover_log(1))
    answer, ack = again.peer.answer(request, value=log)
    assert (answer.opcode, answer.status) == (Opcode.DCP_ADD_STREAM, 0)
    assert (ack.opcode, ack.extras) == (Opcode.DCP_SEQNO_ACKNOWLEDGED, (1).to_bytes(8, "big"))


@rule("DUR-17", "DUR-18")
@each_case("opcode", [Opcode.DCP_COMMIT, Opcode.DCP_ABORT])
def test_a_decision_without_its_prepare(opcode: int) -> None:
    node, source = copy()
    source.marker_v2(1, 2)
    expected = Status.KEY_ENOENT if opcode == Opcode.DCP_COMMIT else Status.EINVAL
    assert [frame.status for frame in decide(source, opcode, 1, 2)] == [expected]
    assert node.vbucket(1).high_seqno == 0
    for status in (Status.KEY_ENOENT, Status.EINVAL):
        replica = sync_replica(durable_node())
        replica.stream(1)
        replica.send_bytes(wire.encode_response(opcode, status=status, opaque=0x77))
        assert replica.closed


@rule("DUR-20")
def test_a_prepare_in_the_place_of_another() -> None:
    node, source = copy()
    source.marker_v2(1, 3)
    assert prepare(source, 1) == []
    assert [frame.status for frame in prepare(source, 2)] == [Status.SYNC_WRITE_IN_PROGRESS]
    assert node.vbucket(1).high_seqno == 1
    source.marker_v2(2, 4, 2)
    assert prepare(source, 2) == []
    assert node.vbucket(1).high_seqno == 2
    decide(source, Opcode.DCP_COMMIT, 2, 3)
    node.set_vbucket(1, ACTIVE)
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").value == b"v"


# ---------------------------------------------------------------------------------------------------- the requests


@rule("DUR-21")
@each_case(
    ("data", "status"),
    [
        (b"\0", Status.DURABILITY_INVALID_LEVEL),
        (b"\4", Status.DURABILITY_INVALID_LEVEL),
        (b"\0\0\1", Status.DURABILITY_INVALID_LEVEL),
        (b"\1\0\0", Status.DURABILITY_INVALID_LEVEL),
        (b"\1\xff\xff", Status.DURABILITY_INVALID_LEVEL),
        (b"\1\0", Status.EINVAL),
        (b"\1\0\1\0", Status.EINVAL),
        (b"\1", Status.SUCCESS),
        (b"\3\xff\xfe", Status.SUCCESS),
    ],
)
@each_case("opcode", [Opcode.SET, Opcode.ADD])
def test_durability_requirements(data: bytes, status: int, opcode: int) -> None:
    framing = encode_frame_info(1, data)
    answer = durable_node().connect().call(opcode, vbid=1, key=b"\0k", extras=bytes(8), framing=framing)
    assert answer.status == status


@rule("DUR-22")
@each_case("state", [2, 3, 4])
def test_a_vbucket_that_leaves_the_active_role(state: int) -> None:
    node = durable_node(WITH_REPLICA)
    client = node.connect()
    assert durable_set(client, b"k") == []
    node.set_vbucket(1, state)
    assert [frame.status for frame in client.take()] == [Status.SYNC_WRITE_AMBIGUOUS]


@rule("DUR-22")
def test_nobody_acknowledges_in_time() -> None:
    node = durable_node(WITH_REPLICA)
    client, replica = node.connect(), sync_replica(node)
    replica.stream(1)
    assert durable_set(client, b"k", timeout_ms=2000) == []
    node.advance(1.2)
    assert client.take() == []
    node.advance(1.2)
    assert [(frame.status, frame.value) for frame in client.take()] == [(Status.SYNC_WRITE_AMBIGUOUS, b"")]
    abort = of(replica.take(), Opcode.DCP_ABORT)[0]
    assert (PAIR.unpack(abort.extras), abort.key, abort.value, abort.cas) == ((1, 2), b"\0k", b"", 0)
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").status == Status.KEY_ENOENT
    node.set_doc(1, "k")
