"""Faults on demand, as clients of a node meet them."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dcpstream
import dcpstream_node
from dcpstream.client import RollbackEvent, StreamOptions
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError
from dcpstream.model import VbucketMap
from dcpstream.wire import Frame, Opcode, OpenFlag, Status
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream_node import Node
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.waiting import TIMEOUT_S, wait_until

FAULTS = "/_dcpstream/faults"
LIVE = (1 << 64) - 1


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=1, system_scope=False) as running:
        yield running


def peer(node: Node) -> SocketPeer:
    return SocketPeer(node.port).open()


def follower(node: Node) -> dcpstream.Client:
    return dcpstream.Client(node.connection_string, username=node.username, password=node.password, bucket="default")


def opening(node: Node, name: str = "reader", end: int = LIVE) -> SocketPeer:
    """A DCP connection that has asked for a stream of vbucket 0."""
    connection = peer(node)
    connection.succeed(Opcode.DCP_OPEN, key=name.encode(), extras=struct.pack(">II", 0, OpenFlag.PRODUCER))
    connection.succeed(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
    request = StreamRequest(
        vbid=0, opaque=7, flags=0, start_seqno=0, end_seqno=end, vbuuid=0, snapshot_start=0, snapshot_end=0
    )
    connection.socket.sendall(request.encode())
    return connection


def streaming(node: Node, name: str = "reader", end: int = LIVE) -> SocketPeer:
    """The same, and the answer is read."""
    connection = opening(node, name, end)
    assert connection.next().status == Status.SUCCESS
    return connection


def fill(node: Node, count: int = 3) -> None:
    with peer(node) as writer:
        for number in range(count):
            assert writer.set(f"k{number}", b"{}").status == 0


def opcodes(frames: list[Frame]) -> list[str]:
    return [Opcode(frame.opcode).name for frame in frames]


# ------------------------------------------------------------------------------------------------- what the node sends


@pytest.mark.parametrize("at_byte", [None, 0, 1, 23, 24, 30])
def test_a_connection_is_cut_at_any_byte(node: Node, at_byte: int | None):
    """Without a byte after the whole marker: between it and its first item."""
    fill(node)
    number = node.inject("close", opcode="DCP_SNAPSHOT_MARKER", at_byte=at_byte, count=1)
    with opening(node) as reader:
        received = b""
        while data := reader.socket.recv(65536):
            received += data
    answer_bytes = 24 + int.from_bytes(received[8:12], "big")
    assert len(received) - answer_bytes == (24 + 20 if at_byte is None else at_byte)
    assert node.faults() == [
        {"id": number, "kind": "close", "opcode": "DCP_SNAPSHOT_MARKER", "count": 1, "hits": 1}
        | ({} if at_byte is None else {"at_byte": at_byte})
    ]
    with streaming(node) as reader:
        assert opcodes([reader.next() for _ in range(4)]) == ["DCP_SNAPSHOT_MARKER", *["DCP_MUTATION"] * 3]


@pytest.mark.parametrize("at_byte", [0, 1, 12, 23, 24, 30])
def test_a_client_survives_cuts_at_any_byte(node: Node, at_byte: int):
    """It gets every change once."""
    fill(node, 20)
    node.inject("close", opcode="DCP_MUTATION", skip=5, count=3, at_byte=at_byte)
    with follower(node) as client:
        assert [change.key for change in client.changes(StreamOptions(end="latest"))] == [
            f"k{n}".encode() for n in range(20)
        ]
    assert node.faults()[0]["hits"] == 3


@pytest.mark.parametrize("at_byte", [1, 12, 24, 30])
def test_frames_are_split_at_any_byte(node: Node, at_byte: int):
    fill(node)
    node.inject("split", opcode="DCP_MUTATION", at_byte=at_byte, delay_s=0.001)
    with streaming(node) as reader:
        assert opcodes([reader.next() for _ in range(4)]) == ["DCP_SNAPSHOT_MARKER", *["DCP_MUTATION"] * 3]
    assert node.faults()[0]["hits"] == 3


def test_a_connection_stalls_and_goes_on(node: Node):
    fill(node)
    node.inject("stall", opcode="DCP_MUTATION", skip=1, connection="slow")
    with streaming(node, "slow one") as slow, streaming(node, "other") as other:
        assert opcodes([slow.next() for _ in range(2)]) == ["DCP_SNAPSHOT_MARKER", "DCP_MUTATION"]
        assert opcodes([other.next() for _ in range(4)])[-1] == "DCP_MUTATION", "it is about one connection"
        slow.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            slow.socket.recv(1)
        slow.socket.settimeout(TIMEOUT_S)
        node.lift()
        assert opcodes([slow.next() for _ in range(2)]) == ["DCP_MUTATION"] * 2
        fill(node, 1)
        assert opcodes([slow.next() for _ in range(2)]) == ["DCP_SNAPSHOT_MARKER", "DCP_MUTATION"]
    assert node.faults() == []


def test_streams_come_in_portions_as_to_a_small_buffer(node: Node):
    fill(node, 20)
    pause, size = 0.02, 150
    node.inject("small_buffer", buffer_bytes=size, delay_s=pause, connection="small")
    with streaming(node, "small", end=20) as reader:
        began = time.monotonic()
        frames = [reader.next() for _ in range(22)]
        took = time.monotonic() - began
        assert reader.get("k0").status == 0, "answers do not count"
    assert opcodes(frames) == ["DCP_SNAPSHOT_MARKER", *["DCP_MUTATION"] * 20, "DCP_STREAM_END"]
    pauses = in_buffer = 0
    for frame in frames:
        if in_buffer and in_buffer + len(frame.encode()) > size:
            pauses, in_buffer = pauses + 1, 0
        in_buffer += len(frame.encode())
    assert pauses >= 8
    assert took >= pauses * pause * 0.9
    assert node.faults()[0]["hits"] == 22
    with streaming(node, "other", end=20) as other:
        assert len([other.next() for _ in range(22)]) == 22
    assert node.faults()[0]["hits"] == 22, "it is about one connection"


def test_a_stall_ends_by_time(node: Node):
    fill(node, 1)
    node.inject("stall", opcode="GET", for_s=0.05)
    with peer(node) as reader:
        assert reader.get("k0").status == 0


def test_answers_are_delayed_in_order(node: Node):
    fill(node, 1)
    node.inject("delay", opcode="GET", delay_s=0.02, count=1)
    with peer(node) as reader:
        reader.send(Opcode.GET, key=b"\0k0", opaque=1)
        reader.send(Opcode.NOOP, opaque=2)
        assert [reader.next().opaque for _ in range(2)] == [1, 2], "what is behind waits, too"


def test_a_stream_end_is_lost_or_late(node: Node):
    fill(node, 1)
    lost = node.inject("lose", opcode="DCP_STREAM_END")
    with streaming(node, end=1) as reader:
        assert opcodes([reader.next() for _ in range(2)]) == ["DCP_SNAPSHOT_MARKER", "DCP_MUTATION"]
        reader.send(Opcode.NOOP)
        assert reader.next().opcode == Opcode.NOOP, "nothing came before"
    node.lift(lost)
    node.inject("delay", opcode="DCP_STREAM_END", delay_s=0.01)
    with streaming(node, end=1) as reader:
        assert opcodes([reader.next() for _ in range(3)])[-1] == "DCP_STREAM_END"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, b"\xff" + bytes(7)),
        ({"data": "0a0b"}, b"\x0a\x0b" + bytes(6)),
        ({"data": "09", "at_byte": 31}, bytes(7) + b"\x09"),
        ({"at_byte": 10_000}, bytes(8)),
        ({"data": "01" * 10_000}, b"\1" * 8),
    ],
)
def test_bytes_of_a_frame_are_changed(node: Node, fields: dict[str, Any], expected: bytes):
    """The start of the first snapshot is 0; the frames around it are as they were."""
    fill(node, 1)
    node.inject("corrupt", opcode="DCP_SNAPSHOT_MARKER", count=1, **fields)
    with streaming(node, end=1) as reader:
        marker, mutation, end = (reader.next() for _ in range(3))
    assert marker.extras[:8] == expected
    assert len(marker.extras) == 20
    assert opcodes([mutation, end]) == ["DCP_MUTATION", "DCP_STREAM_END"]


def test_the_answers_of_a_stalled_client_do_not_pile_up(node: Node):
    """The node reads no more requests of it than it would of a client that takes no answers."""
    with KvClient(node.connection_string, node.username, node.password, "default") as kv:
        kv.set("big", b"x" * 1_000_000)
    node.inject("stall", opcode="GET")
    with peer(node) as reader:
        for _ in range(200):
            reader.send(Opcode.GET, key=b"\0big")
        assert node.engine is not None
        gets = node.engine.buckets["default"].ops
        wait_until(lambda: gets[Opcode.GET] > 0)
        with peer(node) as other:
            other.succeed(Opcode.NOOP)
        assert gets[Opcode.GET] < 20
        node.lift()
        assert all(reader.next().status == 0 for _ in range(200))


# ------------------------------------------------------------------------------------------------------------ requests


def test_a_share_of_requests_is_refused(node: Node):
    fill(node, 1)
    node.inject("refuse", status="TMPFAIL", share=0.25)
    with peer(node) as reader:
        found = [reader.get("k0").status for _ in range(12)]
        assert found == [0, 0, 0, Status.TMPFAIL] * 3
        assert reader.call(Opcode.NOOP).status == 0, "requests about documents, unless it names others"
    node.lift()
    node.inject("refuse", status="ENOMEM", opcode="GET_FAILOVER_LOG", after_s=3600)
    with peer(node) as reader:
        assert reader.call(Opcode.GET_FAILOVER_LOG, vbid=0).status == 0, "its time has not come"


def test_a_refused_write_is_not_carried_out(node: Node):
    node.inject("refuse", status="TMPFAIL", opcode="SET", count=1)
    with peer(node) as writer:
        assert writer.set("k", b"1").status == Status.TMPFAIL
        assert writer.get("k").status == Status.KEY_ENOENT
        assert writer.set("k", b"1").status == 0


def test_a_client_survives_a_storm_of_not_my_vbucket(node: Node):
    node.inject("refuse", status="NOT_MY_VBUCKET", share=0.5)
    with KvClient(node.connection_string, node.username, node.password, "default") as kv:
        kv.set_many([(f"k{n}", "{}") for n in range(50)])
        assert None not in kv.get_many([f"k{n}" for n in range(50)])
    assert node.faults()[0]["hits"] >= 50
    with peer(node) as reader:
        reader.succeed(Opcode.GET_CLUSTER_CONFIG)
        answers = [reader.get("k0") for _ in range(2)]
    (refused,) = [answer for answer in answers if answer.status]
    assert VbucketMap.from_json(refused.value, "127.0.0.1").vbucket_count == 1, "with the map, as from a server"


def test_a_node_has_only_the_map_of_a_bucket(node: Node):
    fill(node, 1)
    with peer(node) as reader:
        number = node.inject("config_only", bucket="default")
        for opcode in (Opcode.NOOP, Opcode.DCP_OPEN, Opcode.GET, Opcode.STAT, Opcode.SASL_LIST_MECHS):
            assert reader.call(opcode, key=b"k0").status == Status.CONFIG_ONLY
        text = reader.succeed(Opcode.GET_CLUSTER_CONFIG).value
        assert VbucketMap.from_json(text, "127.0.0.1").vbucket_count == 1
        reader.succeed(Opcode.SELECT_BUCKET, key=b"default")
        reader.succeed(Opcode.SELECT_BUCKET, key=b"@no bucket@")
        reader.succeed(Opcode.NOOP)
        reader.succeed(Opcode.SELECT_BUCKET, key=b"default")
        node.lift(number)
        assert reader.get("k0").status == 0


# ------------------------------------------------------------------------------------------------------------ the node


def test_connections_are_dropped_now(node: Node):
    with streaming(node, "reader") as reader, peer(node) as other:
        node.inject("drop", connection="reader")
        assert reader.read() is None
        assert other.call(Opcode.NOOP).status == 0
        node.inject("drop")
        assert other.read() is None


def test_time_travel_expires_documents_and_ends_durable_writes():
    with dcpstream_node.Cluster(nodes=2, replicas=1, vbuckets=1, system_scope=False) as cluster:
        node = cluster.node(str(cluster.chains()[0][0])).node
        with peer(node) as writer, peer(node) as other:
            hour = struct.pack(">II", 0, 3600)
            assert writer.call(Opcode.SET, key=b"\0short", value=b"1", extras=hour).status == 0
            cluster.pause_replication()
            writer.send(Opcode.SET, key=b"\0durable", value=b"1", extras=bytes(8), framing=b"\x13\x01\x75\x30")
            assert other.get("short").status == 0
            node.inject("move_clock", seconds=3601)
            assert writer.next().status == Status.SYNC_WRITE_AMBIGUOUS
            assert other.get("short").status == Status.KEY_ENOENT
            # Times that begin after the move last as long as ever.
            writer.send(Opcode.SET, key=b"\0later", value=b"1", extras=bytes(8), framing=b"\x13\x01\x05\xdc")
            assert writer.next().status == Status.SYNC_WRITE_AMBIGUOUS
        cluster.resume_replication()


def test_a_node_hangs_for_a_while(node: Node):
    took: list[float] = []

    def ask_once() -> bool:
        began = time.monotonic()
        assert connection.call(Opcode.NOOP).status == 0
        took.append(time.monotonic() - began)
        return took[-1] > 0.1

    with peer(node) as connection:
        ask_once()
        assert node.inject("hang", for_s=0.2) == 0
        wait_until(ask_once, "it never hung")
    assert node.faults() == []


def test_the_time_of_day_moves_back(node: Node):
    assert node.engine is not None
    with peer(node) as writer:
        assert writer.set("a", b"1").status == 0
        now, unix = node.engine.now, node.engine.unix_s
        node.inject("move_clock", seconds=-86400)
        assert writer.set("b", b"1").status == 0
        assert node.engine.unix_s < unix - 80000
        assert node.engine.now >= now, "the monotonic clock does not"


def test_deletions_are_purged_now(node: Node):
    with KvClient(node.connection_string, node.username, node.password, "default") as kv:
        kv.set("k", "1")
        kv.delete("k")
        kv.set("last", "1")
        assert kv.stats("vbucket-details 0")["vb_0:purge_seqno"] == "0"
        node.inject("purge", bucket="default")
        assert kv.stats("vbucket-details 0")["vb_0:purge_seqno"] == "2"
    with follower(node) as client:
        assert [change.key for change in client.changes(StreamOptions(end="latest"))] == [b"last"]


def test_a_failover_to_a_stale_replica_rolls_clients_back(node: Node):
    fill(node, 3)
    rollbacks: list[RollbackEvent] = []
    seen: list[bytes] = []
    with follower(node) as client:

        def follow() -> None:
            for change in client.changes(StreamOptions(on_rollback=rollbacks.append)):
                seen.append(change.key)
                if change.key == b"end":
                    return

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        wait_until(lambda: len(seen) == 3)
        node.inject("stale_failover", bucket="default", vbid=0, seqno=1)
        with peer(node) as writer:
            assert [writer.get(f"k{n}").status for n in range(3)] == [0, Status.KEY_ENOENT, Status.KEY_ENOENT]
            assert writer.set("end", b"").status == 0
        reader.join(TIMEOUT_S)
        assert not reader.is_alive()
    assert [event.vbid for event in rollbacks] == [0]
    with follower(node) as client:
        assert [change.key for change in client.changes(StreamOptions(end="latest"))] == [b"k0", b"end"]


def test_clients_get_a_stale_map():
    with dcpstream_node.Cluster(nodes=2, replicas=1, vbuckets=4, system_scope=False) as cluster:
        stale, other = cluster.nodes
        before = ask(stale.node, "GET", "/pools/default/b/default").json
        number = stale.node.inject("stale_map")
        added = cluster.add_node()
        cluster.rebalance()

        def told(node: Node) -> tuple[dict[str, Any], tuple[int, int]]:
            with peer(node) as reader:
                over_kv = reader.succeed(Opcode.GET_CLUSTER_CONFIG).value
            return ask(node, "GET", "/pools/default/b/default").json, VbucketMap.from_json(over_kv, "h").version

        versions = (before["revEpoch"], before["rev"])
        assert told(stale.node) == (before, versions)
        assert told(other.node)[0]["rev"] > before["rev"]
        with KvClient(stale.connection_string, stale.node.username, stale.node.password, "default") as kv:
            assert kv.map.version == versions
        stale.node.lift(number)
        assert told(stale.node)[0]["rev"] == told(added.node)[0]["rev"]


def test_a_forgotten_manifest():
    key = b"\x08k"  # of the first collection that is made
    with Node(vbuckets=1, system_scope=False) as node, peer(node) as client:
        node.set_collections("default", {"shop": ["orders"]})
        known = json.loads(client.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value)
        client.succeed(Opcode.SET, key=key, value=b"1", extras=bytes(8))
        with pytest.raises(ConfigError, match="a bucket of this node"):
            node.inject("forget_manifest", bucket="other")
        number = node.inject("forget_manifest", bucket="default")
        told = json.loads(client.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value)
        assert (told["uid"], len(told["scopes"])) == ("0", 1)
        assert client.call(Opcode.GET_COLLECTION_ID, value=b"shop.orders").status == Status.UNKNOWN_SCOPE
        assert client.succeed(Opcode.GET, key=key).value == b"1"
        node.lift(number)
        assert json.loads(client.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value) == known
        node.inject("forget_manifest", bucket="default")
        client.succeed(Opcode.SET_COLLECTIONS, value=json.dumps(known).encode())
        assert json.loads(client.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value) == known


def test_a_node_has_no_map():
    with Node(vbuckets=1, system_scope=False) as node, peer(node) as client:
        number = node.inject("no_map")
        client.send(Opcode.GET, key=b"\0k", vbid=1)
        refused = client.next()
        assert (refused.status, refused.value) == (Status.NOT_MY_VBUCKET, b"")
        client.send(Opcode.GET_CLUSTER_CONFIG)
        assert client.next().status == Status.KEY_ENOENT
        node.lift(number)
        assert client.succeed(Opcode.GET_CLUSTER_CONFIG).value


def test_a_full_and_a_slow_disk(tmp_path: Path):
    with Node(vbuckets=1, path=tmp_path, system_scope=False) as node, peer(node) as writer, peer(node) as waiting:
        number = node.inject("full_disk")
        assert writer.set("k", b"1").status == 0
        waiting.send(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 1), vbid=0)
        assert node.engine is not None
        store = node.engine.buckets["default"].store
        wait_until(lambda: store.is_failing)
        node.lift(number)
        assert waiting.next().status == 0
        node.inject("slow_disk", delay_s=3600)
        assert writer.set("l", b"1").status == 0, "no client waits for the disk unless it asks"
        waiting.send(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 2), vbid=0)
        waiting.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            waiting.socket.recv(1)
        waiting.socket.settimeout(TIMEOUT_S)
        node.lift()
        assert waiting.next().status == 0


def test_a_fault_of_the_node_ends_by_time(tmp_path: Path):
    with Node(vbuckets=1, path=tmp_path, system_scope=False) as node:
        node.inject("full_disk", after_s=0.01, for_s=0.01)
        wait_until(lambda: node.faults() == [])
        with peer(node) as writer:
            assert writer.set("k", b"1").status == 0
            writer.persisted(1)


def test_a_node_in_its_own_process_has_faults_too():
    with Node(vbuckets=1, process=True, system_scope=False) as node:
        fill(node, 1)
        number = node.inject("refuse", status="TMPFAIL", opcode="GET")
        with peer(node) as reader:
            assert reader.get("k0").status == Status.TMPFAIL
            assert node.faults()[0]["hits"] == 1
            node.lift(number)
            assert reader.get("k0").status == 0


# ----------------------------------------------------------------------------------------------------------- over REST


def test_faults_over_rest(node: Node):
    fill(node, 1)
    made = ask(node, "POST", FAULTS, {"kind": "refuse", "status": "tmpfail", "share": "0.5"})
    assert made.json == {"id": 1}
    with peer(node) as reader:
        assert [reader.get("k0").status for _ in range(2)] == [0, Status.TMPFAIL]
    expected = {"id": 1, "kind": "refuse", "status": "TMPFAIL", "share": 0.5, "hits": 1}
    assert ask(node, "GET", FAULTS).json == [expected]
    assert ask(node, "DELETE", f"{FAULTS}/2").status == 404
    assert ask(node, "DELETE", f"{FAULTS}/1").status == 200
    assert ask(node, "POST", FAULTS, {"kind": "move_clock", "seconds": "10"}).json == {"id": 0}
    assert ask(node, "POST", FAULTS, {"kind": "stall"}).json == {"id": 2}
    assert ask(node, "DELETE", FAULTS).status == 200
    assert ask(node, "GET", FAULTS).json == []
    node.add_user("reader", "secret-word", ["data_reader[default]"])
    for method in ("GET", "POST", "DELETE"):
        assert ask(node, method, FAULTS, user="reader", password="secret-word").status == 403


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("explode", {}),
    ("refuse", {}),
    ("refuse", {"status": "FINE"}),
    ("close", {"opcode": "NONSENSE"}),
    ("close", {"delay_s": 1}),
    ("close", {"at_byte": -1}),
    ("close", {"at_byte": 1.5}),
    ("close", {"count": 0}),
    ("close", {"share": 0}),
    ("close", {"share": 1.1}),
    ("delay", {"delay_s": "nan"}),
    ("delay", {"delay_s": "soon"}),
    ("purge", {"bucket": "none"}),
    ("purge", {}),
    ("stale_failover", {"bucket": "default", "vbid": 0}),
    ("stale_failover", {"bucket": "default", "vbid": 1, "seqno": 0}),
    ("full_disk", {}),
    ("move_clock", {"seconds": 1e12}),
    ("small_buffer", {}),
    ("hang", {}),
    ("hang", {"for_s": 4000}),
    ("small_buffer", {"buffer_bytes": 0}),
    ("close", {"buffer_bytes": 1}),
    ("corrupt", {"data": "0"}),
    ("corrupt", {"data": "zz"}),
]


@pytest.mark.parametrize(("kind", "fields"), WRONG)
def test_faults_that_cannot_be_are_refused(kind: str, fields: dict[str, Any], one: Node):
    with pytest.raises(ConfigError):
        one.inject(kind, **fields)
    refused = ask(one, "POST", FAULTS, {"kind": kind} | {name: str(value) for name, value in fields.items()})
    assert refused.status == 400
    assert one.faults() == []


@pytest.fixture(scope="module")
def one() -> Iterator[Node]:
    with Node(vbuckets=1, system_scope=False) as running:
        yield running
