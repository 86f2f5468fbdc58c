"""Streams of changes: a bucket that keeps superseded versions, and what a connection with `change_streams` gets."""

from __future__ import annotations

import pytest

from dcpstream.model import BucketSettings
from dcpstream.wire import MarkerFlag, Status
from dcpstream_node.engine.bucket.retention import Retention
from dcpstream_node.store.compact.compaction import CompactionOrder
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.kit.rules import rule
from tests.kit.streams import (
    CHECKPOINT,
    FROM_DISK,
    FROM_MEMORY,
    FRUIT,
    FRUIT_KEY,
    collection,
    manifest,
    read,
    sent,
    set_manifest,
)

HISTORY, REPEATS = int(MarkerFlag.HISTORY), int(MarkerFlag.MAY_DUPLICATE)
FROM_MEMORY_FIRST = FROM_MEMORY | CHECKPOINT | HISTORY
ALL_FROM_DISK = FROM_DISK | CHECKPOINT | HISTORY | REPEATS
KEEPING = BucketSettings(history_retention_s=3600)


def keeping(**options: object) -> SimulatedNode:
    return SimulatedNode(settings=KEEPING, **options)  # type: ignore[arg-type]


def producer(node: SimulatedNode) -> Peer:
    peer = node.producer()
    assert peer.control(b"change_streams", b"true").status == Status.SUCCESS
    return peer


def to_disk(node: SimulatedNode) -> None:
    """Count the present rows as on disk from now on."""
    for vbucket in node.bucket.vbuckets:
        assert vbucket is not None
        vbucket.close_checkpoint()


def rewrite(node: SimulatedNode, versions: int, key: str = "k") -> None:
    for number in range(versions):
        node.set_doc(1, key, b"%d" % number)


@rule("CTL-25")
def test_only_a_bucket_that_keeps_history_streams_changes() -> None:
    assert SimulatedNode().producer().control(b"change_streams", b"true").status == Status.NOT_SUPPORTED
    peer = keeping().producer()
    assert peer.control(b"change_streams", b"false").status == Status.EINVAL
    assert peer.control(b"change_streams", b"true").status == Status.SUCCESS


@rule("SNP-09", "SNP-11")
def test_from_disk_all_versions_come_in_a_snapshot_that_says_so() -> None:
    node = keeping()
    rewrite(node, 3)
    node.set_doc(1, "other")
    to_disk(node)
    assert sent(producer(node).stream(1)) == [(0, 4, ALL_FROM_DISK), 1, 2, 3, 4]


@rule("SNP-11")
def test_without_the_control_the_same_bucket_is_deduplicated() -> None:
    node = keeping()
    rewrite(node, 3)
    to_disk(node)
    assert sent(node.producer().stream(1)) == [(0, 3, FROM_DISK | CHECKPOINT), 3]


def test_from_memory_no_snapshot_repeats_a_key() -> None:
    node = keeping()
    node.set_doc(1, "a")
    rewrite(node, 2)
    node.set_doc(1, "b")
    node.set_doc(1, "k")
    frames = sent(producer(node).stream(1))
    memory = FROM_MEMORY | HISTORY
    assert frames == [(0, 2, FROM_MEMORY_FIRST), 1, 2, (3, 4, memory), 3, 4, (5, 5, memory), 5]


def test_a_live_stream_gets_every_version() -> None:
    node = keeping()
    peer = producer(node)
    peer.stream(1)
    peer.take()
    peer.is_reading = False  # all of it waits for the stream
    rewrite(node, 3)
    peer.is_reading = True
    node.pump()
    memory = FROM_MEMORY | HISTORY
    assert read(peer.take()) == [(0, 1, FROM_MEMORY_FIRST), 1, (2, 2, memory), 2, (3, 3, memory), 3]


