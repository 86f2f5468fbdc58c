"""Regular work on a bucket: the memory quota, the retention of history, and the expiry of documents.

One task per bucket on the node's loop. Each check is short, and the expiry pager works in small portions, so that
clients are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from dcpstream.errors import DcpstreamError
from dcpstream_node.engine import Bucket
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.retention import Retention
from dcpstream_node.shell.server import KvServer

logger = logging.getLogger(__name__)

QUOTA_INTERVAL_S = 0.5
"""Interval of checks of a bucket's memory, one or two milliseconds each with 1,024 vbuckets. It bounds how far writes
at full speed exceed the quota."""

QUOTA_FREE_SHARE = 0.95
"""Writes are accepted again below this share of the quota, so that a full bucket does not alternate."""

REPEAT_LOG_S = 60.0
"""Interval of log lines while the work fails."""

PAGER_PORTION = 200
"""Documents that the pager expires before it yields the loop: some milliseconds of work."""


class Maintenance:
    """Keeps one bucket in order until stopped."""

    def __init__(self, server: KvServer, bucket: Bucket) -> None:
        self._server = server
        self._bucket = bucket
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._keeps_history = False
        self._logged_at = -REPEAT_LOG_S
        self._retention = Retention(bucket.store)
        self._retention.review(asyncio.get_running_loop().time())

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"maintenance {self._bucket.name}")

    async def stop(self) -> None:
        """End."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        paged_at = loop.time()
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), QUOTA_INTERVAL_S)
            try:
                self.check_quota()
                self.review_history()
                pause_s = self._bucket.settings.expiry_pager_s
                if pause_s and loop.time() - paged_at >= pause_s:
                    try:
                        await self.page()
                    finally:
                        paged_at = loop.time()
            except DcpstreamError as error:
                self._log(error, None)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the checks of the quota
                self._log(error, error)

    def _log(self, error: Exception, trace: Exception | None) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= REPEAT_LOG_S:
            self._logged_at = now
            logger.error("bucket %s: upkeep: %s", self._bucket.name, error, exc_info=trace)

    def review_history(self) -> None:
        """Update which superseded versions are kept; none after history was switched off."""
        keeps = self._bucket.settings.keeps_history
        if keeps or self._keeps_history:
            self._retention.review(asyncio.get_running_loop().time())
        self._keeps_history = keeps

    def check_quota(self) -> None:
        """Refuse writes while the bucket exceeds its memory quota; accept them again when enough is free."""
        store, quota = self._bucket.store, self._bucket.settings.ram_quota_bytes
        # The cache shrinks first: cached pages must not make writes fail.
        others = store.memory_bytes - store.cached_bytes
        store.fit_cache(int(quota * QUOTA_FREE_SHARE) - others)
        taken = others + store.cached_bytes
        is_over = taken > (quota * QUOTA_FREE_SHARE if self._is_over else quota)
        if is_over != self._is_over:
            self._is_over = is_over
            store.set_over_quota(is_over)
            if is_over:
                logger.warning(
                    "bucket %s: takes %d bytes of memory, its quota is %d: writes are refused (TMPFAIL) until "
                    "documents are deleted or the quota is raised",
                    self._bucket.name,
                    taken,
                    quota,
                )
            else:
                logger.warning("bucket %s: takes writes again (%d of %d bytes)", self._bucket.name, taken, quota)

    async def page(self) -> int:
        """Turn expired documents into expirations; returns their number."""
        count = 0
        for vbid in range(self._bucket.vbucket_count):
            while not self._stopping.is_set():
                self._server.set_time()
                made = expire_some(self._bucket, vbid, self._server.engine.unix_ns, PAGER_PORTION)
                count += made
                if made:
                    self._server.schedule_turn()
                    await asyncio.sleep(0)
                if made < PAGER_PORTION:
                    break
        if count:
            logger.info("bucket %s: %d documents were past their time", self._bucket.name, count)
        return count


def expire_some(bucket: Bucket, vbid: int, unix_ns: int, limit: int) -> int:
    """Turn up to `limit` documents of an active vbucket that are past their expiration into expirations.

    Documents with an undecided durable write are left for later. Returns how many were expired.
    """
    vbucket = bucket.active(vbid)
    if vbucket is None or vbucket.is_backed_up or not bucket.store.has_room:
        return 0
    made = 0
    for key in vbucket.log.expired(unix_ns // 1_000_000_000, limit):
        meta = documents.live_meta(vbucket, key, unix_ns)
        made += meta is not None and meta.is_deleted
    if made:
        bucket.expired_by_pager += made
        bucket.dirty.add(vbid)
    return made
