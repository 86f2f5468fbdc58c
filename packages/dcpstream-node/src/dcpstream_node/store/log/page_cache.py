"""A cache of verified pages of segment files, for reads by key. The least recently used pages go first.

Reads by seqno do not use it: a backfill reads each page once, and would only push out pages that are read again.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

LARGEST_SHARE = 8
"""A page larger than an 8th of the cache is not kept, so that one large document does not push out all others."""


class CacheStats(NamedTuple):
    """Counts of a cache since it was made, and its contents."""

    hits: int
    misses: int
    pages: int
    size: int
    capacity: int


class PageCache:
    """Verified pages by (number of the file, offset in it).

    Args:
        capacity: bytes of pages; 0 keeps none. The overhead of a page, some 150 bytes, is not counted.
    """

    __slots__ = ("_capacity", "_hits", "_lock", "_misses", "_pages", "_size")

    def __init__(self, capacity: int) -> None:
        self._lock = Lock()
        self._pages: dict[tuple[int, int], bytes] = {}
        self._capacity = capacity
        self._size = 0
        self._hits = 0
        self._misses = 0

    @property
    def capacity(self) -> int:
        """The largest number of bytes that are kept; a smaller value takes effect at once."""
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        with self._lock:
            self._capacity = capacity
            self._shrink()

    @property
    def stats(self) -> CacheStats:
        """Counts and sizes."""
        with self._lock:
            return CacheStats(self._hits, self._misses, len(self._pages), self._size, self._capacity)

    def get(self, key: tuple[int, int]) -> bytes | None:
        """A page, which becomes the most recently used one."""
        with self._lock:
            page = self._pages.pop(key, None)
            if page is None:
                self._misses += 1
                return None
            self._hits += 1
            self._pages[key] = page
            return page

    def put(self, key: tuple[int, int], page: bytes) -> None:
        """Keep a page that was verified."""
        if len(page) * LARGEST_SHARE > self._capacity:
            return
        with self._lock:
            earlier = self._pages.pop(key, None)
            self._pages[key] = page
            self._size += len(page) - (0 if earlier is None else len(earlier))
            self._shrink()

    def forget(self, number: int) -> None:
        """Drop all pages of a file."""
        with self._lock:
            for key in [key for key in self._pages if key[0] == number]:
                self._size -= len(self._pages.pop(key))

    def _shrink(self) -> None:
        while self._size > self._capacity:
            oldest = next(iter(self._pages))
            self._size -= len(self._pages.pop(oldest))
