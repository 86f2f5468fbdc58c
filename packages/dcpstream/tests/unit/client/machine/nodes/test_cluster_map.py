"""Cluster maps as nodes send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.client.machine.nodes.cluster_map import parse_config
from dcpstream.errors import ConfigError, RemoteProtocolError
from dcpstream.model import NodeAddress
from tests.kit.cases import each_case

ORIGIN = NodeAddress("10.0.0.1", 11210)


def two_networks() -> dict[str, Any]:
    entries = [
        {
            "services": {"kv": 11210},
            "hostname": f"inside{number}",
            "alternateAddresses": {"external": {"hostname": f"outside{number}", "ports": {"kv": 3000 + number}}},
        }
        for number in range(2)
    ]
    return {"rev": 1, "nodes": [{}, {}], "nodesExt": entries, "vBucketServerMap": {"vBucketMap": [[0], [1]]}}


def test_host_placeholder() -> None:
    text = json.dumps(
        {"rev": 1, "vBucketServerMap": {"serverList": ["$HOST:11999"], "vBucketMap": [[0]]}, "name": "default"}
    )
    assert str(parse_config(text, ORIGIN).nodes[0]) == "10.0.0.1:11999"


def test_a_network_that_the_cluster_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"auto, default, external"):
        parse_config(json.dumps(two_networks()), ORIGIN, "elsewhere")


def test_ports_with_tls() -> None:
    data = two_networks()
    for entry in data["nodesExt"]:
        entry["services"]["kvSSL"] = 11207
        entry["alternateAddresses"]["external"]["ports"]["kvSSL"] = 3999
    text = json.dumps(data)
    seed = NodeAddress("outside0", 3999)
    assert str(parse_config(text, ORIGIN, is_secure=True).active_node(0)) == "inside0:11207"
    assert str(parse_config(text, ORIGIN, seeds=(seed,), is_secure=True).active_node(0)) == "outside0:3999"


DEEP = '{"a":' * 100_000


def test_a_map_with_millions_of_vbuckets_is_refused_before_it_is_built() -> None:
    text = b'{"rev": 1, "vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [%b]}}'
    with pytest.raises(RemoteProtocolError, match="bytes, more than"):
        parse_config(text % b",".join([b"[0]"] * 2_000_000), ORIGIN)
    with pytest.raises(RemoteProtocolError, match="1025 vbuckets: a bucket has at most 1024"):
        parse_config(text % b",".join([b"[0]"] * 1025), ORIGIN)
    assert parse_config(text % b",".join([b"[0]"] * 1024), ORIGIN).vbucket_count == 1024


@each_case(
    "text",
    [
        DEEP,
        '{"rev": 1e999, "vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [[0]]}}',
        '{"rev": 1, "vBucketServerMap": {"serverList": ["a:99999999"], "vBucketMap": [[0]]}}',
        '{"rev": 1, "vBucketServerMap": {"serverList": ["a:-1"], "vBucketMap": [[0]]}}',
        '{"rev": 1, "vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [[1e300]]}}',
        '{"rev": 1, "vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [%s]}}' % ([0] * 17),
        '{"rev": 1, "vBucketServerMap": {"serverList": [%s"a:1"], "vBucketMap": [[0]]}}' % ('"a:1",' * 5000),
        '{"rev": 1, "nodesExt": [%s{}], "vBucketServerMap": {"vBucketMap": [[0]]}}' % ("{}," * 5000),
        '{"rev": 1, "nodesExt": [{"services": {"kv": 1}, "alternateAddresses": {"x": 5}}], "vBucketServerMap": {}}',
    ],
    ids=["deep", "infinity", "port", "negative", "index", "copies", "servers", "nodes", "alternate"],
)
def test_maps_that_cannot_be(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="cluster map"):
        parse_config(text, ORIGIN)
