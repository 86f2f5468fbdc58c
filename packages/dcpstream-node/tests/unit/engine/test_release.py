"""A node is one server release to its clients, in everything that tells them what it is."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream.wire import Feature, Opcode, Status
from dcpstream.wire.release import RELEASES, release_of
from dcpstream_node.embedded import Node
from dcpstream_node.store import MemoryBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES
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


def test_a_node_is_a_72_unless_it_is_told_otherwise():
    assert engine_of().release is RELEASES["7.2"]


@BOTH
def test_the_version_and_the_compatibility_agree(name: str):
    release = RELEASES[name]
    assert release.version.startswith(f"{name}.")
    assert f"{release.compatibility >> 16}.{release.compatibility & 0xFFFF}" == name
    client = Talker(engine_of(release=name))
    assert client.call(Opcode.VERSION).value.decode() == release.version


def test_hello_grants_what_the_release_knows():
    asked = (*USUAL_FEATURES, Feature.DUPLEX, Feature.POINT_IN_TIME_RECOVERY, *CAME_WITH_76)
    old = granted(Talker(engine_of(), features=()), asked)
    new = granted(Talker(engine_of(release="7.6"), features=()), asked)
    assert new - old == set(CAME_WITH_76)
    assert not old - new
    assert Feature.POINT_IN_TIME_RECOVERY in old


@rule("KV-LOGIN-01")
def test_a_feature_that_is_not_known_needs_nothing():
    asked = (Feature.XERROR, Feature.CLUSTERMAP_NOTIFICATION_BRIEF)
    assert granted(Talker(engine_of(), features=()), asked) == {Feature.XERROR}
    assert Talker(engine_of(release="7.6"), features=()).hello(asked).status == Status.EINVAL


@rule("KV-LOGIN-01")
@BOTH
@pytest.mark.parametrize("feature", [Feature.VATTR, Feature.SUBDOC_DOCUMENT_MACROS])
def test_virtual_attributes_and_macros_need_xattrs(name: str, feature: int):
    client = Talker(engine_of(release=name), features=())
    assert client.hello((Feature.XERROR, feature)).status == Status.EINVAL
    assert granted(client, (Feature.XATTR, feature)) == {Feature.XATTR, feature}


def test_who_asks_for_both_notifications_gets_the_brief_one():
    asked = (Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION, Feature.CLUSTERMAP_NOTIFICATION_BRIEF)
    new = Talker(engine_of(release="7.6"), features=())
    assert granted(new, asked) == {Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION_BRIEF}
    old = Talker(engine_of(), features=())
    assert granted(old, asked) == {Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION}


def test_the_map_of_a_72_names_neither_cluster_nor_server_groups():
    content = cluster_map(Talker(engine_of()))
    assert not {"clusterName", "clusterUUID"} & set(content)
    assert "serverGroup" not in content["nodesExt"][0]
    content = cluster_map(Talker(engine_of(release="7.6")))
    assert {"clusterName", "clusterUUID"} <= set(content)
    assert content["nodesExt"][0]["serverGroup"] == "Group 1"


def test_capabilities_agree_with_what_is_answered():
    old, new = (Talker(engine_of(release=name)) for name in ("7.2", "7.6"))
    extra = set(cluster_map(new)["bucketCapabilities"]) - set(cluster_map(old)["bucketCapabilities"])
    assert extra == {
        *("preserveExpiry", "rangeScan", "subdoc.ReplicaRead"),
        *("querySystemCollection", "mobileSystemCollection", "xdcrCheckpointing"),
    }
    scan: dict[str, Any] = {"value": b'{"range":{"start":"YQ==","end":"Yg=="}}', "datatype": 1}
    assert old.call(Opcode.RANGE_SCAN_CREATE, **scan).status == Status.UNKNOWN_COMMAND
    assert new.call(Opcode.RANGE_SCAN_CREATE, **scan).status == Status.KEY_ENOENT


@BOTH
def test_a_bucket_with_magma_keeps_history(name: str):
    store = MemoryBucketStore(2, BucketSettings(storage_backend="magma", ram_quota_bytes=1 << 30))
    client = Talker(engine_of(store, release=name))
    assert "nonDedupedHistory" in cluster_map(client)["bucketCapabilities"]
    assert "nonDedupedHistory" not in cluster_map(Talker(engine_of(release=name)))["bucketCapabilities"]


@rule("KV-LOGIN-05")
def test_a_known_version_of_the_map_is_told_to_a_76_only():
    known = bytes(16)
    assert Talker(engine_of()).call(Opcode.GET_CLUSTER_CONFIG, extras=known).status == Status.EINVAL
    assert Talker(engine_of(release="7.6")).call(Opcode.GET_CLUSTER_CONFIG, extras=known).status == 0


def test_a_72_says_json_of_a_map_also_to_clients_without_json():
    plain = (Feature.XERROR, Feature.COLLECTIONS)
    for name, datatype in (("7.2", 1), ("7.6", 0)):
        client = Talker(engine_of(release=name), features=plain)
        client.call(Opcode.GET_CLUSTER_CONFIG)
        answer = client.call(Opcode.GET, key=b"\0k", vbid=9)
        assert (answer.status, answer.datatype) == (Status.NOT_MY_VBUCKET, datatype)


def test_the_error_map_has_the_statuses_of_the_release():
    maps = [
        json.loads(Talker(engine_of(release=name)).call(Opcode.GET_ERROR_MAP, value=b"\0\2").value) for name in RELEASES
    ]
    assert [content["revision"] for content in maps] == [1, 5, 6, 9]
    old, new, *_ = (set(content["errors"]) for content in maps)
    assert new - old == {"c", "e", "a5", "a6", "a7", "a8", "d8"}
    assert not old - new
