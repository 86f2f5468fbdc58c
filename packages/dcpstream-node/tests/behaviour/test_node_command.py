"""`dcpstream node` as a process: ready file, signals, kill -9, wrong options."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dcpstream.wire import Feature, FrameReader, Opcode, Status, encode_request
from dcpstream.wire.values import decode_failover_log
from lab.tools.patience import patient
from tests.kit.waiting import wait_until

TIMEOUT_S = patient(30.0)


class Process:
    """A node in a process of its own."""

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.ready_file = folder / "ready.json"
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "dcpstream.cli", "node", "--port", "0", "--mgmt-port", "0", "--vbuckets", "4"]
        self.child = subprocess.Popen(
            [*command, "--ready-file", str(self.ready_file), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | (environment or {}),
        )
        wait_until(lambda: self.ready_file.exists() or self.child.poll() is not None, "no ready file")
        assert self.child.poll() is None, self.child.communicate()[0]
        self.ready = json.loads(self.ready_file.read_text())

    def end(self, number: int) -> int:
        """Send a signal and wait; returns the exit status."""
        self.child.send_signal(number)
        self.child.communicate(timeout=TIMEOUT_S)
        return self.child.returncode

    def call(self, *requests: bytes, password: str = "password") -> list:
        """Log in, send requests, return their answers."""
        login = encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0" + password.encode())
        select = encode_request(Opcode.SELECT_BUCKET, key=b"default")
        with socket.create_connection(("127.0.0.1", self.ready["kv"]), TIMEOUT_S) as connection:
            connection.sendall(login + select + b"".join(requests))
            reader, frames = FrameReader(), []
            while len(frames) < len(requests) + 2:
                data = connection.recv(65536)
                assert data, "the node closed the connection"
                reader.receive_data(data)
                frames += reader.frames()
        assert frames[0].status == 0
        return frames[2:]


@pytest.mark.slow
def test_it_serves_writes_the_ready_file_and_stops_cleanly(tmp_path):
    node = Process(tmp_path, environment={"DCPSTREAM_PASSWORD": "ånother"})
    assert node.ready["pid"] == node.child.pid
    assert set(node.ready) == {"kv", "mgmt", "pid"}
    (answer,) = node.call(encode_request(Opcode.VERSION), password="ånother")
    assert answer.value
    assert node.end(signal.SIGTERM) == 0
    assert not node.ready_file.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "version", "high_seqno"),
    [((), b"8.0.", 3), (("--no-system-scope",), b"8.0.", 0), (("--release", "7.2"), b"7.2.", 0)],
)
def test_its_release_and_what_a_new_bucket_has(tmp_path, options, version, high_seqno):
    node = Process(tmp_path, *options)
    hello = encode_request(Opcode.HELLO, value=struct.pack(">H", Feature.COLLECTIONS))
    _, released, seqnos = node.call(hello, encode_request(Opcode.VERSION), encode_request(Opcode.GET_ALL_VB_SEQNOS))
    assert released.value.startswith(version)
    assert int.from_bytes(seqnos.value[2:10], "big") == high_seqno
    assert node.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_several_nodes_are_one_cluster(tmp_path):
    node = Process(tmp_path, "--nodes", "3", "--replicas", "1")
    assert len({member["kv"] for member in node.ready["nodes"]}) == 3
    assert node.ready["nodes"][0]["kv"] == node.ready["kv"]
    (answer,) = node.call(encode_request(Opcode.GET_CLUSTER_CONFIG))
    server_map = json.loads(answer.value)["vBucketServerMap"]
    assert server_map["serverList"] == [f"127.0.0.1:{member['kv']}" for member in node.ready["nodes"]]
    assert all(len(set(chain)) == 2 for chain in server_map["vBucketMap"])
    assert node.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_ctrl_c_is_a_clean_stop_too(tmp_path):
    node = Process(tmp_path)
    assert node.end(signal.SIGINT) == 0


def test_after_kill_9_what_was_persisted_is_there_on_a_new_branch(tmp_path):
    data = str(tmp_path / "data")
    # Without the events of the scope _system, the first document has seqno 1.
    node = Process(tmp_path, "--data", data, "--flush-interval", "0.005", "--no-system-scope")
    extras = bytes(8)
    *_, log = node.call(
        encode_request(Opcode.SET, key=b"kept", value=b"v", extras=extras),
        encode_request(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 1)),
        encode_request(Opcode.STOP_PERSISTENCE),
        encode_request(Opcode.SET, key=b"lost", value=b"v", extras=extras),
        encode_request(Opcode.GET_FAILOVER_LOG),
    )
    assert node.end(signal.SIGKILL) == -signal.SIGKILL
    node = Process(tmp_path, "--data", data)
    kept, lost, new = node.call(
        encode_request(Opcode.GET, key=b"kept"),
        encode_request(Opcode.GET, key=b"lost"),
        encode_request(Opcode.GET_FAILOVER_LOG),
    )
    assert (kept.value, lost.status) == (b"v", Status.KEY_ENOENT)
    entries = decode_failover_log(new.value).entries
    assert [entry.seqno for entry in entries] == [1, 0]
    assert entries[1] == decode_failover_log(log.value).newest
    assert node.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vbuckets", "0"], "vbuckets"),
        (["--host", "0.0.0.0"], "password"),
        (["--flush-interval", "-1"], "flush_interval_s"),
        (["--replicas", "1"], "--replicas"),
        (["--nodes", "17"], "nodes"),
        (["--set", "max_ttl"], "persist=group"),
        (["--set", "persist=sometimes"], "none, group, every"),
        (["--set", "colour=red"], "colour"),
        (["--users", "/nonexistent/users.json"], "--users"),
        (["--ready-file", "/nonexistent/ready.json"], "--ready-file"),
        (["--bucket", "../elsewhere"], "bucket"),
        (["--nosuch"], "--nosuch"),
        (["--port", "many"], "--port"),
    ],
)
def test_wrong_options_end_with_status_2_and_name_the_option(commands, options, message):
    assert commands("node", "--port", "0", "--mgmt-port", "0", *options, expect=2) == ""
    assert message in commands.error
    assert "Traceback" not in commands.error


def test_a_users_file_that_is_no_json_is_not_quoted(commands, tmp_path):
    users = tmp_path / "users.json"
    users.write_text('{"a": {"password": "hunter22" ')
    commands("node", "--port", "0", "--users", str(users), expect=2)
    assert "line 1" in commands.error
    assert "hunter22" not in commands.error


def test_a_port_in_use_is_reported(commands):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        commands("node", "--port", port, "--mgmt-port", "0", expect=2)
    assert port in commands.error
    assert "in use" in commands.error


def test_a_node_with_tls_and_a_password_from_a_file(tmp_path):
    password, authority = tmp_path / "password", tmp_path / "ca.pem"
    password.write_text("hunter22\n")
    options = ("--tls", "--tls-port", "0", "--mgmt-tls-port", "0", "--tls-ca-out", str(authority))
    process = Process(tmp_path, *options, "--password-file", str(password), "--limit", "connections=10")
    try:
        context = ssl.create_default_context(cafile=str(authority))
        raw = socket.create_connection(("127.0.0.1", process.ready["kv_tls"]), TIMEOUT_S)
        with context.wrap_socket(raw, server_hostname="localhost") as connection:
            connection.sendall(encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0hunter22"))
            reader = FrameReader()
            reader.receive_data(connection.recv(4096))
            assert [frame.status for frame in reader.frames()] == [Status.SUCCESS]
        assert process.ready["mgmt_tls"]
        if sys.platform == "linux":
            assert b"hunter22" not in Path(f"/proc/{process.child.pid}/cmdline").read_bytes()
    finally:
        assert process.end(signal.SIGTERM) == 0
