"""The connections to nodes: the order and times of attempts, and the errors if none answers."""

from __future__ import annotations

import json
import logging
import random
import struct

import pytest

from dcpstream.client.machine.connection.connection import FIRST_RECEIVE_BYTES, RECEIVE_BYTES, NodeConnection
from dcpstream.client.machine.nodes.nodes import CONFIG_POLL_S, NEXT_SEED_S, Nodes
from dcpstream.client.machine.nodes.retry import PROTOCOL_ERRORS_MAX
from dcpstream.client.settings.options import ConnectOptions, DcpSettings
from dcpstream.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConnectionLost,
    ConnectTimeout,
    KeyNotFound,
    OffsetError,
    RemoteProtocolError,
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


def test_a_map_that_leads_nowhere_is_asked_of_another_node_too(nodes: Nodes) -> None:
    """The node that is asked may have left the cluster: it knows nothing of what came after."""
    connection = ready(nodes, FakeNode(cluster_map=config(4, ports=(11210, 11211, 11212))))
    nodes.find_map(10.0, refresh=True)
    connect(nodes, connection, FakeNode(), 10.0)
    (second,) = nodes.to_connect()
    nodes.find_map(10.0 + NEXT_SEED_S / 2, refresh=True)
    assert nodes.to_connect() == []
    nodes.find_map(10.0 + NEXT_SEED_S, refresh=True)
    (third,) = nodes.to_connect()
    assert nodes.map is not None
    named = {str(node) for node in nodes.map.nodes}
    assert {str(second.address), str(third.address)} < named


def test_a_map_that_is_pushed_is_taken(nodes: Nodes) -> None:
    connection = ready(nodes, FakeNode(granted=[*GRANTED, Feature.CLUSTERMAP_NOTIFICATION]))
    connection.receive_data(pushed("default", (0, 7), config(4, rev=7)), 1.0)
    assert list(nodes.events(connection, 1.0)) == []
    assert nodes.map is not None
    assert nodes.map.rev == 7
    connection.receive_data(pushed("another", (0, 9), config(4, rev=9)), 1.0)
    assert list(nodes.events(connection, 1.0)) == []
    assert nodes.map.rev == 7


def test_a_map_that_is_only_announced_is_asked_for(nodes: Nodes) -> None:
    node = FakeNode(granted=[*GRANTED, Feature.CLUSTERMAP_NOTIFICATION_BRIEF])
    connection = ready(nodes, node)
    connection.receive_data(pushed("default", (0, 1)), 1.0)
    list(nodes.events(connection, 1.0))
    assert connection.data_to_send() == b"", "it is the one that is known"
    node.cluster_map = config(4, rev=8)
    connection.receive_data(pushed("default", (0, 8)), 1.0)
    list(nodes.events(connection, 1.0))
    connect(nodes, connection, node, 1.0)
    assert list(nodes.events(connection, 1.0)) == []
    assert nodes.map is not None
    assert nodes.map.rev == 8


def test_a_push_during_the_handshake_does_no_harm(nodes: Nodes) -> None:
    nodes.ready(SEEDS[0], 0.0)
    (connection,) = nodes.to_connect()
    connection.receive_data(pushed("default", (0, 8), config(4, rev=8)), 0.0)
    connect(nodes, connection, FakeNode())
    assert connection.is_ready


def test_without_pushes_the_map_is_asked_for_at_an_interval(nodes: Nodes) -> None:
    node = FakeNode()
    connection = ready(nodes, node)
    before = len(node.asked(Opcode.GET_CLUSTER_CONFIG))
    assert nodes.next_timeout() == CONFIG_POLL_S
    nodes.handle_timeout(CONFIG_POLL_S)
    node.cluster_map = config(4, rev=6)
    connect(nodes, connection, node, CONFIG_POLL_S)
    assert list(nodes.events(connection, CONFIG_POLL_S)) == []
    assert len(node.asked(Opcode.GET_CLUSTER_CONFIG)) == before + 1
    assert nodes.map is not None
    assert nodes.map.rev == 6
    assert nodes.next_timeout() == 2 * CONFIG_POLL_S


