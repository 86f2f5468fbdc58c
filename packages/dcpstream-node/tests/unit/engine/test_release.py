"""A node is one server release to its clients, in everything that tells them what it is."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream.wire import Feature, Opcode, Status, decode_frame, encode_request
from dcpstream.wire.release import RELEASES, release_of
from dcpstream_node.embedded import Node
from dcpstream_node.engine.bucket.manifest import manifest_in
from dcpstream_node.store import MemoryBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

BOTH = pytest.mark.parametrize("name", RELEASES)
CAME_WITH_76 = (
    Feature.SUBDOC_REPLICA_READ,
    Feature.CLUSTER_CONFIG_KNOWN_VERSION,
    Feature.DEDUPE_NOT_MY_VBUCKET,
    Feature.CLUSTERMAP_NOTIFICATION_BRIEF,
    Feature.SUBDOC_SEVERAL_XATTR_KEYS,
    Feature.SUBDOC_BINARY_XATTR,
)


def granted(client: Talker, features: tuple[int, ...]) -> set[int]:
    value = client.hello(features).value
    return set(struct.unpack(f">{len(value) // 2}H", value))


def cluster_map(client: Talker) -> dict:
    return json.loads(client.call(Opcode.GET_CLUSTER_CONFIG).value)


def test_only_releases_that_a_node_can_be_are_taken():
    with pytest.raises(ConfigError, match=r"7\.2 or 7\.6 or 8\.0 or 8\.5"):
        release_of("7.1")
    with pytest.raises(ConfigError):
        Node(release="8.1")
    with pytest.raises(ConfigError):
        Node(release=7.2)  # type: ignore[arg-type]


def test_hello_grants_what_the_release_knows():
    asked = (*USUAL_FEATURES, Feature.DUPLEX, Feature.POINT_IN_TIME_RECOVERY, *CAME_WITH_76)
    old = granted(Talker(engine_of(release="7.2"), features=()), asked)
    new = granted(Talker(engine_of(release="7.6"), features=()), asked)
    assert new - old == set(CAME_WITH_76)
    assert not old - new
    assert Feature.POINT_IN_TIME_RECOVERY in old


@rule("KV-LOGIN-01")
def test_a_feature_that_is_not_known_needs_nothing():
    asked = (Feature.XERROR, Feature.CLUSTERMAP_NOTIFICATION_BRIEF)
    assert granted(Talker(engine_of(release="7.2"), features=()), asked) == {Feature.XERROR}
    assert Talker(engine_of(release="7.6"), features=()).hello(asked).status == Status.EINVAL


@rule("KV-LOGIN-07")
def test_an_80_lets_both_settings_of_delay_be_asked_for():
    old, new = (Talker(engine_of(release=name), features=()) for name in ("7.6", "8.0"))
    both = (Feature.TCP_NODELAY, Feature.TCP_DELAY)
    assert old.hello(both).status == Status.EINVAL
    assert granted(new, both) == {Feature.TCP_NODELAY}


@rule("KV-SUBDOC-24")
def test_an_80_refuses_an_attribute_of_the_system_without_closing():
    features = tuple(set(USUAL_FEATURES) - {Feature.XERROR})
    found = []
    for name in ("7.6", "8.0"):
        client = Talker(engine_of(release=name), features=features)
        client.set("k", b"{}")
        client.call(Opcode.DROP_PRIVILEGE, key=b"SystemXattrRead")
        frames = client.send(encode_request(Opcode.SUBDOC_GET, key=b"\0k", value=b"_s", extras=b"\0\2\4"))
        found.append(([frame.status for frame in frames], client.session.is_closing))
    assert found == [([], True), ([Status.EACCESS], False)]


@rule("KV-LOGIN-01")
@BOTH
@pytest.mark.parametrize("feature", [Feature.VATTR, Feature.SUBDOC_DOCUMENT_MACROS])
def test_virtual_attributes_and_macros_need_xattrs(name: str, feature: int):
    client = Talker(engine_of(release=name), features=())
    assert client.hello((Feature.XERROR, feature)).status == Status.EINVAL
    assert granted(client, (Feature.XATTR, feature)) == {Feature.XATTR, feature}


def test_the_map_of_a_72_names_neither_cluster_nor_server_groups():
    content = cluster_map(Talker(engine_of(release="7.2")))
    assert not {"clusterName", "clusterUUID"} & set(content)
    assert "serverGroup" not in content["nodesExt"][0]
    content = cluster_map(Talker(engine_of(release="7.6")))
    assert {"clusterName", "clusterUUID"} <= set(content)
    assert content["nodesExt"][0]["serverGroup"] == "Group 1"


@BOTH
def test_a_bucket_with_magma_keeps_history(name: str):
    store = MemoryBucketStore(2, BucketSettings(storage_backend="magma", ram_quota_bytes=1 << 30))
    client = Talker(engine_of(store, release=name))
    assert "nonDedupedHistory" in cluster_map(client)["bucketCapabilities"]
    assert "nonDedupedHistory" not in cluster_map(Talker(engine_of(release=name)))["bucketCapabilities"]


@rule("KV-LOGIN-05")
def test_a_known_version_of_the_map_is_taken_by_a_76_only():
    known = struct.pack(">qq", 1, 1)
    old = Talker(engine_of(release="7.2"))
    assert old.call(Opcode.GET_CLUSTER_CONFIG, extras=known).status == Status.EINVAL
    assert Talker(engine_of(release="7.6")).call(Opcode.GET_CLUSTER_CONFIG, extras=known).status == 0


def clients(*names: str) -> list[Talker]:
    """A client of a node of each release."""
    return [Talker(engine_of(release=name)) for name in names]


@rule("KV-REQ-22")
@each_case(
    ("opcode", "last"),
    [
        (Opcode.CREATE_CHECKPOINT, "7.2"),
        (Opcode.LAST_CLOSED_CHECKPOINT, "7.2"),
        *((opcode, "7.6") for opcode in (Opcode.FLUSH, Opcode.SCRUB, Opcode.SSL_CERTS_REFRESH)),
    ],
)
def test_a_command_that_is_gone_is_not_supported_whatever_its_parts(opcode: int, last: str):
    bad = {"key": b"k", "extras": bytes(3), "value": b"v"}
    for name in RELEASES:
        is_known = float(name) <= float(last)
        client = Talker(engine_of(release=name))
        assert client.call(opcode, **bad).status == (Status.EINVAL if is_known else Status.NOT_SUPPORTED)


@rule("KV-META-18")
def test_json_is_stored_as_json_since_76_whatever_the_request_says():
    extras = struct.pack(">IIQQ", 0, 0, 5, 1 << 60)
    found = []
    for client in clients("7.2", "7.6", "8.0"):
        client.call(Opcode.SET_WITH_META, key=b"\0j", extras=extras, value=b'{"a":1}')
        client.call(Opcode.SET_WITH_META, key=b"\0n", extras=extras, value=b"no json", datatype=1)
        found.append((client.get("j").datatype, client.get("n").datatype))
    assert found == [(0, 1), (1, 0), (1, 0)]


@rule("KV-META-19")
def test_80_names_a_cas_that_no_document_can_have():
    for cas in (0, (1 << 64) - 1):
        asked: dict[str, Any] = {"key": b"\0k", "extras": struct.pack(">IIQQ", 0, 0, 1, cas), "value": b"v"}
        statuses = [client.call(Opcode.SET_WITH_META, **asked).status for client in clients("7.6", "8.0")]
        assert statuses == [Status.KEY_EEXISTS, Status.CAS_VALUE_INVALID]


@rule("KV-SUBDOC-23")
def test_80_reads_parts_of_a_locked_document():
    asked: dict[str, Any] = {"key": b"\0k", "extras": b"\0\1\0", "value": b"a"}
    found = []
    for client in clients("7.6", "8.0"):
        client.set("k", b'{"a":1}')
        client.call(Opcode.GET_LOCKED, key=b"\0k")
        answer = client.call(Opcode.SUBDOC_GET, **asked)
        found.append((answer.status, answer.cas))
    assert found == [(Status.LOCKED, 0), (Status.SUCCESS, (1 << 64) - 1)]


@rule("KV-VB-18")
def test_80_knows_one_form_of_set_vbucket():
    wide, with_cas = {"extras": b"\0\0\0\1"}, {"extras": b"\1", "cas": 1}
    old, new = clients("7.6", "8.0")
    assert old.call(Opcode.SET_VBUCKET, **wide).status == Status.SUCCESS
    assert old.call(Opcode.SET_VBUCKET, **with_cas).status == Status.KEY_EEXISTS
    for asked in (wide, with_cas):
        assert new.call(Opcode.SET_VBUCKET, **asked).status == Status.EINVAL
    assert new.call(Opcode.SET_VBUCKET, extras=b"\1", value=b"{}", datatype=1).status == Status.SUCCESS
    assert new.send(encode_request(Opcode.SET_VBUCKET, extras=b"\2", value=b"{}", datatype=1)) == []
    assert new.session.is_closing


@rule("KV-FRAME-08")
def test_80_takes_no_trace_context():
    framing = b"\x31x"
    old, new = clients("7.6", "8.0")
    assert old.get("k", framing=framing).status == Status.KEY_ENOENT
    assert new.get("k", framing=framing).status == Status.UNKNOWN_FRAME_INFO


def manifest_of(uid: int, names: str) -> bytes:
    """A manifest with a collection of each name in the default scope, and one in a further scope."""
    items = [{"name": "_default", "uid": "0"}]
    items += [{"name": name, "uid": f"{number:x}"} for number, name in enumerate(names, 0x10)]
    other = {"name": "s", "uid": "9", "collections": [{"name": "z", "uid": "a"}]}
    scopes = [{"name": "_default", "uid": "0", "collections": items}, other]
    return json.dumps({"uid": f"{uid:x}", "scopes": scopes}).encode()


@rule("KV-COL-09")
def test_80_begins_collections_scope_by_scope_and_in_one_checkpoint():
    found = {}
    for name in ("7.6", "8.0"):
        engine = engine_of(release=name)
        client, vbucket = Talker(engine), engine.buckets["default"].vbuckets[0]
        assert vbucket is not None
        assert client.call(Opcode.SET_COLLECTIONS, value=manifest_of(1, "ab")).status == 0
        events = [decode_frame(data).key.decode() for data in vbucket.log.collection_events()]
        begun = [vbucket.memory_start_seqno]
        assert client.call(Opcode.SET_COLLECTIONS, value=manifest_of(2, "a")).status == 0
        found[name] = events, [*begun, vbucket.memory_start_seqno]
    assert found["7.6"] == (["s", "z", "b", "a"], [4, 5])
    assert found["8.0"] == (["s", "z", "a", "b"], [1, 5])


@rule("KV-COL-08")
@each_case(
    ("old", "new", "member"),
    [
        ("7.2", "7.6", {"metered": 1}),
        ("7.6", "8.0", {"flush_uid": 1}),
        ("7.6", "8.0", {"flush_uid": "zz"}),
        ("7.6", "8.0", {"flush_uid": "2"}),
    ],
)
def test_a_release_checks_the_members_of_a_manifest_that_it_knows(old: str, new: str, member: dict[str, Any]):
    manifest = json.loads(manifest_of(1, "a"))
    manifest["scopes"][0]["collections"][1] |= member
    statuses = [
        client.call(Opcode.SET_COLLECTIONS, value=json.dumps(manifest).encode()).status for client in clients(old, new)
    ]
    assert statuses == [Status.SUCCESS, Status.EINVAL]


@rule("OPEN-09", "OPEN-28", "ADV-03")
def test_85_leaves_deletions_out_of_the_first_backfill_on_request():
    """Source: kv_engine docs/dcp/documentation/commands/open-connection.md; no server of 8.5 was recorded."""

    def stream(release: str, flags: int, *controls: bytes, start: int = 0) -> list[tuple[int, int]]:
        engine = engine_of(release=release)
        client = Talker(engine)
        for number in range(4):
            client.set(f"k{number}", b"v")
        client.delete("k1")
        client.delete("k3")
        vbucket = engine.buckets["default"].vbuckets[0]
        assert vbucket is not None
        vbucket.close_checkpoint()
        opened = client.call(Opcode.DCP_OPEN, key=b"r", extras=struct.pack(">II", 0, flags))
        if opened.status:
            return [(Opcode.DCP_OPEN, opened.status)]
        for control in (b"enable_noop", *controls):
            client.call(Opcode.DCP_CONTROL, key=control, value=b"true")
        uuid = vbucket.vbuuid
        extras = struct.pack(">IIQQQQQ", 0, 0, start, 2**64 - 1, uuid, start, start)
        frames = client.send(encode_request(Opcode.DCP_STREAM_REQ, extras=extras, opaque=9))
        Talker(engine).delete("k2")
        frames += client.collect()
        rows = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_SEQNO_ADVANCED)
        return [(frame.opcode, int.from_bytes(frame.extras[:8], "big")) for frame in frames if frame.opcode in rows]

    mutation, deletion, advanced = Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_SEQNO_ADVANCED
    everything = [(mutation, 1), (mutation, 3), (deletion, 5), (deletion, 6), (deletion, 7)]
    assert stream("8.5", 0x201) == [(mutation, 1), (mutation, 3), (advanced, 6), (deletion, 7)]
    assert stream("8.5", 0x001) == everything
    sees_all = b"enable_sync_writes", b"flatbuffers_system_events"
    assert stream("8.5", 0x201, *sees_all) == [(mutation, 1), (mutation, 3), (advanced, 6), (deletion, 7)]
    assert stream("8.5", 0x201, start=1) == everything[1:]
    assert stream("8.0", 0x201) == [(Opcode.DCP_OPEN, Status.EINVAL)]
    assert stream("8.5", 0x200) == [(Opcode.DCP_OPEN, Status.EINVAL)]


@rule("COL-34")
def test_80_empties_a_collection_by_its_flush_uid():
    found = {}
    for name in ("7.6", "8.0"):
        engine = engine_of(release=name)
        client, vbucket = Talker(engine), engine.buckets["default"].vbuckets[0]
        assert vbucket is not None
        assert client.call(Opcode.SET_COLLECTIONS, value=manifest_of(1, "ab")).status == 0
        for number in (0x10, 0x11):
            key = bytes((number,)) + b"k"
            assert client.call(Opcode.SET, key=key, value=b"v", extras=bytes(8)).status == 0
        manifest = json.loads(manifest_of(2, "ab"))
        manifest["scopes"][0]["collections"][1]["flush_uid"] = "2"
        assert client.call(Opcode.SET_COLLECTIONS, value=json.dumps(manifest).encode()).status == 0
        statuses = [client.call(Opcode.GET, key=bytes((number,)) + b"k").status for number in (0x10, 0x11)]
        shown = b"flush_uid" in client.call(Opcode.GET_COLLECTIONS_MANIFEST).value
        item = {item.collection_id: item for _, item in manifest_in(vbucket.log).collections()}[0x10]
        found[name] = statuses, vbucket.high_seqno, shown, item.flush_uid
    assert found["7.6"] == ([0, 0], 6, False, 0)
    assert found["8.0"] == ([Status.KEY_ENOENT, 0], 7, True, 2)
