"""`store check` over files with flipped bits and cut ends: an answer, never a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from dcpstream.cli.app import run
from dcpstream.errors import DcpstreamError
from dcpstream.model import BucketSettings
from dcpstream.wire import Opcode
from dcpstream_node import Node
from dcpstream_node.store import DiskBucketStore
from tests.kit.peer import SocketPeer

FAST_CHANGES, SLOW_CHANGES = 4, 200
"""Changes of each file."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with several segments, collections, users and certificates."""
    path = tmp_path_factory.mktemp("kept") / "data"
    node = Node(vbuckets=2, path=path, flush_interval_s=0.001, segment_bytes=3000, tls=True, system_scope=False).start()
    node.create_bucket("passing", BucketSettings(is_ephemeral=True))
    node.set_collections("default", {"_default": ["hotels"]})
    node.add_user("ann", "the password", ["data_reader[default]"])
    with SocketPeer(node.port).open() as peer:
        for number in range(6):
            peer.set(f"key {number % 3}", b"value" * 200)
            peer.persisted(number + 1)
        peer.call(Opcode.SET, key=b"x", value=b"y", vbid=1, extras=bytes(8))
    node.stop()
    return path


def changed(content: bytes, chance: random.Random) -> bytes:
    """Bits flipped, bytes written over, or the end cut off."""
    kind = chance.randrange(4)
    if kind == 0 or not content:
        return content[: chance.randrange(len(content) + 1)]
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    if kind == 1:
        at = chance.randrange(len(data))
        data[at : at + 16] = chance.randbytes(len(data[at : at + 16]))
    if kind == 2:
        # Where SQLite keeps what it says of its pages, and the first lines: more of it means something.
        data[chance.randrange(min(200, len(data)))] = chance.randrange(256)
    return bytes(data)


def fuzz(kept: Path, place: Path, changes: int, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    chance, told = random.Random(77), {}
    for file in sorted(entry.relative_to(kept) for entry in kept.rglob("*") if entry.is_file()):
        content = (kept / file).read_bytes()
        told[str(file)] = 0
        for number in range(changes if content else 1):
            data = place / "data"
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(kept, data)
            (data / file).write_bytes(changed(content, chance))
            why = f"change {number} of {file}"
            status = run(["store", "check", str(data)])
            assert status in (0, 1), (why, capsys.readouterr())
            told[str(file)] += status
            capsys.readouterr()
            try:
                DiskBucketStore(data / "default", 2).close()
            except DcpstreamError:
                assert status, f"{why}: sound by check, and cannot be opened"
    return told


def check_told(told: dict[str, int], changes: int) -> None:
    assert all(told[name] > 0.9 * changes for name in (".node.json", ".security/users.json")), told
    segments = [count for name, count in told.items() if "segment" in name]
    assert all(count > 0.5 * changes for count in segments), told


def test_some_changes_of_every_file(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_told(fuzz(kept, tmp_path, FAST_CHANGES, capsys), FAST_CHANGES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_changes_of_every_file(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_told(fuzz(kept, tmp_path, SLOW_CHANGES, capsys), SLOW_CHANGES)


def test_metadata_cut_at_every_page(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (kept / "default" / "meta.sqlite").read_bytes()
    for size in [*range(0, len(content), 4096), 1, 15, 99, 100, 101, len(content) - 1]:
        data = Path(shutil.copytree(kept, tmp_path / str(size)))
        (data / "default" / "meta.sqlite").write_bytes(content[:size])
        assert run(["store", "check", str(data)]) == 1, size
        assert "DAMAGED" in capsys.readouterr().out
