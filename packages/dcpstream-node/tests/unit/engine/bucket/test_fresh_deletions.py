from __future__ import annotations

import sys

from dcpstream_node.engine.bucket.fresh_deletions import FRESH_MAX, UNTIL_NS, FreshDeletions
from tests.kit.cases import each_case

NOW = 1_700_000_000_000_000_000
TOLD, DELETED_AT = 7, 9


def test_a_deletion_in_memory_is_fresh_for_a_while() -> None:
    fresh = FreshDeletions()
    fresh.add(b"k", 5, TOLD, NOW, None)
    assert fresh.time_of(b"k", 5, DELETED_AT, NOW + UNTIL_NS - 1, None) == TOLD
    assert fresh.time_of(b"k", 5, DELETED_AT, NOW + UNTIL_NS, None) == DELETED_AT


@each_case("is_durable", [True, False])
def test_deletions_that_are_persisted_are_forgotten_at_the_next_one(is_durable: bool) -> None:
    fresh = FreshDeletions()
    for seqno in range(1, 101):
        persisted = seqno - 3 if is_durable else None
        fresh.add(b"k%d" % seqno, seqno, TOLD, NOW + seqno * UNTIL_NS // 2, persisted)
        assert len(fresh) <= 3
    last = NOW + 100 * UNTIL_NS // 2
    assert fresh.time_of(b"k100", 100, DELETED_AT, last, 97 if is_durable else None) == TOLD
    assert fresh.time_of(b"k99", 99, DELETED_AT, last, 97 if is_durable else None) == TOLD


def test_a_key_that_is_deleted_again_does_not_keep_older_ones() -> None:
    fresh = FreshDeletions()
    fresh.add(b"again", 1, TOLD, NOW, 0)
    fresh.add(b"other", 2, TOLD, NOW, 0)
    fresh.add(b"again", 3, TOLD, NOW, 0)
    fresh.add(b"new", 4, TOLD, NOW, 2)
    assert list(fresh) == [b"again", b"new"]


def test_the_room_of_many_deletions_is_given_back() -> None:
    fresh = FreshDeletions()
    for seqno in range(1, FRESH_MAX):
        fresh.add(b"k%d" % seqno, seqno, TOLD, NOW, 0)
    large = sys.getsizeof(fresh)
    fresh.add(b"last", FRESH_MAX, TOLD, NOW, FRESH_MAX - 1)
    assert list(fresh) == [b"last"]
    assert sys.getsizeof(fresh) < large // 10


def test_deletions_that_nobody_persists_are_bounded() -> None:
    fresh = FreshDeletions()
    for seqno in range(1, 3 * FRESH_MAX):
        fresh.add(b"k%d" % seqno, seqno, TOLD, NOW, 0)
        assert len(fresh) <= FRESH_MAX