def test_what_is_older_than_the_history_comes_before_without_repetitions() -> None:
    node = keeping()
    node.set_doc(1, "old")
    rewrite(node, 3)  # seqnos 2 to 4
    vbucket = node.bucket.vbuckets[1]
    assert vbucket is not None
    vbucket.log.kept_from_seqno = 5
    vbucket.log.horizon_seqno = 4
    rewrite(node, 2)  # 5 and 6
    node.set_doc(1, "k2")
    vbucket.log.kept_from_seqno = 5
    drop_superseded(node)
    to_disk(node)
    start = vbucket.history_start_seqno
    assert start == 5
    assert sent(producer(node).stream(1)) == [
        (0, 4, FROM_DISK | CHECKPOINT),
        1,
        ("advanced", 4),
        (5, 7, ALL_FROM_DISK),
        5,
        6,
        7,
    ]


def drop_superseded(node: SimulatedNode) -> None:
    """As a compaction does, without what is kept for rollbacks."""
    for vbucket in node.bucket.vbuckets:
        assert vbucket is not None
        vbucket.log.horizon_seqno = vbucket.high_seqno
    node.store.compact(CompactionOrder(is_full=True))


def test_a_client_that_resumes_within_the_history_gets_what_it_lacks() -> None:
    node = keeping()
    rewrite(node, 5)
    to_disk(node)
    assert sent(producer(node).stream(1, 2)) == [(2, 5, ALL_FROM_DISK), 3, 4, 5]


def test_deletions_are_versions_too() -> None:
    node = keeping()
    node.set_doc(1, "k")
    node.delete_doc(1, "k")
    node.set_doc(1, "k")
    to_disk(node)
    assert sent(producer(node).stream(1)) == [(0, 3, ALL_FROM_DISK), 1, 2, 3]


def test_purged_deletions_repeat_nothing() -> None:
    node = keeping()
    node.set_doc(1, "k")
    node.delete_doc(1, "k")
    node.set_doc(1, "other")
    log = node.store.vbuckets[1]
    assert purge(log, 2, 1 << 40) == 1
    data = [item for item in sent(producer(node).stream(1)) if isinstance(item, int)]
    assert data == [1, 3]


def test_a_collection_without_history_is_deduplicated_within_it() -> None:
    node = keeping()
    fruit = collection("fruit", FRUIT, history=False)
    set_manifest(node, manifest(1, default=[fruit]))
    for _ in range(2):
        node.set_doc(1, "apple", collection=FRUIT_KEY)
        node.set_doc(1, "k")
    to_disk(node)
    frames = sent(producer(node).stream(1))
    assert frames == [(0, 5, ALL_FROM_DISK), ("event", 1, 0), 3, 4, 5]


def test_documents_of_a_dropped_collection_are_no_history() -> None:
    node = keeping()
    set_manifest(node, manifest(1, default=[collection("fruit", FRUIT, history=True)]))
    node.set_doc(1, "apple", collection=FRUIT_KEY)
    node.set_doc(1, "k")
    set_manifest(node, manifest(2))
    to_disk(node)
    frames = sent(producer(node).stream(1))
    assert [frame for frame in frames if isinstance(frame, int)] == [3]


@pytest.mark.parametrize("is_clean", [True, False])
def test_history_survives_a_restart(tmp_path, is_clean: bool) -> None:
    node = keeping(path=tmp_path)
    rewrite(node, 3)
    node.flush()
    node.restart(clean=is_clean)
    assert sent(producer(node).stream(1))[0:4] == [(0, 3, ALL_FROM_DISK), 1, 2, 3]


def test_history_is_kept_for_its_time_and_size() -> None:
    node = SimulatedNode(settings=BucketSettings(history_retention_s=100))
    retention = Retention(node.bucket.store)
    log = node.store.vbuckets[1]
    retention.review(0)
    rewrite(node, 3)
    retention.review(10)
    assert log.kept_from_seqno == 0
    rewrite(node, 3)
    retention.review(50)
    retention.review(111)
    assert log.kept_from_seqno == 4
    node.store.settings = BucketSettings(history_retention_bytes=4 * 200)
    retention.review(112)
    frame = log.rows.end // 6
    assert log.kept_from_seqno == 7 - 200 // frame
    node.store.settings = BucketSettings()
    retention.review(113)
    assert not log.keeps_history
