"""Two nodes joined: a copy becomes what its source is, in every kind of row, and can take its place."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from dcpstream.wire import MarkerFlag, Opcode, Status, StreamFlag
from dcpstream_node.engine.bucket.vbucket import CHECKPOINTS_REMEMBERED
from dcpstream_node.testing.simulation import USUAL_FEATURES, PretendWire, ScriptedProducer, SimulatedNode
from tests.kit.rules import rule
from tests.kit.streams import ACTIVE, DEAD, FIRST, LATER, REPLICA, of

FRUIT = b"\x08"
MANIFEST = (
    b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":'
    b'[{"name":"_default","uid":"0"},{"name":"fruit","uid":"8","maxTTL":100}]}]}'
)


def everything(node: SimulatedNode, vbid: int = 1) -> list[tuple[int, bytes]]:
    """Seqno and frame of every row that is the newest of its key.

    Without the opaque: a deletion has the document's flags there, and the message that brings it has no flags.
    """
    log = node.vbucket(vbid).log
    block = log.read(0, log.high_seqno, max_bytes=1 << 30)
    data = bytes(block.data)
    ends = [*map(int, block.starts[1:]), len(data)]
    return [
        (int(seqno), data[int(start) : int(start) + 12] + data[int(start) + 16 : end])
        for seqno, start, end in zip(block.seqnos, block.starts, ends, strict=True)
    ]


def joined(
    old: SimulatedNode, new: SimulatedNode, flags: int = 0, *, name: bytes = b"replication", consumer_name: str = ""
) -> PretendWire:
    link = PretendWire(old, new, name=name, consumer_name=consumer_name)
    link.add_stream(1, flags)
    link.run()
    assert [frame.status for frame in link.answers] == [0]
    assert not link.producer.closed
    assert not link.consumer.closed
    return link


@pytest.fixture
def old() -> SimulatedNode:
    return SimulatedNode()


@pytest.fixture
def new() -> SimulatedNode:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    return node


@rule("ADD-33", "TKO-10")
def test_a_copy_equals_its_source_row_by_row(old: SimulatedNode, new: SimulatedNode) -> None:
    for node in (old, new):
        assert node.admin.call(Opcode.SET_COLLECTIONS, value=MANIFEST).status == 0
    old.fill(1, 5)
    old.set_doc(1, "apple", b'{"a":1}', flags=7, expiration=1_800_000_000, collection=FRUIT)
    old.delete_doc(1, "k1")
    old.set_doc(1, "k2", b"newer")
    link = joined(old, new)
    assert everything(new) == everything(old)
    old.set_doc(1, "pear", collection=FRUIT)
    old.delete_doc(1, "apple", collection=FRUIT)
    link.run()
    assert everything(new) == everything(old)
    assert new.failover_log(1) == old.failover_log(1)


@rule("ADD-40")
def test_a_copy_names_the_manifest_that_its_own_history_has_reached(old: SimulatedNode, new: SimulatedNode) -> None:
    for node in (old, new):
        assert node.admin.call(Opcode.SET_COLLECTIONS, value=MANIFEST).status == 0

    def asked(link: PretendWire) -> list[bytes]:
        return [frame.value for _, frame in link.passed if frame.opcode == Opcode.DCP_STREAM_REQ and frame.is_request]

    link = joined(old, new)
    assert asked(link) == [b""], "the copy is empty, although its bucket knows the collections"
    link.producer.disconnect()
    link.consumer.disconnect()
    assert asked(joined(old, new, name=b"again")) == [b'{"uid":"1"}']


@rule("CON-23", "TKO-02")
def test_collections_can_be_used_at_the_new_owner(old: SimulatedNode, new: SimulatedNode) -> None:
    for node in (old, new):
        assert node.admin.call(Opcode.SET_COLLECTIONS, value=MANIFEST).status == 0
    old.set_doc(1, "apple", collection=FRUIT)
    joined(old, new, StreamFlag.TAKEOVER)
    assert new.admin.call(Opcode.GET, vbid=1, key=FRUIT + b"apple").value == b"v"
    new.set_doc(1, "pear", collection=FRUIT)
    assert old.vbucket(1).state == DEAD


@rule("ADD-32", "TKO-02")
def test_several_vbuckets_move_at_once_over_one_connection(old: SimulatedNode, new: SimulatedNode) -> None:
    link = PretendWire(old, new)
    for vbid in (1, 2, 3):
        new.set_vbucket(vbid, REPLICA)
        old.fill(vbid, vbid)
        link.add_stream(vbid, StreamFlag.TAKEOVER)
    link.run()
    assert [frame.status for frame in link.answers] == [0, 0, 0]
    assert len(link.sent("old", Opcode.DCP_STREAM_END)) == 3
    for vbid in (1, 2, 3):
        assert (old.vbucket(vbid).state, new.vbucket(vbid).state) == (DEAD, ACTIVE)
        assert everything(new, vbid) == everything(old, vbid)


@rule("CON-02", "CON-15")
def test_durable_writes_are_acknowledged_by_the_copy(old: SimulatedNode, new: SimulatedNode) -> None:
    old.set_vbucket(1, ACTIVE, b'{"topology":[["node-a","node-b"]]}')
    link = joined(old, new, consumer_name="node-b")
    writer = old.connect()
    durable: dict[str, Any] = {"framing": b"\x11\x01", "extras": bytes(8)}
    assert writer.send(Opcode.SET, vbid=1, key=b"\0d", value=b"v", **durable) == []
    link.run()
    (answer,) = writer.take()
    assert (answer.opcode, answer.status) == (Opcode.SET, Status.SUCCESS)
    assert len(link.sent("old", Opcode.DCP_PREPARE)) == 1
    assert len(link.sent("new", Opcode.DCP_SEQNO_ACKNOWLEDGED)) == 1
    link.run()
    assert len(link.sent("old", Opcode.DCP_COMMIT)) == 1
    assert new.vbucket(1).high_seqno == old.vbucket(1).high_seqno == 2
    new.set_vbucket(1, ACTIVE)
    assert new.admin.call(Opcode.GET, vbid=1, key=b"\0d").value == b"v"


@rule("CON-25", "ADD-22")
def test_a_failover_and_the_way_back(tmp_path: Path) -> None:
    old, new = SimulatedNode(path=tmp_path / "old"), SimulatedNode(path=tmp_path / "new")
    new.set_vbucket(1, REPLICA)
    old.fill(1, 4)
    joined(old, new)
    new.flush()
    old.set_doc(1, "lost", b"only here")
    new.set_vbucket(1, ACTIVE)  # the copy takes over without being asked
    new.set_doc(1, "won")
    new.flush()
    assert [entry.seqno for entry in new.failover_log(1)] == [4, 0]
    old.set_vbucket(1, REPLICA)
    link = joined(new, old)
    assert [frame.status for frame in link.sent("old", Opcode.DCP_STREAM_REQ)] == [Status.ROLLBACK, 0]
    assert everything(old) == everything(new)
    assert old.failover_log(1) == new.failover_log(1)
    assert old.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0lost").status == Status.KEY_ENOENT


@rule("ADD-41")
def test_a_promotion_in_the_middle_of_a_snapshot_begins_its_branch_where_the_snapshot_began(
    old: SimulatedNode, new: SimulatedNode
) -> None:
    old.fill(1, 3)
    link = joined(old, new)
    link.producer.is_reading = False
    for key in ("k0", "k1", "k2", "k0"):
        old.set_doc(1, key)
    link.producer.is_reading = True
    old.pump()
    link.run(lambda: new.vbucket(1).high_seqno == 6)
    snapshot = new.vbucket(1).log.snapshot
    assert (snapshot.start_seqno, snapshot.end_seqno) == (3, 7)  # seqno 4 was superseded and never comes
    new.set_vbucket(1, ACTIVE)
    assert new.failover_log(1).newest.seqno == 3
    new.set_doc(1, "own")
    assert new.vbucket(1).high_seqno == 7


@rule("ADD-31", "CLS-25")
def test_a_copy_that_was_closed_goes_on_where_it_was(old: SimulatedNode, new: SimulatedNode) -> None:
    old.fill(1, 3)
    link = joined(old, new)
    assert [frame.status for frame in link.consumer.close_stream(1)] == [Status.SUCCESS]
    old.set_doc(1, "later")
    link.run()
    assert new.vbucket(1).high_seqno == 3
    link.producer.close_stream(1)
    link.consumer.take()
    again = joined(old, new, name=b"again")
    assert len(again.sent("old", Opcode.DCP_MUTATION)) == 1
    assert everything(new) == everything(old)


@rule("END-07", "END-24")
def test_the_end_of_the_source_ends_the_stream_and_keeps_the_copy(old: SimulatedNode, new: SimulatedNode) -> None:
    old.fill(1, 3)
    link = joined(old, new)
    old.set_vbucket(1, DEAD)
    link.run()
    assert [frame.extras for frame in link.sent("old", Opcode.DCP_STREAM_END)] == [b"\0\0\0\2"]
    assert new.vbucket(1).high_seqno == 3
    assert of(link.consumer.received, Opcode.DCP_STREAM_END) == []
    assert not new.bucket.is_streamed_into(1)


def documents(node: SimulatedNode) -> list[object]:
    """The documents and tombstones."""
    return [node.vbucket(1).log.get(key) for key in (b"\0d", b"\0other", b"\0first")]


DURABLE: dict[str, Any] = {"framing": b"\x11\x01"}
WRITES: dict[str, tuple[int, dict[str, Any]]] = {
    "set": (Opcode.SET, {"value": b"plain", "extras": bytes(8)}),
    "delete": (Opcode.DELETE, {}),
    "touch": (Opcode.GAT, {"extras": (77).to_bytes(4, "big")}),
    "counter": (Opcode.INCREMENT, {"extras": struct.pack(">QQI", 1, 5, 0)}),
    "subdoc": (Opcode.SUBDOC_DICT_UPSERT, {"extras": b"\0\1\0", "value": b'a{"b":1}'}),
    "meta": (Opcode.SET_WITH_META, {"value": b"m", "extras": struct.pack(">IIQQ", 0, 0, 99, 1 << 60)}),
    "durable set": (Opcode.SET, {"value": b"{}", "extras": bytes(8), **DURABLE}),
    "durable delete": (Opcode.DELETE, DURABLE),
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("durable set", "set"),
        ("durable set", "delete"),
        ("durable set", "touch"),
        ("durable set", "subdoc"),
        ("durable set", "meta"),
        ("durable delete", "counter"),
        ("set", "durable set"),
        ("set", "durable delete"),
        ("durable set", "durable set"),
        ("durable delete", "durable set"),
    ],
)
def test_a_checkpoint_begins_between_a_durable_and_another_write(
    old: SimulatedNode, new: SimulatedNode, first: str, second: str, at_once: bool
) -> None:
    old.set_vbucket(1, ACTIVE, b'{"topology":[["node-a","node-b"]]}')
    old.set_doc(1, "d", b"{}")
    old.set_doc(1, "other")
    link = joined(old, new, consumer_name="node-b")
    writer = old.connect()
    for name in ("durable set", first, second):
        opcode, fields = WRITES[name]
        writer.send(opcode, vbid=1, key=b"\0d", **fields)
        if "durable" in name or not at_once:
            link.run()
    link.run()
    assert not link.producer.closed
    assert not link.consumer.closed, link.consumer.close_reason
    assert documents(new) == documents(old)
    assert new.vbucket(1).high_seqno == old.vbucket(1).high_seqno


@pytest.mark.parametrize(
    ("messages", "is_closed"),
    [
        (("prepare", "commit", "checkpoint", "set"), False),
        (("prepare", "commit", "set"), True),
        (("set", "prepare", "commit"), True),
        (("set", "prepare", "checkpoint", "commit"), False),
        (("prepare", "commit", "snapshot", "set"), True),
        (("prepare", "commit", "checkpoint", "prepare", "commit"), False),
        (("prepare", "commit", "prepare"), True),
        (("prepare", "abort"), True),
        (("prepare", "checkpoint", "abort", "set"), False),
        (("set", "set", "snapshot", "set"), False),
    ],
)
def test_a_copy_refuses_a_checkpoint_with_a_durable_and_another_version(
    new: SimulatedNode, messages: tuple[str, ...], is_closed: bool
) -> None:
    source = ScriptedProducer(new, features=USUAL_FEATURES, value=b'{"consumer_name":"node-b"}', datatype=1)
    source.accept()
    source.marker_v2(0, 9, FIRST)
    seqno = prepared = 0
    for message in messages:
        if message in ("checkpoint", "snapshot"):
            source.marker_v2(seqno + 1, 20, FIRST if message == "checkpoint" else LATER)
            continue
        assert not source.closed
        seqno += 1
        if message == "set":
            source.mutation(b"k", seqno)
        elif message == "prepare":
            prepared = seqno
            extras = struct.pack(">QQIIIBBB", seqno, 1, 0, 0, 0, 0, 0, 1)
            source.send(Opcode.DCP_PREPARE, key=b"\0k", value=b"v", extras=extras, cas=0x77)
        else:
            opcode = Opcode.DCP_COMMIT if message == "commit" else Opcode.DCP_ABORT
            source.send(opcode, key=b"\0k", extras=struct.pack(">QQ", prepared, seqno))
    assert source.closed is is_closed


def test_a_stream_far_behind_goes_on_from_disk(old: SimulatedNode, new: SimulatedNode) -> None:
    old.set_vbucket(1, ACTIVE, b'{"topology":[["node-a"]]}')
    old.set_doc(1, "first")
    link = joined(old, new, consumer_name="node-b")
    link.producer.is_reading = False
    writer = old.connect()
    for _ in range(CHECKPOINTS_REMEMBERED):
        for name in ("durable set", "set"):
            opcode, fields = WRITES[name]
            assert writer.call(opcode, vbid=1, key=b"\0d", **fields).status == 0
    link.producer.is_reading = True
    old.pump()
    link.run()
    assert not link.consumer.closed, link.consumer.close_reason
    assert documents(new) == documents(old)


def test_a_copy_without_a_name_follows_durable_writes(old: SimulatedNode, new: SimulatedNode) -> None:
    old.set_vbucket(1, ACTIVE, b'{"topology":[["node-a"]]}')
    old.set_doc(1, "plain")
    link = joined(old, new)
    writer = old.connect()
    for key in (b"\0d", b"\0e"):
        opcode, fields = WRITES["durable set"]
        assert writer.call(opcode, vbid=1, key=key, **fields).status == 0
        link.run()
    old.set_vbucket(1, ACTIVE, b'{"topology":[["node-a","node-b"]]}')
    opcode, fields = WRITES["durable set"]
    assert writer.send(opcode, vbid=1, key=b"\0waits", **fields) == []
    link.run()
    link.cut()
    again = joined(old, new, name=b"again")
    assert again.sent("old", Opcode.DCP_SEQNO_ADVANCED)
    assert again.sent("new", Opcode.DCP_SEQNO_ADVANCED) == []
    assert not again.producer.closed
    assert not again.consumer.closed
    assert new.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0e").status == 0


@rule("KV-COPY-19")
@pytest.mark.parametrize("seqno", [2, 3, 9])
def test_an_advance_has_no_answer(new: SimulatedNode, seqno: int) -> None:
    source = ScriptedProducer(new, features=USUAL_FEATURES)
    source.accept()
    source.marker(1, 3, FIRST | MarkerFlag.ACK)
    source.mutation(b"k", 1)
    answers = source.send(Opcode.DCP_SEQNO_ADVANCED, extras=seqno.to_bytes(8, "big"))
    assert [frame.opcode for frame in answers] == ([Opcode.DCP_SNAPSHOT_MARKER] if seqno == 3 else [])
    (refused,) = source.send(Opcode.DCP_SEQNO_ADVANCED, extras=bytes(8), opaque=0x999)
    assert refused.status == Status.UNKNOWN_COMMAND
    source.marker(4, 5)
    assert source.mutation(b"l", 5) == []
    assert new.vbucket(1).high_seqno == 5
    assert not source.closed


def test_a_copy_that_advanced_begins_its_branch_where_it_has_rows(new: SimulatedNode) -> None:
    source = ScriptedProducer(new, features=USUAL_FEATURES)
    source.accept()
    source.marker(1, 3, FIRST)
    source.mutation(b"k", 1)
    source.send(Opcode.DCP_SEQNO_ADVANCED, extras=(3).to_bytes(8, "big"))
    source.marker(4, 6)
    source.mutation(b"l", 5)
    new.set_vbucket(1, ACTIVE)
    assert new.failover_log(1).newest.seqno == 1
