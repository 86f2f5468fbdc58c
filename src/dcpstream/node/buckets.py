"""The buckets of a running node: their stores and flushers, also of buckets that are made and deleted on the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream.node.engine import Engine
from dcpstream.node.flusher import Flusher
from dcpstream.node.server import KvServer
from dcpstream.node.upkeep import Upkeep
from dcpstream.store import BucketStore

logger = logging.getLogger(__name__)


class RunningBuckets:
    """Starts, makes, deletes and stops the buckets of a node; the engine's `bucket_host`.

    Args:
        open_store: the store of a bucket, by name and number of vbuckets.
        discard: takes away what the store of that name has kept on disk.
        flush_interval_s: pause between commits.

    Attributes:
        upkeep: by bucket, what looks after it.
    """

    def __init__(
        self,
        server: KvServer,
        engine: Engine,
        open_store: Callable[[str, int, BucketSettings | None], BucketStore],
        discard: Callable[[str], None],
        flush_interval_s: float,
    ) -> None:
        self._server = server
        self._engine = engine
        self._open_store = open_store
        self._discard = discard
        self._flush_interval_s = flush_interval_s
        self._flushers: dict[str, Flusher] = {}
        self.upkeep: dict[str, Upkeep] = {}
        self._deletions: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to flush what is there, and take orders."""
        for name in self._engine.buckets:
            self._look_after(name)
        self._engine.bucket_host = self

    def _look_after(self, name: str) -> None:
        bucket = self._engine.buckets[name]
        self.upkeep[name] = Upkeep(self._server, bucket)
        self.upkeep[name].start()
        if bucket.store.is_durable:
            self._flushers[name] = Flusher(self._server, self._engine, bucket, self._flush_interval_s)
            self._flushers[name].start()

    def create(
        self, name: str, vbucket_count: int, settings: BucketSettings | None = None, *, is_filled: bool = False
    ) -> None:
        """Make a bucket, without a vbucket or with all of them active.

        Raises:
            DcpstreamError: the name or the number cannot be, there is one of that name, or the store cannot be opened.
        """
        if name in self._engine.buckets:
            raise ConfigError("bucket", name, "a name that no bucket of this node has")
        store = self._open_store(name, vbucket_count, settings)
        try:
            self._engine.add_bucket(name, store, storage="disk" if store.is_durable else "memory", is_filled=is_filled)
        except BaseException:
            store.close(clean=False)
            raise
        self._look_after(name)

    async def drop(self, name: str) -> None:
        """As `delete`; returns when its files are gone."""
        self.delete(name)
        await asyncio.gather(*self._deletions)

    def delete(self, name: str) -> None:
        """Close a bucket's connections and forget all it held; files go when their flusher has stopped."""
        store = self._engine.remove_bucket(name).store
        task = asyncio.get_running_loop().create_task(self._finish(name, store), name=f"delete bucket {name}")
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _finish(self, name: str, store: BucketStore) -> None:
        await self.upkeep.pop(name).stop()
        flusher = self._flushers.pop(name, None)
        if flusher is not None:
            await flusher.stop()
        store.close(clean=False)
        await asyncio.get_running_loop().run_in_executor(None, self._discard, name)
        logger.info("bucket %s is deleted", name)

    async def stop(self, *, clean: bool) -> None:
        """End: what is under way is awaited, all stores are closed."""
        self._engine.bucket_host = None
        await asyncio.gather(*self._deletions)
        await asyncio.gather(*(upkeep.stop() for upkeep in self.upkeep.values()))
        for flusher in self._flushers.values():
            await flusher.stop()
        for bucket in self._engine.buckets.values():
            bucket.store.close(clean=clean)
