"""The buckets of a running node, and their tasks: creation, flush, deletion, start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from dcpstream.errors import ConfigError, DcpstreamError, StoreError
from dcpstream.model import BucketSettings
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream_node.directory.directory import DataDirectory
from dcpstream_node.engine import Engine
from dcpstream_node.shell.server import KvServer
from dcpstream_node.store import BucketStore, CompactionOrder
from dcpstream_node.tasks.compactor import CompactionStatus, Compactor
from dcpstream_node.tasks.flusher import Flusher
from dcpstream_node.tasks.maintenance import Maintenance
from dcpstream_node.tasks.prefetch import Prefetcher

logger = logging.getLogger(__name__)


def _ignore() -> None:
    """Nobody waits."""


class _Task(Protocol):
    """A task that belongs to one bucket."""

    def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End, when work in progress is done."""


class RunningBuckets:
    """Starts, makes, deletes and stops the buckets of a node; the engine's `bucket_host`.

    Args:
        directory: keeps the buckets.
        flush_interval_s: pause between commits.
        vbuckets: default number for new buckets.
        is_member: whether new buckets begin without vbuckets in any case, because a cluster manager makes these.

    Attributes:
        compactors: bucket → its compactor.
        tasks: bucket → its tasks, in the order in which they are stopped.
    """

    def __init__(
        self,
        server: KvServer,
        engine: Engine,
        directory: DataDirectory,
        flush_interval_s: float,
        vbuckets: int = MAX_VBUCKETS,
        *,
        is_member: bool = False,
    ) -> None:
        self._server = server
        self._engine = engine
        self._directory = directory
        self._flush_interval_s = flush_interval_s
        self.compactors: dict[str, Compactor] = {}
        self.tasks: dict[str, list[_Task]] = {}
        self._deletions: dict[str, asyncio.Task[None]] = {}
        self.vbuckets = vbuckets
        self._is_member = is_member

    def start(self) -> None:
        """Start the tasks of the existing buckets, and accept orders."""
        for name, bucket in self._engine.buckets.items():
            bucket.lead_alone()
            self._start_tasks(name)
        self._engine.bucket_host = self
        self._engine.config_listeners.add(self._remember)
        self._remember()

    def _remember(self) -> None:
        self._directory.cluster = self._engine.config.settings_to_json()
        self._directory.remember(self._engine.buckets.values())

    def _start_tasks(self, name: str) -> None:
        bucket = self._engine.buckets[name]
        maintenance = Maintenance(self._server, bucket)
        self.compactors[name] = compactor = Compactor(self._server, bucket, maintenance.page)
        tasks: list[_Task] = [compactor, maintenance]
        if bucket.store.is_durable:
            tasks.append(Flusher(self._server, self._engine, bucket, self._flush_interval_s))
            tasks.append(Prefetcher(self._server, bucket))
        for task in tasks:
            task.start()
        self.tasks[name] = tasks

    def create(
        self, name: str, vbucket_count: int, settings: BucketSettings | None = None, *, is_filled: bool = False
    ) -> None:
        """Make a bucket, without a vbucket or with all of them active.

        Raises:
            ConfigError: an invalid name or number, or a taken name. StoreError: the store cannot be opened.
        """
        if name in self._engine.buckets:
            raise ConfigError("bucket", name, "a name that no bucket of this node has")
        if name in self._directory.damaged:
            raise ConfigError("bucket", name, "a name whose damaged bucket is not in the data directory any more")
        if name in self._deletions:
            raise ConfigError("bucket", name, "a name whose last bucket is gone; its deletion is under way")
        is_new = not self._directory.holds(name)
        is_filled = is_filled and not self._is_member
        store = self._directory.open(name, vbucket_count, settings)
        try:
            self._engine.add_bucket(name, store, is_filled=is_filled)
        except BaseException:
            store.close(clean=False)
            if is_new:  # for the caller, the bucket was not made
                self._directory.discard(name)
            raise
        self._engine.damaged.pop(name, None)  # it could not be made when the node started
        self._engine.buckets[name].lead_alone()
        self._start_tasks(name)

    async def drop(self, name: str) -> None:
        """As `delete`; returns when its files are removed."""
        self.delete(name)
        await self.gone(name)

    def compactions(self) -> dict[str, CompactionStatus]:
        """Bucket → the status of its compactions since the node was started."""
        return {name: compactor.status for name, compactor in self.compactors.items()}

    def compact(self, name: str) -> None:
        """Begin to compact a bucket's store, and to purge tombstones older than its `purge_age_s`."""
        before = self._engine.unix_s - int(self._engine.buckets[name].settings.purge_age_s)
        self.compactors[name].request(CompactionOrder(before_time=max(before, 0), is_full=True), lambda _: None)

    def set_time(self) -> None:
        """Set the engine's time, before a change that comes from no connection."""
        self._server.set_time()

    async def gone(self, name: str) -> None:
        """Wait for the end of a deletion of that name."""
        deletion = self._deletions.get(name)
        if deletion is not None:
            await asyncio.shield(deletion)

    async def flush(self, name: str) -> None:
        """Empty a bucket.

        Raises:
            StoreError: it could not be made durable; the bucket has its state on disk.
        """
        self._server.set_time()
        try:
            self._engine.flush_bucket(self._engine.buckets[name])
        except StoreError:
            await self._reopen(name)
            raise
        finally:
            self._server.schedule_turn()

    async def _reopen(self, name: str) -> None:
        """Close a bucket as a crash would, and open its state on disk, which differs from the one in memory."""
        bucket = self._engine.remove_bucket(name)
        await self._stop_tasks(name)
        bucket.store.close(clean=False)
        try:
            store = self._directory.open(name, bucket.vbucket_count)
            self._engine.add_bucket(name, store, is_filled=False, uuid=bucket.uuid)
        except DcpstreamError as error:
            self._engine.damaged[name] = error
            self._directory.damaged.add(name)
            logger.exception("bucket %s is closed: it cannot be opened again before the node is restarted", name)
            return
        self._engine.buckets[name].lead_alone()
        self._start_tasks(name)

    def delete(self, name: str, done: Callable[[], None] = _ignore) -> None:
        """Close a bucket's connections and drop its data; its files are removed after its tasks have stopped.

        Args:
            done: called in a turn of the loop when the name is free again.
        """
        store = self._engine.remove_bucket(name).store
        self._directory.forget(name)
        task = asyncio.get_running_loop().create_task(self._finish(name, store), name=f"delete bucket {name}")
        self._deletions[name] = task

        def finished(_: asyncio.Task[None]) -> None:
            del self._deletions[name]
            if self._engine.bucket_host is self:  # the node is not stopping
                self._server.set_time()
                done()
                self._server.schedule_turn()

        task.add_done_callback(finished)

    async def _finish(self, name: str, store: BucketStore) -> None:
        await self._stop_tasks(name)
        store.close(clean=False)
        await asyncio.get_running_loop().run_in_executor(None, self._directory.discard, name)
        logger.info("bucket %s is deleted", name)

    async def _stop_tasks(self, name: str) -> None:
        del self.compactors[name]
        for task in self.tasks.pop(name):
            await task.stop()

    async def stop(self, *, clean: bool) -> None:
        """End after the work in progress, and close all stores."""
        self._engine.bucket_host = None
        self._engine.config_listeners.discard(self._remember)
        await asyncio.gather(*self._deletions.values())
        await asyncio.gather(*map(self._stop_tasks, list(self.tasks)))
        failures = []
        for bucket in self._engine.buckets.values():
            try:
                bucket.store.close(clean=clean)
            except StoreError as error:  # the others are closed, too
                failures.append(error)
        for further in failures[1:]:
            logger.error("%s", further)
        if failures:
            raise failures[0]
