"""A bucket's creation that is cut short anywhere: the node starts, serves the others, and has all of it or nothing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dcpstream.cli.app import run
from dcpstream.errors import ConfigError, CorruptLog, DcpstreamError
from dcpstream.wire import Opcode, Status
from dcpstream_node import Node, embedded
from dcpstream_node.store import DiskBucketStore
from tests.kit.disks import StoppingDisk
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask

VBUCKETS = 2
POWER_CUTS = 6
"""Ends of each step: a kill (-1), and so many power cuts, of which the fast tests make two."""
CUTS = [(0, 3), *(pytest.param(cut, 1, marks=pytest.mark.slow) for cut in range(-1, POWER_CUTS))]
BLANK_TABLES = "CREATE TABLE store (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"


def started(path: Path, buckets: tuple[str, ...] = ("default",)) -> Node:
    return Node(buckets=buckets, vbuckets=VBUCKETS, path=path, flush_interval_s=0.001).start()


def fill(node: Node, bucket: bytes = b"default") -> None:
    with SocketPeer(node.port).open() as peer:
        assert peer.call(Opcode.SELECT_BUCKET, key=bucket).status == Status.SUCCESS
        assert peer.set("key", b"value").status == Status.SUCCESS
        peer.persisted(4)  # after the events of the scope _system


def is_served(node: Node, bucket: bytes = b"default") -> bool:
    with SocketPeer(node.port).open() as peer:
        if peer.call(Opcode.SELECT_BUCKET, key=bucket).status != Status.SUCCESS:
            return False
        return peer.get("key").value == b"value"


def make_blank_tables(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(BLANK_TABLES)


def make_unfinished(path: Path, what: str) -> None:
    """Files that versions before this one left when they were killed while they made a bucket."""
    path.mkdir()
    (path / "lock").touch()
    if what == "an empty file":
        (path / "meta.sqlite").touch()
    elif what == "blank tables":
        make_blank_tables(path / "meta.sqlite")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a bucket that holds a document."""
    node = started(tmp_path)
    fill(node)
    node.stop()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("what", ["an empty file", "blank tables", "the lock alone"])
