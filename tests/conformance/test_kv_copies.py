"""A copy that a DCP consumer fills: what it takes, what it tells of itself, and what ends the connection."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dcpstream.wire import Feature, Opcode, Status
from dcpstream.wire.system_events import CollectionEvent, flatbuffer_of
from dcpstream.wire.values import snappy_compress
from dcpstream_node.testing.simulation import USUAL_FEATURES, ScriptedProducer, SimulatedNode
from tests.conformance.test_durability import copy, decide, prepare
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA, of, statuses

MEMORY, DISK, CHECKPOINT, HISTORY = 1, 2, 4, 16


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    return node


@pytest.fixture
def source(node: SimulatedNode) -> ScriptedProducer:
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept(refused=b"flatbuffers_system_events")  # events of version 0 come
    return source


def reported(node: SimulatedNode, vbid: int = 1) -> int:
    """The seqno of a vbucket in GET_ALL_VB_SEQNOS."""
    answer = node.admin.call(Opcode.GET_ALL_VB_SEQNOS)
    assert answer.status == 0
    return dict(struct.iter_unpack(">HQ", answer.value))[vbid]


# ------------------------------------------------------------------------------------------------------------ markers


@rule("KV-COPY-01")
@pytest.mark.parametrize(("start", "end", "taken"), [(0, 2, False), (1, 1, False), (2, 2, True), (1, 3, True)])
def test_markers_at_the_last_seqno(source: ScriptedProducer, start: int, end: int, taken: bool) -> None:
    source.snapshot(b"a", b"b", start=1)
    assert statuses(source.marker(start, end)) == ([] if taken else [Status.ERANGE])


@rule("KV-COPY-18")
@of_release("7.2", "8.0")
def test_markers_within_the_snapshot_under_way(node: SimulatedNode, release: str) -> None:
    for first in (MEMORY, DISK, DISK | CHECKPOINT):
        for flags, end, is_taken in (
            (MEMORY, 4, True),
            (DISK, 4, True),
            (DISK | CHECKPOINT | HISTORY, 3, True),
            *((flags, 3, False) for flags in (MEMORY, MEMORY | CHECKPOINT, DISK, DISK | CHECKPOINT)),
        ):
            source = ScriptedProducer(node, features=USUAL_FEATURES, value=b'{"consumer_name":"rep1"}', datatype=1)
            source.accept()
            source.marker_v2(1, 3, first)
            assert source.mutation(b"k", 1) == []
            assert source.marker_v2(2, end, flags) == []
            assert source.closed == (release == "8.0" and not is_taken), (first, flags, end)
            source.peer.disconnect()
            node.delete_vbucket(1)
            node.set_vbucket(1, REPLICA)


@rule("KV-COPY-02")
def test_an_extended_snapshot_takes_rows_from_the_last_marker_s_start_on(source: ScriptedProducer) -> None:
    source.marker(1, 5)
    assert source.mutation(b"a", 1) == []
    assert source.marker(4, 9) == []
    assert statuses(source.mutation(b"b", 3)) == [Status.ERANGE]
    assert source.mutation(b"b", 4) == []


@rule("KV-COPY-03")
def test_a_dead_copy_takes_no_notice_of_markers(node: SimulatedNode) -> None:
    node.set_vbucket(1, DEAD)
    source = ScriptedProducer(node)
    source.accept()
    assert source.marker(1, 5) == []
    assert statuses(source.mutation(b"a", 1)) == [Status.ERANGE]


@rule("KV-COPY-04")
def test_the_seqno_of_a_copy_inside_a_snapshot(node: SimulatedNode, source: ScriptedProducer) -> None:
    assert reported(node) == 0
    source.marker(0, 5)
    assert reported(node) == 5, "a snapshot from 0 has begun with its marker"
    source.mutation(b"a", 2)
    assert reported(node) == 5
    source.mutation(b"b", 5)
    source.marker(7, 9, MEMORY | CHECKPOINT)
    assert reported(node) == 5, "nothing of the new one came yet"
    source.mutation(b"c", 8)
    assert reported(node) == 9
    source.marker(9, 12)
    assert reported(node) == 12, "the same checkpoint goes on"
    plain = node.connect(features=(Feature.XERROR,))
    answer = plain.call(Opcode.GET_ALL_VB_SEQNOS)
    assert dict(struct.iter_unpack(">HQ", answer.value))[1] == 8, "of the default collection what came"


@rule("KV-COPY-05")
def test_prepares_count_for_clients_with_collections_only() -> None:
    node, source = copy()
    source.marker_v2(1, 3)
    source.mutation(b"a", 1)
    prepare(source, 2)
    extras = struct.pack(">II", 0, 0)
    answer = node.connect().call(Opcode.GET_ALL_VB_SEQNOS, extras=extras)
    assert dict(struct.iter_unpack(">HQ", answer.value))[1] == 2
    answer = node.connect(features=(Feature.XERROR,)).call(Opcode.GET_ALL_VB_SEQNOS)
    assert dict(struct.iter_unpack(">HQ", answer.value))[1] == 1


# --------------------------------------------------------------------------------------------------------------- rows


@rule("KV-COPY-06")
@pytest.mark.parametrize("kind", ["mutation", "deletion", "prepare"])
def test_a_row_of_a_collection_that_the_history_does_not_have(
    node: SimulatedNode, source: ScriptedProducer, kind: str
) -> None:
    assert source.marker(1, 9) == []
    opcode, extras = {
        "mutation": (Opcode.DCP_MUTATION, struct.pack(">QQIIIHB", 1, 1, 0, 0, 0, 0, 0)),
        "deletion": (Opcode.DCP_DELETION, struct.pack(">QQIB", 1, 1, 0, 0)),
        "prepare": (Opcode.DCP_PREPARE, struct.pack(">QQIIIBBB", 1, 1, 0, 0, 0, 0, 0, 1)),
    }[kind]
    (answer,) = source.send(opcode, key=b"\x08k", extras=extras, cas=1)
    assert answer.status == Status.UNKNOWN_COLLECTION
    content = json.loads(answer.value)
    assert content["manifest_uid"] == "0"
    assert "context" in content["error"]
    assert node.vbucket(1).high_seqno == 0
    event = struct.pack(">QII", 3, 0, 8)
    assert source.send(Opcode.DCP_SYSTEM_EVENT, extras=struct.pack(">QIB", 1, 0, 0), key=b"fruit", value=event) == []
    extras = struct.pack(">Q", 2) + extras[8:]
    assert source.send(opcode, key=b"\x08k", extras=extras, cas=1) == []
    drop = struct.pack(">QII", 4, 0, 8)
    assert source.send(Opcode.DCP_SYSTEM_EVENT, extras=struct.pack(">QIB", 3, 1, 0), value=drop) == []
    extras = struct.pack(">Q", 4) + extras[8:]
    (answer,) = source.send(opcode, key=b"\x08k", extras=extras, cas=1)
    assert (answer.status, json.loads(answer.value)["manifest_uid"]) == (Status.UNKNOWN_COLLECTION, "4")


@rule("KV-COPY-07")
@each_case("is_deletion", [False, True])
def test_a_document_over_a_prepare(is_deletion: bool) -> None:
    fields: dict[str, Any] = {"key": b"\0k", "cas": 1}
    opcode = Opcode.DCP_DELETION if is_deletion else Opcode.DCP_MUTATION
    layout = ">QQIB" if is_deletion else ">QQIIIHB"
    more = (0, 0) if is_deletion else (0, 0, 0, 0, 0)
    extras = struct.pack(layout, 2, 1, *more)
    node, source = copy()
    source.marker_v2(1, 1)
    assert not [frame for frame in prepare(source, 1) if frame.is_response]
    source.marker_v2(2, 3)
    assert statuses(source.send(opcode, extras=extras, **fields)) == [Status.SYNC_WRITE_IN_PROGRESS]
    assert node.vbucket(1).high_seqno == 1
    node, source = copy()
    source.marker_v2(1, 1)
    prepare(source, 1)
    source.marker_v2(2, 3, DISK)
    frames = source.send(opcode, extras=extras, **fields)
    assert not [frame for frame in frames if frame.is_response]
    assert node.vbucket(1).high_seqno == 2, "from disk it is what the prepare became"
    node.set_vbucket(1, ACTIVE)
    node.set_doc(1, "k")


@rule("KV-COPY-08")
def test_a_disk_snapshot_replaces_older_prepares_only() -> None:
    node, source = copy()
    source.marker_v2(1, 2)
    assert prepare(source, 1) == []
    source.marker_v2(2, 9, DISK | CHECKPOINT)
    assert prepare(source, 3) == []
    assert node.vbucket(1).high_seqno == 3
    assert prepare(source, 4) == []
    assert source.closed
    assert node.vbucket(1).high_seqno == 3


@rule("KV-COPY-09")
def test_a_decision_without_its_prepare() -> None:
    _, source = copy()
    source.marker_v2(1, 5)
    assert statuses(decide(source, Opcode.DCP_COMMIT, 1, 2)) == [Status.KEY_ENOENT]
    assert statuses(decide(source, Opcode.DCP_ABORT, 1, 2)) == [Status.EINVAL]
    source.marker_v2(1, 5, DISK | CHECKPOINT)
    assert decide(source, Opcode.DCP_ABORT, 1, 2) == []


@rule("KV-COPY-10")
def test_a_system_event_outside_of_its_snapshot(node: SimulatedNode, source: ScriptedProducer) -> None:
    def event(seqno: int, number: int) -> list[int]:
        value = struct.pack(">QII", 3, 0, number)
        extras = struct.pack(">QIB", seqno, 0, 0)
        return statuses(source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, key=b"c%d" % number, value=value))

    # Each is about another collection: 7.2 remembers one whose event it has refused.
    assert event(1, 8) == [Status.EINVAL]
    source.snapshot(b"a", start=1)
    assert event(1, 9) == [Status.ERANGE]
    assert event(2, 10) == [Status.EINVAL]
    source.marker(2, 2)
    assert event(2, 11) == []
    assert node.vbucket(1).high_seqno == 2


@rule("KV-COPY-15")
def test_events_must_fit_the_scopes_and_collections_that_are_there(
    node: SimulatedNode, source: ScriptedProducer
) -> None:
    source.marker(1, 9)

    def event(seqno: int, kind: int, *ids: int, name: bytes = b"fruit") -> list[int]:
        extras = struct.pack(">QIB", seqno, kind, 0)
        value = struct.pack(f">Q{len(ids)}I", seqno, *ids)
        return statuses(source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, key=name, value=value))

    assert event(1, 0, 9, 8) == [Status.EINVAL], "a collection of a scope that is not there"
    assert node.vbucket(1).high_seqno == 0
    assert event(1, 3, 9) == []
    assert event(2, 3, 9) == [Status.EINVAL], "a scope that is there"
    assert event(2, 0, 9, 8) == []
    assert event(3, 1, 9, 77, name=b"") == [], "what is not there can be dropped"
    assert event(4, 4, 33, name=b"") == []
    assert event(5, 4, 9, name=b"") == []
    assert event(6, 0, 9, 10) == [Status.EINVAL], "the scope is gone"
    assert node.vbucket(1).high_seqno == 5


@rule("KV-COPY-15")
def test_only_a_collection_that_is_there_is_modified(node: SimulatedNode) -> None:
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept()
    source.marker(1, 9)

    def event(seqno: int, kind: int) -> list[int]:
        fields: dict[str, Any] = {"key": b"fruit", "value": flatbuffer_of(CollectionEvent(kind, seqno, 0, 8, "fruit"))}
        extras = struct.pack(">QIB", seqno, kind, 2)
        return statuses(source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, **fields))

    assert event(1, 5) == [Status.EINVAL]
    assert event(1, 0) == []
    assert event(2, 5) == []
    assert node.vbucket(1).high_seqno == 2


# -------------------------------------------------------------------------------------------------------- GET_REPLICA


@rule("KV-COPY-11")
@pytest.mark.parametrize("state", [ACTIVE, PENDING, DEAD])
def test_only_a_replica_answers_get_replica(node: SimulatedNode, state: int) -> None:
    node.set_vbucket(1, state)
    for vbid in (1, 99):
        assert node.admin.call(Opcode.GET_REPLICA, vbid=vbid, key=b"\0k").status == Status.NOT_MY_VBUCKET


@rule("KV-COPY-12")
@of_release("7.2")
def test_get_replica_shows_what_is_committed() -> None:
    node, source = copy()
    source.marker_v2(1, 3)
    prepare(source, 1)
    assert node.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0k").status == Status.KEY_ENOENT
    decide(source, Opcode.DCP_COMMIT, 1, 2)
    source.marker_v2(3, 3, MEMORY | CHECKPOINT)
    prepare(source, 3, cas=0x99)
    answer = node.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0k")
    assert (answer.status, answer.value, answer.cas, answer.key) == (0, b"v", 0x77, b"\0k")


@rule("KV-COPY-13")
def test_get_replica_of_a_document_past_its_time(node: SimulatedNode, source: ScriptedProducer) -> None:
    source.marker(1, 1)
    extras = struct.pack(">QQIIIHB", 1, 1, 0, 1, 0, 0, 0)
    assert source.mutation(b"k", 1, extras=extras) == []
    assert node.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0k").status == Status.KEY_ENOENT
    assert node.vbucket(1).high_seqno == 1, "a copy expires nothing by itself"


@rule("KV-COPY-14")
@pytest.mark.parametrize("datatype", [2, 3])
def test_a_compressed_value_stays_compressed(node: SimulatedNode, source: ScriptedProducer, datatype: int) -> None:
    value = b'{"text":"' + b"x" * 200 + b'"}'
    packed = snappy_compress(value)
    source.marker(1, 1)
    assert source.mutation(b"k", 1, value=packed, datatype=datatype) == []
    answer = node.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0k")
    assert (answer.value, answer.datatype) == (packed, datatype)
    plain = node.connect(features=[feature for feature in USUAL_FEATURES if feature != Feature.SNAPPY])
    answer = plain.call(Opcode.GET_REPLICA, vbid=1, key=b"\0k")
    assert (answer.value, answer.datatype) == (value, datatype & 1)
    node.set_vbucket(1, ACTIVE)
    for snappy, expected in ((True, packed), (False, value)):
        features = [feature for feature in USUAL_FEATURES if snappy or feature != Feature.SNAPPY]
        peer = node.producer(b"reader%d" % snappy, features=features)
        (mutation,) = of(peer.stream(1), Opcode.DCP_MUTATION)
        assert mutation.value == expected


@rule("KV-COPY-14")
def test_a_compressed_prepare_stays_compressed() -> None:
    node, source = copy()
    source.marker_v2(1, 2)
    packed = snappy_compress(b"x" * 200)
    extras = struct.pack(">QQIIIBBB", 1, 1, 0, 0, 0, 0, 0, 1)
    assert source.send(Opcode.DCP_PREPARE, key=b"\0k", value=packed, extras=extras, cas=7, datatype=2) == []
    decide(source, Opcode.DCP_COMMIT, 1, 2)
    answer = node.admin.call(Opcode.GET_REPLICA, vbid=1, key=b"\0k")
    assert (answer.value, answer.datatype) == (packed, 2)
