"""A bucket's memory quota, and the pager that expires documents nobody looks at."""

from __future__ import annotations

import asyncio
import struct

import pytest

from dcpstream.model import BucketSettings
from dcpstream.model.settings import MIN_RAM_QUOTA_BYTES
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream_node import Node
from dcpstream_node.rest.health import state_of
from dcpstream_node.tasks.maintenance import Maintenance
from lab.tools.patience import patient
from tests.kit.peer import SocketPeer
from tests.kit.waiting import wait_until

SETTINGS = BucketSettings(ram_quota_bytes=MIN_RAM_QUOTA_BYTES)


def on_loop(node: Node, call):
    """Run a coroutine function on the node's loop and return its result."""
    assert node._loop is not None

    async def run():
        return await call()

    return asyncio.run_coroutine_threadsafe(run(), node._loop).result(patient(20))


def maintenance_of(node: Node):
    tasks = node.engine.bucket_host.tasks["default"]
    return next(task for task in tasks if isinstance(task, Maintenance))


def check_quota(node: Node) -> None:
    async def check():
        maintenance_of(node).check_quota()

    on_loop(node, check)


@pytest.fixture(params=["memory", "disk"])
def node(request, tmp_path):
    with Node(
        vbuckets=2, path=tmp_path if request.param == "disk" else None, settings=SETTINGS, system_scope=False
    ) as running:
        yield running


def test_beyond_the_quota_writes_are_refused_and_deletions_are_not(node):
    store = node.engine.buckets["default"].store
    with SocketPeer(node.port).open() as peer:
        assert peer.set("k", b"v").status == 0
        peer.persisted(1)
        assert 0 < store.memory_bytes < 10_000
        type(store).cached_bytes, usual = property(lambda _: MIN_RAM_QUOTA_BYTES), type(store).cached_bytes
        try:
            check_quota(node)
            refused = peer.set("other", b"v")
            assert refused.status == Status.TMPFAIL
            assert b"quota of 104857600 bytes" in refused.value
            assert state_of(node.engine.buckets["default"])["status"] == "the memory quota is reached"
            assert peer.get("k").value == b"v"
            assert peer.call(Opcode.DELETE, key=b"\0k").status == 0
        finally:
            type(store).cached_bytes = usual
        check_quota(node)
        assert peer.set("other", b"v").status == 0


def test_a_bucket_in_memory_counts_its_documents():
    with Node(vbuckets=1, settings=SETTINGS, system_scope=False) as node, SocketPeer(node.port).open() as peer:
        before = node.engine.buckets["default"].store.memory_bytes
        peer.set("k", bytes(1_000_000))
        assert 1_000_000 < node.engine.buckets["default"].store.memory_bytes - before < 1_001_000


def test_a_bucket_on_disk_may_hold_more_than_its_quota(tmp_path):
    with (
        Node(vbuckets=1, path=tmp_path, flush_interval_s=0.001, settings=SETTINGS, system_scope=False) as node,
        SocketPeer(node.port).open() as peer,
    ):
        for number in range(12):
            assert peer.set(f"k{number}", bytes(10_000_000)).status == 0
            peer.persisted(number + 1)
            check_quota(node)
        assert node.engine.buckets["default"].store.memory_bytes < MIN_RAM_QUOTA_BYTES
        assert len(peer.get("k0").value) == 10_000_000


def test_the_pager_expires_what_nobody_looks_at(node):
    count = 500  # more than one portion
    long_ago = 40 * 24 * 3600  # seconds since 1970
    with SocketPeer(node.port).open() as peer:
        for number in range(count):
            extras = struct.pack(">II", 0, long_ago)
            request = encode_request(Opcode.SET, key=b"\0old%d" % number, value=b"v", extras=extras)
            peer.socket.sendall(request)
        assert [peer.read().status for _ in range(count)] == [0] * count
        peer.set("young", b"v")
        bucket = node.engine.buckets["default"]
        assert bucket.item_count() == count + 1
        node.inject("move_clock", seconds=2)  # nothing expires in the first second of a node
        assert on_loop(node, lambda: maintenance_of(node).page()) == count
        assert bucket.item_count() == 1
        assert peer.get("young").value == b"v"
        assert on_loop(node, lambda: maintenance_of(node).page()) == 0


def test_the_pager_goes_to_work_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("dcpstream_node.tasks.maintenance.QUOTA_INTERVAL_S", 0.01)
    settings = BucketSettings(expiry_pager_s=0.01)
    with (
        Node(vbuckets=1, path=tmp_path, settings=settings, system_scope=False) as node,
        SocketPeer(node.port).open() as peer,
    ):
        peer.call(Opcode.SET, key=b"\0old", value=b"v", extras=struct.pack(">II", 0, 40 * 24 * 3600))
        bucket = node.engine.buckets["default"]
        wait_until(lambda: not bucket.item_count())
