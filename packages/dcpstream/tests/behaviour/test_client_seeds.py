"""Connection strings of several seeds, some of which do not serve the bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from dcpstream.client import AsyncClient, BucketReader, Client, ClientOptions, KvClient, StreamOptions
from dcpstream.errors import ConnectTimeout, KeyNotFound, StatusError
from dcpstream_node import Node
from dcpstream_node.testing.faults import NodeFaults
from tests.kit.access import LOGIN
from tests.kit.cluster import MappedNodes

KEY = "flight::UA1545"
LONG_S = 20.0
"""Connect time-out of tests that end long before it."""

Read = Callable[[str, float], list[str]]


def read_stream(string: str, connect_timeout_s: float) -> list[str]:
    with Client(string, **LOGIN, options=ClientOptions(connect_timeout_s=connect_timeout_s)) as client:
        return [change.key.decode() for change in client.changes(StreamOptions(end="latest"))]


def read_async(string: str, connect_timeout_s: float) -> list[str]:
    async def run() -> list[str]:
        async with AsyncClient(string, **LOGIN, options=ClientOptions(connect_timeout_s=connect_timeout_s)) as client:
            return [change.key.decode() async for change in client.changes(StreamOptions(end="latest"))]

    return asyncio.run(run())


def read_document(string: str, connect_timeout_s: float) -> list[str]:
    with KvClient(string, **LOGIN, options=ClientOptions(connect_timeout_s=connect_timeout_s)) as kv:
        assert kv.stats()
        return [KEY] if kv.get(KEY) is not None else []


def read_positions(string: str, connect_timeout_s: float) -> list[str]:
    """As the driver of the Spark source does: through a `BucketReader`, which plans and then reads."""
    with BucketReader(string, **LOGIN, options=ClientOptions(connect_timeout_s=connect_timeout_s)) as cluster:
        return [KEY] * sum(cluster.high_seqnos().values())


READERS = [read_stream, read_async, read_document, read_positions]


@pytest.fixture(params=READERS, ids=lambda read: read.__name__)
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    """A node that has the bucket, with a document."""
    with Node(vbuckets=2, system_scope=False) as node:
        with KvClient(node.connection_string, **LOGIN) as kv:
            kv.set(KEY, "{}")
        yield node


@pytest.fixture(scope="module")
def without() -> Iterator[Node]:
    """A node that has another bucket only: it answers EACCESS."""
    with Node(vbuckets=2, buckets=["other"], system_scope=False) as node:
        yield node


def string(*nodes: Node) -> str:
    return "couchbase://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@pytest.mark.slow
def test_the_next_seed_has_the_bucket(read: Read, without: Node, served: Node) -> None:
    assert read(string(without, served), LONG_S) == [KEY]


def test_the_first_seed_does_not_know_the_bucket(read: Read, without: Node, served: Node) -> None:
    faults = NodeFaults(without)
    number = faults("refuse", opcode="SELECT_BUCKET", status="KEY_ENOENT")
    try:
        assert read(string(without, served), LONG_S) == [KEY]
        with pytest.raises(KeyNotFound, match="there is no such bucket"):
            read(string(without), LONG_S)
    finally:
        without.lift(number)


def test_no_seed_has_the_bucket(read: Read, without: Node) -> None:
    """The refusal comes at once, although time is left, and has the answer of each seed."""
    seeds = f"couchbase://127.0.0.1:{without.port},localhost:{without.port}"
    with pytest.raises(StatusError) as refused:
        read(seeds, 600.0)
    assert f"127.0.0.1:{without.port}" in str(refused.value)
    assert f"localhost:{without.port}" in str(refused.value)


@pytest.mark.slow
def test_one_seed_lacks_the_bucket_and_the_other_is_away(read: Read, without: Node) -> None:
    with Node(vbuckets=1, system_scope=False) as away:
        port = away.port
    with pytest.raises(ConnectTimeout) as failed:
        read(f"couchbase://127.0.0.1:{without.port},127.0.0.1:{port}", 0.3)
    assert "bucket 'default' was refused" in str(failed.value)
    assert f"127.0.0.1:{port}" in str(failed.value)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MappedNodes]:
    """Two nodes; the second one serves the bucket, the first one has only its map."""
    with MappedNodes(tmp_path_factory.mktemp("split"), 2, 2) as cluster:
        for vbid in range(2):
            cluster.move(vbid, 0, 1)
        cluster.set_map([[1], [1]])
        cluster.nodes[0].inject("config_only", bucket="default")
        with KvClient(string(cluster.nodes[1]), **LOGIN) as kv:
            kv.set(KEY, "{}")
        yield cluster


def test_the_only_seed_has_the_map_and_no_bucket(read: Read, split: MappedNodes) -> None:
    assert read(string(split.nodes[0]), LONG_S) == [KEY]
