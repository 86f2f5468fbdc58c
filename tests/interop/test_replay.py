"""A recording that is played back, read to its end by clients that are not ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.cli.app import run
from dcpstream.client import KvClient
from dcpstream_node.recording.player import header_of, play
from dcpstream_node.testing.nodes import add_collections
from lab.bench import peers
from lab.interop.building import BUILD_TIMEOUT_S, FETCH_TIMEOUT_S, Missing

LOGIN = ("Administrator", "password")
COLLECTIONS = ("_default._default", "shop.orders", "shop.returns")
DOCUMENTS, REWRITTEN, DELETED = 1000, 300, 100
"""Documents of each collection."""
DRAIN_TIMEOUT_S = 300
"""After that time the programs of `lab/bench/drains` give up."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket with three collections, rewritten and deleted documents."""
    path = tmp_path_factory.mktemp("replay") / "bucket.dcp"
    with dcpstream_node.Node(vbuckets=64) as node:
        add_collections(node, "default", COLLECTIONS[1:])
        for collection in COLLECTIONS:
            with KvClient(node.connection_string, *LOGIN, collection=collection) as kv:
                kv.set_many((f"doc:{n}", f'{{"n": {n}, "text": "{"lorem " * (n % 40)}"}}') for n in range(DOCUMENTS))
                kv.set_many((f"doc:{n}", f'{{"n": {-n}}}') for n in range(REWRITTEN))
                for number in range(DELETED):
                    kv.delete(f"doc:{number}")
        assert run(["record", str(path), "--cluster", node.connection_string]) == 0
    return path


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(FETCH_TIMEOUT_S + BUILD_TIMEOUT_S + 2 * DRAIN_TIMEOUT_S)
@pytest.mark.parametrize("family", [peers.gocbcore, peers.java_dcp_client], ids=["gocbcore", "java-dcp-client"])
def test_a_replay_is_read_to_its_end(family: Callable[[], list[peers.Peer]], recording: Path) -> None:
    try:
        found = family()
    except Missing as missing:
        pytest.skip(str(missing))
    with dcpstream_node.Node(vbuckets=header_of(recording).vbuckets) as node:
        play(recording, node, "default")
        for peer in found:
            # The program reads until so many mutations have come, and fails if fewer do.
            peers.drained(peer, node.connection_string, len(COLLECTIONS) * (DOCUMENTS - DELETED))
