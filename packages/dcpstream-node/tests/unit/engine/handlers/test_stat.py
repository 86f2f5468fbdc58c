"""STAT: the groups, their names, and that the numbers are those of what was done."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.model import BucketSettings
from dcpstream.wire import Feature, Opcode, Status, encode_request
from dcpstream.wire.keys import encode_frame_info
from dcpstream_node.engine.stats import bucket as bucket_stats
from dcpstream_node.store import DiskBucketStore, MemoryBucketStore
from dcpstream_node.testing.simulation import START_UNIX_S, USUAL_FEATURES
from tests.kit.engine import Talker, engine_of, pass_time, with_collection
from tests.kit.rules import rule


@pytest.fixture
def client():
    return Talker(engine_of())


def refused(client: Talker, group: str, **fields) -> int:
    return client.call(Opcode.STAT, key=group.encode(), **fields).status


@pytest.mark.parametrize("is_ephemeral", [False, True])
def test_a_bucket_has_one_type_wherever_it_is_kept(is_ephemeral, tmp_path):
    settings = BucketSettings(is_ephemeral=is_ephemeral)
    for store in (MemoryBucketStore(4, settings), DiskBucketStore(tmp_path / "b", 4, settings)):
        engine = engine_of()
        bucket = engine.add_bucket("b", store)
        stats = dict(pair for pair in bucket_stats.totals(engine, bucket) if pair)
        config = dict(pair for pair in bucket_stats.config(bucket) if pair)
        told = json.loads(engine.config_json(bucket))["bucketType"]
        kind = "ephemeral" if is_ephemeral else "persistent"
        assert stats["ep_bucket_type"] == config["ep_bucket_type"] == kind
        assert told == ("ephemeral" if is_ephemeral else "membase")
        assert stats["ep_dbname"] == (str(tmp_path / "b") if store.is_durable else "")
        assert ("ep_item_eviction_policy" in config) is not is_ephemeral
        assert ("ep_ephemeral_full_policy" in config) is is_ephemeral
        store.close()


def test_writes_in_memory_are_committed_with_the_turn(client):
    before = int(client.stats("")["ep_commit_num"])
    client.set("a", b"1")
    client.engine.end_turn()
    assert int(client.stats("")["ep_commit_num"]) == before + 1


def test_memory_grows_with_what_is_written(client):
    before = client.stats("memory")
    client.set("a", b"x" * 10_000)
    after = client.stats("memory")
    assert int(after["mem_used"]) >= int(before["mem_used"]) + 10_000
    assert int(after["ep_kv_size"]) > int(before["ep_kv_size"])
    assert after["ep_max_size"] == str(client.engine.buckets["default"].settings.ram_quota_bytes)


def test_config_and_warmup(client):
    client.set("a", b"1")
    config = client.stats("config")
    assert config["ep_conflict_resolution_type"] == "seqno"
    assert config["ep_max_item_size"] == str(20 << 20)
    assert config["ep_getl_default_timeout"] == "15"
    assert config["ep_dcp_idle_timeout"] == "360"
    warmup = client.stats("warmup")
    assert (warmup["ep_warmup_state"], warmup["ep_warmup_key_count"]) == ("done", "1")


def test_durable_writes_are_counted():
    client = Talker(engine_of(), features=(*USUAL_FEATURES, Feature.SYNC_REPLICATION))
    client.call(Opcode.SET_VBUCKET, extras=b"\1", value=b'{"topology":[["a","b"]]}', datatype=1)
    framing = encode_frame_info(1, b"\1")
    vbucket = client.engine.buckets["default"].vbuckets[0]
    for number in range(3):
        other = Talker(client.engine, features=(*USUAL_FEATURES, Feature.SYNC_REPLICATION))
        other.receive(encode_request(Opcode.SET, key=b"\0%d" % number, extras=bytes(8), framing=framing))
        if not number:
            vbucket.durability.acknowledged("b", vbucket.high_seqno)
        elif number == 1:
            pass_time(client.engine, 40)
            client.engine.handle_timeout()
    stats = client.stats("vbucket-details 0")
    names = ("accepted", "committed", "aborted")
    assert [stats[f"vb_0:sync_write_{name}_count"] for name in names] == ["3", "1", "1"]
    assert stats["vb_0:num_prepared_sync_writes"] == "1"
    assert int(stats["vb_0:db_prepare_size"]) > 0
    assert client.stats("diskinfo")["ep_db_prepare_size"] == stats["vb_0:db_prepare_size"]
    state = client.stats("vbucket-durability-state 0")
    assert state["vb_0:topology"] == '[["a","b"]]'
    assert int(state["vb_0:high_prepared_seqno"]) == vbucket.high_seqno


@rule("KV-STAT-03")
def test_collections_and_scopes(client):
    with_collection(client.engine, 9, max_ttl=100)
    client.set("a", b"1")
    for vbid in (0, 1):
        client.call(Opcode.SET, key=b"\x09apple", value=b"1", extras=bytes(8), vbid=vbid)
    client.call(Opcode.SET, key=b"\x09gone", value=b"1", extras=bytes(8))
    client.call(Opcode.DELETE, key=b"\x09gone")
    one = {
        "0x0:0x9:items": "2",
        "0x0:0x9:name": "fruit",
        "0x0:0x9:scope_name": "_default",
        "0x0:0x9:maxTTL": "100",
    }
    every = client.stats("collections")
    assert every.items() >= one.items()
    assert (every["0x0:0x0:items"], every["manifest_uid"]) == ("1", "1")
    assert client.stats("collections _default.fruit") == one == client.stats("collections-byid 0x9")
    scopes = {"0x0:items": "3", "0x0:name": "_default", "0x0:collections": "2"}
    assert client.stats("scopes") == {**scopes, "manifest_uid": "1"}
    assert client.stats("scopes _default").items() >= {**scopes, **one}.items()
    assert client.stats("scopes-byid 0x0") == client.stats("scopes _default")
    assert refused(client, "collections none.none") == Status.UNKNOWN_SCOPE
    assert refused(client, "scopes none") == Status.UNKNOWN_SCOPE
    details = client.stats("collections-details 0")
    assert details["vb_0:collections"] == "2"
    assert details["vb_0:0x9:items"] == "1"
    assert details["vb_0:0x9:start_seqno"] == "1"
    assert details["vb_0:0x9:high_seqno"] == "5"
    assert client.stats("scopes-details 1")["vb_1:0x0:collections"] == "2"


@rule("KV-STAT-01")
def test_a_document(client):
    cas = client.set("a", b"{}", flags=7, expiration=10).cas
    assert client.stats("key a 0") == {
        "key_is_dirty": "false",
        "key_exptime": str(START_UNIX_S + 10),
        "key_flags": "7",
        "key_cas": str(cas),
        "key_vb_state": "active",
        "key_is_resident": "true",
        "key_datatype": "json",
    }
    old = Talker(engine_of(release="7.2"))
    old.set("a", b"{}")
    assert "key_datatype" not in old.stats("key a 0")
    client.call(Opcode.GET_LOCKED, key=b"\0a")
    assert client.stats("key a 0")["key_cas"] == str(cas), "the document's, not the lock's"
    with_collection(client.engine, 9)
    client.call(Opcode.SET, key=b"\x09apple", value=b"1", extras=bytes(8))
    assert client.stats("key-byid apple 0 0x9")["key_flags"] == "0"
    assert refused(client, "key-byid apple 0 0x8") == Status.UNKNOWN_COLLECTION
    assert refused(client, "key apple 0") == Status.KEY_ENOENT
    assert refused(client, "key apple 9") == Status.NOT_MY_VBUCKET
    for group in ("key apple", "key apple x", "key a b 0", "key-byid apple 0 z"):
        assert refused(client, group) == Status.EINVAL, group


@rule("KV-STAT-02")
def test_arguments(client):
    assert refused(client, "vbucket-details x") == Status.EINVAL
    assert refused(client, "vbucket-details 9") == Status.NOT_MY_VBUCKET
    assert refused(client, "memory x y") == Status.KEY_ENOENT
    assert refused(client, "dcp", value=b"{}") == Status.EINVAL
    assert refused(client, "dcp", value=b"{", datatype=1) == Status.EINVAL
    assert len(client.send(encode_request(Opcode.STAT, key=b"uuid", value=b"{}", datatype=1))) == 2


def dcp_stats(client: Talker, value: bytes) -> dict[str, str]:
    frames = client.send(encode_request(Opcode.STAT, key=b"dcp", value=value, datatype=1))
    return {frame.key.decode(): frame.value.decode() for frame in frames[:-1]}


def test_options_of_the_statistics_of_dcp(client):
    client.set("k", b"v")
    for user, name in (("admin", b"one:two"), ("reader", b"three")):
        peer = Talker(client.engine, user=user, features=())
        assert peer.call(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, 1)).status == 0
        end = 2**64 - 1
        peer.send(encode_request(Opcode.DCP_STREAM_REQ, extras=struct.pack(">IIQQQQQ", 0, 0, 0, end, 0, 0, 0)))
    legacy = dcp_stats(client, b"{}")
    assert legacy["eq_dcpq:one:two:stream_0_start_seqno"] == "0"
    skipped = dcp_stats(client, b'{"stream_format":"skip"}')
    assert skipped == {name: text for name, text in legacy.items() if "stream_0" not in name and "filter_0" not in name}
    told = json.loads(dcp_stats(client, b'{"stream_format":"json"}')["eq_dcpq:one:two:stream_0"])
    assert told["eq_dcpq:one:two:stream_0_start_seqno"] == "0"
    mine = dcp_stats(client, b'{"filter":{"user":"reader"}}')
    assert {name for name in legacy if "one:two" not in name} == set(mine)
    for nothing in (b"[]", b'{"stream_format":"x","filter":7}', b'{"filter":{"user":7}}'):
        assert dcp_stats(client, nothing).keys() == legacy.keys()


def test_a_large_group_goes_out_no_faster_than_it_is_read():
    client = Talker(engine_of(vbuckets=1024))
    client.receive(encode_request(Opcode.STAT, key=b"vbucket-details") + encode_request(Opcode.NOOP))
    assert client.session.is_waiting
    assert client.session.output.nbytes < 300_000
    frames = []
    while client.session.is_waiting:
        frames += client.collect()
    assert len(frames) % 1024 == 1
    assert not frames[-1].key


def test_80_has_names_of_its_own() -> None:
    names = {}
    for release in ("7.6", "8.0"):
        client = Talker(engine_of(release=release))
        assert client.call(Opcode.DCP_OPEN, key=b"a:b", extras=struct.pack(">II", 0, 1)).status == 0
        groups = ("dcp", "dcpagg :", "checkpoint 0", "vbucket-details 0", "diskinfo")
        names[release] = [set(client.stats(group)) for group in groups]
    old, new = (
        [found - other for found, other in zip(names[one], names[two], strict=True)]
        for one, two in (("7.6", "8.0"), ("8.0", "7.6"))
    )
    assert {"eq_dcpq:a:b:user", "eq_dcpq:a:b:paused_count", "eq_dcpq:a:b:max_marker_version"} <= new[0]
    assert {"a:activestream_count", ":total:unpaused_count"} <= new[1]
    assert {"vb_0:persistence:num_items_for_cursor", "vb_0:id_1:num_items"} <= new[2]
    assert new[3:] == [{"vb_0:sync_write_committed_not_durable_count"}, {"ep_db_tombstones"}]
    assert "ep_dcp_total_queue" in old[0]
    assert {"vb_0:last_closed_checkpoint_id", "vb_0:num_items_for_persistence"} < old[2]
    assert not (old[1] | old[3] | old[4])
