"""A node that is started on a full disk: it serves what is there, and takes writes durably once there is room again."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import BucketSettings, FailoverEntry, Persist
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream.wire.values import decode_failover_log
from dcpstream_node import Node
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.closed.check import check_store
from dcpstream_node.store.metadata import Metadata
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.stores import fill, key_of, put, read_all
from tests.kit.waiting import wait_until

DISK_BYTES = 2 * 1024 * 1024
VBUCKETS = 4
DOCUMENTS = 30


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a disk cannot be mounted here: that takes the rights of root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up(disk: Path) -> None:
    """Leave no byte."""
    descriptor = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
    finally:
        os.close(descriptor)
    with pytest.raises(OSError, match="No space"), (disk / "another").open("wb", buffering=0) as file:
        file.write(b"x")
    (disk / "another").unlink()


def started(path: Path, persist: str = "group") -> Node:
    settings = BucketSettings(persist=Persist(persist))
    return Node(vbuckets=VBUCKETS, path=path, flush_interval_s=0.001, settings=settings, system_scope=False).start()


def log_of(peer: SocketPeer) -> list[tuple[int, int]]:
    log = decode_failover_log(peer.call(Opcode.GET_FAILOVER_LOG, vbid=0).value)
    return [(entry.vbuuid, entry.seqno) for entry in log.entries]


def check_reads(node: Node) -> None:
    with SocketPeer(node.port).open() as peer:
        for number in range(DOCUMENTS):
            assert peer.get(f"key {number}").value == b"value %d" % number


@pytest.mark.parametrize("persist", ["group", pytest.param("every", marks=pytest.mark.slow)])
@pytest.mark.parametrize("was_clean", [True, False])
def test_a_node_serves_what_is_on_a_full_disk(
    disk: Path, was_clean: bool, persist: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = disk / "data"
    node = started(data, persist)
    with SocketPeer(node.port).open() as peer:
        for number in range(DOCUMENTS):
            assert peer.set(f"key {number}", b"value %d" % number).status == Status.SUCCESS
        peer.persisted(DOCUMENTS)
        before = log_of(peer)
    if was_clean:
        node.stop()
    else:
        node.crash()
    fill_up(disk)

    node = started(data, persist)
    check_reads(node)
    assert "is opened for reading, because the disk takes no writes" in caplog.text
    with SocketPeer(node.port).open() as peer:
        # A client that has everything goes on, whether or not there is a new branch.
        log = log_of(peer)
        assert (log == before) == was_clean
        assert log[-len(before) :] == before
        peer.socket.sendall(encode_request(Opcode.SET, key=b"\0more", value=b"x" * 100, extras=bytes(8)))
        if persist == "every":
            assert peer.is_closed(), "nobody can say whether the write was made durable"
        else:
            written = peer.read()
            assert written is not None
            assert written.status == Status.SUCCESS
    wait_until(lambda: ask(node, "GET", "/health").status == 503, "a commit fails")
    if persist == "every":
        with SocketPeer(node.port).open() as peer:
            assert peer.set("refused", b"x").status == Status.TMPFAIL
    assert ask(node, "GET", "/health").json["buckets"]["default"]["status"] == "persistence is failing"
    check_reads(node)

    (disk / "filler").unlink()
    wait_until(lambda: ask(node, "GET", "/health").status == 200, "commits succeed again")
    with SocketPeer(node.port).open() as peer:
        assert peer.set("and", b"y").status == Status.SUCCESS
        peer.persisted(DOCUMENTS + 2)
        log = log_of(peer)
    node.crash()

    node = started(data, persist)
    check_reads(node)
    with SocketPeer(node.port).open() as peer:
        assert peer.get("and").value == b"y"
        assert log_of(peer)[1:] == log, "the branch that was made on the full disk is on it now"
    node.stop()
    assert check_store(data / "default").is_sound


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_full_disk_that_stays_full_loses_nothing(disk: Path, was_clean: bool) -> None:
    data = disk / "data"
    node = started(data)
    with SocketPeer(node.port).open() as peer:
        for number in range(DOCUMENTS):
            peer.set(f"key {number}", b"value %d" % number)
        peer.persisted(DOCUMENTS)
    if was_clean:
        node.stop()
    else:
        node.crash()
    fill_up(disk)
    for is_clean in (True, False, True):
        node = started(data)
        check_reads(node)
        if is_clean:
            node.stop()
        else:
            node.crash()
        assert check_store(data / "default").is_sound
        assert check_store(data / "default").was_closed == was_clean
    (disk / "filler").unlink()
    node = started(data)
    check_reads(node)
    assert ask(node, "GET", "/health").status == 200
    node.stop()


@pytest.mark.slow
@pytest.mark.parametrize("is_crash", [True, False])
def test_a_disk_that_filled_up_under_writes(disk: Path, is_crash: bool) -> None:
    data, reserve = disk / "data", disk / "reserve"
    reserve.write_bytes(bytes(DISK_BYTES // 4))
    node = started(data, "every")
    answered: list[int] = []
    with SocketPeer(node.port).open() as peer:
        while True:
            number = len(answered)
            request = encode_request(Opcode.SET, key=b"\0key %d" % number, value=os.urandom(9000), extras=bytes(8))
            peer.socket.sendall(request)
            answer = peer.read()
            if answer is None or answer.status != Status.SUCCESS:
                break
            answered.append(number)
    assert len(answered) > DISK_BYTES // 20_000
    fill_up(disk)
    if is_crash:
        node.crash()
    else:
        with pytest.raises(StoreError, match="is closed without the last"):
            node.stop()
    for _ in range(2):
        node = started(data, "every")
        with SocketPeer(node.port).open() as peer:
            for number in answered:
                assert peer.get(f"key {number}").status == Status.SUCCESS
        node.crash()
    reserve.unlink()
    node = started(data, "every")
    with SocketPeer(node.port).open() as peer:
        assert all(peer.get(f"key {number}").status == Status.SUCCESS for number in answered)
    node.stop()
    assert check_store(data / "default").is_sound


# ------------------------------------------------------------------------------------------------ on any machine


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A switch: the disk takes nothing for the metadata, as SQLite tells it."""
    real, state = Metadata.put, {"is_full": False}

    def put_or_fail(self: Metadata, *arguments: object, **more: object) -> None:
        if state["is_full"]:
            cause = sqlite3.OperationalError("database or disk is full")
            cause.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise StoreError("cannot be written") from cause
        real(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Metadata, "put", put_or_fail)
    return lambda is_full: state.update(is_full=is_full)


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_store_is_opened_and_writes_nothing_before_it_says_so(
    tmp_path: Path, full: Callable[[bool], None], was_clean: bool
) -> None:
    with DiskBucketStore(tmp_path, 2) as store:
        fill(store)
        frames = [put(store.vbuckets[0], key_of(number), b"v") for number in range(3)]
        store.commit()
        if not was_clean:
            store.close(clean=False)
    full(True)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    store = DiskBucketStore(tmp_path, 2)
    assert store.was_clean == was_clean
    branched = store.vbuckets[0].failover_log.pushed(FailoverEntry(0xDEF, 3))
    with store.metadata_batch(may_wait=True):
        store.vbuckets[0].failover_log = branched
    assert read_all(store.vbuckets[0], 0, 9) == frames
    frames.append(put(store.vbuckets[0], key_of("more"), b"v"))
    for _ in range(2):
        with pytest.raises(StoreError, match="not persisted"):
            store.commit()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files, "nothing was written"
    full(False)
    assert store.commit() == [(0, 4)]
    store.close(clean=False)
    with DiskBucketStore(tmp_path, 2) as store:
        assert not store.was_clean
        assert store.vbuckets[0].failover_log == branched
        assert read_all(store.vbuckets[0], 0, 9) == frames


def test_a_store_that_was_only_read_on_a_full_disk_is_closed_cleanly(
    tmp_path: Path, full: Callable[[bool], None]
) -> None:
    with DiskBucketStore(tmp_path, 2) as store:
        fill(store)
        put(store.vbuckets[0], key_of("a"), b"v")
    full(True)
    DiskBucketStore(tmp_path, 2).close()
    with DiskBucketStore(tmp_path, 2) as store:
        assert store.was_clean
