"""The cluster configuration: its fields, its versions, and who is told when."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings, NodeAddress
from dcpstream.wire import Feature, Opcode, Status
from dcpstream_node.engine.cluster_config import read_alternates
from dcpstream_node.store import MemoryBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

FULL = (*USUAL_FEATURES, Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION)


def config_of(client: Talker, extras: bytes = b"") -> dict:
    return json.loads(client.call(Opcode.GET_CLUSTER_CONFIG, extras=extras).value)


@each_case(
    "data",
    [
        {"default": {"hostname": "a"}},
        {"": {"hostname": "a"}},
        {"external": {}},
        {"external": {"hostname": ""}},
        {"external": {"hostname": "a b"}},
        {"external": {"hostname": "$HOST"}},
        {"external": {"hostname": "a", "kv": 0}},
        {"external": {"hostname": "a", "kv": "1"}},
        {"external": {"hostname": "a", "ftp": 21}},
        {"external": "a"},
        {f"n{number}": {"hostname": "a"} for number in range(17)},
    ],
)
def test_other_networks_that_cannot_be(data: dict):
    with pytest.raises(ConfigError, match="alternate_addresses"):
        read_alternates(data)


def test_copies_that_are_to_be_are_shown_as_missing():
    engine = engine_of(MemoryBucketStore(2, BucketSettings(replicas=2)))
    client = Talker(engine)
    assert config_of(client)["vBucketServerMap"]["vBucketMap"] == [[0, -1, -1]] * 2
    client.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\2")
    client.call(Opcode.SET_VBUCKET, vbid=0, extras=b"\4")
    server_map = config_of(client)["vBucketServerMap"]
    assert (server_map["numReplicas"], server_map["vBucketMap"]) == (2, [[-1, -1, -1], [-1, 0, -1]])


def test_what_did_not_change_keeps_its_version():
    engine = engine_of()
    other = engine.add_bucket("other", MemoryBucketStore(2))
    client = Talker(engine)
    versions = [engine.config_version(bucket) for bucket in (None, engine.buckets["default"], other)]
    client.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\4")
    assert engine.config_version(None) == versions[0]
    assert engine.config_version(engine.buckets["default"]) > max(versions)
    assert engine.config_version(other) == versions[2]
    config = config_of(client)
    assert (config["revEpoch"], config["rev"]) == engine.config_version(engine.buckets["default"])


@rule("KV-LOGIN-05")
def test_a_client_that_has_the_newest_gets_nothing():
    engine = engine_of(release="7.6")
    client = Talker(engine, features=(*USUAL_FEATURES, Feature.CLUSTER_CONFIG_KNOWN_VERSION))
    config = config_of(client)
    known = struct.pack(">qq", config["revEpoch"], config["rev"])
    assert client.call(Opcode.GET_CLUSTER_CONFIG, extras=known).value == b""
    older = struct.pack(">qq", config["revEpoch"], config["rev"] - 1)
    assert config_of(client, older) == config
    client.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\4")
    assert config_of(client, known)["rev"] > config["rev"]


def test_sessions_without_a_bucket_hear_of_the_node():
    engine = engine_of()
    full, plain, stranger = Talker(engine, features=FULL), Talker(engine), Talker(engine, user=None)
    full.call(Opcode.SELECT_BUCKET, key=b"@no bucket@")
    engine.config.nodes[0] = NodeAddress("", 11210, 8091, 11207)
    engine.node_changed()
    (pushed,) = full.collect()
    assert pushed.key == b""
    assert json.loads(pushed.value)["nodesExt"][0]["services"]["kvSSL"] == 11207
    assert plain.collect() == []
    assert stranger.collect() == []


def test_what_was_sent_is_not_pushed_again():
    engine = engine_of(release="7.6")
    client = Talker(engine, features=(*FULL, Feature.DEDUPE_NOT_MY_VBUCKET))
    config_of(client)
    client.session.push_config()
    assert client.collect() == []
    answer = client.call(Opcode.GET, vbid=99, key=client.key("k"))
    assert (answer.status, answer.value) == (Status.NOT_MY_VBUCKET, b"")


def test_not_my_vbucket_brings_the_map():
    engine = engine_of(release="7.6")
    plain, dedupe = Talker(engine), Talker(engine, features=(*USUAL_FEATURES, Feature.DEDUPE_NOT_MY_VBUCKET))
    for _ in range(2):
        assert json.loads(plain.call(Opcode.GET, vbid=9, key=plain.key("k")).value)["name"] == "default"
    assert json.loads(dedupe.call(Opcode.GET, vbid=9, key=dedupe.key("k")).value)["name"] == "default"
    assert dedupe.call(Opcode.GET, vbid=9, key=dedupe.key("k")).value == b""
    Talker(engine).call(Opcode.SET_VBUCKET, vbid=1, extras=b"\4")
    assert dedupe.call(Opcode.GET, vbid=9, key=dedupe.key("k")).value


@rule("KV-VB-16")
def test_a_node_without_a_map():
    engine = engine_of(release="7.6")
    client, told = Talker(engine), Talker(engine, features=FULL)
    engine.hide_maps(is_on=True)
    answer = client.call(Opcode.GET, vbid=9, key=client.key("k"))
    assert (answer.status, answer.datatype, answer.value) == (Status.NOT_MY_VBUCKET, 0, b"")
    assert client.call(Opcode.GET_CLUSTER_CONFIG).status == Status.KEY_ENOENT
    told.session.push_config()
    assert told.collect() == []
    engine.hide_maps(is_on=False)
    assert len(told.collect()) == 1, "the map is pushed"
    assert client.call(Opcode.GET, vbid=9, key=client.key("k")).value


def test_replicas_that_are_wanted_decide_what_a_durable_write_needs():
    engine = engine_of()
    bucket = engine.buckets["default"]
    client = Talker(engine)
    bucket.vbuckets[3].topology = '[["somebody else"]]'
    bucket.lead_alone()
    before = [vbucket.topology for vbucket in bucket.vbuckets]
    engine.change_settings(bucket, BucketSettings(replicas=2))
    assert bucket.vbuckets[0].topology == '[["this node",null,null]]'
    assert bucket.vbuckets[3].topology == '[["somebody else"]]'
    engine.change_settings(bucket, BucketSettings(replicas=0))
    assert [vbucket.topology for vbucket in bucket.vbuckets] == before
    engine.flush_bucket(bucket)
    assert [vbucket.topology for vbucket in bucket.vbuckets] == before
    assert client.set("k", b"v").status == 0


def given(epoch: int, rev: int, chains: list[list[int]], *, this: int = 0) -> bytes:
    """A map of two nodes."""
    nodes = [{"services": {"kv": 11210 + number, "mgmt": 8091 + number}} for number in range(2)]
    nodes[this]["thisNode"] = True  # type: ignore[assignment]
    content = {"rev": rev, "revEpoch": epoch, "uuid": "ours", "clusterUUID": "all", "nodesExt": nodes}
    return json.dumps(content | {"vBucketServerMap": {"vBucketMap": chains}}).encode()


def give(client: Talker, epoch: int, rev: int, value: bytes, key: bytes = b"default") -> int:
    extras = struct.pack(">qq", epoch, rev)
    return client.call(Opcode.SET_CLUSTER_CONFIG, key=key, extras=extras, value=value).status


CHAINS = [[0, 1], [1, 0], [-1, 1], [1, -1]]


@rule("KV-VB-17")
def test_a_manager_s_map_is_sent_to_clients():
    client = Talker(engine_of())
    assert give(client, 7, 5, given(7, 5, CHAINS, this=1)) == 0
    content = config_of(client)
    assert (content["revEpoch"], content["rev"], content["uuid"]) == (7, 5, "ours")
    assert content["vBucketServerMap"]["vBucketMap"] == CHAINS
    assert content["vBucketServerMap"]["serverList"] == ["127.0.0.1:11210", "127.0.0.1:11211"]
    assert [entry.get("thisNode") for entry in content["nodesExt"]] == [None, True]
    assert content["nodes"][1]["hostname"] == "127.0.0.1:8092"


@rule("KV-VB-19")
def test_an_older_map_is_refused():
    client = Talker(engine_of())
    assert give(client, 7, 5, given(7, 5, CHAINS)) == 0
    assert give(client, 7, 4, given(7, 4, CHAINS[::-1])) == Status.KEY_EEXISTS
    assert give(client, 6, 9, given(6, 9, CHAINS[::-1])) == Status.KEY_EEXISTS
    assert give(client, 7, 5, given(7, 5, CHAINS)) == 0
    assert config_of(client)["vBucketServerMap"]["vBucketMap"] == CHAINS
    assert give(client, 8, 1, given(8, 1, CHAINS[::-1])) == 0
    assert config_of(client)["vBucketServerMap"]["vBucketMap"] == CHAINS[::-1]


@rule("KV-VB-17")
def test_the_first_map_of_a_bucket_wins_over_the_node_s_own_revisions():
    """The list of nodes is given first; what the node counted for its bucket before is no version of the manager's."""
    client = Talker(engine_of())
    for state in (b"\2", b"\1", b"\2"):
        client.call(Opcode.SET_VBUCKET, vbid=0, extras=state)
    assert give(client, 1, 1, given(1, 1, []), key=b"") == 0
    assert config_of(client)["rev"] == 0
    assert give(client, 1, 2, given(1, 2, CHAINS)) == 0
    assert config_of(client)["rev"] == 2


@rule("KV-VB-17")
@each_case(
    ("value", "key", "status"),
    [
        (b"no JSON", b"default", Status.EINVAL),
        (b"[]", b"default", Status.EINVAL),
        (b"{}", b"default", Status.EINVAL),
        (given(7, 5, CHAINS).replace(b"thisNode", b"other"), b"default", Status.EINVAL),
        (given(7, 6, CHAINS), b"default", Status.EINVAL),
        (given(7, 5, CHAINS[:3]), b"default", Status.EINVAL),
        (
            given(7, 5, [[0]] * 4, this=1).replace(b'"nodesExt"', b'"nodes": [{}], "nodesExt"'),
            b"default",
            Status.EINVAL,
        ),
    ],
)
def test_what_is_no_map_is_refused(value: bytes, key: bytes, status: int):
    client = Talker(engine_of())
    before = config_of(client)
    assert give(client, 7, 5, value, key) == status
    assert config_of(client) == before


@rule("KV-VB-17")
def test_the_map_of_a_bucket_that_a_72_does_not_have_is_refused():
    client = Talker(engine_of(release="7.2"))
    assert give(client, 7, 5, given(7, 5, CHAINS), b"missing") == Status.KEY_ENOENT
