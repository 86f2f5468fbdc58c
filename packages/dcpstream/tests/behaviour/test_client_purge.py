"""A first read that is cut, and resumed after the node has purged deletions: nodes of each release.

The same with a Couchbase server, from a bucket of your own with one vbucket, whose documents are removed first:

    SERVER=couchbase://host:port BUCKET=test DCPSTREAM_USERNAME=… DCPSTREAM_PASSWORD=… python -m pytest -n 0 THIS_FILE

The user needs the privilege NodeSupervisor, to compact the bucket. Rows must come from disk: on a server make the
bucket with checkpoint_max_size=1.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dcpstream.client import Change, Client, FileOffsetStore, KvClient, StreamOptions
from dcpstream.errors import HistoryPurged
from dcpstream.model import Op
from dcpstream.wire import Feature, Opcode
from dcpstream.wire.release import RELEASES
from dcpstream_node import Node
from tests.kit.access import LOGIN
from tests.kit.peer import FEATURES, SocketPeer
from tests.kit.waiting import wait_until

COUNT, GONE = 1000, 100
FEW = 10
"""Rows that a server may have in memory: fewer than the last tenth, which is read after a cut."""
SERVER = os.environ.get("SERVER", "")
LOG_IN = {
    "username": os.environ.get("DCPSTREAM_USERNAME", LOGIN["username"]),
    "password": os.environ.get("DCPSTREAM_PASSWORD", LOGIN["password"]),
}


class Bucket:
    """A bucket with one vbucket, a reader that keeps its positions, and a copy of the documents that it was given."""

    def __init__(self, server: str, name: str, store: Path) -> None:
        self.server = server
        self.name = name
        self.store = FileOffsetStore(store)
        self.wanted: dict[bytes, bytes] = {}
        self.found: dict[bytes, bytes] = {}
        self.owner = LOG_IN if server == SERVER else LOGIN
        self.user = self.owner
        """Who reads."""

    @property
    def login(self) -> dict[str, Any]:
        return {**self.owner, "bucket": self.name}

    def write(self, prefix: str, count: int) -> None:
        documents = {f"{prefix} {number:04}".encode(): b"x" * 100 for number in range(count)}
        with KvClient(self.server, **self.login) as kv:
            kv.set_many(documents.items())
        self.wanted |= documents

    def delete(self, keys: Sequence[bytes]) -> None:
        with KvClient(self.server, **self.login) as kv:
            kv.delete_many(keys)
        for key in keys:
            del self.wanted[key]

    def purge(self) -> None:
        """COMPACT_DB, which forgets every deletion, once everything is on disk."""
        with KvClient(self.server, **self.login) as kv:
            wait_until(lambda: is_on_disk(kv.stats("vbucket-seqno 0")))
        port = int(self.server.rpartition(":")[2].partition("?")[0])
        with contextlib.closing(SocketPeer(port)) as peer:
            peer.open(bucket=self.name, features=(*FEATURES, Feature.JSON))
            peer.succeed(Opcode.COMPACT_DB, extras=struct.pack(">QQBBHI", 0, 0, 1, 0, 0, 0))

    def read(self, count: int | None = None, **options: object) -> list[Change]:
        """Read up to now, or so many changes, and save the position."""
        read: list[Change] = []
        with Client(self.server, **{**self.login, **self.user}) as client:
            changes = client.changes(StreamOptions(end="latest", store=self.store, **options))  # type: ignore[arg-type]
            with contextlib.closing(changes):
                for change in changes:
                    if count is not None and len(read) == count:
                        break
                    read.append(change)
                    self._take(change)
        return read

    def leave_memory(self) -> None:
        """Write until a server has no row but the last ones in memory: rows of its open checkpoint come from there."""
        with KvClient(self.server, **self.login) as kv:
            for number in range(100):
                self.write(f"last {number}", 1)
                wait_until(lambda: is_on_disk(kv.stats("vbucket-seqno 0")))
                if int(kv.stats("checkpoint 0")["vb_0:num_checkpoint_items"]) <= FEW:
                    return
        raise AssertionError("the open checkpoint has many rows; make the bucket with checkpoint_max_size=1")

    def _take(self, change: Change) -> None:
        if change.op == Op.MUTATION:
            self.found[change.key] = change.value or b""
        elif change.op in {Op.DELETION, Op.EXPIRATION}:
            self.found.pop(change.key, None)
        elif change.op == Op.ROLLBACK:
            self.found.clear()


def is_on_disk(stats: Mapping[str, str]) -> bool:
    return stats["vb_0:last_persisted_seqno"] == stats["vb_0:high_seqno"]


def filled(bucket: Bucket, *, purges: bool = True) -> Bucket:
    """The first documents are deleted after the others were written, so that the purge seqno is near the end."""
    bucket.write("doc", COUNT)
    bucket.delete([f"doc {number:04}".encode() for number in range(GONE)])
    bucket.write("last", 1)
    if bucket.server == SERVER:
        bucket.leave_memory()
    if purges:
        bucket.purge()
    return bucket


@pytest.fixture(params=[SERVER] if SERVER else RELEASES)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    if SERVER:
        yield of_the_server(tmp_path)
        return
    node = Node(["default"], vbuckets=1, path=tmp_path / "data", release=request.param)
    with node:
        found = filled(Bucket(node.connection_string, "default", tmp_path / "positions"))
    with node:  # what was written before comes from disk
        found.server = node.connection_string
        yield found


def of_the_server(path: Path) -> Bucket:
    name = os.environ.get("BUCKET", "default")
    old = Bucket(SERVER, name, path / "old positions")
    old.read(on_rollback="rewind")
    old.wanted = dict(old.found)
    old.delete(list(old.found))
    return filled(Bucket(SERVER, name, path / "positions"))


def size_of(changes: Sequence[Change]) -> int:
    return sum(len(change.key) + len(change.value or b"") for change in changes)


def check_resumed(first: list[Change], second: list[Change]) -> None:
    """The second read goes on where the first one was cut, as if it had not been."""
    had = {change.seqno for change in first}
    again = size_of([change for change in second if change.seqno in had])
    print(f"{again} of {size_of(first)} bytes were read again: {100 * again / size_of(first):.1f} %")
    assert all(change.op != Op.ROLLBACK for change in second)
    assert again == 0
    assert 0.89 < len(first) / (len(first) + len(second)) < 0.91


def test_a_first_read_that_is_cut_at_90_percent_is_resumed(bucket: Bucket) -> None:
    first = bucket.read(round(0.9 * len(bucket.wanted)))
    check_resumed(first, bucket.read())
    assert bucket.found == bucket.wanted


def test_also_after_a_purge_of_what_was_deleted_before(tmp_path: Path) -> None:
    node = Node(["default"], vbuckets=1, path=tmp_path / "data")
    with node:
        bucket = filled(Bucket(node.connection_string, "default", tmp_path / "positions"), purges=False)
    with node:
        bucket.server = node.connection_string
        first = bucket.read(900)
        bucket.purge()
        second = bucket.read()
    assert all(change.op != Op.ROLLBACK for change in second)
    assert not {change.seqno for change in first} & {change.seqno for change in second}
    assert bucket.found == bucket.wanted


@pytest.mark.slow
@pytest.mark.parametrize("cut_at", [0.5, 0.95])
def test_it_may_be_cut_again(bucket: Bucket, cut_at: float) -> None:
    total = len(bucket.wanted)
    first = bucket.read(round(cut_at * total))
    bucket.write("new", 10)
    second = bucket.read(round(0.02 * total))
    third = bucket.read()
    read = [change.seqno for change in (*first, *second, *third)]
    assert read == sorted(set(read))
    assert bucket.found == bucket.wanted


@pytest.mark.slow
def test_a_deletion_that_the_reader_lacks_rolls_it_back(bucket: Bucket) -> None:
    bucket.read(round(0.9 * len(bucket.wanted)))
    bucket.delete(list(bucket.found)[:10])
    bucket.write("new", 1)
    bucket.purge()
    with pytest.raises(HistoryPurged):
        bucket.read()
    assert bucket.read(on_rollback="rewind")[0].op == Op.ROLLBACK
    assert bucket.found == bucket.wanted


def test_a_position_without_a_limit_is_rolled_back(bucket: Bucket) -> None:
    bucket.read()
    bucket.write("new", 20)
    bucket.read(10)
    bucket.delete(list(bucket.found)[:10])
    bucket.write("newer", 1)
    bucket.purge()
    assert bucket.read(on_rollback="rewind")[0].op == Op.ROLLBACK
    assert bucket.found == bucket.wanted


@pytest.mark.slow
@pytest.mark.parametrize(("release", "is_resumed"), [("7.2", False), ("8.0", True)])
def test_a_user_who_may_not_read_statistics(release: str, is_resumed: bool, tmp_path: Path) -> None:
    users = {
        "Administrator": {"password": "password", "privileges": ["all"]},
        "reader": {"password": "secret", "privileges": ["Read", "MetaRead", "DcpProducer", "DcpStream"]},
    }
    node = Node(["default"], vbuckets=1, path=tmp_path / "data", release=release, users=users)
    with node:
        bucket = filled(Bucket(node.connection_string, "default", tmp_path / "positions"))
    with node:
        bucket.server = node.connection_string
        bucket.user = {"username": "reader", "password": "secret"}
        bucket.read(900)
        assert (bucket.read(on_rollback="rewind")[0].op != Op.ROLLBACK) is is_resumed
    assert {key: value for key, value in bucket.found.items() if key in bucket.wanted} == bucket.wanted
