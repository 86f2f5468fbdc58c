"""The releases of servers in the log and in notes of errors."""

from __future__ import annotations

import logging

import pytest

from dcpstream.client import Client, KvClient, StreamOptions
from dcpstream.client.machine.nodes.releases import MAX_NODES, Releases
from dcpstream.errors import DcpstreamError
from dcpstream_node import Node
from tests.kit.access import LOGIN
from tests.kit.cases import each_case


def test_a_release_is_logged_once_and_again_after_an_upgrade(caplog: pytest.LogCaptureFixture) -> None:
    releases = Releases()
    with caplog.at_level(logging.INFO):
        for release in ("7.2.7", "7.2.7", "", "8.0.1", "8.0.1"):
            releases.found("a:11210", release)
    assert caplog.messages == [f"a:11210 is a Couchbase Server {release}" for release in ("7.2.7", "8.0.1")]
    assert str(releases) == "8.0.1"


def test_an_error_gets_one_note_with_all_releases() -> None:
    releases, error = Releases(), ValueError("x")
    releases.explain(error)
    assert not hasattr(error, "__notes__")
    for number in range(5):
        releases.found(f"n{number}", "7.6.4" if number else "8.0.1")
    for _ in range(2):
        releases.explain(error)
    assert error.__notes__ == ["Couchbase Server: 7.6.4 (n1, n2, n3 and 1 more); 8.0.1 (n0)"]
    assert str(error) == "x"


def test_the_number_of_nodes_is_bounded() -> None:
    releases = Releases()
    for number in range(MAX_NODES + 9):
        releases.found(f"n{number}", "8.0.1" if number < 9 else "8.5.0")
    assert str(releases) == "8.5.0"


@each_case("release", ["7.2", "8.0"])
def test_errors_of_clients_have_the_release_of_the_node(release: str) -> None:
    with Node(vbuckets=2, release=release) as node:
        node.inject("refuse", opcode="GET", status="EINVAL", count=1)
        node.inject("refuse", opcode="DCP_STREAM_REQ", status="EINVAL", count=1)
        with KvClient(node.connection_string, **LOGIN) as kv:
            kv.set_many((str(number), b"") for number in range(10))
        with KvClient(node.connection_string, **LOGIN) as kv, pytest.raises(DcpstreamError) as refused:
            kv.get("key")
        with Client(node.connection_string, **LOGIN) as client, pytest.raises(DcpstreamError) as ended:
            list(client.changes(StreamOptions(end="latest")))
        for caught in (refused, ended):
            (note,) = caught.value.__notes__
            assert note.startswith(f"Couchbase Server: {release}.")
            assert str(node.port) in note
