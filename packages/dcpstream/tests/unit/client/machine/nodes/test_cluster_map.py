"""Cluster maps as nodes send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.client.machine.nodes.cluster_map import manifest_of, parse_config
from dcpstream.errors import ConfigError, RemoteProtocolError, TlsError
from dcpstream.model import NodeAddress
from tests.kit.cases import each_case
from tests.kit.fake_node import config

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


def test_a_missing_host_is_the_one_that_answered() -> None:
    found = parse_config(config(3, ports=(11210, 11211)), ORIGIN)
    assert [str(node) for node in found.nodes] == ["10.0.0.1:11210", "10.0.0.1:11211"]
    assert found.vbucket_count == 3


def test_host_placeholder() -> None:
    text = json.dumps(
        {"rev": 1, "vBucketServerMap": {"serverList": ["$HOST:11999"], "vBucketMap": [[0]]}, "name": "default"}
    )
    assert str(parse_config(text, ORIGIN).nodes[0]) == "10.0.0.1:11999"


@each_case(
    ("network", "seed", "host"),
    [
        ("default", "inside0:11210", "inside0:11210"),
        ("external", "inside0:11210", "outside0:3000"),
        ("auto", "inside0:11210", "inside0:11210"),
        ("auto", "outside1:3001", "outside0:3000"),
        ("auto", "outside1:11210", "outside0:3000"),
        ("auto", "nowhere:11210", "inside0:11210"),
    ],
)
def test_networks(network: str, seed: str, host: str) -> None:
    name, _, port = seed.partition(":")
    found = parse_config(json.dumps(two_networks()), ORIGIN, network, (NodeAddress(name, int(port)),))
    assert str(found.active_node(0)) == host


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


def test_a_map_without_ports_with_tls() -> None:
    with pytest.raises(TlsError, match="no port with TLS for inside0"):
        parse_config(json.dumps(two_networks()), ORIGIN, is_secure=True)


def test_addresses_of_ipv6_have_no_brackets() -> None:
    data = two_networks()
    data["nodesExt"][0]["alternateAddresses"]["external"] = {"hostname": "[fd00::1]", "ports": {"kv": 5}}
    found = parse_config(json.dumps(data), ORIGIN, seeds=(NodeAddress("fd00::1", 5),))
    assert str(found.nodes[0]) == "[fd00::1]:5"
    assert found.nodes[0].host == "fd00::1"


@each_case("text", ["", "{", "[]", "7", '{"nodesExt": [{}]}', '{"rev": 1, "nodesExt": []}'])
def test_what_is_no_map(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="cluster map"):
        parse_config(text, ORIGIN)


def test_what_is_no_list_of_collections() -> None:
    for text in (b"", b"[]", b"{}", b'{"uid": "x", "scopes": 1}'):
        with pytest.raises(RemoteProtocolError, match="list of collections"):
            manifest_of(text)


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


@each_case(
    "text",
    [
        DEEP,
        '{"uid": "0", "scopes": [{"name": 5, "uid": "0"}]}',
        '{"uid": "0", "scopes": [{"name": "s", "uid": "100000000"}]}',
        '{"uid": "-1", "scopes": []}',
        '{"uid": "0", "scopes": [{"name": "s", "uid": "0", "collections": [{"name": "", "uid": "8", "maxTTL": []}]}]}',
        " " * 5_000_000 + "{}",
    ],
    ids=["deep", "name", "id", "uid", "ttl", "large"],
)
def test_lists_of_collections_that_cannot_be(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="list of collections"):
        manifest_of(text.encode())
