"""SET_VBUCKET, GET_VBUCKET and DEL_VBUCKET: their forms, and what a topology may be."""

from __future__ import annotations

import json
import struct
from typing import Any

from dcpstream.wire import Datatype, Feature, Opcode, Status
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.conformance.test_durability import durable_set, sync_replica
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA

TOKEN = 0xDEADBEEF
TWO_NODES = b'{"topology":[["a","b"]]}'


def set_vbucket(node: SimulatedNode, vbid: int = 1, **fields: Any) -> int | None:
    """The status; None if the node closed the connection."""
    peer = node.connect()
    frames = peer.send(Opcode.SET_VBUCKET, vbid=vbid, **fields)
    # A server of 7.2 that refuses a value says SUCCESS behind it, and has changed nothing.
    assert len(frames) in ((0,) if peer.closed else (1, 2))
    return None if peer.closed else frames[0].status


def state_of(node: SimulatedNode, vbid: int = 1) -> int:
    """The state from GET_VBUCKET; 0 if there is no copy."""
    answer = node.admin.call(Opcode.GET_VBUCKET, vbid=vbid)
    if answer.status:
        assert answer.status == Status.NOT_MY_VBUCKET
        return 0
    return struct.unpack(">I", answer.value)[0]


@rule("KV-VB-01")
@each_case("state", [ACTIVE, REPLICA, PENDING, DEAD])
@each_case("part", ["extras", "value"])
@each_case("width", [1, 4])
@of_release("7.2")
def test_the_forms_of_set_vbucket(state: int, part: str, width: int) -> None:
    node = SimulatedNode()
    fields: dict[str, Any] = {part: int(state).to_bytes(width, "big")}
    status = set_vbucket(node, **fields)
    if (part, width) == ("value", 1):
        assert status == Status.EINVAL
        assert state_of(node) == ACTIVE
    else:
        assert status == 0
        assert state_of(node) == state


@rule("KV-VB-01")
@each_case(
    "fields",
    [
        {},
        {"extras": b"\0\1"},
        {"extras": bytes(8)},
        {"extras": b"\0\0\0\1", "value": b"x"},
        {"extras": b"\0\0\0\1", "value": b"\0\0\0\1"},
        {"value": b"\0\0\0\1", "datatype": 1},
        {"extras": b"\0\0\0\1", "datatype": 1},
        {"extras": b"\1", "key": b"k"},
    ],
    ids=str,
)
def test_other_forms_are_refused(fields: dict[str, Any]) -> None:
    assert set_vbucket(SimulatedNode(), **fields) == Status.EINVAL


@rule("KV-VB-02")
@each_case(
    ("fields", "status"),
    [
        ({"value": TWO_NODES, "datatype": 1}, 0),
        ({"value": TWO_NODES}, Status.EINVAL),
        ({"value": TWO_NODES, "datatype": 3}, Status.EINVAL),
        ({"datatype": 1}, Status.EINVAL),
    ],
    ids=str,
)
def test_a_topology_must_say_that_it_is_json(fields: dict[str, Any], status: int) -> None:
    assert set_vbucket(SimulatedNode(), extras=b"\1", **fields) == status


@rule("KV-VB-03")
@each_case("state", [b"\0", b"\5", b"\xff", bytes(4), b"\0\0\1\1"], ids=bytes.hex)
def test_a_state_must_be_one(state: bytes) -> None:
    assert set_vbucket(SimulatedNode(), extras=state) == Status.EINVAL


@rule("KV-VB-04")
@each_case("state", [REPLICA, PENDING, DEAD])
@each_case("value", [TWO_NODES, b"{}", b"null", b"x"])
@of_release("7.2")
def test_only_an_active_vbucket_takes_a_value(state: int, value: bytes) -> None:
    node = SimulatedNode()
    assert set_vbucket(node, extras=bytes([state]), value=value, datatype=1) == Status.EINVAL
    assert state_of(node) == ACTIVE


@rule("KV-VB-05")
@each_case("value", [b"x", b"{", b"[1", b"NaN", b"\xff", b"{} {}"])
@of_release("7.2")
def test_what_is_no_json_is_refused(value: bytes) -> None:
    node = SimulatedNode()
    expected = None if value == b"\xff" else Status.EINVAL  # without a text that can be told, the server closes
    assert set_vbucket(node, extras=b"\1", value=value, datatype=1) == expected


