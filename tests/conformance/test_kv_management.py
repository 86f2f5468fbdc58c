"""Commands of those who run a node: buckets, parameters, statistics and manifests, with what they refuse."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from dcpstream.wire import Opcode, Status, encode_request
from dcpstream_node.engine import Engine
from dcpstream_node.engine.bucket.manifest import MAX_COLLECTIONS, read_manifest
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import collection, manifest, scope

CREATE_BUCKET, DELETE_BUCKET = 0x85, 0x86
IFCONFIG = 0xAF


class Host:
    """Remembers the buckets that it is asked to make and delete."""

    def __init__(self, engine: Engine) -> None:
        self.made: dict[str, int] = {}
        self.deleted: list[str] = []
        engine.bucket_host = self

    def create(self, name: str, vbucket_count: int) -> None:
        self.made[name] = vbucket_count

    def delete(self, name: str, done: Callable[[], None]) -> None:
        self.deleted.append(name)
        done()


@rule("KV-BUCKET-01")
def test_buckets_that_can_be_made_and_those_that_cannot(node: SimulatedNode) -> None:
    def create(name: bytes, value: bytes) -> int:
        return node.admin.call(CREATE_BUCKET, key=name, value=value).status

    engine = node.engine
    assert create(b"new", b"ep.so\0") == Status.NOT_SUPPORTED
    assert node.admin.call(DELETE_BUCKET, key=b"default").status == Status.NOT_SUPPORTED
    host = Host(engine)
    for module, status in ((b"nobucket.so", Status.NOT_SUPPORTED), (b"other.so", Status.EINVAL)):
        for name in (b"new", b"default"):
            assert create(name, module + b"\0") == status
    assert create(b"default", b"ep.so\0") == Status.KEY_EEXISTS
    for count in (b"0", b"1025", b"-1", b"x"):
        assert create(b"new", b"ep.so\0max_vbuckets=" + count) == Status.NOT_STORED
    assert host.made == {}
    for vbuckets in (1, 1024):
        assert create(b"new%d" % vbuckets, b"ep.so\0max_vbuckets=%d;a=b" % vbuckets) == 0
    assert create(b"usual", b"ep.so\0") == 0
    assert host.made == {"new1": 1, "new1024": 1024, "usual": 1024}
    assert node.admin.call(DELETE_BUCKET, key=b"nowhere").status == Status.KEY_ENOENT
    assert node.admin.call(DELETE_BUCKET, key=b"default").status == 0
    assert host.deleted == ["default"]


@rule("KV-BUCKET-01")
@each_case(
    ("value", "status"),
    [
        (b"", 0),
        (b'{"force": true, "type": "Couchbase"}', 0),
        (b'{"type": "ClusterConfigOnly"}', Status.KEY_EEXISTS),
        (b'{"type": "other"}', Status.EINVAL),
        (b"force=false", Status.EINVAL),
    ],
)
def test_a_bucket_is_deleted_by_its_type_since_80(value: bytes, status: int) -> None:
    node = SimulatedNode(release="8.0")
    host = Host(node.engine)
    assert node.admin.call(DELETE_BUCKET, key=b"default", value=value).status == status
    assert host.deleted == ["default"] * (status == 0)


def set_parameter(node: SimulatedNode, name: bytes, value: bytes, group: int = 1) -> int:
    extras = struct.pack(">I", group)
    return node.admin.call(Opcode.SET_PARAM, key=name, value=value, extras=extras).status


@rule("KV-PARAM-01")
def test_values_that_parameters_take_and_those_that_they_do_not(node: SimulatedNode) -> None:
    for name, taken, refused in (
        (b"getl_max_timeout", (b"1", b"2147483647"), (b"", "\u0663".encode(), b"x")),
        (b"max_ttl", (b"0", b"2147483647"), (b"2147483648", b"-1", b"18446744073709551616")),
        (b"min_compression_ratio", (b"0", b"0.5", b"7"), (b"-0.1", b"inf", b"x")),
        (b"allow_sanitize_value_in_deletion", (b"true", b"false"), (b"1", b"yes")),
        (b"compression_mode", (b"off", b"passive", b"active"), (b"on",)),
    ):
        for value in taken:
            assert set_parameter(node, name, value) == 0, (name, value)
        for value in filter(None, refused):
            assert set_parameter(node, name, value) == Status.EINVAL, (name, value)
            assert set_parameter(node, name, taken[0]) == 0


@rule("KV-PARAM-01")
@of_release("7.2", "8.0")
def test_groups_of_parameters(node: SimulatedNode) -> None:
    for group in (2, 3, 4, 5):
        assert set_parameter(node, b"max_ttl", b"1", group) == Status.KEY_ENOENT
    assert set_parameter(node, b"max_ttl", b"1", 1) == 0
    assert set_parameter(node, b"nonsense", b"1") == Status.EINVAL
    for group in (0, 6, 7):
        admin = node.connect(user="@admin")
        assert admin.send(Opcode.SET_PARAM, key=b"max_ttl", value=b"1", extras=struct.pack(">I", group)) == []
        assert admin.closed


@rule("KV-PARAM-01")
@of_release("8.5")
def test_groups_of_parameters_since_85(node: SimulatedNode) -> None:
    for group in (1, 6):
        assert set_parameter(node, b"max_ttl", b"1", group) == 0
    for group in (0, 7):
        answer = node.admin.call(Opcode.SET_PARAM, key=b"max_ttl", value=b"1", extras=struct.pack(">I", group))
        assert (answer.status, b"Invalid param type specified" in answer.value) == (Status.EINVAL, True)


def stat(peer: Peer, group: str) -> int:
    return peer.send(Opcode.STAT, key=group.encode())[0].status


@rule("KV-STAT-01", "KV-STAT-02", "KV-STAT-03")
def test_arguments_of_groups_of_statistics(node: SimulatedNode) -> None:
    node.set_doc(1, "k", b"{}")
    node.set_doc(1, "gone")
    node.delete_doc(1, "gone")
    node.set_vbucket(2, 2)
    expected = {
        Status.SUCCESS: [
            *("key k 1", "key k 1x", "key k 1 _default._default", "key-byid k 1", "key-byid k 1 0x0"),
            *("vbucket-details 1", "vbucket-details 1 2", "vbucket-details  +1", "failovers 1", "failovers x"),
            *("collections _default._default", "collections .", "collections-byid 0", "collections-byid 0x0"),
            *("scopes _default", "scopes-byid 0", "collections-details 1 x"),
        ],
        Status.EINVAL: [
            *("key k", "key  k  1", "key k x", "key k -1", "key k 65536", "key k 1 2", "key k 1 a b", "key-byid k 1 z"),
            *("key-byid k 1 -1", "key-byid k 1 9", "vbucket-details x", "vbucket-details \u0661", "vbucket-details -1"),
            *("vbucket-details 65536", "collections x", "collections a.b.c", "collections $a.b", "collections-byid x"),
            *("collections-byid 100000000", "scopes $a", "scopes-byid x", "collections-details x", "diskinfo x"),
        ],
        Status.NOT_MY_VBUCKET: ["key k 99", "vbucket-details 99", "failovers 99", "collections-details 99"],
        Status.KEY_ENOENT: [
            *("key", "key-byid", "key  1", "key none 1", "key gone 1", "key k 2", "key-byid none 1 0x0"),
            *("vbucket 1", "vbucket x", "dcp x", "dcpagg", "dcp-vbtakeover", "memory x", "config x", "uuid x", "all"),
        ],
        Status.UNKNOWN_COLLECTION: [
            *("key-byid k 1 0x9", "key-byid k 1 ffffffff", "key k 1 _default.x", "collections _default.x"),
            "collections-byid 9",
        ],
        Status.UNKNOWN_SCOPE: ["scopes x", "scopes-byid 0x9", "collections a.b", "key k 1 a.b"],
    }
    for status, groups in expected.items():
        for group in groups:
            assert stat(node.admin, group) == status, group
    unknown = node.admin.send(Opcode.STAT, key=b"key-byid k 1 0x9")[0]
    assert b"manifest_uid" in unknown.value
    assert len(node.admin.send(Opcode.STAT, key=b"collections")) > 1
    assert len(node.admin.send(Opcode.STAT, key=b"scopes")) > 1


@rule("KV-STAT-03")
def test_a_bucket_without_collections_has_statistics_of_none(node: SimulatedNode) -> None:
    value = json.dumps({"uid": "1", "scopes": [{"name": "_default", "uid": "0", "collections": []}]}).encode()
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=value).status == 0
    assert stat(node.admin, "collections") == 0
    assert stat(node.admin, "collections _default._default") == Status.UNKNOWN_COLLECTION


@rule("KV-COL-07")
def test_the_largest_manifest() -> None:
    many = [collection(f"c{number}", number + 8) for number in range(MAX_COLLECTIONS)]
    scopes = [scope(f"s{number}", number + 8) for number in range(MAX_COLLECTIONS)]
    assert len(list(read_manifest(manifest(1, default=many[1:])).collections())) == MAX_COLLECTIONS
    assert len(read_manifest(manifest(1, *scopes[1:])).scopes) == MAX_COLLECTIONS
    for too_many in (manifest(1, default=many), manifest(1, *scopes)):
        with pytest.raises(ValueError, match=str(MAX_COLLECTIONS)):
            read_manifest(too_many)


@rule("KV-KEYS-02")
def test_what_observe_finds(node: SimulatedNode) -> None:
    node.set_doc(1, "k")
    cas = node.admin.call(Opcode.GET, vbid=1, key=b"\0k").cas

    def observe(vbid: int, key: bytes) -> bytes:
        value = struct.pack(">HH", vbid, len(key)) + key
        answer = node.admin.call(Opcode.OBSERVE, value=value)
        assert (answer.status, answer.value[: len(value)]) == (0, value)
        return answer.value[len(value) :]

    assert observe(1, b"\0k")[1:] == cas.to_bytes(8, "big")
    assert observe(1, b"\0none") == b"\x80" + bytes(8)
    for value in (b"\0", b"\0\1\0", b"\0\1\0\1", b"\0\1\0\3\0k"):
        assert node.admin.call(Opcode.OBSERVE, value=value).status == Status.EINVAL
    assert node.admin.send_bytes(encode_request(Opcode.OBSERVE))[0].status == Status.EINVAL


@rule("KV-REQ-16")
def test_a_deletion_cannot_be_evicted(node: SimulatedNode) -> None:
    node.set_doc(1, "gone")
    node.delete_doc(1, "gone")
    assert node.admin.call(Opcode.EVICT_KEY, vbid=1, key=b"\0gone").status == Status.KEY_ENOENT


@rule("KV-REQ-14")
def test_interfaces_are_checked(node: SimulatedNode) -> None:
    cases: list[dict[str, Any]] = [{"key": b"list"}, {"key": b"tls"}, {"key": b"define", "value": b"{}"}]
    for fields in cases:
        assert node.admin.call(IFCONFIG, vbid=1, **fields).status not in {Status.UNKNOWN_COMMAND, Status.EACCESS}
