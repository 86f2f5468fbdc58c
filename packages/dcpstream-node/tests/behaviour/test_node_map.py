"""The cluster map as clients meet it: behind other addresses, as a stream, and after a bucket was emptied."""

from __future__ import annotations

import http.client
import json
import socket

import pytest

from dcpstream.client import Client, StreamOptions
from dcpstream.client.kv.client import KvClient
from dcpstream.wire import Feature, Opcode
from dcpstream_node import Node
from dcpstream_node.rest import cluster_map
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.waiting import TIMEOUT_S

PASSWORD = "a password of one's own"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_behind_all_addresses_the_one_that_was_reached_is_reported() -> None:
    with (
        Node(vbuckets=1, host="0.0.0.0", password=PASSWORD, plain="always", system_scope=False) as node,
        SocketPeer(node.port).open(password=PASSWORD) as peer,
    ):
        config = json.loads(peer.call(Opcode.GET_CLUSTER_CONFIG).value)
    assert config["vBucketServerMap"]["serverList"] == [f"127.0.0.1:{node.port}"]
    assert config["nodes"][0]["hostname"] == f"127.0.0.1:{node.mgmt_port}"
    assert "hostname" not in config["nodesExt"][0]


def test_an_address_with_colons() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Node(vbuckets=1, host="::1", system_scope=False) as node, SocketPeer(node.port, host="::1").open() as peer:
        config = json.loads(peer.call(Opcode.GET_CLUSTER_CONFIG).value)
        with KvClient(node.connection_string, node.username, node.password, "default") as kv:
            kv.set("k", b"{}")
            assert kv.get("k").value == b"{}"
    assert config["vBucketServerMap"]["serverList"] == [f"[::1]:{node.port}"]
    assert config["nodes"][0]["hostname"] == f"[::1]:{node.mgmt_port}"


def test_a_client_of_another_network_uses_its_address() -> None:
    port = free_port()
    external = {"external": {"hostname": "localhost", "kv": port}}
    with (
        Node(vbuckets=4, port=port, alternate_addresses=external, system_scope=False) as node,
        KvClient(f"{node.connection_string}?network=external", node.username, node.password, "default") as kv,
    ):
        kv.set("k", b"{}")
        assert kv.get("k").value == b"{}"


def test_a_change_is_pushed_over_the_socket() -> None:
    features = (Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION, Feature.JSON)
    with Node(vbuckets=2, system_scope=False) as node, SocketPeer(node.port).open(features=features) as peer:
        node.set_collections("default", {"s": ["c"]})
        pushed = peer.next()
        assert (pushed.magic, pushed.opcode, pushed.key) == (0x82, 0x01, b"default")
        assert json.loads(pushed.value)["collectionsManifestUid"] == "2"


def stream_of(node: Node) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    headers = {"Authorization": "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA=="}
    connection.request("GET", "/pools/default/bs/default", headers=headers)
    return connection, connection.getresponse()


def test_a_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_map, "HEARTBEAT_S", 0.02)
    with Node(vbuckets=1, system_scope=False) as node:
        connection, answer = stream_of(node)
        data = b""
        while data.count(b"\n\n\n\n") < 3:
            data += answer.read(1)
        assert len({*data.split(b"\n\n\n\n")} - {b""}) == 1, "the same again and again"
        connection.close()


def test_streams_have_a_limit_and_end_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_map, "MAX_STREAMS", 1)
    with Node(vbuckets=1, system_scope=False) as node:
        connection, answer = stream_of(node)
        assert answer.read(1) == b"{"
        assert ask(node, "GET", "/pools/default/bs/default").status == 503
    rest = answer.read()
    assert rest.endswith(b"\n\n\n\n")
    connection.close()


def test_a_stream_goes_back_to_the_beginning_after_the_bucket_was_emptied() -> None:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    with (
        Node(vbuckets=1, system_scope=False) as node,
        KvClient(node.connection_string, node.username, node.password, "default") as kv,
        Client(node.connection_string, username=node.username, password=node.password, bucket="default") as client,
    ):
        kv.set("old", b"{}")
        changes = client.stream(StreamOptions(on_rollback="rewind", idle_timeout_s=TIMEOUT_S))
        seen: list[object] = []
        for batch in changes:
            if batch.rollback is not None:
                seen.append(batch.rollback.to_seqno)
            else:
                seen += batch.record_batch.column("key").to_pylist()
            if seen == ["old"]:
                node.flush_bucket("default")
                kv.set("new", b"{}")
            if "new" in seen:
                break
        changes.close()
    assert seen == ["old", 0, "new"]
