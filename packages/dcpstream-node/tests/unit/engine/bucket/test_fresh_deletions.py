from __future__ import annotations

import sys

from dcpstream_node.engine.bucket.fresh_deletions import FRESH_MAX, FreshDeletions

NOW = 1_700_000_000_000_000_000
TOLD, DELETED_AT = 7, 9


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
