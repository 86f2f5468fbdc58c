"""The superseded versions that a bucket keeps, by age."""

from __future__ import annotations

from dcpstream.model import BucketSettings, FailoverLog, VbucketState
from dcpstream_node.engine.bucket.retention import Retention
from dcpstream_node.store import MemoryBucketStore
from tests.kit.engine import engine_of
from tests.kit.stores import key_of, put

AGE_S = 640


def retained():
    store = MemoryBucketStore(1, BucketSettings(history_retention_s=AGE_S))
    bucket = engine_of(store, vbuckets=1).buckets["default"]
    retention = Retention(bucket.store)
    retention.review(0)
    for _ in range(10):
        put(store.vbuckets[0], key_of("k"), b"v")
    retention.review(20)
    return store, retention


def test_what_is_old_is_not_kept():
    store, retention = retained()
    retention.review(AGE_S + 10)
    assert store.vbuckets[0].kept_from_seqno <= 1
    retention.review(AGE_S + 30)
    assert store.vbuckets[0].kept_from_seqno == 11


def test_after_a_rollback_the_age_restarts_also_if_more_was_written_before_the_next_look():
    store, retention = retained()
    log = store.vbuckets[0]
    log.rollback(2)
    for _ in range(20):
        put(log, key_of("k"), b"v")
    for now in (AGE_S, AGE_S + 30):
        retention.review(now)
        assert log.kept_from_seqno <= 3, "what came after the rollback is young"


def test_a_vbucket_that_is_recreated_has_its_own_age():
    store, retention = retained()
    log = store.create_vbucket(0, VbucketState.ACTIVE, FailoverLog.of((1, 0)))
    for _ in range(20):
        put(log, key_of("k"), b"v")
    for now in (AGE_S, AGE_S + 30):
        retention.review(now)
        assert log.kept_from_seqno <= 1
    store.delete_vbucket(0)
    retention.review(AGE_S + 40)
    assert not retention._marks
    assert not retention._branches
