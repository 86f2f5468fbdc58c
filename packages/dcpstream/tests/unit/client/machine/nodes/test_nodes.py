"""The connections to nodes: the order and times of attempts, and the errors if none answers."""

from __future__ import annotations

import json
import random
import struct

import pytest

from dcpstream.client.machine.connection.connection import FIRST_RECEIVE_BYTES, RECEIVE_BYTES, NodeConnection
from dcpstream.client.machine.nodes.nodes import NEXT_SEED_S, Nodes
from dcpstream.client.machine.nodes.retry import PROTOCOL_ERRORS_MAX
from dcpstream.client.settings.options import ConnectOptions, DcpSettings
from dcpstream.errors import (
    AccessDenied,
    ConnectionLost,
    ConnectTimeout,
    KeyNotFound,
    OffsetError,
)
from dcpstream.model import NodeAddress
from dcpstream.wire import Feature, Magic, Opcode, Status
from tests.kit.client_machines import new_connection
from tests.kit.fake_node import GRANTED, LOGIN, FakeNode, config
from tests.kit.rules import rule

SEEDS = (NodeAddress("a", 1), NodeAddress("b", 2))


@pytest.fixture
def nodes() -> Nodes:
    options = ConnectOptions(SEEDS, "auto", LOGIN, 5.0, DcpSettings(name="test"))
    return Nodes(options, random.Random(3))


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


def connect(nodes: Nodes, connection: NodeConnection, node: FakeNode, now: float = 0.0) -> None:
    """Carry bytes between a connection of ours and a node until both are silent."""
    while data := connection.data_to_send():
        answers = node.receive(data)
        if answers:
            connection.get_buffer()[: len(answers)] = answers
            connection.buffer_updated(len(answers))
            nodes.received(connection, now)


def first_of(nodes: Nodes) -> NodeConnection:
    """The new connection to the first seed; there may be one to the other, which is asked where vbuckets are now."""
    (connection,) = (found for found in nodes.to_connect() if found.address == SEEDS[0])
    return connection


def ready(nodes: Nodes, node: FakeNode, now: float = 0.0) -> NodeConnection:
    nodes.ready(SEEDS[0], now)
    connection = first_of(nodes)
    connect(nodes, connection, node, now)
    assert connection.is_ready
    return connection


def pushed(bucket: str, version: tuple[int, int], text: bytes = b"") -> bytes:
    extras = struct.pack(">qq", *version)
    body = extras + bucket.encode() + text
    return struct.pack(">BBHBBHIIQ", Magic.SERVER_REQUEST, 1, len(bucket), len(extras), 0, 0, len(body), 0, 0) + body


def identified(rev: int, uuid: str, cluster: str = "c") -> bytes:
    return json.dumps({**json.loads(config(4, rev=rev)), "uuid": uuid, "clusterUUID": cluster}).encode()


def test_a_silent_seed_does_not_keep_the_next_one_waiting(nodes: Nodes) -> None:
    assert nodes.find_map(0.0) is None
    (first,) = nodes.to_connect()
    assert nodes.find_map(0.1) is None
    assert nodes.to_connect() == []
    assert nodes.next_timeout() == NEXT_SEED_S
    nodes.find_map(NEXT_SEED_S)
    (second,) = nodes.to_connect()
    assert second.address == SEEDS[1]
    connect(nodes, second, FakeNode(), 1.0)
    assert nodes.map is not None
    assert nodes.to_disconnect() == [first]


def test_a_map_that_is_pushed_is_taken(nodes: Nodes) -> None:
    connection = ready(nodes, FakeNode(granted=[*GRANTED, Feature.CLUSTERMAP_NOTIFICATION]))
    connection.receive_data(pushed("default", (0, 7), config(4, rev=7)), 1.0)
    assert list(nodes.events(connection, 1.0)) == []
    assert nodes.map is not None
    assert nodes.map.rev == 7
    connection.receive_data(pushed("another", (0, 9), config(4, rev=9)), 1.0)
    assert list(nodes.events(connection, 1.0)) == []
    assert nodes.map.rev == 7


def test_a_node_that_started_over_has_a_map_of_its_own(nodes: Nodes) -> None:
    nodes.update_map(identified(5, "one"), SEEDS[0])
    nodes.update_map(identified(2, "two", "another cluster"), SEEDS[0])
    assert nodes.map is not None
    assert nodes.map.rev == 2


def test_without_the_clusters_name_the_buckets_uuid_decides(nodes: Nodes) -> None:
    nodes.update_map(identified(5, "one", ""), SEEDS[0])
    nodes.update_map(identified(2, "two", ""), SEEDS[0])  # a node that began anew
    assert nodes.map is not None
    assert nodes.map.rev == 2
    with pytest.raises(OffsetError, match=r"deleted and created again .*two.*three"):
        nodes.update_map(identified(6, "three", ""), SEEDS[0])


def test_another_node_is_asked_where_the_vbuckets_of_a_lost_one_are_now(nodes: Nodes) -> None:
    first = ready(nodes, FakeNode())
    nodes.lost(first, ConnectionLost("the node is gone"), 1.0)
    (other,) = nodes.to_connect()
    assert other.address == SEEDS[1], "the lost one is left to whoever needs it"


@pytest.mark.parametrize(("status", "kind"), [(Status.KEY_ENOENT, KeyNotFound), (Status.EACCESS, AccessDenied)])
def test_a_bucket_that_was_never_reached_is_refused_when_each_seed_has_answered(
    nodes: Nodes, status: int, kind: type[Exception]
) -> None:
    nodes.find_map(0.0)
    (first,) = nodes.to_connect()
    connect(nodes, first, FakeNode(statuses={Opcode.SELECT_BUCKET: status}))
    nodes.find_map(0.0)
    (second,) = nodes.to_connect()
    assert second.address == SEEDS[1], "at once, without a pause"
    with pytest.raises(kind, match=r"refused by a:1 .*refused by b:2"):
        connect(nodes, second, FakeNode(statuses={Opcode.SELECT_BUCKET: status}))


def test_a_node_that_has_only_the_map_gives_it(nodes: Nodes) -> None:
    """It is left for the next seed and for the nodes of its map, and a newer map from there counts."""
    nodes.find_map(0.0)
    (first,) = nodes.to_connect()
    connect(nodes, first, FakeNode(statuses={Opcode.DCP_OPEN: Status.CONFIG_ONLY}, cluster_map=config(4, rev=5)))
    assert nodes.map is not None
    assert (nodes.map.rev, nodes.map.vbucket_count) == (5, 4)
    assert nodes.to_disconnect() == [first]
    (second,) = nodes.to_connect()
    assert second.address == SEEDS[1]
    connect(nodes, second, FakeNode(cluster_map=config(4, rev=6)))
    assert nodes.map.rev == 6
    assert nodes.any_ready() is second


def test_a_seed_that_sends_a_map_that_cannot_be_is_given_up_unless_there_are_others(nodes: Nodes) -> None:
    node = FakeNode(cluster_map=b'{"rev": 1}')
    now = 0.0
    for seed in SEEDS:
        for _ in range(PROTOCOL_ERRORS_MAX):
            assert nodes.verdict() is None
            now = max(now, nodes.retry_at(seed))
            nodes.ready(seed, now)
            (connection,) = nodes.to_connect()
            connect(nodes, connection, node, now)
    assert "without vbuckets" in str(nodes.verdict())
