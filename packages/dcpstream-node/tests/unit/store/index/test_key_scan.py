"""Questions about a vbucket's keys as a whole: those in a range, and the number of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.model import VbucketState
from dcpstream.wire.stored.block import Version, frame_kinds
from dcpstream.wire.stored.durable import encode_stored_prepare
from dcpstream_node.store import DiskBucketStore, MemoryBucketStore, VBucketLog, finish
from tests.kit.stores import LOG, key_of, put


@pytest.fixture(params=["disk", "memory"])
def log(request, tmp_path: Path):
    store = DiskBucketStore(tmp_path / "b", 1) if request.param == "disk" else MemoryBucketStore(1)
    with store:
        yield store.create_vbucket(0, VbucketState.ACTIVE, LOG)


def prepare(log: VBucketLog, key: bytes) -> int:
    """Append a prepare; returns its size."""
    seqno = log.high_seqno + 1
    frame = encode_stored_prepare(Version(key, b"v", 1), vbid=0, by_seqno=seqno, cas=1, level=1)
    log.append(frame, key, seqno, kinds=int(frame_kinds(frame[1], 0, key)))
    return len(frame)


def test_keys_in_a_range(log):
    for name in ("d", "a", "c", "b", "e"):
        put(log, key_of(name), b"v")
        put(log, key_of(name, b"\x09"), b"v")
    assert log.keys_between(key_of("b"), key_of("d")) == [key_of(name) for name in "bcd"]
    assert log.keys_between(key_of("b"), key_of("z"), 2) == [key_of("b"), key_of("c")]
    put(log, key_of("c"), None)
    prepare(log, key_of("bb"))
    assert log.keys_between(key_of("b"), key_of("d")) == [key_of("b"), key_of("d")]
    put(log, key_of("c"), b"again")
    assert log.keys_between(key_of("b"), key_of("d")) == [key_of(name) for name in "bcd"]
    assert log.keys_between(key_of("x"), key_of("z")) == []
    assert log.keys_between(key_of("d"), key_of("b")) == []


def test_counts(log):
    assert (finish(log.walk_collections()), log.deletion_count()) == ({0: 0}, 0)
    for name in "abc":
        put(log, key_of(name), b"v")
    put(log, key_of("a"), b"w")
    assert finish(log.walk_collections()) == {0: 3}
    put(log, key_of("a", b"\x09"), b"v")
    put(log, key_of("b", b"\x89\x01"), b"v")
    put(log, key_of("c"), None)
    assert (finish(log.walk_collections()), log.deletion_count()) == ({0: 2, 9: 1, 137: 1}, 1)
    prepare(log, key_of("d"))
    assert (finish(log.walk_collections()), log.deletion_count()) == ({0: 2, 9: 1, 137: 1}, 1)


def test_bytes(log):
    frames = [put(log, key_of("a"), b"x" * size) for size in (100, 50)]
    assert log.live_bytes == len(frames[1])
    assert log.prepare_bytes == 0
    sizes = [prepare(log, key_of(name)) for name in "aba"]
    assert log.prepare_bytes == sizes[1] + sizes[2]


def test_bytes_that_wait_for_the_disk(tmp_path):
    with DiskBucketStore(tmp_path / "b", 1) as store:
        log = store.create_vbucket(0, VbucketState.ACTIVE, LOG)
        first = put(log, key_of("a"), b"x")
        assert log.unflushed_bytes == len(first)
        store.commit()
        assert log.unflushed_bytes == 0
        second = put(log, key_of("b"), b"y" * 9)
        assert log.unflushed_bytes == len(second)
