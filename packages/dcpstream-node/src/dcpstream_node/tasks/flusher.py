"""Commits: one for all vbuckets of a bucket together, in a thread of its own.

The bucket's `persist` setting decides the interval: `group` commits every few milliseconds, `every` as soon as an
answer waits, `none` only when enough data waits or some time has passed. At any level, a client that waits for
durability (SEQNO_PERSISTENCE, a durable write, a held answer) causes a commit at once.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum, auto

from dcpstream.errors import StoreError
from dcpstream.model import Persist
from dcpstream_node.engine import Bucket, Engine
from dcpstream_node.shell.server import KvServer

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause after a failed commit: a full disk does not empty within milliseconds."""

REPEAT_LOG_S = 60.0
"""Interval of log lines while commits fail."""

LAZY_INTERVAL_S = 10.0
"""With `persist=none`, the longest time that a write waits in memory, and may be lost by a kill."""
LAZY_BYTES = 32 * 1024 * 1024
"""With `persist=none`, this much pending data is committed sooner: half of one step of a commit."""


class _Phase(Enum):
    """The phase of the present commit."""

    IDLE = auto()
    """No commit is under way."""
    COMMITTING = auto()
    """The flusher's thread writes."""
    REPORTING = auto()
    """The commit has ended, and its result is being reported to those who wait."""


class Flusher:
    """Commits one bucket's store until stopped.

    Theory of operation: a commit goes through the phases IDLE, COMMITTING, REPORTING and IDLE again. `_go_on` alone
    begins a commit, and only in IDLE, so that one commit at most is under way. While the end of a commit is reported,
    sessions send answers, read further writes and ask for another commit. These requests are noted, and one commit
    for all of them begins after the report. A timer and `Bucket.commit_soon` call `_go_on` at other times.

    These are plain callbacks on the loop, because waking a task costs a turn of the loop, and a turn is long while
    backfills run.

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
        self._loop = server.loop
        self._timer: asyncio.TimerHandle | None = None
        self._phase = _Phase.IDLE
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False
        self._is_urgent = False
        self._committed_at = self._loop.time()
        self._logged_at = -REPEAT_LOG_S

    def start(self) -> None:
        """Begin."""
        self._bucket.commit_soon = self._commit_soon
        self._go_on()

    async def stop(self) -> None:
        """End, after the commit in progress."""
        self._is_stopping = True
        self._stop_timer()
        await self._idle.wait()
        self._executor.shutdown(wait=True)

    def _commit_soon(self) -> None:
        """A client waits: commit now, or right after the commit in progress."""
        self._is_urgent = True
        self._server.shorten_turns()
        self._go_on()

    def _timed_out(self) -> None:
        self._timer = None
        self._go_on(is_time=True)

    def _go_on(self, *, is_time: bool = False) -> None:
        """Begin a commit if none is under way and one is due; else see that the timer runs.

        Args:
            is_time: whether the pause since the last commit is over.
        """
        if self._phase is not _Phase.IDLE or self._is_stopping:
            return
        if self._is_due(is_time=is_time):
            self._begin()
        elif self._timer is None:
            pause = RETRY_S if self._bucket.store.is_failing else self._interval_s
            self._timer = self._loop.call_later(pause, self._timed_out)

    def _is_due(self, *, is_time: bool) -> bool:
        """Whether to commit now: data waits, persistence is not stopped, and a client or the timer asks for it."""
        bucket, store = self._bucket, self._bucket.store
        if not (store.needs_commit or bucket.holding) or not bucket.is_persisting:
            return False
        if store.is_failing:  # clients that wait do not make a full disk empty
            return is_time
        if self._is_urgent:
            return True
        if store.settings.persist is not Persist.NONE:
            return is_time
        is_late = store.pending_bytes >= LAZY_BYTES or self._loop.time() - self._committed_at >= LAZY_INTERVAL_S
        return is_time and is_late

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._stop_timer()
        self._is_urgent = False
        self._phase = _Phase.COMMITTING
        self._idle.clear()
        number = self._bucket.begin_commit()
        future = self._executor.submit(self._bucket.store.commit)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._finished, number, done))

    def _finished(self, number: int, done: Future[list[tuple[int, int]]]) -> None:
        self._phase = _Phase.REPORTING
        try:
            self._report(number, done)
        finally:  # whatever listeners do, there must be a next commit
            self._phase = _Phase.IDLE
            self._idle.set()
            self._go_on()

    def _report(self, number: int, done: Future[list[tuple[int, int]]]) -> None:
        """Report the result of a commit to everybody who waits."""
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
