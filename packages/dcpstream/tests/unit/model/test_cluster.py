"""Cluster maps and the rule from key to vbucket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.model import NodeAddress, VbucketMap, vbucket_of_key
from tests.kit.cases import each_case

CONFIG: dict[str, Any] = {
    "rev": 7,
    "revEpoch": 2,
    "name": "default",
    "nodeLocator": "vbucket",
    "nodes": [{}, {}],
    "nodesExt": [
        {"thisNode": True, "services": {"kv": 11210, "mgmt": 8091}},
        {"hostname": "10.0.0.2", "services": {"kv": 11310, "mgmt": 8191}},
        {"hostname": "10.0.0.3", "services": {"mgmt": 8291}},
    ],
    "vBucketServerMap": {"vBucketMap": [[0, 1], [1, 0], [-1, 0], [1, -1]]},
}


def test_a_map_names_the_active_node_of_each_vbucket() -> None:
    found = VbucketMap.from_json(json.dumps(CONFIG), "127.0.0.1")
    first, second = NodeAddress("127.0.0.1", 11210, 8091), NodeAddress("10.0.0.2", 11310, 8191)
    assert found.nodes == (first, second), "only the first len(nodes) entries serve the bucket"
    assert found.version == (2, 7)
    assert [found.active_node(vbid) for vbid in range(4)] == [first, second, None, second]
    assert found.vbuckets_by_node() == {first: [0], second: [1, 3]}


def test_a_global_config_has_nodes_and_no_vbuckets() -> None:
    found = VbucketMap.from_json({"rev": 1, "nodesExt": CONFIG["nodesExt"]}, "host")
    assert len(found.nodes) == 3
    assert found.vbucket_count == 0


def test_the_asked_host_stands_in() -> None:
    config = {
        "rev": 1,
        "vBucketServerMap": {"serverList": ["$HOST:11210", "[::1]:11310"], "vBucketMap": [[0], [1]]},
    }
    found = VbucketMap.from_json(config, "db.example")
    assert found.nodes == (NodeAddress("db.example", 11210), NodeAddress("::1", 11310))
    assert str(found.nodes[1]) == "[::1]:11310"


@each_case("data", ["", "nonsense", "[]", '{"nodesExt": [{}]}', '{"nodesExt": 5}'])
def test_what_is_not_a_map_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match="not a cluster configuration"):
        VbucketMap.from_json(data, "host")


@each_case(("key", "count", "vbid"), [(b"foo", 1024, 115), (b"hello", 64, 16), (b"", 1024, 0)])
def test_vbucket_of_key(key: bytes, count: int, vbid: int) -> None:
    assert vbucket_of_key(key, count) == vbid


def test_ports_of_tls_are_reported_where_there_are_some() -> None:
    services = {"kv": 11210, "mgmt": 8091, "kvSSL": 11207, "mgmtSSL": 18091}
    found = VbucketMap.from_json({"nodesExt": [{"services": services}, {"services": {"kv": 1}}]}, "host")
    assert found.nodes == (NodeAddress("host", 11210, 8091, 11207, 18091), NodeAddress("host", 1))
