"""A node as its clients and its user see it: ports, life cycle, bad input, crash and restart, management."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import socket
import struct
import threading

import pytest

from dcpstream.errors import ConfigError, StoreError
from dcpstream.model import vbucket_of_key
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream.wire.values import decode_failover_log
from dcpstream_node import Node
from tests.kit.cases import each_case
from tests.kit.peer import SocketPeer
from tests.kit.waiting import TIMEOUT_S

LARGE = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def node():
    with Node(vbuckets=8, system_scope=False) as running:
        yield running


def get(node: Node, path: str, user: str = "Administrator", password: str = "password"):
    connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {token}"} if user else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


# ---------------------------------------------------------------------------------------------------------- life cycle


def test_start_and_stop_may_be_called_again():
    node = Node(vbuckets=1, system_scope=False)
    node.stop()
    assert node.start() is node
    port = node.port
    assert node.start() is node
    assert node.port == port
    assert node.is_running
    assert node.connection_string == f"couchbase://127.0.0.1:{port}"
    with SocketPeer(node.port).open() as peer:
        peer.set("k", b"v")
    node.stop()
    node.stop()
    assert not node.is_running
    node.start()
    with SocketPeer(node.port).open() as peer:
        assert peer.get("k").status == Status.KEY_ENOENT
    node.stop()


def test_stopping_closes_connections():
    node = Node(vbuckets=1, system_scope=False).start()
    peer = SocketPeer(node.port).open()
    node.stop()
    assert peer.is_closed()
    peer.close()


def test_stopping_leaves_no_threads():
    before = threading.active_count()
    with Node(vbuckets=1, system_scope=False):
        pass
    assert threading.active_count() == before


@each_case("option", ["port", "mgmt_port"])
def test_a_taken_port_is_reported(option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = Node(vbuckets=1, **{option: port}, system_scope=False)
        with pytest.raises(ConfigError, match=rf"port {port} .*in use.*with {option} "):
            node.start()
        node.stop()


@each_case(
    ("options", "name"),
    [
        ({"vbuckets": 0}, "vbuckets"),
        ({"vbuckets": 1025}, "vbuckets"),
        ({"buckets": ()}, "buckets"),
        ({"buckets": "default"}, "buckets"),
        ({"buckets": ["../../elsewhere"]}, "bucket"),
        ({"buckets": [".."]}, "bucket"),
        ({"buckets": ["a/b"]}, "bucket"),
        ({"buckets": ["x" * 101]}, "bucket"),
        ({"flush_interval_s": 0}, "flush_interval_s"),
        ({"port": 70_000}, "port"),
        ({"host": "0.0.0.0"}, "password"),
        ({"host": "::"}, "password"),
        ({"users": {"a": {}}}, "users"),
        ({"username": ""}, "user"),
    ],
)
def test_wrong_options_are_named(options, name):
    with pytest.raises(ConfigError, match=name):
        Node(**options, system_scope=False)


def test_an_address_that_is_not_ours_is_reported():
    with pytest.raises(ConfigError, match="host"):
        Node(vbuckets=1, host="192.0.2.1", password="other", system_scope=False).start()


def test_two_buckets_are_apart():
    with Node(buckets=("one", "two"), vbuckets=1, system_scope=False) as node, SocketPeer(node.port) as peer:
        peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0password")
        peer.call(Opcode.SELECT_BUCKET, key=b"one")
        peer.call(Opcode.SET, key=b"k", extras=bytes(8), value=b"1")
        assert peer.call(Opcode.SELECT_BUCKET, key=b"two").status == 0
        assert peer.call(Opcode.GET, key=b"k").status == Status.KEY_ENOENT
        assert [entry["name"] for entry in json.loads(get(node, "/pools/default/buckets")[1])] == ["one", "two"]


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)), b"\xff" * 1000, b"\x16\x03\x01" * 20]
)
def test_garbage_closes_the_connection_and_nothing_else(node, data):
    with SocketPeer(node.port).open() as witness, SocketPeer(node.port) as peer:
        peer.socket.sendall(data)
        assert peer.is_closed()
        assert witness.call(Opcode.NOOP).status == 0


def test_half_a_frame_waits_for_the_rest(node):
    with SocketPeer(node.port).open() as peer:
        data = encode_request(Opcode.SET, key=b"\0half", value=b"v" * 100, extras=bytes(8), opaque=1)
        for byte in data[:-1]:
            peer.socket.sendall(bytes((byte,)))
        peer.socket.sendall(data[-1:] + encode_request(Opcode.NOOP, opaque=2))
        assert [peer.read().opaque, peer.read().opaque] == [1, 2]


def test_a_client_that_goes_in_the_middle_of_a_frame(node):
    with SocketPeer(node.port).open() as peer:
        peer.socket.sendall(encode_request(Opcode.SET, key=b"\0gone", value=b"v" * 100, extras=bytes(8))[:50])
    with SocketPeer(node.port).open() as peer:
        assert peer.get("gone").status == Status.KEY_ENOENT


def test_large_values_go_both_ways(node):
    with SocketPeer(node.port).open() as peer:
        value = bytes(range(256)) * (LARGE // 256)
        assert peer.set("large", value).status == 0
        assert peer.get("large").value == value
        assert peer.call(Opcode.NOOP).status == 0


@pytest.mark.slow
def test_a_client_that_does_not_read_is_slowed_down_not_fed_without_end(node):
    with SocketPeer(node.port).open() as slow, SocketPeer(node.port).open() as other:
        slow.set("large", b"\x80" * (1 << 20))
        request = encode_request(Opcode.GET, key=b"\0large")
        asked = 200
        slow.socket.sendall(request * asked)
        assert other.call(Opcode.NOOP).status == 0
        assert node.engine is not None
        waiting = max(session.output.nbytes for session in node.engine.sessions)
        assert waiting < 8 << 20
        for _ in range(asked):
            assert len(slow.read().value) == 1 << 20


def test_many_requests_in_one_write_are_answered_in_order(node):
    with SocketPeer(node.port).open() as peer:
        count = 5000
        data = b"".join(
            encode_request(
                Opcode.SET, key=b"\0m%d" % number, value=b"v" * 100, extras=bytes(8), opaque=number,
                vbid=vbucket_of_key(b"m%d" % number, 8),
            )
            for number in range(count)
        )  # fmt: skip
        sender = threading.Thread(target=peer.socket.sendall, args=(data,))
        sender.start()
        frames = [peer.read() for _ in range(count)]
        sender.join()
        assert [frame.opaque for frame in frames] == list(range(count))
        assert {frame.status for frame in frames} == {0}


# ------------------------------------------------------------------------------------------------------ crash, restart


def open_on(path, **options) -> Node:
    return Node(vbuckets=4, path=path, **options, system_scope=False).start()


def test_a_clean_restart_keeps_everything_and_the_branch(tmp_path):
    node = open_on(tmp_path, flush_interval_s=60)
    with SocketPeer(node.port).open() as peer:
        for number in range(100):
            peer.set(f"k{number}", b"v%d" % number, number % 4)
        log = peer.call(Opcode.GET_FAILOVER_LOG).value
    node.stop()
    node = open_on(tmp_path)
    with SocketPeer(node.port).open() as peer:
        assert peer.get("k42", 2).value == b"v42"
        assert peer.call(Opcode.GET_FAILOVER_LOG).value == log
    node.stop()


def test_a_crash_loses_only_what_was_not_persisted_and_begins_a_branch(tmp_path):
    node = open_on(tmp_path, flush_interval_s=0.001)
    with SocketPeer(node.port).open() as peer:
        peer.set("kept", b"v")
        peer.persisted(1)
        peer.call(Opcode.STOP_PERSISTENCE)
        peer.set("lost", b"v")
        old = decode_failover_log(peer.call(Opcode.GET_FAILOVER_LOG).value)
    node.crash()
    node = open_on(tmp_path)
    with SocketPeer(node.port).open() as peer:
        assert peer.get("kept").value == b"v"
        assert peer.get("lost").status == Status.KEY_ENOENT
        new = decode_failover_log(peer.call(Opcode.GET_FAILOVER_LOG).value)
        assert [entry.seqno for entry in new] == [1, 0]
        assert new.entries[1] == old.newest
    node.stop()


def test_a_bucket_keeps_its_number_of_vbuckets_unless_another_is_asked_for(tmp_path):
    open_on(tmp_path).stop()
    node = Node(path=tmp_path, system_scope=False).start()
    assert node.engine.buckets["default"].vbucket_count == 4
    node.create_bucket("new")
    assert node.engine.buckets["new"].vbucket_count == 1024
    node.stop()
    with pytest.raises(StoreError, match="4"):
        Node(path=tmp_path, vbuckets=8, system_scope=False).start()


def test_the_same_directory_serves_one_node_at_a_time(tmp_path):
    node = open_on(tmp_path)
    with pytest.raises(StoreError, match="in use"):
        open_on(tmp_path)
    node.stop()
    open_on(tmp_path).stop()


@pytest.mark.slow
def test_a_disk_that_fails_is_reported_and_gets_better(tmp_path, caplog):
    node = open_on(tmp_path, flush_interval_s=0.001)
    assert node.engine is not None
    store = node.engine.buckets["default"].store
    commit, failed = store.commit, threading.Event()

    def fail():
        failed.set()
        raise StoreError("No space left on device")

    store.commit = fail
    with SocketPeer(node.port).open() as peer, caplog.at_level(logging.WARNING):
        assert peer.set("k", b"v").status == 0
        assert failed.wait(TIMEOUT_S)
        assert peer.get("k").value == b"v"
        store.pending_bytes += 1 << 40
        assert peer.set("k", b"w").status == Status.TMPFAIL
        store.pending_bytes -= 1 << 40
        store.commit = commit
        peer.persisted(1)
        assert peer.set("k", b"w").status == 0
    assert "No space left on device" in caplog.text
    assert "durable again" in caplog.text
    node.stop()


# ----------------------------------------------------------------------------------------------------------- management


def test_management_answers_what_clients_ask(node):
    assert get(node, "/")[0] == 302
    assert json.loads(get(node, "/pools")[1])["implementationVersion"].startswith("8.")
    bucket = json.loads(get(node, "/pools/default/buckets/default")[1])
    assert (bucket["name"], bucket["bucketType"], bucket["nodes"][0]["status"]) == ("default", "membase", "healthy")
    assert json.loads(get(node, "/pools/default/buckets/")[1])[0]["name"] == "default"
    assert json.loads(get(node, "/pools/default/buckets/default/scopes")[1])["scopes"][0]["name"] == "_default"
    config = json.loads(get(node, "/pools/default/b/default")[1])
    assert config["nodesExt"][0]["services"] == {"kv": node.port, "mgmt": node.mgmt_port}
    assert json.loads(get(node, "/whoami/")[1])["id"] == "Administrator"
    assert json.loads(get(node, "/nodes/self")[1])["thisNode"]
    assert json.loads(get(node, "/pools/default")[1])["name"] == "default"
    assert json.loads(get(node, "/pools/default/nodeServices")[1])["nodesExt"]
    assert get(node, "/pools/default/buckets/nosuch")[0] == 404
    assert get(node, "/nosuch")[0] == 404


def test_management_asks_who_it_is(node):
    assert get(node, "/pools", password="wrong")[0] == 401
    assert get(node, "/pools", user="nobody")[0] == 401
    assert get(node, "/pools", user="")[0] == 401
    assert get(node, "/health", user="") == (200, b'{"status":"healthy"}')
    assert json.loads(get(node, "/health")[1])["buckets"]["default"]["status"] == "healthy"


def test_the_configuration_is_streamed_and_follows_changes():
    with Node(vbuckets=2, system_scope=False) as node:
        connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
        token = base64.b64encode(b"Administrator:password").decode()
        connection.request("GET", "/pools/default/bs/default", headers={"Authorization": f"Basic {token}"})
        answer = connection.getresponse()
        assert answer.getheader("Transfer-Encoding") == "chunked"
        first = next_config(answer)
        with SocketPeer(node.port).open() as peer:
            peer.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\x04")
        second = next_config(answer)
        assert second["rev"] > first["rev"]
        assert second["vBucketServerMap"]["vBucketMap"] == [[0], [-1]]
        connection.close()


def next_config(answer: http.client.HTTPResponse) -> dict:
    data = b""
    while not data.endswith(b"\n\n\n\n"):
        data += answer.read(1)
    return json.loads(data)


# ---------------------------------------------------------------------------------------------------------------- DCP


@pytest.mark.slow
def test_a_stream_over_the_socket_with_noop(node):
    with SocketPeer(node.port).open() as writer, SocketPeer(node.port).open() as dcp:
        assert dcp.call(Opcode.DCP_OPEN, key=b"sock", extras=struct.pack(">II", 0, 1)).status == 0
        assert dcp.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
        assert dcp.call(Opcode.DCP_CONTROL, key=b"set_noop_interval", value=b"1").status == 0
        request = struct.pack(">IIQQQQQ", 0, 0, 0, (1 << 64) - 1, 0, 0, 0)
        assert dcp.call(Opcode.DCP_STREAM_REQ, vbid=7, extras=request, opaque=77).status == 0
        writer.set("live", b"v", 7)
        seen = set()
        while not {Opcode.DCP_MUTATION, Opcode.DCP_NOOP} <= seen:
            frame = dcp.next()
            seen.add(frame.opcode)
            assert frame.opcode in (Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_NOOP)


def test_a_slow_dcp_client_is_not_fed_without_end():
    with (
        Node(vbuckets=1, system_scope=False) as node,
        SocketPeer(node.port).open() as writer,
        SocketPeer(node.port).open() as dcp,
    ):
        value = b"\x80" * (1 << 20)
        for number in range(30):
            writer.set(f"k{number}", value)
        dcp.call(Opcode.DCP_OPEN, key=b"slow", extras=struct.pack(">II", 0, 1))
        dcp.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
        request = struct.pack(">IIQQQQQ", 4, 0, 0, (1 << 64) - 1, 0, 0, 0)
        assert dcp.call(Opcode.DCP_STREAM_REQ, extras=request, opaque=7).status == 0
        # The node still hears this client, and others, while the stream waits for it to read.
        assert writer.call(Opcode.NOOP).status == 0
        stats = {}
        writer.socket.sendall(encode_request(Opcode.STAT, key=b"dcp"))
        while (frame := writer.read()).key:
            stats[frame.key.decode()] = frame.value.decode()
        assert int(stats["eq_dcpq:slow:total_bytes_sent"]) < 20 << 20
        count = 0
        while (frame := dcp.read()).opcode != Opcode.DCP_STREAM_END:
            count += frame.opcode == Opcode.DCP_MUTATION
        assert count == 30


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_bucket_is_made_and_deleted_while_the_node_runs(tmp_path, is_on_disk: bool) -> None:
    with Node(vbuckets=4, path=tmp_path if is_on_disk else None, system_scope=False) as node:
        manager, reader = SocketPeer(node.port).open(), SocketPeer(node.port).open()
        assert manager.call(0x85, key=b"../b2", value=b"ep.so\0max_vbuckets=8").status == Status.EINVAL
        assert manager.call(0x85, key=b"b2", value=b"ep.so\0max_vbuckets=8").status == 0
        assert reader.call(Opcode.SELECT_BUCKET, key=b"b2").status == 0
        assert reader.call(Opcode.SET_VBUCKET, vbid=7, extras=b"\1").status == 0
        assert reader.call(Opcode.SET, vbid=7, key=b"\0k", value=b"v", extras=bytes(8)).status == 0
        assert reader.call(Opcode.SEQNO_PERSISTENCE, vbid=7, extras=struct.pack(">Q", 1)).status == 0
        assert (tmp_path / "b2").exists() == is_on_disk
        assert manager.call(0x86, key=b"b2").status == 0
        assert not (tmp_path / "b2").exists()
        assert reader.read() is None
        assert manager.call(Opcode.SELECT_BUCKET, key=b"b2").status != 0
        for _ in range(3):  # the name is free as soon as the answer is there
            assert manager.call(0x85, key=b"b2", value=b"ep.so\0max_vbuckets=8").status == 0
            assert manager.call(0x86, key=b"b2").status == 0
        manager.socket.close()
        reader.socket.close()
    assert not (tmp_path / "b2").exists()
