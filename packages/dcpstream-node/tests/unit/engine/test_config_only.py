"""Buckets of which a node has nothing but the map, and paused ones, since 7.6."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.wire import Feature, Magic, Opcode, Status, encode_request
from dcpstream_node.engine import Engine
from dcpstream_node.engine.engine import MAX_BUCKETS
from dcpstream_node.store import MemoryBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

MAP = b'{"rev":5,"nodesExt":[{"services":{"kv":1}}],"name":"away"}'
PUSHED = (*USUAL_FEATURES, Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION)


@pytest.fixture
def engine() -> Engine:
    return engine_of(release="8.0")


def set_map(engine: Engine, revision: int = 5, epoch: int = 1, name: bytes = b"away") -> int:
    extras = struct.pack(">qq", epoch, revision)
    return Talker(engine).call(Opcode.SET_CLUSTER_CONFIG, key=name, value=MAP, extras=extras).status


def selected(engine: Engine, features: tuple[int, ...] = USUAL_FEATURES) -> Talker:
    peer = Talker(engine, features=features)
    assert peer.call(Opcode.SELECT_BUCKET, key=b"away").status == Status.SUCCESS
    return peer


@rule("KV-BUCKET-02")
def test_such_a_bucket_gives_its_map_and_refuses_everything_else(engine: Engine) -> None:
    assert set_map(engine) == Status.SUCCESS
    assert Talker(engine).call(Opcode.LIST_BUCKETS).value == b"default away"
    peer = selected(engine)
    assert peer.call(Opcode.GET_CLUSTER_CONFIG).value == MAP
    for opcode in (Opcode.GET, Opcode.NOOP, Opcode.STAT, Opcode.DCP_OPEN, Opcode.LIST_BUCKETS, Opcode.SASL_LIST_MECHS):
        assert peer.call(opcode).status == Status.CONFIG_ONLY
    assert peer.call(0xEE).status == Status.UNKNOWN_COMMAND
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.SUCCESS
    assert peer.call(Opcode.NOOP).status == Status.SUCCESS
    old = selected(engine, tuple(set(USUAL_FEATURES) - {Feature.XERROR}))
    assert old.call(Opcode.GET).status == Status.NOT_SUPPORTED


def test_their_number_is_limited(engine: Engine) -> None:
    statuses = [set_map(engine, name=b"b%d" % number) for number in range(MAX_BUCKETS + 1)]
    assert statuses == [Status.SUCCESS] * MAX_BUCKETS + [Status.ENOMEM]
    assert set_map(engine, 6, name=b"b0") == Status.SUCCESS


@rule("KV-BUCKET-02", "KV-LOGIN-05")
def test_a_map_is_pushed_unless_the_client_knows_a_newer_one(engine: Engine) -> None:
    set_map(engine)
    peer = selected(engine, PUSHED)
    set_map(engine, 6)
    (pushed,) = peer.collect()
    assert (pushed.magic, pushed.key, pushed.value) == (Magic.SERVER_REQUEST, b"away", MAP)
    set_map(engine, 5)
    set_map(engine, 6)
    assert not peer.collect()
    known = struct.pack(">qq", 1, 9)
    assert peer.call(Opcode.GET_CLUSTER_CONFIG, extras=known).value == b""
    set_map(engine, 8)
    assert not peer.collect()
    set_map(engine, 10)
    assert len(peer.collect()) == 1
    assert peer.call(Opcode.GET_CLUSTER_CONFIG, extras=struct.pack(">qq", -1, 7)).value == MAP
    for epoch, revision in ((0, 9), (1, 0)):
        extras = struct.pack(">qq", epoch, revision)
        assert peer.call(Opcode.GET_CLUSTER_CONFIG, extras=extras).status == Status.EINVAL


def test_a_real_bucket_takes_its_place_and_keeps_the_map(engine: Engine) -> None:
    set_map(engine)
    peer = selected(engine)
    engine.add_bucket("away", MemoryBucketStore(4), is_filled=False)
    assert peer.session.bucket is engine.buckets["away"]
    assert peer.call(Opcode.GET_CLUSTER_CONFIG).value == MAP
    refused = peer.call(Opcode.GET, key=b"\0k")
    assert (refused.status, refused.value) == (Status.NOT_MY_VBUCKET, MAP)
    engine.remove_bucket("away")
    assert not engine.config_only


@rule("KV-BUCKET-02")
def test_it_is_deleted_as_what_it_is(engine: Engine) -> None:
    set_map(engine)
    peer, admin = selected(engine), Talker(engine)
    engine.bucket_host = object()  # type: ignore[assignment]  # the bucket needs none

    def delete(kind: str) -> int:
        return admin.call(Opcode.DELETE_BUCKET, key=b"away", value=json.dumps({"type": kind}).encode()).status

    assert delete("Couchbase") == Status.KEY_EEXISTS
    assert delete("nonsense") == Status.EINVAL
    assert delete("ClusterConfigOnly") == Status.SUCCESS
    assert peer.session.is_closing
    assert delete("ClusterConfigOnly") == Status.KEY_ENOENT


@rule("KV-BUCKET-03")
def test_a_paused_bucket_closes_its_connections_and_takes_no_others(engine: Engine) -> None:
    set_map(engine)
    admin, idle, reader = Talker(engine), Talker(engine), Talker(engine)
    assert admin.call(Opcode.SELECT_BUCKET, key=b"@no bucket@").status == Status.SUCCESS
    assert reader.call(Opcode.DCP_OPEN, key=b"r", extras=struct.pack(">II", 0, 1)).status == Status.SUCCESS
    assert idle.set("k", b"v").status == Status.SUCCESS

    def order(opcode: int, name: bytes = b"default") -> int:
        return admin.call(opcode, key=name).status

    pause, resume = Opcode.PAUSE_BUCKET, Opcode.RESUME_BUCKET
    assert [order(pause, name) for name in (b"none", b"", b"away")] == [
        Status.KEY_ENOENT,
        Status.EINVAL,
        Status.NOT_SUPPORTED,
    ]
    assert [order(resume, name) for name in (b"none", b"", b"away", b"default")] == [
        Status.KEY_ENOENT,
        *[Status.KEY_EEXISTS] * 3,
    ]
    assert order(pause) == Status.SUCCESS
    assert idle.session.is_closing
    assert reader.session.is_closing
    assert order(pause) == Status.BUCKET_PAUSED
    assert admin.call(Opcode.SELECT_BUCKET, key=b"default").status != Status.SUCCESS
    assert admin.call(Opcode.LIST_BUCKETS).value == b"away"
    assert order(resume) == Status.SUCCESS
    assert Talker(engine).get("k").value == b"v"


@rule("KV-BUCKET-03")
def test_who_selected_the_paused_bucket_is_answered_before_the_end(engine: Engine) -> None:
    admin = Talker(engine)
    (answer,) = admin.send(encode_request(Opcode.PAUSE_BUCKET, key=b"default", opaque=3))
    assert answer.status == Status.SUCCESS
    assert admin.session.is_closing
