"""The node's own files: flipped bits are told, `store check` finds them, nobody else reads them, one node has them."""

from __future__ import annotations

import json
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.cli.app import run
from dcpstream.errors import ConfigError, DcpstreamError, StoreError, StoreInUse
from dcpstream.model import BucketSettings
from dcpstream.runtime import SystemFileSystem
from dcpstream.wire import Opcode
from dcpstream_node import Node
from dcpstream_node.directory.directory import read_node_file
from dcpstream_node.directory.user_file import read_users_file
from dcpstream_node.store import DiskBucketStore
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.waiting import TIMEOUT_S

NODE_FILE, USERS_FILE = Path(".node.json"), Path(".security") / "users.json"
EPHEMERAL = BucketSettings(is_ephemeral=True, max_ttl=77)


def started(path: Path, **more: object) -> Node:
    more |= {"path": path, "flush_interval_s": 0.001, "system_scope": False}
    return Node(vbuckets=2, **more).start()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with buckets, users and certificates."""
    path = tmp_path_factory.mktemp("kept") / "data"
    node = started(path, tls=True)
    node.create_bucket("passing", EPHEMERAL)
    node.add_user("ann", "the password", ["data_reader[default]"])
    with SocketPeer(node.port).open() as peer:
        peer.set("key", b"value")
        peer.persisted(1)
    node.stop()
    return path


@pytest.fixture
def data(kept: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(kept, tmp_path / "data"))


def flips(file: Path) -> Iterator[tuple[str, bytes]]:
    """Each byte with one flipped bit, and cuts."""
    chance, content = random.Random(4), file.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << chance.randrange(8)
        yield f"bit of byte {at}", bytes(changed)
    for size in (0, 1, len(content) // 2, len(content) - 3):
        yield f"cut to {size}", content[:size]


@pytest.mark.slow
@pytest.mark.parametrize("file", [NODE_FILE, USERS_FILE])
def test_no_flipped_bit_changes_anything_silently(data: Path, file: Path) -> None:
    path = data / file
    read = (lambda: read_node_file(path)[1:]) if file == NODE_FILE else (lambda: read_users_file(path))
    right = read()
    told = 0
    for what, content in flips(path):
        path.write_bytes(content)
        error: DcpstreamError | None = None
        try:
            assert read() == right, what
        except (StoreError, ConfigError) as raised:
            error = raised
        if error is not None:
            told += 1
            assert str(path) in str(error)
            assert "estore it from a copy" in str(error)
            assert "or remove it" in str(error)
    assert told > 0.8 * path.stat().st_size


@pytest.mark.parametrize("file", [NODE_FILE, USERS_FILE, Path(".security/ca.pem"), Path(".security/server.key")])
def test_a_damaged_file_is_found_by_check_and_can_be_removed(
    data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["store", "check", str(data)]) == 0
    capsys.readouterr()
    content = bytearray((data / file).read_bytes())
    at = content.index(b"17", 0) if file == NODE_FILE and b"17" in content else len(content) // 2
    content[at] = ord("1") if content[at] != ord("1") else ord("2")
    (data / file).write_bytes(content)
    reported = file.with_suffix(".pem") if file.suffix == ".key" else file
    assert run(["store", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"{data / reported}:\n  DAMAGED" in out
    assert run(["store", "check", str(data), "--json"]) == 1
    content_json = json.loads(capsys.readouterr().out)
    assert [*content_json["node"]["damaged"]] == [str(data / reported)]
    assert all(store["is_sound"] for store in content_json["stores"])
    if file.name != "server.key":  # that one is signed anew by the authority
        with pytest.raises(DcpstreamError, match="remove it"):
            started(data, tls=True)

    for suffix in (".pem", ".key") if file.suffix in {".pem", ".key"} else (file.suffix,):
        (data / file).with_suffix(suffix).unlink()
    assert run(["store", "check", str(data)]) == 0
    node = started(data, tls=True)
    with SocketPeer(node.port).open() as peer:
        assert peer.get("key").value == b"value"
    node.stop()


def test_other_files_of_a_running_node_can_be_checked(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = started(data)
    assert run(["store", "check", str(data)]) == 0
    assert "open in a node" in capsys.readouterr().out
    node.stop()


# --------------------------------------------------------------------------------------------------------- who reads


def modes(path: Path) -> dict[str, int]:
    return {str(entry.relative_to(path)): stat.S_IMODE(entry.stat().st_mode) for entry in (path, *path.rglob("*"))}


def check_modes(path: Path) -> None:
    for name, mode in modes(path).items():
        assert mode == (0o700 if (path / name).is_dir() else 0o600), name


SERVE = """
import json, os, sys, threading
os.umask(int(sys.argv[1], 8))
from dcpstream.cli.app import run
sys.exit(run(["node", "--data", sys.argv[2], "--vbuckets", "2", "--port", "0", "--mgmt-port", "0", "--tls",
              "--tls-port", "0", "--mgmt-tls-port", "0", "--ready-file", sys.argv[3], "--flush-interval", "0.001",
              "--no-system-scope"]))