def test_an_unfinished_creation_stops_no_node_and_is_removed(
    data: Path, what: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    make_unfinished(data / "shop", what)
    assert run(["store", "check", str(data)]) == 0
    assert f"{data}/shop: what an unfinished creation" in capsys.readouterr().out
    node = started(data)
    assert f"{data}/shop is what an unfinished creation of a bucket left, and was removed" in caplog.text
    assert not (data / "shop").exists()
    assert is_served(node)
    assert ask(node, "GET", "/health").status == 200
    node.create_bucket("shop")
    fill(node, b"shop")
    node.stop()
    node = started(data)
    assert is_served(node, b"shop")
    node.stop()


def damage(path: Path, what: str) -> None:
    file = path / "meta.sqlite"
    if what == "missing":
        file.unlink()
    elif what == "empty":
        file.write_bytes(b"")
    elif what == "blank tables":
        file.unlink()
        make_blank_tables(file)
    elif what == "truncated":
        file.write_bytes(file.read_bytes()[:5000])
    else:
        file.write_bytes(b"no database" * 1000)


@pytest.mark.parametrize("is_filled", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["missing", "empty", "blank tables", "truncated", "no database"])
def test_a_bucket_with_damaged_metadata_is_reported_everywhere(
    data: Path, what: str, is_filled: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    node = started(data)
    node.create_bucket("shop")
    if is_filled:
        fill(node, b"shop")
    uuid = node.engine.buckets["shop"].uuid
    node.stop()
    damage(data / "shop", what)
    found = {entry.name: entry.read_bytes() for entry in (data / "shop").iterdir() if entry.name != "lock"}

    for directory in (data, data / "shop"):
        assert run(["store", "check", str(directory)]) == 1
        assert "DAMAGED" in capsys.readouterr().out
    assert run(["store", "check", str(data), "--json"]) == 1
    stores = {Path(store["directory"]).name: store for store in json.loads(capsys.readouterr().out)["stores"]}
    assert stores["default"]["is_sound"]
    assert not stores["shop"]["is_sound"]

    caplog.clear()
    node = started(data)
    assert "bucket shop is not served: " in caplog.text
    assert "meta.sqlite: damaged at byte 0" in caplog.text
    assert is_served(node)
    with SocketPeer(node.port).open() as peer:
        assert peer.call(Opcode.SELECT_BUCKET, key=b"shop").status == Status.TMPFAIL
    health = ask(node, "GET", "/health")
    assert health.status == 503
    assert "meta.sqlite" in json.loads(health.body)["buckets"]["shop"]["damage"][0]
    page = ask(node, "GET", "/pools/default/buckets/shop")
    assert page.status == 503
    assert b"meta.sqlite: damaged" in page.body
    assert "not well: shop" in ask(node, "GET", "/ui").body.decode()
    with pytest.raises(ConfigError, match="damaged"):
        node.create_bucket("shop")
    node.stop()
    left = {entry.name: entry.read_bytes() for entry in (data / "shop").iterdir() if entry.name != "lock"}
    assert left == found, "what is damaged is left as it is"

    assert json.loads((data / ".node.json").read_text())["buckets"]["shop"]["uuid"] == uuid


@pytest.mark.parametrize("what", ["missing", "truncated", "no database"])
def test_a_damaged_bucket_that_nothing_else_names_is_reported(data: Path, what: str) -> None:
    node = started(data)
    node.create_bucket("shop")
    fill(node, b"shop")
    node.stop()
    (data / ".node.json").unlink()
    damage(data / "shop", what)
    assert run(["store", "check", str(data)]) == 1
    for _ in range(2):
        node = Node(path=data, flush_interval_s=0.001).start()  # with as many vbuckets as there are
        assert is_served(node)
        assert ask(node, "GET", "/health").status == 503
        node.stop()
    assert (data / "shop").exists()


def test_a_node_with_nothing_but_a_damaged_bucket_does_not_start_and_makes_no_other(data: Path) -> None:
    (data / "default" / "meta.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(CorruptLog, match=r"default/meta.sqlite: .*no file"):
            started(data)
    assert not (data / "default" / "meta.sqlite").exists()


def test_a_damaged_bucket_that_was_moved_away_is_forgotten(data: Path) -> None:
    node = started(data)
    node.create_bucket("shop")
    node.stop()
    (data / "shop" / "meta.sqlite").unlink()
    started(data).stop()
    (data / "shop").rename(data.parent / "moved")
    node = started(data)
    assert ask(node, "GET", "/health").status == 200
    node.create_bucket("shop")
    node.stop()


def test_a_store_does_not_make_new_metadata_next_to_segments(data: Path) -> None:
    (data / "default" / "meta.sqlite").unlink()
    with pytest.raises(CorruptLog, match="no file next to segments"):
        DiskBucketStore(data / "default", VBUCKETS)
    assert not (data / "default" / "meta.sqlite").exists()


# ------------------------------------------------------------------------------------ a creation that is cut anywhere


class Disks:
    """The disks of the nodes that are started, instead of the system's."""

    def __init__(self) -> None:
        self.disk = StoppingDisk()

    def __call__(self) -> StoppingDisk:
        return self.disk


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    made = Disks()
    monkeypatch.setattr(embedded, "FaultyDisk", made)
    return made


def check_after(path: Path, created: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever was left: sound or unfinished, the node starts, and the bucket is there if it was acknowledged."""
    assert run(["store", "check", str(path)]) in ({0} if any(path.iterdir()) else {2}), capsys.readouterr().out
    node = started(path)
    assert node.engine is not None
    assert node.engine.damaged == {}
    assert ask(node, "GET", "/health").status == 200
    assert "shop" in node.engine.buckets or not created
    if "shop" not in node.engine.buckets:
        node.create_bucket("shop")
    fill(node, b"shop")
    node.stop()
    names = {entry.name for entry in path.iterdir()}
    assert names == {"default", "shop", ".node.json"}
    node = started(path)
    assert is_served(node, b"shop")
    node.stop()


@pytest.mark.parametrize(("cut", "every"), CUTS)
def test_a_creation_is_cut_short_at_every_step(
    tmp_path: Path, disks: Disks, cut: int, every: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at = 1 - every
    while True:
        stop_at += every
        path = tmp_path / str(stop_at)
        disks.disk = StoppingDisk()
        node = started(path)
        fill(node)
        begun = len(disks.disk.steps)
        disks.disk.stop_at = begun + stop_at
        created = False
        with suppress(DcpstreamError):
            node.create_bucket("shop")
            created = True
        is_through = len(disks.disk.steps) < disks.disk.stop_at
        node.crash()
        if cut >= 0:
            disks.disk.cut_power(cut)
        disks.disk = StoppingDisk()
        check_after(path, created, capsys)
        node = started(path)
        assert is_served(node), "the other bucket has what was persisted"
        node.stop()
        if is_through:
            break
    assert stop_at > 8, "there are so many steps"


@pytest.mark.parametrize(("cut", "every"), CUTS)
def test_a_first_start_is_cut_short_at_every_step(
    tmp_path: Path, disks: Disks, cut: int, every: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at = 1 - every
    while True:
        stop_at += every
        path = tmp_path / str(stop_at)
        disks.disk = StoppingDisk(stop_at)
        with suppress(DcpstreamError):
            started(path).crash()
        is_through = len(disks.disk.steps) < stop_at
        if cut >= 0:
            disks.disk.cut_power(cut)
        disks.disk = StoppingDisk()
        if path.exists():
            check_after(path, created=False, capsys=capsys)
        if is_through:
            break
    assert stop_at > 8, "there are so many steps"


def test_a_creation_on_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path, disks: Disks) -> None:
    node = started(tmp_path)
    before = {entry.name for entry in tmp_path.iterdir()}
    disks.disk.is_full = True
    for steps in range(4):
        disks.disk.stop_after(steps)
        form = {"name": "shop", "ramQuota": "100", "numVBuckets": "2"}
        answer = ask(node, "POST", "/pools/default/buckets", form)
        assert answer.status == 500, steps
        assert b"No space left" in answer.body or b"made durable" in answer.body
        assert ask(node, "GET", "/pools/default/buckets/shop").status == 404
        assert {entry.name for entry in tmp_path.iterdir()} == before
    disks.disk.go_on()
    node.create_bucket("shop")
    fill(node, b"shop")
    node.stop()
    assert {entry.name for entry in tmp_path.iterdir()} == before | {"shop"}


def test_a_bucket_that_cannot_be_made_at_the_start_keeps_no_other_from_being_served(data: Path, disks: Disks) -> None:
    disks.disk.is_full = True
    disks.disk.stop_after(0)
    node = started(data, ("default", "shop"))
    assert is_served(node)
    health = ask(node, "GET", "/health")
    assert health.status == 503
    assert health.json["buckets"]["shop"]["status"] == "not served: files cannot be used"
    disks.disk.go_on()
    node.create_bucket("shop")
    assert ask(node, "GET", "/health").status == 200
    fill(node, b"shop")
    node.stop()
