"""Which nodes are tried when, and what is said when none answers."""

from __future__ import annotations

import random

import pytest

from dcpstream.client.connection import FIRST_RECEIVE_BYTES, RECEIVE_BYTES
from dcpstream.client.handshake import DcpSettings
from dcpstream.client.nodes import ConnectOptions, Nodes
from dcpstream.errors import AuthenticationFailed, ConnectionLost, ConnectTimeout
from dcpstream.model import NodeAddress
from tests.conformance.rules import rule
from tests.unit.client.kit import LOGIN, config, new_connection

SEEDS = (NodeAddress("a", 1), NodeAddress("b", 2))


@pytest.fixture
def nodes() -> Nodes:
    options = ConnectOptions(SEEDS, "auto", LOGIN, 5.0, False, DcpSettings(name="test"))
    return Nodes(options, random.Random(3))


def test_seeds_are_tried_in_turn(nodes: Nodes) -> None:
    tried = []
    now = 0.0
    for _ in range(4):
        assert nodes.find_map(now) is None
        (connection,) = nodes.to_connect()
        tried.append(connection.address.host)
        nodes.lost(connection, ConnectionLost("no"), now)
        now += 10.0
    assert tried == ["a", "b", "a", "b"]
    assert "a:1: no" in nodes.tried()


def test_a_failed_node_is_left_alone_for_a_while(nodes: Nodes) -> None:
    assert nodes.ready(SEEDS[0], 0.0) is None
    (connection,) = nodes.to_connect()
    nodes.lost(connection, ConnectionLost("no"), 0.0)
    assert nodes.ready(SEEDS[0], 0.0) is None
    assert nodes.to_connect() == []
    assert nodes.ready(SEEDS[0], nodes.retry_at(SEEDS[0])) is None
    assert len(nodes.to_connect()) == 1


@rule("CLI-23")
def test_names_of_connections_differ(nodes: Nodes) -> None:
    for seed in SEEDS:
        nodes.ready(seed, 0.0)
    names = [connection.settings.name for connection in nodes.to_connect()]
    assert len(set(names)) == 2
    assert all(name.startswith("test:") for name in names)


def test_what_cannot_be_helped_is_raised(nodes: Nodes) -> None:
    nodes.ready(SEEDS[0], 0.0)
    (connection,) = nodes.to_connect()
    with pytest.raises(AuthenticationFailed):
        nodes.lost(connection, AuthenticationFailed("wrong"), 0.0)
    assert nodes.to_disconnect() == [connection]


def test_only_newer_maps_are_taken(nodes: Nodes) -> None:
    nodes.update_map(config(4, rev=5), SEEDS[0])
    nodes.update_map(config(8, rev=4), SEEDS[0])
    nodes.update_map(b"nonsense", SEEDS[0])
    nodes.update_map(b"", SEEDS[0])
    assert nodes.map is not None
    assert (nodes.map.rev, nodes.map.vbucket_count) == (5, 4)


def test_complaints_are_about_nodes_that_are_needed(nodes: Nodes) -> None:
    now = 0.0
    for _ in range(3):
        nodes.ready(SEEDS[0], now)
        (connection,) = nodes.to_connect()
        nodes.lost(connection, ConnectTimeout("refused"), now)
        now += 10.0
    assert nodes.complaint(now, 100.0) is None
    assert nodes.complaint(now, 5.0, {"b:2"}) is None
    complaint = nodes.complaint(now, 5.0, {"a:1"})
    assert complaint is not None
    assert "a:1: refused (3 attempts)" in str(complaint)


def test_the_receive_buffer_grows_while_it_is_filled() -> None:
    connection = new_connection()
    assert len(connection.get_buffer()) == FIRST_RECEIVE_BYTES
    sizes = []
    for _ in range(5):
        room = connection.get_buffer()
        sizes.append(len(room))
        connection._end = connection._start = 0  # as if all of it had been whole frames
        connection.buffer_updated(len(room))
        connection._start = connection._end
    assert sizes == sorted(sizes)
    assert len(connection.get_buffer()) == RECEIVE_BYTES