"""


class Ready:
    """The ports of a node in another process."""

    def __init__(self, file: Path) -> None:
        ports = json.loads(file.read_text())
        self.port, self.mgmt_port = ports["kv"], ports["mgmt"]


def wait_for(file: Path, child: subprocess.Popen[bytes]) -> Ready:
    deadline = time.monotonic() + TIMEOUT_S
    while not file.exists():
        assert child.poll() is None, "the node ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return Ready(file)


@pytest.mark.parametrize("umask", ["000", *(pytest.param(umask, marks=pytest.mark.slow) for umask in ("022", "177"))])
def test_nobody_else_reads_what_a_node_writes(tmp_path: Path, umask: str) -> None:
    path, ready = tmp_path / "data", tmp_path / "ready"
    child = subprocess.Popen([sys.executable, "-c", SERVE, umask, str(path), str(ready)])
    try:
        node = wait_for(ready, child)
        ask(node, "PUT", "/settings/rbac/users/local/ann", {"password": "secret1", "roles": "admin"})  # type: ignore[arg-type]
        form = {"name": "shop", "ramQuota": "100", "numVBuckets": "2"}
        assert ask(node, "POST", "/pools/default/buckets", form).status == 202  # type: ignore[arg-type]
        with SocketPeer(node.port).open() as peer:
            for number in range(40):
                assert peer.set("key", b"%d" % number * 1000).status == 0
                peer.persisted(number + 1)
            assert peer.call(Opcode.COMPACT_DB, extras=bytes(24)).status == 0
            peer.set("key", b"last")
            peer.persisted(41)
        found = {entry.name for entry in path.rglob("*")}
        assert {".node.json", "users.json", "server.key", "ca.pem", "meta.sqlite", "lock", "shop"} <= found
        assert "segment-0000000001.log" not in found, "it was compacted"
        check_modes(path)
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(TIMEOUT_S) == 0
    check_modes(path)


def test_what_an_older_version_left_open_to_others_is_closed_at_the_start(data: Path) -> None:
    for entry in (data, *data.rglob("*")):
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    started(data).stop()
    check_modes(data)


def test_a_directory_that_is_used_for_other_things_keeps_its_permissions(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").write_text("")
    started(tmp_path).stop()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    check_modes(tmp_path / "default")
    assert stat.S_IMODE((tmp_path / "notes.txt").stat().st_mode) & 0o044


# --------------------------------------------------------------------------------------------------- one node at a time


def test_a_second_node_does_not_start_on_a_directory_in_use(data: Path) -> None:
    node = started(data)
    for removed in ((), ("default/lock",), (".lock",)):
        for name in removed:
            (data / name).unlink(missing_ok=True)
        with pytest.raises(StoreInUse, match=f"{data} is in use by another node"):
            started(data)
        with pytest.raises(StoreInUse, match="in use"):
            DiskBucketStore(data / "default", 2)
    with SocketPeer(node.port).open() as peer:
        assert peer.get("key").value == b"value"
    node.stop()
    started(data).stop()


def test_a_node_whose_start_failed_lets_go_of_the_directory(data: Path) -> None:
    (data / NODE_FILE).write_text("{")
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be understood"):
            started(data)
    SystemFileSystem().lock_directory(data).release()
