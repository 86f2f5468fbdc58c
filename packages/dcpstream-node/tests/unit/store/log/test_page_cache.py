"""The cache of verified pages."""

from __future__ import annotations

from dcpstream_node.store.log.page_cache import PageCache


def test_a_smaller_cache_holds_less_at_once() -> None:
    cache = PageCache(80)
    for offset in range(8):
        cache.put((1, offset), bytes(10))
    cache.capacity = 25
    assert (cache.stats.pages, cache.stats.size) == (2, 20)
    assert cache.get((1, 7)) == bytes(10)
