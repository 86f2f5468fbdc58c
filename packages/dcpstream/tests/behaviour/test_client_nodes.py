"""Streams over several nodes: vbuckets that move, copies that lag, an active node that is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.client import Change, Client, ClientOptions, KvClient, StreamOptions
from dcpstream.errors import ConfigError, ConnectionLost, ConnectTimeout
from dcpstream.model import MAX_SEQNO, vbucket_of_key
from tests.kit.access import LOGIN
from tests.kit.cases import each_case
from tests.kit.cluster import ACTIVE, MappedNodes
from tests.kit.waiting import wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MappedNodes]:
    with MappedNodes(tmp_path, 2, 2) as running:
        yield running


@pytest.fixture
def client(cluster: MappedNodes) -> Iterator[Client]:
    with Client(cluster.connection_string, **LOGIN, options=ClientOptions(connect_timeout_s=5.0)) as one:
        yield one


def write(cluster: MappedNodes, *keys: str) -> None:
    with KvClient(cluster.connection_string, **LOGIN) as kv:
        kv.set_many((key, "{}") for key in keys)


def names(prefix: str, vbid: int, count: int, vbuckets: int = 2) -> list[str]:
    """Keys of documents of one vbucket."""
    found = (f"{prefix} {number}" for number in range(1000))
    own = [key for key in found if vbucket_of_key(key.encode(), vbuckets) == vbid]
    return own[:count]


def take(stream: Iterator[Change], count: int) -> list[str]:
    return [next(stream).key.decode() for _ in range(count)]


def test_a_vbucket_that_moves_while_it_is_streamed(cluster: MappedNodes, client: Client) -> None:
    before, after = names("before", 1, 20), names("after", 1, 20)
    write(cluster, *before)
    stream = client.changes(StreamOptions(end={1: MAX_SEQNO}, idle_timeout_s=20.0))
    with contextlib.closing(stream):
        assert sorted(take(stream, 20)) == sorted(before)
        cluster.move(1, 0, 1)
        cluster.set_map([[0], [1]])
        write(cluster, *after)
        assert sorted(take(stream, 20)) == sorted(after)


@pytest.mark.slow
def test_both_nodes_are_read(cluster: MappedNodes, client: Client) -> None:
    keys = [*names("one", 0, 10), *names("other", 1, 10)]
    write(cluster, *keys)
    cluster.move(1, 0, 1)
    cluster.set_map([[0], [1]])
    assert sorted(change.key.decode() for change in client.changes(StreamOptions(end="latest"))) == sorted(keys)


@pytest.mark.slow
def test_what_a_replica_does_not_have_is_not_seen(cluster: MappedNodes, client: Client) -> None:
    keys = names("doc", 1, 10)
    cluster.set_map([[0], [0, 1]])
    write(cluster, *keys)
    with pytest.raises(ConnectTimeout, match="settling"):
        list(client.changes(StreamOptions(end="latest", members=(1, 2), read_stable=True, idle_timeout_s=0.5)))
    cluster.replicate(1, 0, 1)
    found = client.changes(StreamOptions(end="latest", members=(1, 2), read_stable=True, idle_timeout_s=20.0))
    assert sorted(change.key.decode() for change in found) == sorted(keys)


def test_a_failover_that_loses_changes_takes_nothing_back_from_a_stable_reader(
    cluster: MappedNodes, client: Client
) -> None:
    kept, lost, new = names("kept", 1, 10), names("lost", 1, 10), names("new", 1, 10)
    cluster.set_map([[0], [0, 1]])
    write(cluster, *kept)
    stop = cluster.replicate(1, 0, 1)
    stream = client.changes(StreamOptions(end={1: MAX_SEQNO}, read_stable=True, idle_timeout_s=20.0))
    with contextlib.closing(stream):
        assert sorted(take(stream, 10)) == sorted(kept)
        stop()
        write(cluster, *lost)
        seen = client.changes(StreamOptions(end="latest", members=(1, 2)))
        assert {change.key.decode() for change in seen} == {*kept, *lost}, "without the option they are seen"
        cluster.crash(0)
        with cluster.admin(1) as admin:
            admin.set_vbucket(1, ACTIVE)
        cluster.set_map([[-1], [1]])
        with KvClient(f"couchbase://127.0.0.1:{cluster.nodes[1].port}", **LOGIN) as kv:
            kv.set_many((key, "{}") for key in new)
        assert sorted(take(stream, 10)) == sorted(new)


@pytest.mark.slow
def test_a_reader_of_one_node_learns_of_its_failover_from_another(cluster: MappedNodes, client: Client) -> None:
    """The reader has no other connection, and nobody at the lost node can tell it where its vbucket is now."""
    before, after = names("before", 1, 10), names("after", 1, 10)
    cluster.set_map([[0], [0, 1]])
    write(cluster, *before)
    stream = client.changes(
        StreamOptions(end={1: MAX_SEQNO}, members=(1, 2), idle_timeout_s=20.0, on_rollback="rewind")
    )
    with contextlib.closing(stream):
        assert sorted(take(stream, 10)) == sorted(before)
        cluster.replicate(1, 0, 1)
        wait_until(lambda: high_seqno(cluster, 1, 1) == 10)
        cluster.crash(0)
        with cluster.admin(1) as admin:
            admin.set_vbucket(1, ACTIVE)
        cluster.set_map([[-1], [1]])
        with KvClient(f"couchbase://127.0.0.1:{cluster.nodes[1].port}", **LOGIN) as kv:
            kv.set_many((key, "{}") for key in after)
        seen: set[str] = set()
        while not seen.issuperset(after):
            seen.update(take(stream, 1))


def high_seqno(cluster: MappedNodes, number: int, vbid: int) -> int:
    with cluster.admin(number) as admin:
        return admin.high_seqno(vbid)


def test_documents_of_a_node_that_is_gone_for_good(cluster: MappedNodes) -> None:
    """The map that the client has still names it; another node has a newer one."""
    (key,) = names("doc", 1, 1)
    with KvClient(cluster.connection_string, **LOGIN, options=ClientOptions(connect_timeout_s=2.0)) as kv:
        kv.set(key, "1")
        cluster.move(1, 0, 1)
        cluster.crash(0)
        cluster.set_map([[-1], [1]])
        with pytest.raises(ConnectionLost):
            kv.get(key)
        found = kv.get(key)
    assert found is not None
    assert found.value == b"1"


@pytest.mark.slow
@each_case(
    ("dialled", "network", "host"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("localhost", None, "localhost"),
        ("127.0.0.1", "external", "localhost"),
        ("localhost", "default", "127.0.0.1"),
        ("127.0.0.1", "auto", "127.0.0.1"),
    ],
)
def test_addresses_of_another_network(dialled: str, network: str | None, host: str) -> None:
    with dcpstream_node.Node(
        vbuckets=1, alternate_addresses={"external": {"hostname": "localhost"}}, system_scope=False
    ) as node:
        string = f"couchbase://{dialled}:{node.port}"
        with KvClient(string, **LOGIN, options=ClientOptions(network=network)) as kv:
            kv.set("doc", "{}")
            assert [address.host for address in kv.map.nodes] == [host]
        with Client(string, **LOGIN, options=ClientOptions(network=network)) as client:
            assert len(list(client.changes(StreamOptions(end="latest")))) == 1
            assert [address.host for address in client.cluster.map.nodes] == [host]


def test_a_network_that_nobody_has() -> None:
    with (
        dcpstream_node.Node(
            vbuckets=1, alternate_addresses={"external": {"hostname": "localhost"}}, system_scope=False
        ) as node,
        Client(f"{node.connection_string}?network=elsewhere", **LOGIN) as client,
        pytest.raises(ConfigError, match="auto, default, external"),
    ):
        list(client.changes(StreamOptions(end="latest")))
