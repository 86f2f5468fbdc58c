"""Privileges that key-value commands need, and how a refusal is told."""

from __future__ import annotations

import json
import struct
from typing import Any

from dcpstream.wire import Opcode, Status
from dcpstream_node.engine import ALL_PRIVILEGES, Users
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS, Peer, SeededRandom, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import REPLICA, WITHOUT_XERROR

KEY = b"\0k"
NOWHERE = b"\x09k"
STORE = bytes(8)
META = struct.pack(">IIQQ", 0, 0, 9, 1 << 60)
COUNT = struct.pack(">QQI", 1, 1, 0)
PATH = b"\0\1\0"
MULTI_PATH = struct.pack(">BBHI", Opcode.SUBDOC_DICT_UPSERT, 0, 1, 1) + b"p1"

OTHER_NAMES = {Opcode.DELETE_WITH_META: "DEL_WITH_META"}
"""Names of commands in errors, where they are not those of the protocol's pages."""

WRITES = {
    "Upsert": [
        *((Opcode.SET, STORE, b"1"), (Opcode.REPLACE, STORE, b"1"), (Opcode.APPEND, b"", b"1")),
        *((Opcode.PREPEND, b"", b"1"), (Opcode.TOUCH, bytes(4), b""), (Opcode.SUBDOC_DICT_UPSERT, PATH, b"p1")),
        *((Opcode.SUBDOC_DELETE, PATH, b"p"), (Opcode.SUBDOC_MULTI_MUTATION, b"", MULTI_PATH)),
    ],
    "Delete": [(Opcode.DELETE, b"", b"")],
    "Insert": [(Opcode.ADD, STORE, b"1")],
    "Read Upsert": [
        *((Opcode.INCREMENT, COUNT, b""), (Opcode.DECREMENT, COUNT, b""), (Opcode.GAT, bytes(4), b"")),
        (Opcode.SUBDOC_COUNTER, PATH, b"p1"),
    ],
    "MetaWrite": [
        *((Opcode.SET_WITH_META, META, b"1"), (Opcode.ADD_WITH_META, META, b"1"), (Opcode.DELETE_WITH_META, META, b"")),
        (Opcode.RETURN_META, struct.pack(">III", 1, 0, 0), b"1"),
    ],
}


def node_for(**privileges: Any) -> SimulatedNode:
    """A node with users and what they may do, everybody's password being `secret`."""
    users = Users(SeededRandom(), iterations=1)
    users.add("@admin", "secret")
    for name, given in privileges.items():
        users.add(name, "secret", frozenset(given.split()))
    node = SimulatedNode(users=users)
    node.set_doc(1, "k", b'{"p":1}')
    return node


def refused(peer: Peer, opcode: int, **fields: Any) -> str | None:
    """The context of an EACCESS, None if it has no body; the connection stays."""
    answer = peer.call(opcode, **fields)
    assert answer.status == Status.EACCESS, Opcode(opcode)
    assert not peer.closed
    if not answer.value:
        assert answer.datatype == 0
        return None
    assert answer.datatype == 1
    error = json.loads(answer.value)["error"]
    assert len(error["ref"]) == 36
    context: str = error["context"]
    return context


@rule("KV-ACCESS-01", "KV-ACCESS-04")
def test_each_write_needs_its_privilege_and_says_which() -> None:
    everything = ALL_PRIVILEGES - {"Administrator"}
    for needed, requests in WRITES.items():
        for name in needed.split():
            missing = everything - ({"Insert", "Upsert"} if name == "Insert" else {name})
            node = node_for(some=" ".join(missing), other=needed + " Read")
            peer, other = node.connect(user="some"), node.connect(user="other")
            for opcode, extras, value in requests:
                context = refused(peer, opcode, vbid=1, key=KEY, extras=extras, value=value)
                assert context is not None
                assert OTHER_NAMES.get(opcode, Opcode(opcode).name) in context
                assert f"without the {'Upsert' if name == 'Insert' else name} privilege" in context
                assert other.call(opcode, vbid=1, key=KEY, extras=extras, value=value).status != Status.EACCESS


@rule("KV-ACCESS-04")
@each_case("privilege", ["Insert", "Upsert"])
def test_add_needs_one_of_two(privilege: str) -> None:
    peer = node_for(some=privilege).connect(user="some")
    assert peer.call(Opcode.ADD, vbid=1, key=b"\0new", extras=STORE).status == 0


