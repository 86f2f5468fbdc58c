"""Reading history from disk in threads, so that the node's loop does not wait for the disk.

A stream that reads history never waits for the disk. A few threads read the pieces that are not in memory, in the order
of the streams' requests; then each stream continues from memory. A stream requests one piece of about a megabyte at a
time, so hundreds of streams share the disk evenly.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

from dcpstream_node.engine import Bucket
from dcpstream_node.shell.server import KvServer
from dcpstream_node.store.log.segment_file import Piece

FETCHERS = 4
"""Reading threads per bucket: enough to keep a disk busy without overloading it."""

MAX_FETCHED = 20_000
"""Largest number of fetched places that no stream has read yet; their streams may have ended."""


class Prefetcher:
    """Fetches for the streams of one bucket."""

    def __init__(self, server: KvServer, bucket: Bucket) -> None:
        self._server = server
        self._bucket = bucket
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(FETCHERS, thread_name_prefix=f"dcpstream-fetch-{bucket.name}")
        self._under_way: set[tuple[int, int]] = set()
        self._fetched: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Begin to fetch for the bucket's streams."""
        self._bucket.set_fetcher(self)

    def fetch(self, vbid: int, after_seqno: int, pieces: list[Piece]) -> None:
        """See `Fetcher`."""
        place = vbid, after_seqno
        if place not in self._under_way:
            self._under_way.add(place)
            future = self._executor.submit(self._bucket.store.fetch, pieces)
            future.add_done_callback(lambda done: self._call(place, done))

    def _call(self, place: tuple[int, int], done: Future[None]) -> None:
        if not done.cancelled():
            self._loop.call_soon_threadsafe(self._finished, place)

    def _finished(self, place: tuple[int, int]) -> None:
        self._under_way.discard(place)
        if len(self._fetched) >= MAX_FETCHED:
            self._fetched.clear()
        self._fetched.add(place)
        self._bucket.dirty.add(place[0])
        self._server.schedule_turn()

    def has_fetched(self, vbid: int, after_seqno: int) -> bool:
        """See `Fetcher`."""
        place = vbid, after_seqno
        if place in self._fetched:
            self._fetched.discard(place)
            return True
        return False

    async def stop(self) -> None:
        """End, after the reads in progress; waiting ones are dropped."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
