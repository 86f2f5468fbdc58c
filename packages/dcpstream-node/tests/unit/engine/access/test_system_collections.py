"""System scopes and collections of 7.6 and later: who sees, reads, writes and streams them."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.model import Manifest
from dcpstream.wire import Frame, Opcode, Status, StreamEndReason, encode_request
from dcpstream_node.cluster import Cluster
from dcpstream_node.engine import Engine
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

MOBILE, QUERY, USER = 8, 9, 10
STORE = struct.pack(">II", 0, 0)
LOOKUP, MUTATION = b"SystemCollectionLookup", b"SystemCollectionMutation"


@pytest.fixture
def engine() -> Engine:
    engine = engine_of(release="8.0")
    manifest = Manifest.WITH_SYSTEM_SCOPE.to_json()
    manifest["uid"] = "2"
    manifest["scopes"][0]["collections"].append({"name": "user", "uid": f"{USER:x}"})
    answer = Talker(engine).call(Opcode.SET_COLLECTIONS, value=json.dumps(manifest).encode())
    assert answer.status == Status.SUCCESS
    return engine


def client(engine: Engine, *dropped: bytes) -> Talker:
    """An administrator's connection that gave up privileges."""
    peer = Talker(engine)
    for name in dropped:
        assert peer.call(Opcode.DROP_PRIVILEGE, key=name).status == Status.SUCCESS
    return peer


def get(peer: Talker, collection: int) -> int:
    return peer.call(Opcode.GET, key=bytes((collection,)) + b"k").status


def put(peer: Talker, collection: int) -> int:
    return peer.call(Opcode.SET, key=bytes((collection,)) + b"k", value=b"1", extras=STORE).status


def scopes(peer: Talker) -> set[str]:
    return {scope["name"] for scope in json.loads(peer.call(Opcode.GET_COLLECTIONS_MANIFEST).value)["scopes"]}


@rule("KV-ACCESS-12")
def test_reading_and_writing_need_a_privilege_each(engine: Engine) -> None:
    assert put(client(engine, LOOKUP), QUERY) == Status.SUCCESS
    assert get(client(engine, LOOKUP), QUERY) == Status.EACCESS
    assert get(client(engine, MUTATION), QUERY) == Status.SUCCESS
    assert put(client(engine, MUTATION), QUERY) == Status.EACCESS
    neither = client(engine, LOOKUP, MUTATION)
    assert (get(neither, USER), put(neither, USER), put(neither, 0)) == (Status.KEY_ENOENT, 0, 0)
    denied = client(engine, LOOKUP).call(Opcode.GET, key=bytes((QUERY,)) + b"k")
    assert b"without the SystemCollectionLookup privilege" in denied.value


@rule("KV-ACCESS-12")
def test_names_are_shown_to_those_with_either_privilege(engine: Engine) -> None:
    for dropped in ((), (LOOKUP,), (MUTATION,)):
        peer = client(engine, *dropped)
        assert "_system" in scopes(peer)
        assert peer.call(Opcode.GET_COLLECTION_ID, value=b"_system._query").status == Status.SUCCESS
        assert peer.call(Opcode.GET_SCOPE_ID, value=b"_system").status == Status.SUCCESS
    neither = client(engine, LOOKUP, MUTATION)
    assert scopes(neither) == {"_default"}
    assert neither.call(Opcode.GET_COLLECTION_ID, value=b"_system._query").status == Status.EACCESS
    assert neither.call(Opcode.GET_COLLECTION_ID, value=b"_system.none").status == Status.UNKNOWN_COLLECTION
    assert neither.call(Opcode.GET_SCOPE_ID, value=b"_system").status == Status.EACCESS
    assert neither.call(Opcode.GET_SCOPE_ID, value=b"_default").status == Status.SUCCESS


@rule("KV-ACCESS-12")
def test_statistics_leave_them_out(engine: Engine) -> None:
    few = client(engine, LOOKUP)
    assert "0x8:0x9:name" in Talker(engine).stats("collections")
    assert not [name for name in few.stats("collections") if name.startswith("0x8:")]
    assert not [name for name in few.stats("scopes") if name.startswith("0x8:")]
    assert not [name for name in few.stats("collections-details 0") if ":0x8:" in name or ":0x9:" in name]
    assert [name for name in few.stats("collections-details 0") if ":0xa:" in name]
    for group in (b"collections _system._query", b"collections-byid 0x9", b"scopes _system"):
        assert few.call(Opcode.STAT, key=group).status == Status.EACCESS
    assert few.call(Opcode.STAT, key=b"collections _system.none").status == Status.UNKNOWN_COLLECTION


