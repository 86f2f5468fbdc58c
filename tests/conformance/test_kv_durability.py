"""Durable writes that are under way: what other requests for their documents are answered, and in which order."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from dcpstream.wire import Feature, Frame, Opcode, Status
from dcpstream.wire.keys import encode_frame_info
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, SimulatedNode
from tests.conformance.test_durability import copy, durable_set, prepare
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import ACTIVE, REPLICA, WITHOUT_XERROR

KEY = b"\0k"
TWO_NODES = b'{"topology":[["a","b"]]}'
IMPOSSIBLE = b'{"topology":[["a",null]]}'
MAJORITY = encode_frame_info(1, b"\1")
FEATURES = (*USUAL_FEATURES, Feature.SUBDOC_CREATE_AS_DELETED)
COUNT = struct.pack(">QQI", 1, 5, 0)
NEVER_CREATE = struct.pack(">QQI", 1, 5, 0xFFFFFFFF)
PATH = struct.pack(">HB", 1, 0)

WRITES: dict[str, tuple[int, dict[str, Any]]] = {
    "set": (Opcode.SET, {"extras": bytes(8), "value": b"v"}),
    "add": (Opcode.ADD, {"extras": bytes(8), "value": b"v"}),
    "replace": (Opcode.REPLACE, {"extras": bytes(8), "value": b"v"}),
    "replace with CAS": (Opcode.REPLACE, {"extras": bytes(8), "value": b"v", "cas": 1}),
    "set with CAS": (Opcode.SET, {"extras": bytes(8), "value": b"v", "cas": 1}),
    "delete": (Opcode.DELETE, {}),
    "delete with CAS": (Opcode.DELETE, {"cas": 1}),
    "append": (Opcode.APPEND, {"value": b"0"}),
    "append with CAS": (Opcode.APPEND, {"value": b"0", "cas": 1}),
    "count": (Opcode.INCREMENT, {"extras": COUNT}),
    "count what is there": (Opcode.INCREMENT, {"extras": NEVER_CREATE}),
    "touch": (Opcode.TOUCH, {"extras": bytes(4)}),
    "get and touch": (Opcode.GAT, {"extras": bytes(4)}),
    "lock": (Opcode.GET_LOCKED, {"extras": bytes(4)}),
    "unlock": (Opcode.UNLOCK, {"cas": 1}),
    "sub-document": (Opcode.SUBDOC_DICT_UPSERT, {"extras": PATH, "value": b"a1"}),
    "make sub-document": (Opcode.SUBDOC_DICT_UPSERT, {"extras": PATH + b"\1", "value": b"a1"}),
    "set with meta": (Opcode.SET_WITH_META, {"extras": struct.pack(">IIQQ", 0, 0, 99, 9 << 50), "value": b"v"}),
    "older with meta": (Opcode.SET_WITH_META, {"extras": struct.pack(">IIQQ", 0, 0, 1, 1), "value": b"v"}),
    "delete with meta": (Opcode.DELETE_WITH_META, {"extras": struct.pack(">IIQQ", 0, 0, 99, 9 << 50)}),
}
DURABLE = (
    "set",
    "set with CAS",
    "add",
    "replace",
    "delete",
    "delete with CAS",
    "append",
    "count",
    "count what is there",
    "sub-document",
    "make sub-document",
)
BUSY, MISSING, EXISTS = Status.SYNC_WRITE_IN_PROGRESS, Status.KEY_ENOENT, Status.KEY_EEXISTS
OVER_NOTHING = dict.fromkeys(WRITES, BUSY) | {
    "replace": MISSING,
    "delete": MISSING,
    "delete with CAS": MISSING,
    "append": Status.NOT_STORED,
    "append with CAS": Status.NOT_STORED,
    "count what is there": MISSING,
    "sub-document": MISSING,
    "older with meta": EXISTS,
}
OVER_A_DOCUMENT = dict.fromkeys(WRITES, BUSY) | {
    "delete with CAS": EXISTS,
    "append with CAS": EXISTS,
    "sub-document": Status.SUBDOC_PATH_MISMATCH,
    "make sub-document": Status.SUBDOC_PATH_MISMATCH,
    "older with meta": EXISTS,
}


def send(peer: Peer, name: str, **more: Any) -> Frame:
    """One of `WRITES`; its answer."""
    opcode, fields = WRITES[name]
    if name == "unlock":
        more.pop("framing", None)
    (answer,) = peer.send(opcode, vbid=1, key=KEY, **{**fields, **more})
    return answer


def under_way(value: bytes | None = None) -> SimulatedNode:
    """A node with an undecided durable write of a document, over `value` if there is one."""
    node = SimulatedNode()
    if value is not None:
        node.set_doc(1, "k", value)
    node.set_vbucket(1, ACTIVE, TWO_NODES)
    assert durable_set(node.connect(), b"k", b"new") == []
    return node


@rule("KV-DUR-01")
@each_case("name", WRITES)
def test_writes_while_a_new_document_is_prepared(name: str) -> None:
    node = under_way()
    assert send(node.connect(features=FEATURES), name).status == OVER_NOTHING[name]
    assert node.vbucket(1).high_seqno == 1


@rule("KV-DUR-01")
@each_case("name", WRITES)
def test_writes_while_a_new_version_is_prepared(name: str) -> None:
    node = under_way(b"5")
    assert send(node.connect(features=FEATURES), name).status == OVER_A_DOCUMENT[name]
    assert node.vbucket(1).high_seqno == 2


@rule("KV-DUR-02")
@each_case("name", ["append", "append with CAS", "count", "set", "delete"])
def test_a_state_that_excludes_the_write_is_answered_first(name: str) -> None:
    node = under_way(b"no number")
    status = Status.DELTA_BADVAL if name == "count" else OVER_A_DOCUMENT[name]
    assert send(node.connect(), name).status == status


@rule("KV-DUR-03")
@each_case("name", ["set", "touch", "append", "sub-document"])
def test_clients_without_xerror_try_again_later(name: str) -> None:
    node = under_way(b"{}")
    assert send(node.connect(features=WITHOUT_XERROR), name).status == Status.TMPFAIL


@rule("KV-DUR-04")
@each_case("name", DURABLE)
@each_case("exists", [False, True])
def test_a_durable_write_that_is_impossible(name: str, exists: bool) -> None:
    node = SimulatedNode()
    if exists:
        node.set_doc(1, "k", b'{"a":1}' if "document" in name else b"5")
    node.set_vbucket(1, ACTIVE, IMPOSSIBLE)
    read_first = {"delete", "delete with CAS", "append", "count what is there", "sub-document"}
    expected: int = Status.DURABILITY_IMPOSSIBLE
    if name in read_first and not exists:
        expected = OVER_NOTHING[name]
    elif name == "delete with CAS":
        expected = EXISTS
    assert send(node.connect(), name, framing=MAJORITY).status == expected


@rule("KV-DUR-11")
@each_case("topology", [TWO_NODES, IMPOSSIBLE])
def test_a_deletion_that_keeps_system_xattrs_is_not_durable(topology: bytes) -> None:
    node = SimulatedNode()
    for key, name in ((b"\0k", "_sync"), (b"\0mine", "mine")):
        value = encode_xattrs({name: b"1"}) + b"{}"
        extras = struct.pack(">IIQQ", 0, 0, 5, 0x1234)
        fields: dict[str, Any] = {"key": key, "value": value, "datatype": 5, "extras": extras}
        assert node.admin.call(Opcode.SET_WITH_META, vbid=1, **fields).status == 0
    node.set_vbucket(1, ACTIVE, topology)
    client = node.connect()
    answer = client.call(Opcode.DELETE, vbid=1, key=b"\0k", framing=MAJORITY)
    assert answer.status == 0
    assert struct.unpack(">QQ", answer.extras)[1] == 3
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").status == Status.KEY_ENOENT
    waits_or_not = client.send(Opcode.DELETE, vbid=1, key=b"\0mine", framing=MAJORITY)
    assert [frame.status for frame in waits_or_not] == ([] if topology is TWO_NODES else [Status.DURABILITY_IMPOSSIBLE])


@rule("KV-DUR-05")
@each_case("opcode", [Opcode.TOUCH, Opcode.GAT])
def test_a_durable_touch_is_not_supported(opcode: int) -> None:
    node = under_way()
    answer = node.connect().call(opcode, vbid=1, key=KEY, extras=bytes(4), framing=MAJORITY)
    assert answer.status == Status.NOT_SUPPORTED


@rule("KV-DUR-06")
def test_reads_while_a_write_is_prepared_show_what_was_there() -> None:
    for value in (None, b"5"):
        node = under_way(value)
        peer = node.connect()
        answers = [
            peer.call(Opcode.GET, vbid=1, key=KEY),
            peer.call(Opcode.GET_META, vbid=1, key=KEY),
            peer.call(Opcode.SUBDOC_GET, vbid=1, key=KEY, extras=PATH, value=b"a"),
        ]
        statuses = [answer.status for answer in answers]
        assert statuses == ([MISSING] * 3 if value is None else [0, 0, Status.SUBDOC_PATH_MISMATCH])
        assert answers[0].value == (value or b"")


# ------------------------------------------------------------------------------------------------------ taken over


def taken_over() -> SimulatedNode:
    """A node whose vbucket became active with a prepare that another node may have committed."""
    node, source = copy()
    source.marker_v2(1, 2)
    source.mutation(b"k", 1)
    prepare(source, 2)
    node.set_vbucket(1, ACTIVE)
    return node


READS: dict[str, tuple[int, dict[str, Any]]] = {
    "get": (Opcode.GET, {}),
    "get with key": (Opcode.GETK, {}),
    "meta": (Opcode.GET_META, {}),
    "look up": (Opcode.SUBDOC_GET, {"extras": PATH, "value": b"a"}),
    "look up several": (Opcode.SUBDOC_MULTI_LOOKUP, {"value": struct.pack(">BBH", Opcode.SUBDOC_GET, 0, 1) + b"a"}),
    "observe": (Opcode.OBSERVE, {"key": b"", "value": struct.pack(">HH", 1, 2) + KEY}),
    "stat": (Opcode.STAT, {"key": b"key k 1"}),
}


@rule("KV-DUR-07")
@each_case("name", READS)
def test_what_may_have_been_seen_elsewhere_is_not_read(name: str) -> None:
    node = taken_over()
    opcode, fields = READS[name]
    for features, status in (
        (USUAL_FEATURES, Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS),
        (WITHOUT_XERROR, Status.TMPFAIL),
    ):
        (answer,) = node.connect(features=features).send(opcode, **{"vbid": 1, "key": KEY, **fields})
        assert answer.status == status
    node.set_vbucket(1, ACTIVE, b'{"topology":[["a"]]}')
    (answer, *_) = node.connect().send(opcode, **{"vbid": 1, "key": KEY, **fields})
    assert answer.status not in (Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS, Status.KEY_ENOENT)


@rule("KV-DUR-08")
@each_case("name", WRITES)
def test_what_may_have_been_seen_elsewhere_is_not_written(name: str) -> None:
    reading = ("delete", "delete with CAS", "append", "append with CAS", "count", "count what is there")
    node = taken_over()
    expected: int = BUSY
    if name in reading or "sub-document" in name:
        expected = Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
    elif name == "older with meta":
        expected = EXISTS
    assert send(node.connect(features=FEATURES), name).status == expected


@rule("KV-DUR-09")
def test_a_prepare_that_left_the_active_role_may_have_been_seen() -> None:
    node = under_way(b"5")
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(1, ACTIVE)
    status = node.connect().call(Opcode.GET, vbid=1, key=KEY).status
    assert status == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS


@rule("KV-DUR-09")
def test_a_prepare_from_before_a_restart_may_have_been_seen(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, ACTIVE, TWO_NODES)
    durable_set(node.connect(), b"k")
    node.flush()
    node.restart()
    status = node.connect().call(Opcode.GET, vbid=1, key=KEY).status
    assert status == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS


# ------------------------------------------------------------------------------------------------------------ OBSERVE


@rule("KV-DUR-10")
def test_observe_of_a_dead_vbucket_and_of_a_document_past_its_time(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_doc(1, "k", expiration=1)
    node.advance(5)
    value = struct.pack(">HH", 1, 2) + KEY
    peer = node.connect()
    answer = peer.call(Opcode.OBSERVE, value=value)
    (state, cas) = struct.unpack(">BQ", answer.value[6:])
    assert (state, bool(cas)) == (0x81, True), "it is deleted by being looked at"
    assert node.vbucket(1).high_seqno == 2
    node.set_vbucket(1, 4)
    assert peer.call(Opcode.OBSERVE, value=value).status == 0
    node.delete_vbucket(1)
    assert peer.call(Opcode.OBSERVE, value=value).status == Status.NOT_MY_VBUCKET
    assert json.loads(peer.call(Opcode.OBSERVE, value=value[:-1]).value)["error"]
