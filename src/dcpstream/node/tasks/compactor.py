"""Compacts a bucket's store when enough was superseded, or when somebody asks for it, in a thread of its own.

The thread rests for a multiple of the time that it works, so that clients and commits have the processor and the disk.
Only when files grow faster than that gives back, or somebody waits for the end, it rests less.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from dcpstream.errors import StoreError
from dcpstream.node.engine import Bucket
from dcpstream.node.shell.server import KvServer
from dcpstream.store import CompactionOrder, CompactionReport

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.5
"""Between looks whether a compaction is due, some 100 µs each with 1,024 vbuckets."""

REST = 3.0
"""Seconds of rest for a second of work, if nobody waits: a quarter of one processor at most."""
REST_IF_AWAITED = 0.5
"""If somebody waits, or the files are beyond what the settings allow by `URGENT_SHARE`."""
URGENT_SHARE = 0.04
MAX_REST_S = 0.1
"""Longest rest at a time: the node may want to stop."""

RETRY_S = 60.0
"""Pause after a compaction that failed: a full disk does not empty within seconds."""

MAX_ORDERS = 4096
"""Requests that may wait: one for each of 1,024 vbuckets, from some clients."""

Done = Callable[[Exception | None], None]


@dataclass(slots=True)
class CompactionStatus:
    """What the compactions of a bucket have done since the node was started.

    Attributes:
        is_running: whether one is under way.
        count, failures: compactions that ended well, and not.
        seconds: how long the last one took.
        last: what it did; None before the first.
        rows_dropped, bytes_freed: of all together.
    """

    is_running: bool = False
    count: int = 0
    failures: int = 0
    seconds: float = 0.0
    last: CompactionReport | None = None
    rows_dropped: int = 0
    bytes_freed: int = 0


class Compactor:
    """Compacts one bucket's store until stopped.

    Args:
        bucket: its settings say when (`compact_at`) and what is purged with it (`purge_age_s`).
        expire: turns documents that are past their time into expirations, so that their values go too.
    """

    def __init__(self, server: KvServer, bucket: Bucket, expire: Callable[[], Awaitable[int]]) -> None:
        self._server = server
        self._bucket = bucket
        self._expire = expire
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"dcpstream-compact-{bucket.name}")
        self._orders: list[tuple[CompactionOrder, Done]] = []
        self._wakened = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._worked_since = 0.0
        self._is_awaited = self._is_urgent = False
        self._judged_until = 0.0
        self.status = CompactionStatus()

    def start(self) -> None:
        """Begin."""
        self._bucket.compact = self.request
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"compact {self._bucket.name}")

    async def stop(self) -> None:
        """End; a compaction that is under way is broken off."""
        self._is_stopping = True
        self._bucket.compact = None
        self._wakened.set()
        if self._task is not None:
            await self._task
        self._executor.shutdown(wait=True)
        waiting, self._orders = self._orders, []
        for _, done in waiting:
            done(StoreError(f"bucket {self._bucket.name} is closed"))

    def request(self, order: CompactionOrder, done: Done) -> bool:
        """Compact soon, and call `done` on the loop when it is through; False if too many wait already."""
        if len(self._orders) >= MAX_ORDERS or self._is_stopping:
            return False
        self._orders.append((order, done))
        self._is_awaited = True
        self._wakened.set()
        return True

    async def _run(self) -> None:
        pause = CHECK_INTERVAL_S
        while not self._is_stopping:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakened.wait(), pause)
            self._wakened.clear()
            if self._stops():
                return
            if self._orders:
                await self._carry_out()
            elif self._bucket.store.compaction_due:
                error = await self._compact([CompactionOrder(before_time=self._purge_time())])
                pause = CHECK_INTERVAL_S if error is None else RETRY_S
                continue
            pause = CHECK_INTERVAL_S

    def _stops(self) -> bool:
        return self._is_stopping

    def _purge_time(self) -> int:
        self._server.set_time()
        return max(self._server.engine.unix_s - int(self._bucket.settings.purge_age_s), 0)

    async def _carry_out(self) -> None:
        """All requests that wait, with one rewriting of the files at the end."""
        waiting, self._orders = self._orders, []
        orders = [replace(order, rewrites=False) for order, _ in waiting[:-1]]
        error = await self._compact([*orders, waiting[-1][0]])
        self._is_awaited = bool(self._orders)
        self._server.set_time()
        for _, done in waiting:
            done(error)
        self._server.schedule_turn()

    async def _compact(self, orders: list[CompactionOrder]) -> Exception | None:
        status, name, loop = self.status, self._bucket.name, asyncio.get_running_loop()
        status.is_running = True
        started = self._worked_since = self._server.clock.monotonic()
        try:
            if orders[-1].is_full:
                await self._expire()
            limits = self._purge_limits()
            reports = [
                await loop.run_in_executor(self._executor, self._bucket.store.compact, self._completed(order, limits))
                for order in orders
            ]
        except (StoreError, OSError) as error:
            status.failures += 1
            logger.error("bucket %s: could not be compacted: %s", name, error)
            return error
        except Exception as error:
            # A fault of ours. Who waits is told, and others may still be compacted, or the next time this one.
            status.failures += 1
            logger.exception("bucket %s: could not be compacted", name)
            return error
        finally:
            status.is_running = False
        report = status.last = reports[-1]
        report.rows_purged = sum(item.rows_purged for item in reports)
        status.seconds = self._server.clock.monotonic() - started
        status.count += 1
        status.rows_dropped += report.rows_dropped
        status.bytes_freed += report.bytes_freed
        if report.rows_purged or report.rows_dropped:
            logger.info(
                "bucket %s: compacted in %.1f s%s: %d versions dropped, %d deletions purged, %d bytes copied, "
                "%d given back; %.0f %% of %d bytes is superseded now",
                name,
                status.seconds,
                " (broken off)" if report.was_stopped else "",
                report.rows_dropped,
                report.rows_purged,
                report.bytes_copied,
                report.bytes_freed,
                100 * self._bucket.store.fragmentation,
                self._bucket.store.bytes_used,
            )
        return None

    def _purge_limits(self) -> dict[int, int]:
        """Deletions are not purged beyond the first durable write that is not decided.

        Nor beyond what is there now: a durable write may begin while the purge is under way.
        """
        limits: dict[int, int] = {}
        for vbucket in self._bucket.vbuckets:
            if vbucket is not None:
                limit = None if vbucket.durability is None else vbucket.durability.purge_limit
                limits[vbucket.vbid] = vbucket.high_seqno if limit is None else limit
        return limits

    def _completed(self, order: CompactionOrder, limits: dict[int, int]) -> CompactionOrder:
        return replace(order, purge_limits=limits, is_stopped=lambda: self._is_stopping, breathe=self._breathe)

    def _breathe(self) -> None:
        """In the thread, after some ms of work: rest in proportion."""
        if self._is_stopping:
            return
        now, store = self._server.clock.monotonic(), self._bucket.store
        if now >= self._judged_until:
            self._is_urgent = store.fragmentation > store.settings.compact_at + URGENT_SHARE
            self._judged_until = now + CHECK_INTERVAL_S
        rest = REST_IF_AWAITED if self._is_awaited or self._is_urgent else REST
        time.sleep(min((now - self._worked_since) * rest, MAX_REST_S))
        self._worked_since = self._server.clock.monotonic()
