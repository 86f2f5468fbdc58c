"""Makes writes durable: commits for all vbuckets of a bucket together, in a thread of its own.

How often follows from the bucket's `persist` setting: `group` every few milliseconds, `every` as soon as an answer
waits for it, `none` only when much waits or some time has passed. Whoever waits for durability (SEQNO_PERSISTENCE, a
durable write, a held answer) calls for a commit at once at any level.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from dcpstream.errors import StoreError
from dcpstream.model import Persist
from dcpstream.node.engine import Bucket, Engine
from dcpstream.node.server import KvServer

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause after a commit that failed: a full disk does not empty within milliseconds."""

LAZY_INTERVAL_S = 10.0
"""With `persist=none`, the longest that a write waits in memory: what a kill may lose."""
LAZY_BYTES = 32 * 1024 * 1024
"""With `persist=none`, so many bytes are committed sooner: half of what one step of a commit takes."""


class Flusher:
    """Commits one bucket's store until stopped.

    A commit that fails (disk full, disk broken) is logged and tried again; nothing of it is reported as persisted, and
    once too much waits, writes are answered TMPFAIL. With `persist=every` connections whose answers waited for it are
    closed, since they cannot be told an outcome, and writes are refused until a commit succeeds. The node goes on.

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
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._woken = asyncio.Event()
        self._is_hurried = False
        self._committed_at = 0.0

    def start(self) -> None:
        """Begin."""
        self._bucket.hurry = self._hurry
        loop = asyncio.get_running_loop()
        self._committed_at = loop.time()
        self._task = loop.create_task(self._run(), name=f"flush {self._bucket.name}")

    async def stop(self) -> None:
        """End; a commit that is under way is awaited."""
        self._is_stopping = True
        self._woken.set()
        if self._task is not None:
            await self._task
        self._executor.shutdown(wait=True)

    def _hurry(self) -> None:
        """Somebody waits: commit now, or right after the commit that is under way."""
        self._is_hurried = True
        if not self._bucket.store.is_failing:  # else the next try comes when it comes
            self._woken.set()

    async def _run(self) -> None:
        while not self._is_stopping:
            pause = RETRY_S if self._bucket.store.is_failing else self._interval_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)
            self._woken.clear()
            if self._is_due():
                await self.flush()

    def _is_due(self) -> bool:
        """Whether to commit now; at the end the store does so itself, unless it is to look like a crash."""
        if self._is_stopping:
            return False
        store = self._bucket.store
        if self._is_hurried or store.settings.persist is not Persist.NONE:
            return True
        waited_s = asyncio.get_running_loop().time() - self._committed_at
        return store.pending_bytes >= LAZY_BYTES or waited_s >= LAZY_INTERVAL_S

    async def flush(self) -> None:
        """Commit once, if there is something and persistence is not stopped."""
        bucket, store = self._bucket, self._bucket.store
        if not (store.dirty or bucket.holding) or not bucket.is_persisting:
            return
        self._is_hurried = False
        loop = asyncio.get_running_loop()
        number = bucket.begin_commit()
        was_failing = store.is_failing
        try:
            moved = await loop.run_in_executor(self._executor, store.commit) if store.dirty else []
        except (StoreError, OSError) as error:
            logger.error(
                "bucket %s: writes could not be made durable and wait in memory (%d bytes): %s; trying again in %.0f s",
                bucket.name,
                store.pending_bytes,
                error,
                RETRY_S,
            )
            self._failed()
            return
        except Exception:
            # A fault of ours. To stop flushing would lose what is written from now on, so it is tried again.
            logger.exception("bucket %s: a commit failed", bucket.name)
            self._failed()
            return
        self._committed_at = loop.time()
        store.note_commit(has_failed=False)
        if was_failing:
            logger.warning("bucket %s: writes are durable again", bucket.name)
        self._server.set_time()
        bucket.end_commit(number)
        self._engine.persisted(bucket.name, [vbid for vbid, _ in moved])
        self._server.schedule_turn()

    def _failed(self) -> None:
        self._bucket.store.note_commit(has_failed=True)
        self._bucket.fail_commit("a write could not be made durable: the disk is full or broken; see the node's log")
        self._server.schedule_turn()
