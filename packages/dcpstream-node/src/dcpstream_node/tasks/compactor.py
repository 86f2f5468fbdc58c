"""Compaction of one bucket's store in a thread of its own: when enough was superseded, or on request.

The thread rests for a multiple of the time that it works, so that clients and commits have the processor and the disk.
It rests less while a request waits, or while files grow faster than it frees space.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from dcpstream.errors import StoreError
from dcpstream_node.engine import Bucket
from dcpstream_node.shell.server import KvServer
from dcpstream_node.store import CompactionOrder, CompactionReport

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.5
"""Interval of the checks whether a compaction is due. With 1,024 vbuckets a check takes some 100 µs."""

REST = 3.0
"""Seconds of rest for each second of work while no request waits, so at most a quarter of one processor is used."""
REST_IF_AWAITED = 0.5
URGENT_SHARE = 0.04
"""The shorter rest applies while a request waits, or the superseded share exceeds `compact_at` by `URGENT_SHARE`."""
MIN_WORK_S = 0.001
"""Least work between two rests. A vbucket with some hundred rows takes a tenth of it. With a rest after each of them,
other work would empty the CPU's cache before the next one."""
MAX_REST_S = 0.1
"""Longest rest at a time, so that the node can stop soon."""

RETRY_S = 60.0
"""Pause after a failed compaction, because a full disk does not empty within seconds."""

MAX_ORDERS = 4096
"""Largest number of waiting requests: a few clients may ask for each of 1,024 vbuckets."""

Done = Callable[[Exception | None], None]


@dataclass(slots=True)
class CompactionStatus:
    """The compactions of a bucket since the start of the node.

    Attributes:
        is_running: whether one is in progress.
        count, failures: the numbers of successful and of failed compactions.
        seconds: the duration of the last one.
        last: the last report; None before the first.
        rows_dropped, bytes_freed: the sums over all compactions.
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
        bucket: its settings `compact_at` and `purge_age_s` apply.
        expire: turns documents that are past their time into expirations, so that their values can be freed.
    """

    def __init__(self, server: KvServer, bucket: Bucket, expire: Callable[[], Awaitable[int]]) -> None:
        self._server = server
        self._bucket = bucket
        self._expire = expire
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"dcpstream-compact-{bucket.name}")
        self._orders: list[tuple[CompactionOrder, Done]] = []
        self._wakened = asyncio.Event()
        self._stopping = threading.Event()
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
        """End; a compaction in progress stops early."""
        self._stopping.set()
        self._bucket.compact = None
        self._wakened.set()
        if self._task is not None:
            await self._task
        self._executor.shutdown(wait=True)
        waiting, self._orders = self._orders, []
        for _, done in waiting:
            done(StoreError(f"bucket {self._bucket.name} is closed"))

    def request(self, order: CompactionOrder, done: Done) -> bool:
        """Compact soon, and call `done` on the loop at the end; False if too many requests wait already."""
        if len(self._orders) >= MAX_ORDERS or self._stopping.is_set():
            return False
        self._orders.append((order, done))
        self._is_awaited = True
        self._wakened.set()
        return True

    async def _run(self) -> None:
        pause = CHECK_INTERVAL_S
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakened.wait(), pause)
            self._wakened.clear()
            if self._stopping.is_set():
                return
            if self._orders:
                await self._carry_out()
            elif self._bucket.store.compaction_due:
                error = await self._compact([CompactionOrder(before_time=self._purge_time())])
                pause = CHECK_INTERVAL_S if error is None else RETRY_S
                continue
            pause = CHECK_INTERVAL_S

    def _purge_time(self) -> int:
        self._server.set_time()
        return max(self._server.engine.unix_s - int(self._bucket.settings.purge_age_s), 0)

    async def _carry_out(self) -> None:
        """Carry out all waiting requests: purge for each, and rewrite the files once at the end."""
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
            # A fault of ours: the waiting requests get the error, and the next compaction is tried again.
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
        """The highest seqno that may be purged, by vbid.

        It lies before the first undecided durable write, and not above the present high seqno, because a durable write
        may begin during the purge.
        """
        limits: dict[int, int] = {}
        for vbucket in self._bucket.vbuckets:
            if vbucket is not None:
                limit = None if vbucket.durability is None else vbucket.durability.purge_limit
                limits[vbucket.vbid] = vbucket.high_seqno if limit is None else limit
        return limits

    def _completed(self, order: CompactionOrder, limits: dict[int, int]) -> CompactionOrder:
        return replace(order, purge_limits=limits, is_stopped=self._stopping.is_set, breathe=self._breathe)

    def _breathe(self) -> None:
        """Rest in proportion to the work since the last rest; called in the thread after each step."""
        now, store = self._server.clock.monotonic(), self._bucket.store
        if now - self._worked_since < MIN_WORK_S:
            return
        if now >= self._judged_until:
            self._is_urgent = store.fragmentation > store.settings.compact_at + URGENT_SHARE
            self._judged_until = now + CHECK_INTERVAL_S
        rest = REST_IF_AWAITED if self._is_awaited or self._is_urgent else REST
        self._stopping.wait(min((now - self._worked_since) * rest, MAX_REST_S))
        self._worked_since = self._server.clock.monotonic()
