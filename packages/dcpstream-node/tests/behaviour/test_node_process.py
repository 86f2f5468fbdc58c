"""A node in a process of its own: the same surface, and what only a process has."""

from __future__ import annotations

import ctypes
import os
import platform
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dcpstream.client import KvClient
from dcpstream.errors import ConfigError, ConnectionLost, DcpstreamError
from dcpstream.model import BucketSettings
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream_node import Node
from dcpstream_node.process import _server
from dcpstream_node.store.closed.check import check_store
from tests.kit.cases import each_case
from tests.kit.peer import SocketPeer
from tests.kit.waiting import TIMEOUT_S, wait_until

BOTH = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(vbuckets=8, process=True) as running:
        yield running


def kv(node: Node, bucket: str = "default", username: str = "Administrator", password: str = "password") -> KvClient:
    return KvClient(node.connection_string, username, password, bucket)


def is_there(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_it_serves_in_another_process(node: Node):
    assert node.pid != os.getpid()
    assert is_there(node.pid)
    assert node.is_running
    assert node.engine is None
    with kv(node) as client:
        client.set("k", "1")
        found = client.get("k")
        assert found is not None
        assert found.value == b"1"


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no such setting")
def test_documents_in_memory_take_little_more_than_their_size():
    def resident(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    value, count, group = b"\x80" * 2000, 6000, 500
    with Node(vbuckets=16, process=True) as node, kv(node) as client:
        assert node.pid is not None
        before = resident(node.pid)
        for first in range(0, count, group):
            client.set_many([(b"k%d" % number, value) for number in range(first, first + group)])
        assert resident(node.pid) - before < 1.45 * count * len(value)


def test_buckets_users_and_collections_are_changed_from_outside(node: Node):
    node.create_bucket("other", BucketSettings(flush_enabled=True), vbuckets=4)
    assert node.buckets == ["default", "other"]
    with pytest.raises(ConfigError, match="a name that no bucket of this node has"):
        node.create_bucket("other")
    node.set_collections("other", {"shop": ["orders"]})
    node.add_user("reader", "secret", ["data_writer[other]", "data_reader[other]"])
    with SocketPeer(node.port).open() as peer:
        peer.succeed(Opcode.SELECT_BUCKET, key=b"other")
        peer.succeed(Opcode.GET_COLLECTION_ID, value=b"shop.orders")
    with kv(node, "other", "reader", "secret") as client:
        client.set("k", "1")
        node.flush_bucket("other")
        assert client.get("k") is None
    node.remove_user("reader")
    node.change_bucket("other", BucketSettings(flush_enabled=False))
    node.drop_bucket("other")
    assert node.buckets == ["default"]


def test_a_client_that_holds_the_interpreter_s_lock_is_answered(node: Node):
    """A node in a thread of this process could never answer: this call keeps Python's lock while it waits."""
    with socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S) as connection:
        connection.settimeout(None)
        connection.sendall(encode_request(Opcode.NOOP, opaque=7))
        answer = ctypes.create_string_buffer(24)
        assert ctypes.PyDLL(None).recv(connection.fileno(), answer, 24, socket.MSG_WAITALL) == 24
    assert answer.raw[1] == Opcode.NOOP


@BOTH
def test_a_stopped_node_comes_back_at_its_ports(process: bool):
    node = Node(vbuckets=1, tls=True, process=process)
    with node:
        ports = node.port, node.mgmt_port, node.tls_port, node.mgmt_tls_port
        assert 0 not in ports
        assert "BEGIN CERTIFICATE" in node.ca_certificate
        assert "BEGIN CERTIFICATE" in node.client_certificate("jane")[0]
    for end in (node.stop, node.crash):
        node.start()
        assert (node.port, node.mgmt_port, node.tls_port, node.mgmt_tls_port) == ports
        with SocketPeer(node.port).open() as peer:
            peer.set("k", b"v")
        end()
        assert not node.is_running


@BOTH
def test_a_port_that_was_taken_meanwhile_is_reported(process: bool):
    node = Node(vbuckets=1, process=process).start()
    node.stop()
    with socket.create_server(("127.0.0.1", node.port)), pytest.raises(ConfigError, match=f"{node.port}.*in use"):
        node.start()
    node.start()
    node.stop()


def test_data_on_disk_survives_a_kill(tmp_path: Path):
    with Node(
        vbuckets=1, path=tmp_path, settings=BucketSettings.from_texts({"persist": "every"}), process=True
    ) as node:
        with SocketPeer(node.port).open() as peer:
            peer.set("k", b"v")
        before = node.pid
        node.crash()
        wait_until(lambda: not is_there(before))
        node.start()
        assert node.pid != before
        with SocketPeer(node.port).open() as peer:
            assert peer.get("k").value == b"v"


def test_a_process_that_ends_by_itself_is_noticed():
    node = Node(vbuckets=1, process=True).start()
    os.kill(node.pid, signal.SIGKILL)
    wait_until(lambda: not node.is_running)
    with pytest.raises(ConnectionLost, match="the node's process has ended"):
        node.create_bucket("b")
    node.start()
    assert node.buckets == ["default"]
    os.kill(node.pid, signal.SIGKILL)
    wait_until(lambda: not node.is_running)
    node.stop()


def test_a_process_that_was_ended_gets_no_signal_any_more(monkeypatch: pytest.MonkeyPatch):
    """Its number may be that of another process by then."""
    from dcpstream_node.process import NodeProcess

    process = NodeProcess({"vbuckets": 1}, None)
    process.kill()
    sent: list[object] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    process.kill()
    process.pause()
    assert not sent


def test_a_paused_node_hangs_until_it_is_resumed():
    with Node(vbuckets=1, process=True) as node, SocketPeer(node.port).open() as peer:
        node.pause()
        assert node.is_paused
        assert node.is_running
        with pytest.raises(DcpstreamError, match="paused"):
            node.create_bucket("b")
        peer.socket.sendall(encode_request(Opcode.NOOP, opaque=7))
        readable, _, _ = select.select([peer.socket], [], [], 0)
        assert not readable
        node.resume()
        wait_until(lambda: any(frame.opaque == 7 and frame.status == Status.SUCCESS for frame in peer.read_ready()))
        node.pause()
    assert not node.is_running


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_of_the_program_neither_keeps_nor_ends_its_nodes(node: Node):
    process = node._process
    assert process is not None
    control = _server._control
    assert control is not None
    held = [process._channel._connection.fileno(), control.fileno(), process._pid_fd]
    fork = os.fork()
    if not fork:
        status = 1
        try:
            for descriptor in held:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(descriptor)
            assert not node.is_running
            node.stop()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert node.is_running
    assert node.buckets == ["default"]


def test_only_a_process_can_be_paused():
    with Node(vbuckets=1) as node, pytest.raises(DcpstreamError, match="process=True"):
        node.pause()


def test_the_manager_is_asked_in_the_parent():
    """Requests of a member's management port to its cluster go through the same pipe, the other way."""
    from dcpstream_node.process import NodeProcess

    asked: list[object] = []

    def manager(verb: str, arguments: dict[str, object]) -> dict[str, object]:
        asked.append((verb, arguments))
        if verb == "no":
            raise ConfigError("verb", verb, "yes")
        return {"pid": os.getpid()}

    process = NodeProcess({"vbuckets": 1}, manager)
    try:
        assert process.call("manager", "yes", {"a": 1}) == {"pid": os.getpid()}
        with pytest.raises(ConfigError, match="verb"):
            process.call("manager", "no", {})
    finally:
        process.stop()
    assert asked == [("yes", {"a": 1}), ("no", {})]


@each_case("is_paused", [False, True])
def test_the_death_of_the_parent_ends_the_nodes(is_paused: bool):
    program = f"""
import sys, dcpstream_node
node = dcpstream_node.Node(vbuckets=1, process=True).start()
if {is_paused}: node.pause()
print(node.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_there(pid)
        parent.kill()
    wait_until(lambda: not is_there(pid), "the node is an orphan")


@pytest.mark.slow
def test_a_parent_that_stops_nothing_ends_after_its_nodes(tmp_path: Path):
    """The nodes make a last commit. A file in the working directory is not taken for a module that a node needs."""
    (tmp_path / "sqlite3.py").write_text("raise SystemExit('a stranger')")
    program = """
import dcpstream_node
from dcpstream_node import process
process.SERVER_EXIT_TIMEOUT_S = 600  # the fork server kills nodes that are left after ten seconds
dcpstream_node.Node(vbuckets=1, process=True, path="data").start()
"""
    subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, check=True, timeout=TIMEOUT_S)
    (store,) = {path.parent for path in (tmp_path / "data").rglob("meta.sqlite")}
    assert check_store(store).was_closed


@pytest.mark.slow
def test_the_fork_server_is_waited_for_until_it_has_ended_its_nodes():
    from dcpstream_node import fork_server, process

    assert process.SERVER_EXIT_TIMEOUT_S > fork_server.LAST_STOP_S


AS_COMMAND = """
import sys
from contextlib import contextmanager
import dcpstream_node.commands.node
from dcpstream.cli.__main__ import main

@contextmanager
def announced(members, ready_file):
    tell()
    raise SystemExit
    yield

dcpstream_node.commands.node.announced = announced
sys.argv = ["dcpstream", "node", "--port", "0", "--mgmt-port", "0", "--vbuckets", "1024"]
main()
"""
AS_FORK = """
import os, socket
from dcpstream_node.fork_server import _Served
served = _Served(socket.socketpair()[0])
served._start({"vbuckets": 1024}, False, 30, os.getcwd())
tell()
served._node.stop()
"""
TELL = """
import gc
def tell():
    print(gc.get_freeze_count() > 50_000, len(gc.get_objects()) < 10_000)
"""


@pytest.mark.slow
@each_case("code", [AS_COMMAND, AS_FORK], ids=["command", "fork"])
def test_a_process_of_a_node_does_not_search_what_its_start_left_for_garbage(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TELL + code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout.splitlines()[:1] == ["True True"], done.stderr
