"""Makes writes durable: one commit for all vbuckets of a bucket, every few milliseconds, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from dcpstream.errors import StoreError
from dcpstream.node.engine import Bucket, Engine
from dcpstream.node.server import KvServer

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause after a commit that failed: a full disk does not empty within milliseconds."""


class Flusher:
    """Commits one bucket's store until stopped.

    A commit that fails (disk full, disk broken) is logged and tried again; nothing of it is reported as persisted, and
    once too much waits, writes are answered TMPFAIL. The node itself goes on.

    Args:
        interval_s: pause between commits; longer means fewer syncs and a larger window that a crash loses.
    """

    def __init__(self, server: KvServer, engine: Engine, bucket: Bucket, interval_s: float) -> None:
        self._server = server
        self._engine = engine
        self._bucket = bucket
        self._interval_s = interval_s
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"dcpstream-flush-{bucket.name}")
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._has_failed = False

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"flush {self._bucket.name}")

    async def stop(self) -> None:
        """End; a commit that is under way is awaited."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        self._executor.shutdown(wait=True)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            pause = RETRY_S if self._has_failed else self._interval_s
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                await self.flush()

    async def flush(self) -> None:
        """Commit once, if there is something and persistence is not stopped."""
        store = self._bucket.store
        if not store.dirty or not self._bucket.is_persisting:
            return
        try:
            moved = await asyncio.get_running_loop().run_in_executor(self._executor, store.commit)
        except (StoreError, OSError) as error:
            logger.error(
                "bucket %s: writes could not be made durable and wait in memory (%d bytes): %s; trying again in %.0f s",
                self._bucket.name,
                store.pending_bytes,
                error,
                RETRY_S,
            )
            self._has_failed = True
            return
        except Exception:
            # A fault of ours. To stop flushing would lose what is written from now on, so it is tried again.
            logger.exception("bucket %s: a commit failed", self._bucket.name)
            self._has_failed = True
            return
        if self._has_failed:
            logger.warning("bucket %s: writes are durable again", self._bucket.name)
            self._has_failed = False
        self._server.set_time()
        self._engine.persisted(self._bucket.name, [vbid for vbid, _ in moved])
        self._server.schedule_turn()
