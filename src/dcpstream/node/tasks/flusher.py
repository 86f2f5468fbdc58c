"""Commits: one for all vbuckets of a bucket together, in a thread of its own.

The bucket's `persist` setting decides the interval: `group` commits every few milliseconds, `every` as soon as an
answer waits, `none` only when enough data waits or some time has passed. At any level, a client that waits for
durability (SEQNO_PERSISTENCE, a durable write, a held answer) causes a commit at once.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor

from dcpstream.errors import StoreError
from dcpstream.model import Persist
from dcpstream.node.engine import Bucket, Engine
from dcpstream.node.shell.server import KvServer

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause after a failed commit: a full disk does not empty within milliseconds."""

REPEAT_LOG_S = 60.0
"""Interval of log lines while commits fail."""

LAZY_INTERVAL_S = 10.0
"""With `persist=none`, the longest time that a write waits in memory, and may be lost by a kill."""
LAZY_BYTES = 32 * 1024 * 1024
"""With `persist=none`, this much pending data is committed sooner: half of one step of a commit."""


class Flusher:
    """Commits one bucket's store until stopped.

    Theory of operation: at most one commit runs at a time, in the flusher's thread. A timer starts the next one;
    `Bucket.hurry` starts it at once, or right after the running one. These are plain callbacks on the loop, because
    waking a task costs a turn of the loop, and a turn is long while backfills run.

    A failed commit (disk full or broken) is logged and tried again. None of its writes is reported as persisted, and
    when too much data waits, writes are answered TMPFAIL. With `persist=every`, connections whose answers waited for it
    are closed, because the outcome is unknown, and writes are refused until a commit succeeds.

    Args:
        interval_s: pause between commits with `persist=group`; longer means fewer syncs, and a larger window that a
            crash loses.
    """

    def __init__(self, server: KvServer, engine: Engine, bucket: Bucket, interval_s: float) -> None:
        self._server = server
        self._engine = engine
        self._bucket = bucket
        self._interval_s = interval_s
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"dcpstream-flush-{bucket.name}")
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False
        self._is_hurried = False
        self._committed_at = self._loop.time()
        self._logged_at = -REPEAT_LOG_S

    def start(self) -> None:
        """Begin."""
        self._bucket.hurry = self._hurry
        self._wait()

    async def stop(self) -> None:
        """End, after the commit in progress."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        await self._idle.wait()
        self._executor.shutdown(wait=True)

    async def flush(self) -> None:
        """Commit once, after the commit in progress; errors are logged and tried again as usual."""
        await self._idle.wait()
        self._begin()
        await self._idle.wait()

    def _hurry(self) -> None:
        """A client waits: commit now, or right after the commit in progress."""
        self._is_hurried = True
        self._server.hurry()
        if self._idle.is_set() and not self._bucket.store.is_failing:  # else the timer starts the next try
            self._begin()

    def _wait(self) -> None:
        """Set the timer for the next commit."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_stopping:
            pause = RETRY_S if self._bucket.store.is_failing else self._interval_s
            self._timer = self._loop.call_later(pause, self._timed_out)

    def _timed_out(self) -> None:
        if self._idle.is_set():
            if self._is_due():
                self._begin()
            if self._idle.is_set():  # there was nothing to do
                self._wait()

    def _is_due(self) -> bool:
        """Whether to commit now."""
        store = self._bucket.store
        if self._is_hurried or store.settings.persist is not Persist.NONE:
            return True
        return store.pending_bytes >= LAZY_BYTES or self._loop.time() - self._committed_at >= LAZY_INTERVAL_S

    def _begin(self) -> None:
        """Begin a commit if data waits and persistence is not stopped."""
        bucket, store = self._bucket, self._bucket.store
        if self._is_stopping or not (store.dirty or bucket.holding) or not bucket.is_persisting:
            return
        self._is_hurried = False
        self._idle.clear()
        number = bucket.begin_commit()
        future = self._executor.submit(store.commit)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._finished, number, done))

    def _finished(self, number: int, done: Future[list[tuple[int, int]]]) -> None:
        """A commit succeeded or failed."""
        store = self._bucket.store
        self._idle.set()
        try:
            self._tell(number, done)
        finally:  # whatever listeners do, there must be a next commit
            if self._is_hurried and not store.is_failing:
                self._begin()
            if self._idle.is_set():
                self._wait()

    def _tell(self, number: int, done: Future[list[tuple[int, int]]]) -> None:
        """Tell everybody who waits how a commit ended."""
        bucket, store = self._bucket, self._bucket.store
        error = done.exception()
        if error is None:
            if store.is_failing:
                logger.warning("bucket %s: writes are durable again", bucket.name)
            store.note_commit(has_failed=False)
            self._committed_at = self._loop.time()
            self._server.set_time()
            bucket.end_commit(number)
            self._engine.persisted(bucket.name, [vbid for vbid, _ in done.result()])
        else:
            self._failed(error)
        self._server.turn()

    def _failed(self, error: BaseException) -> None:
        bucket, store = self._bucket, self._bucket.store
        if isinstance(error, StoreError | OSError):
            if not store.is_failing or self._loop.time() - self._logged_at >= REPEAT_LOG_S:
                self._logged_at = self._loop.time()
                logger.error(
                    "bucket %s: writes could not be made durable and wait in memory (%d bytes): %s (every %.0f s)",
                    bucket.name,
                    store.pending_bytes,
                    str(error).rstrip("."),
                    RETRY_S,
                )
        else:
            # A fault of ours. Without another try, all later writes would be lost.
            logger.error("bucket %s: a commit failed", bucket.name, exc_info=error)
        store.note_commit(has_failed=True)
        bucket.fail_commit("a write could not be made durable: the disk is full or broken; see the node's log")