def test_with_pushes_nobody_asks(nodes: Nodes) -> None:
    node = FakeNode(granted=[*GRANTED, Feature.CLUSTERMAP_NOTIFICATION])
    connection = ready(nodes, node)
    nodes.handle_timeout(CONFIG_POLL_S)
    assert connection.data_to_send() == b""


def test_a_bucket_that_was_made_again_is_another_one(nodes: Nodes) -> None:
    nodes.update_map(identified(5, "one"), SEEDS[0])
    nodes.update_map(identified(4, "other"), SEEDS[0])  # what an old map says does not count
    with pytest.raises(OffsetError, match=r"deleted and created again .*one.*two"):
        nodes.update_map(identified(6, "two"), SEEDS[0])


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


def refuse_bucket(nodes: Nodes, now: float, status: int = Status.KEY_ENOENT) -> None:
    nodes.ready(SEEDS[0], now)
    connection = first_of(nodes)
    connect(nodes, connection, FakeNode(statuses={Opcode.SELECT_BUCKET: status}), now)


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


def test_a_seed_that_is_away_may_have_the_bucket(nodes: Nodes) -> None:
    """A refusal of one seed is not final while the other has not answered; the last answer of each counts."""
    nodes.find_map(0.0)
    (first,) = nodes.to_connect()
    connect(nodes, first, FakeNode(statuses={Opcode.SELECT_BUCKET: Status.KEY_ENOENT}))
    nodes.find_map(0.0)
    (second,) = nodes.to_connect()
    nodes.lost(second, ConnectTimeout("nobody there"), 0.0)
    nodes.find_map(10.0)
    (first,) = nodes.to_connect()
    nodes.lost(first, ConnectionLost("it restarts"), 10.0)
    nodes.find_map(20.0)
    (second,) = nodes.to_connect()
    connect(nodes, second, FakeNode(statuses={Opcode.SELECT_BUCKET: Status.KEY_ENOENT}), 20.0)
    nodes.find_map(30.0)
    (first,) = nodes.to_connect()
    with pytest.raises(KeyNotFound):
        connect(nodes, first, FakeNode(statuses={Opcode.SELECT_BUCKET: Status.KEY_ENOENT}), 30.0)


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


@pytest.mark.parametrize("status", [Status.KEY_ENOENT, Status.EACCESS])
def test_a_bucket_that_was_reached_is_waited_for(nodes: Nodes, status: int, caplog: pytest.LogCaptureFixture) -> None:
    first = ready(nodes, FakeNode())
    nodes.lost(first, ConnectionLost("the server stops"), 1.0)
    now = 1.0
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            now = nodes.retry_at(SEEDS[0])
            refuse_bucket(nodes, now, status)
    assert "bucket 'default' was refused" in caplog.text
    complaint = nodes.complaint(now + 300.0, 300.0, {str(SEEDS[0])})
    assert isinstance(complaint, ConnectTimeout)
    assert "bucket 'default' was refused" in str(complaint)
    assert ready(nodes, FakeNode(), nodes.retry_at(SEEDS[0])).is_ready


def break_protocol(nodes: Nodes, now: float) -> None:
    connection = ready(nodes, FakeNode(), now)
    connection.get_buffer()[:24] = b"?" * 24
    connection.buffer_updated(24)
    nodes.received(connection, now)


def test_a_node_that_sends_no_frames_is_given_up(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    with caplog.at_level(logging.WARNING):
        for _ in range(PROTOCOL_ERRORS_MAX):
            assert nodes.complaint(now, 300.0, {str(SEEDS[0])}) is None
            now = max(now, nodes.retry_at(SEEDS[0]))
            break_protocol(nodes, now)
    assert 0.5 < now < 5.0, "with pauses between the attempts, but soon"
    assert isinstance(nodes.complaint(now, 300.0, {str(SEEDS[0])}), RemoteProtocolError)
    assert nodes.complaint(now, 300.0, {str(SEEDS[1])}) is None, "another node is needed"
    assert "is not a magic" in caplog.text


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