@rule("KV-ACCESS-02", "KV-ACCESS-03")
def test_what_read_alone_allows() -> None:
    node = node_for(reader="Read")
    node.set_vbucket(2, REPLICA)
    peer = node.connect(user="reader")
    vbuuid = node.vbucket(1).vbuuid.to_bytes(8, "big")
    cases: list[tuple[Any, dict[str, Any]]] = [
        *((opcode, {"key": KEY}) for opcode in (Opcode.GET, Opcode.GETK, Opcode.GET_META, Opcode.GET_KEYS)),
        (Opcode.OBSERVE_SEQNO, {"value": vbuuid}),
        (Opcode.OBSERVE, {"value": struct.pack(">HH", 1, 2) + KEY}),
        (Opcode.GET_ALL_VB_SEQNOS, {}),
        (Opcode.GET_ALL_VB_SEQNOS, {"extras": bytes(8)}),
        (Opcode.GET_FAILOVER_LOG, {}),
        (Opcode.GET_VBUCKET, {}),
        (Opcode.GET_RANDOM_KEY, {"extras": bytes(4)}),
        (Opcode.SUBDOC_GET, {"key": KEY, "extras": PATH, "value": b"p"}),
        (Opcode.SUBDOC_MULTI_LOOKUP, {"key": KEY, "value": struct.pack(">BBH", Opcode.SUBDOC_GET, 0, 1) + b"p"}),
    ]
    for opcode, fields in cases:
        assert peer.call(opcode, vbid=1, **fields).status == 0, Opcode(opcode)
    assert peer.call(Opcode.GET_REPLICA, vbid=2, key=KEY).status == Status.KEY_ENOENT
    cas = peer.call(Opcode.GET_LOCKED, vbid=1, key=KEY).cas
    assert peer.call(Opcode.UNLOCK, vbid=1, key=KEY, cas=cas).status == 0


@rule("KV-ACCESS-03", "KV-ACCESS-05")
def test_who_may_read_nothing() -> None:
    node = node_for(writer="Upsert Insert Delete")
    peer = node.connect(user="writer")
    assert peer.call(Opcode.GET_VBUCKET, vbid=1).status == 0
    vbuuid = node.vbucket(1).vbuuid.to_bytes(8, "big")
    assert refused(peer, Opcode.OBSERVE_SEQNO, vbid=1, value=vbuuid) is None
    assert refused(peer, Opcode.GET_ALL_VB_SEQNOS) is None
    assert refused(peer, Opcode.GET_ALL_VB_SEQNOS, extras=bytes(8))
    assert refused(peer, Opcode.OBSERVE, value=struct.pack(">HH", 1, 2) + KEY)
    assert refused(peer, Opcode.GET_FAILOVER_LOG, vbid=1)
    assert refused(peer, Opcode.GET_META, vbid=1, key=KEY)
    old = node.connect(user="writer", features=WITHOUT_COLLECTIONS)
    assert refused(old, Opcode.GET_ALL_VB_SEQNOS)


@rule("KV-ACCESS-06")
@of_release("7.2", "8.0")
def test_access_is_checked_before_an_unknown_collection_until_80(release: str) -> None:
    peer = node_for(reader="Read").connect(user="reader")
    for opcode, extras, value in (
        *((Opcode.SET, STORE, b"1"), (Opcode.ADD, STORE, b"1"), (Opcode.REPLACE, STORE, b"1")),
        *((Opcode.APPEND, b"", b"1"), (Opcode.DELETE, b"", b""), (Opcode.INCREMENT, COUNT, b"")),
        *((Opcode.GAT, bytes(4), b""), (Opcode.SUBDOC_DICT_UPSERT, PATH, b"p1"), (Opcode.SET_WITH_META, META, b"1")),
    ):
        if release == "7.2":
            assert refused(peer, opcode, vbid=1, key=NOWHERE, extras=extras, value=value)
        else:
            answer = peer.call(opcode, vbid=1, key=NOWHERE, extras=extras, value=value)
            assert answer.status == Status.UNKNOWN_COLLECTION, opcode
    for opcode in (Opcode.GET, Opcode.GET_META, Opcode.GET_LOCKED):
        answer = peer.call(opcode, vbid=1, key=NOWHERE)
        assert answer.status == Status.UNKNOWN_COLLECTION
        assert json.loads(answer.value) == {
            "error": {"context": "Unknown scope or collection in operation"}, "manifest_uid": "0",
        }  # fmt: skip
    answer = peer.call(Opcode.GET_ALL_VB_SEQNOS, extras=struct.pack(">II", 0, 9))
    assert answer.status == Status.UNKNOWN_COLLECTION


@rule("KV-ACCESS-07")
def test_groups_of_stat() -> None:
    node = node_for(reader="Read", watcher="Read SimpleStats")
    reader, watcher = node.connect(user="reader"), node.connect(user="watcher")
    for group in (b"", b"vbucket", b"vbucket-details 1", b"dcp", b"hash", b"timings"):
        assert refused(reader, Opcode.STAT, key=group)
        assert refused(reader, Opcode.STAT, key=b"nonsense") is None
        frames = watcher.send(Opcode.STAT, key=group)
        assert frames[-1].status in (0, Status.KEY_ENOENT)
    for group in (b"tracing", b"audit", b"allocator", b"_hash-dump 1"):
        assert refused(reader, Opcode.STAT, key=group)
        assert "Stats privilege" in str(refused(watcher, Opcode.STAT, key=group))
    answer = watcher.call(Opcode.STAT, key=b"nonsense")
    assert (answer.status, answer.value) == (Status.KEY_ENOENT, b"")


@rule("KV-ACCESS-08")
def test_without_xerror_a_missing_privilege_closes() -> None:
    node = node_for(reader="Read")
    for opcode, extras in ((Opcode.SET, STORE), (Opcode.DELETE, b""), (Opcode.SET_WITH_META, META)):
        peer = node.connect(user="reader", features=WITHOUT_XERROR)
        assert peer.send(opcode, vbid=1, key=KEY, extras=extras) == []
        assert peer.closed
