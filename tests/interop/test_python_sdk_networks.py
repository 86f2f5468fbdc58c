"""The official Python SDK reaches a node behind a port mapping, as in a container, by its alternate address."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dcpstream_node import Node
from tests.kit.proxy import Proxy
from tests.kit.sdk import check_program, needs_sdk

pytestmark = [*needs_sdk, pytest.mark.slow]

CHILD = """
import sys
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

cluster = Cluster.connect(sys.argv[1], ClusterOptions(PasswordAuthenticator("Administrator", "password")))
collection = cluster.bucket("default").default_collection()
collection.upsert("k", {"n": 1})
assert collection.get("k").content_as[dict] == {"n": 1}
cluster.close()
print("OK")
"""


@pytest.fixture
def mapping() -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        inner = int(probe.getsockname()[1])
    made = Proxy(inner, changes_maps=False)
    external = {"external": {"hostname": "localhost", "kv": made.port}}
    with Node(vbuckets=64, port=inner, alternate_addresses=external):
        yield made
    made.close()


@pytest.mark.parametrize("network", ["?network=external", ""])
def test_the_sdk_uses_the_address_that_it_can_reach(mapping: Proxy, network: str) -> None:
    check_program(CHILD, f"couchbase://localhost:{mapping.port}{network}")
    assert mapping.connections >= 2, "the connection of the bucket took the mapping too"