@rule("KV-ACCESS-11")
def test_a_privilege_that_was_given_up_comes_back_with_the_next_login(engine: Engine) -> None:
    peer = client(engine, b"Read")
    assert get(peer, 0) == Status.EACCESS
    assert not peer.session.plain_opcodes & {int(Opcode.GET)}
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == 0
    assert get(peer, 0) == Status.EACCESS
    assert peer.call(Opcode.GET_ALL_VB_SEQNOS).status == Status.EACCESS
    assert peer.call(Opcode.DROP_PRIVILEGE, key=b"read").status == Status.KEY_ENOENT
    assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0secret").status == 0
    assert get(peer, 0) == Status.KEY_ENOENT


def stream(peer: Talker, value: bytes = b"") -> list[Frame]:
    """A stream of vbucket 0: the answer, and what is there."""
    assert peer.call(Opcode.DCP_OPEN, key=b"reader", extras=struct.pack(">II", 0, 1)).status == 0
    assert peer.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
    extras = struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, 0, 0, 0)
    return peer.send(encode_request(Opcode.DCP_STREAM_REQ, extras=extras, value=value, opaque=9))


def seqnos(frames: list[Frame]) -> list[int]:
    kinds = (Opcode.DCP_MUTATION, Opcode.DCP_SYSTEM_EVENT)
    return [int.from_bytes(frame.extras[:8], "big") for frame in frames if frame.opcode in kinds]


@rule("COL-09")
def test_a_stream_of_everything_leaves_them_out(engine: Engine) -> None:
    admin = Talker(engine)
    for collection in (QUERY, USER, MOBILE):
        assert put(admin, collection) == 0
    assert seqnos(stream(Talker(engine))) == [1, 2, 3, 4, 5, 6, 7]
    few = client(engine, LOOKUP)
    frames = stream(few)
    assert frames[0].status == Status.SUCCESS
    assert seqnos(frames) == [4, 6], "the user's collection, and its document"
    assert put(admin, QUERY) == 0
    assert not few.collect()
    manifest = {
        "uid": "3",
        "scopes": [
            {"name": "_default", "uid": "0", "collections": [{"name": "new", "uid": "b"}, {"name": "_own", "uid": "c"}]}
        ],
    }
    assert admin.call(Opcode.SET_COLLECTIONS, value=json.dumps(manifest).encode()).status == 0
    events = {frame.key: frame.extras[8:12] for frame in few.collect() if frame.opcode == Opcode.DCP_SYSTEM_EVENT}
    assert events == {b"new": bytes(4), b"": b"\0\0\0\1"}, "the new collection, and the drops of what was visible"
    assert put(admin, 11) == 0
    assert len(seqnos(few.collect())) == 1


@rule("KV-ACCESS-12")
@pytest.mark.parametrize("value", [b'{"collections":["9"]}', b'{"collections":["a","9"]}', b'{"scope":"8"}'])
def test_a_filter_that_names_one_is_refused(engine: Engine, value: bytes) -> None:
    assert stream(client(engine, LOOKUP), value)[0].status == Status.EACCESS
    assert stream(Talker(engine), value)[0].status == Status.SUCCESS


@rule("SEC-07")
def test_a_stream_of_everything_ends_with_the_privilege(engine: Engine) -> None:
    peer = Talker(engine)
    stream(peer)
    assert peer.call(Opcode.DROP_PRIVILEGE, key=LOOKUP).status == 0
    assert put(Talker(engine), USER) == 0
    (end,) = peer.collect()
    assert end.extras == struct.pack(">I", StreamEndReason.LOST_PRIVILEGES)


@each_case(
    ("release", "system_scope", "uid"),
    [(("7.2", "8.0"), True, 0), (("8.0", "7.6"), True, 1), (("8.0", "8.0"), False, 0)],
)
def test_the_oldest_node_of_a_cluster_decides(release: tuple[str, str], system_scope: bool, uid: int) -> None:
    with Cluster(2, vbuckets=4, release=release, system_scope=system_scope) as cluster:
        for member in cluster.nodes:
            assert member.node.engine is not None
            bucket = member.node.engine.buckets["default"]
            active = [vbucket for vbucket in bucket.vbuckets if vbucket is not None and vbucket.is_active]
            assert bucket.manifest.uid == uid
            assert [vbucket.high_seqno for vbucket in active] == [3 * uid] * 2