@rule("KV-VB-06")
@each_case("value", [b"null", b"{}", b"[]"])
def test_an_empty_value_says_nothing(value: bytes) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, ACTIVE, TWO_NODES)
    assert set_vbucket(node, extras=b"\1", value=value, datatype=1) == 0
    assert json.loads(node.vbucket(1).topology) == [["a", "b"]]


@rule("KV-VB-07")
@each_case(
    "value",
    [
        b"1",
        b'"x"',
        b"true",
        b"[1]",
        b'{"a":1}',
        b'{"a":1,"topology":[["a"]]}',
        b'{"topology":null}',
        b'{"topology":{}}',
        b'{"topology":"a"}',
        b'{"topology":[]}',
        b'{"topology":["a"]}',
        b'{"topology":[[]]}',
        b'{"topology":[[null]]}',
        b'{"topology":[[null,"b"]]}',
        b'{"topology":[[1]]}',
        b'{"topology":[["a",1]]}',
        b'{"topology":[["a","b","c","d","e"]]}',
        b'{"topology":[["a"],["b"],["c"]]}',
        b'{"topology":[["a"],[]]}',
    ],
)
def test_a_topology_that_is_none_closes_the_connection(value: bytes) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    assert set_vbucket(node, extras=b"\1", value=value, datatype=1) is None
    assert state_of(node) == REPLICA, "it stays as it was"
    assert set_vbucket(node, 2, extras=b"\1", value=TWO_NODES, datatype=1) == 0
    assert set_vbucket(node, 2, extras=b"\1", value=value, datatype=1) is None
    assert json.loads(node.vbucket(2).topology) == [["a", "b"]]
    node.delete_vbucket(3)
    assert set_vbucket(node, 3, extras=b"\1", value=value, datatype=1) is None
    assert state_of(node, 3) == ACTIVE, "a vbucket that is made is there all the same"
    assert node.vbucket(3).topology == ""


@rule("KV-VB-08")
@each_case("chain", [["a", "a"], ["a", "b", "b"], [""], ["", "b"]], ids=str)
def test_a_chain_that_cannot_be_used_leaves_the_vbucket_active(chain: list[str]) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    value = json.dumps({"topology": [chain]}).encode()
    before = node.failover_log(1)
    assert set_vbucket(node, extras=b"\1", value=value, datatype=1) is None
    assert state_of(node) == ACTIVE
    assert json.loads(node.vbucket(1).topology) == [chain], "it is shown all the same"
    assert node.failover_log(1) == before, "the change ended before the new branch"
    assert durable_set(node.connect(), b"k")[0].status == Status.DURABILITY_IMPOSSIBLE


@rule("KV-VB-09")
@each_case(
    ("topology", "is_possible"),
    [
        ([["a"]], True),
        ([["a", None]], False),
        ([["a", "b", None]], True),
        ([["a", "", "c"]], True),
        ([["a", None, None]], False),
        ([["a", "b", "c", None]], True),
        ([["a", "b", "c", "d"]], False),
        ([["a"], ["a", None]], False),
        ([["a"], ["a", "b"]], True),
    ],
    ids=str,
)
def test_which_topologies_make_durable_writes_possible(topology: list, is_possible: bool) -> None:
    node = SimulatedNode()
    assert set_vbucket(node, extras=b"\1", value=json.dumps({"topology": topology}).encode(), datatype=1) == 0
    answers = durable_set(node.connect(), b"k")
    refused = [frame.status for frame in answers] == [Status.DURABILITY_IMPOSSIBLE]
    assert refused is not is_possible


@rule("KV-VB-10")
def test_a_state_that_is_there_changes_nothing() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, ACTIVE, TWO_NODES)
    node.set_vbucket(1, ACTIVE)
    assert json.loads(node.vbucket(1).topology) == [["a", "b"]]
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(1, ACTIVE)
    assert node.vbucket(1).topology == ""


@rule("KV-VB-11")
def test_a_topology_without_a_majority_aborts_what_waits() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, ACTIVE, TWO_NODES)
    replica, client = sync_replica(node), node.connect()
    replica.stream(1)
    assert durable_set(client, b"k") == []
    node.set_vbucket(1, ACTIVE, b'{"topology":[["a",null]]}')
    assert [frame.status for frame in client.take()] == [Status.SYNC_WRITE_AMBIGUOUS]
    assert Opcode.DCP_ABORT in [frame.opcode for frame in replica.take()]


