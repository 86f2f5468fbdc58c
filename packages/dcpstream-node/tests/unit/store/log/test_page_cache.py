"""The cache of verified pages."""

from __future__ import annotations

from dcpstream_node.store.log.page_cache import CacheStats, PageCache


def test_large_pages_and_those_of_no_cache_are_not_kept() -> None:
    cache = PageCache(80)
    cache.put((1, 0), bytes(11))
    assert cache.get((1, 0)) is None
    cache.put((1, 0), bytes(10))
    assert cache.get((1, 0)) == bytes(10)
    cache = PageCache(0)
    cache.put((1, 0), b"x")
    assert cache.stats == CacheStats(0, 0, 0, 0, 0)


def test_a_smaller_cache_holds_less_at_once() -> None:
    cache = PageCache(80)
    for offset in range(8):
        cache.put((1, offset), bytes(10))
    cache.capacity = 25
    assert (cache.stats.pages, cache.stats.size) == (2, 20)
    assert cache.get((1, 7)) == bytes(10)


def test_pages_of_a_file_that_is_gone_are_forgotten() -> None:
    cache = PageCache(800)
    cache.put((1, 0), bytes(10))
    cache.put((2, 0), bytes(20))
    cache.put((1, 0), bytes(5))
    cache.forget(1)
    assert (cache.get((1, 0)), cache.get((2, 0))) == (None, bytes(20))
    assert cache.stats.size == 20