@rule("KV-VB-12")
@each_case("opcode", [Opcode.SET_VBUCKET, Opcode.DEL_VBUCKET])
@each_case(("cas", "status"), [(0, 0), (TOKEN, 0), (1, Status.KEY_EEXISTS)])
@of_release("7.2")
def test_the_cas_is_the_control_token(opcode: int, cas: int, status: int) -> None:
    node = SimulatedNode()
    extras = b"\2" if opcode == Opcode.SET_VBUCKET else b""
    answer = node.connect().call(opcode, vbid=1, cas=cas, extras=extras)
    assert (answer.status, answer.cas) == (status, 0 if status else cas)
    assert (state_of(node) == ACTIVE) is bool(status)


@rule("KV-VB-13")
def test_a_vbucket_beyond_the_last_cannot_be_made() -> None:
    node = SimulatedNode()
    answer = node.connect().call(Opcode.SET_VBUCKET, vbid=4, extras=b"\1")
    assert answer.status == Status.ERANGE
    assert "context" in json.loads(answer.value)["error"]


@rule("KV-VB-14")
@each_case("value", [b"", b"async=0", b"async=1", b"x", b"async=0 "])
def test_any_value_of_del_vbucket_deletes(value: bytes) -> None:
    node = SimulatedNode()
    assert node.connect().call(Opcode.DEL_VBUCKET, vbid=1, value=value).status == 0
    assert state_of(node) == 0
    assert node.connect().call(Opcode.DEL_VBUCKET, vbid=1, value=value).status == Status.NOT_MY_VBUCKET


@rule("KV-VB-14")
@each_case("vbid", [4, 0xFFFF])
@of_release("7.2")
def test_del_vbucket_beyond_the_last_closes_the_connection_in_7_2(vbid: int) -> None:
    peer = SimulatedNode().connect()
    assert peer.send(Opcode.DEL_VBUCKET, vbid=vbid) == []
    assert peer.closed
    newer = SimulatedNode(release="7.6").connect()
    assert newer.call(Opcode.DEL_VBUCKET, vbid=vbid).status == Status.NOT_MY_VBUCKET


@rule("KV-VB-15")
@each_case("state", [ACTIVE, REPLICA, PENDING, DEAD])
def test_get_vbucket_needs_no_privilege_and_ignores_a_key(state: int) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, state)
    peer = node.connect(user="writer")
    for key in (b"", b"k"):
        answer = peer.call(Opcode.GET_VBUCKET, vbid=1, key=key)
        assert (answer.status, answer.value) == (0, struct.pack(">I", state))
    assert peer.call(Opcode.GET_VBUCKET, vbid=1, value=b"v").status == Status.EINVAL
    assert peer.call(Opcode.GET_VBUCKET, vbid=1, cas=1).status == Status.EINVAL


@rule("KV-VB-16")
@each_case("opcode", [Opcode.GET, Opcode.GET_META, Opcode.GET_VBUCKET, Opcode.GET_FAILOVER_LOG])
@of_release("7.2")
def test_not_my_vbucket_has_the_map(opcode: int) -> None:
    node = SimulatedNode()
    node.delete_vbucket(1)
    key = b"\0k" if opcode in (Opcode.GET, Opcode.GET_META) else b""

    def answer(peer: Peer) -> tuple[int, int, bool]:
        found = peer.call(opcode, vbid=1, key=key)
        return found.status, found.datatype, b"vBucketServerMap" in found.value

    peer = node.connect()
    assert [answer(peer) for _ in range(2)] == [(Status.NOT_MY_VBUCKET, 1, True)] * 2
    asking = node.connect(features=(Feature.XERROR, Feature.COLLECTIONS, Feature.DEDUPE_NOT_MY_VBUCKET))
    assert answer(asking) == (Status.NOT_MY_VBUCKET, 1, True), "also without JSON"


@rule("KV-VB-16")
def test_dcp_connections_get_the_map_too() -> None:
    node = SimulatedNode()
    node.delete_vbucket(1)
    (refused,) = node.producer().stream(1)
    assert (refused.status, refused.datatype) == (Status.NOT_MY_VBUCKET, Datatype.JSON)
    assert b"vBucketServerMap" in refused.value
    added = node.consumer().call(Opcode.DCP_ADD_STREAM, vbid=2, extras=bytes(4))
    assert added.status == Status.NOT_MY_VBUCKET
    assert b"vBucketServerMap" in added.value
