"""The interface of a bucket store, and the parts that the memory and the disk store share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import Self

from dcpstream.errors import ConfigError, CorruptLog
from dcpstream.model import BucketSettings, FailoverLog, Manifest, Persist, VbucketState
from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.store.compact.retention import rollback_bytes
from dcpstream_node.store.log.page_cache import CacheStats
from dcpstream_node.store.log.segment_file import Piece, Segment
from dcpstream_node.store.vbucket import VBucketLog

logger = logging.getLogger(__name__)

MAX_VBUCKETS = 1024
"""Largest number of vbuckets of a bucket: the server's."""

MAX_PENDING_BYTES = 256 * 1024 * 1024
"""From this many uncommitted bytes on, `has_room` is false and writes should be refused for a moment.

This is some seconds of writing at full speed; a larger backlog means a slow or full disk.
"""

MIN_GARBAGE_BYTES = 8 * 1024 * 1024
"""Fewer superseded bytes are not worth a compaction."""

MIN_SHARE_NEW = 0.05
"""Share of the whole that must have been superseded since the last compaction before the next one."""

MAX_DAMAGE = 100
"""Damaged pages that are remembered and logged once: every read finds them again. More of them mean a broken disk."""


class BucketStore(ABC):
    """The vbuckets of one bucket. A context manager: leaving it closes the store cleanly.

    Attributes:
        vbuckets: vbid → history, of the vbuckets that exist in this store.
        vbucket_count: the bucket's number of vbuckets over all nodes.
        is_durable: whether commits write files.
        place: the store's directory; empty in memory.
        was_clean: whether the store was closed cleanly before this opening; true for a new one.
        lock: guards rows and buffers of all vbuckets; a commit holds it for some microseconds per vbucket.
        dirty: vbuckets with rows that are not committed.
        pending_bytes: the size of those rows.
        is_failing: whether the last commit failed.
        files: the segment files by number; none in memory.
        read_failures: the number of reads that met damage in a file.
        damage: the damage, by file and offset; at most `MAX_DAMAGE`.
    """

    is_durable = False
    place = ""

    def __init__(self, vbucket_count: int, settings: BucketSettings | None = None) -> None:
        if not 1 <= vbucket_count <= MAX_VBUCKETS:
            raise ConfigError("vbuckets", vbucket_count, f"a number from 1 to {MAX_VBUCKETS}")
        self.vbucket_count = vbucket_count
        self.vbuckets: dict[int, VBucketLog] = {}
        self.was_clean = True
        self.lock = Lock()
        self.dirty: dict[int, VBucketLog] = {}
        self.pending_bytes = 0
        self.is_failing = False
        self._is_over_quota = False
        self.pending_limit = MAX_PENDING_BYTES
        self.read_failures = 0
        self.damage: dict[tuple[str, int], CorruptLog] = {}
        self.files: dict[int, Segment] = {}
        self._manifest = Manifest.DEFAULT
        self._settings = settings or BucketSettings()
        self._compaction_lock = Lock()
        self._garbage_left = 0

    @property
    def needs_commit(self) -> bool:
        """Whether there are rows or metadata that a commit would make durable."""
        return bool(self.dirty)

    @property
    def has_room(self) -> bool:
        """Whether more may be written. If not, `why_full` is the reason, and writers should try again later."""
        return self.pending_bytes < self.pending_limit

    @property
    def why_full(self) -> str:
        """The reason why nothing more may be written, as a sentence."""
        if self._is_over_quota:
            return f"The bucket's memory quota of {self.settings.ram_quota_bytes} bytes is used up"
        if not self.pending_limit:
            return "The last commit failed: the disk is full or broken"
        return "Writes wait for the disk"

    @property
    def memory_bytes(self) -> int:
        """The bucket's approximate memory: index, frames that are not in files, cache."""
        return sum(vbucket.memory_bytes for vbucket in list(self.vbuckets.values())) + self.cached_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes in the page cache."""
        return self.cache_stats.size

    @abstractmethod
    def fit_cache(self, room: int) -> None:
        """Limit the cache to `room` bytes, and to the size in the settings."""

    @property
    def takes_deletions(self) -> bool:
        """Whether documents may be deleted. True although the quota is used up, because deletions free memory."""
        return self.pending_bytes < MAX_PENDING_BYTES and (self.has_room or self._is_over_quota)

    @property
    def is_over_quota(self) -> bool:
        """Whether writes are refused because the bucket takes more memory than it may."""
        return self._is_over_quota

    def set_over_quota(self, is_over: bool) -> None:
        """Set whether the bucket takes more memory than it may, which stops writes."""
        self._is_over_quota = is_over
        self._limit()

    def note_commit(self, *, has_failed: bool) -> None:
        """Set whether the last commit failed."""
        self.is_failing = has_failed
        self._limit()

    def _limit(self) -> None:
        """With `persist=every`, refuse writes while commits fail; else writes may wait in memory."""
        is_refused = self._is_over_quota or (self.is_failing and self._settings.persist is Persist.EVERY)
        self.pending_limit = 0 if is_refused else MAX_PENDING_BYTES

    @property
    def file_bytes(self) -> int:
        """The size of the history on disk; 0 in memory."""
        return self.bytes_used if self.is_durable else 0

    @property
    def cache_stats(self) -> CacheStats:
        """The page cache's counts; zeros in memory."""
        return CacheStats(0, 0, 0, 0, 0)

    @property
    def manifest(self) -> Manifest:
        """The bucket's scopes and collections; setting it is durable at once."""
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: Manifest) -> None:
        self._save("manifest", manifest.to_json())
        self._manifest = manifest

    @property
    def settings(self) -> BucketSettings:
        """The bucket's settings; setting them is durable at once."""
        return self._settings

    @settings.setter
    def settings(self, settings: BucketSettings) -> None:
        self._save("settings", settings.to_json())
        self._settings = settings
        self.fit_cache(settings.cache_bytes)

    @abstractmethod
    def _save(self, name: str, value: object) -> None:
        """Make a value of the metadata durable, as JSON."""

    def create_vbucket(self, vbid: int, state: VbucketState, failover_log: FailoverLog) -> VBucketLog:
        """A new, empty vbucket; it replaces an existing one.

        Raises: ConfigError: the bucket has no such vbucket.
        """
        if not 0 <= vbid < self.vbucket_count:
            raise ConfigError("vbid", vbid, f"a number below {self.vbucket_count}")
        vbucket = VBucketLog(self, vbid, state, failover_log, incarnation=self._next_incarnation(vbid))
        # One step on disk: the new line replaces the old one, whose blocks become void by their incarnation.
        self.metadata_changed(vbucket)
        self._drop(vbid)
        self.vbuckets[vbid] = vbucket
        return vbucket

    @abstractmethod
    def delete_vbucket(self, vbid: int) -> None:
        """Delete a vbucket and its history, durably; does nothing if it does not exist."""

    @contextmanager
    def metadata_batch(self, *, may_wait: bool = False) -> Iterator[None]:
        """Make the changes inside (states, failover logs, new vbuckets) durable in one step at the end.

        Args:
            may_wait: if the disk is full, the changes hold in memory, and become durable before the next commit.
        """
        yield

    @abstractmethod
    def commit(self) -> list[tuple[int, int]]:
        """Make everything appended so far durable, with one write and one sync for all vbuckets.

        Another thread may append meanwhile; its rows are in the next commit.

        Returns: (vbid, persisted seqno) of each vbucket that moved.
        Raises: StoreError: disk full or failing. The rows do not count as persisted and stay readable, and the next
            commit tries again.
        """

    # ----------------------------------------------------------------------------------------------------- compaction

    @property
    @abstractmethod
    def bytes_used(self) -> int:
        """The size of files or buffers, superseded versions included."""

    @property
    def live_bytes(self) -> int:
        """Frames of the newest versions."""
        return sum(vbucket.live_bytes for vbucket in list(self.vbuckets.values()))

    @property
    def fragmentation(self) -> float:
        """The share of files or buffers that a compaction could give back, 0 to 1."""
        used = self.bytes_used
        return max(used - self._bytes_needed, 0) / used if used else 0.0

    @property
    def _bytes_needed(self) -> int:
        """The approximate size of files or buffers after a full compaction."""
        needed = 0
        for vbucket in list(self.vbuckets.values()):
            rows = vbucket.rows
            kept = min(rows.stale_bytes, rollback_bytes(rows))
            needed += self._size_of(rows.end - rows.stale_bytes + kept, len(rows.keys))
        return needed

    def _size_of(self, frames_bytes: int, rows: int) -> int:
        """The approximate size of a vbucket's frames in files or buffers."""
        return frames_bytes

    @property
    def compaction_due(self) -> bool:
        """Whether enough was superseded (`BucketSettings.compact_at`) to call `compact`. Cheap."""
        used = self.bytes_used
        garbage = used - self._bytes_needed
        if self._settings.compact_at >= 1 or garbage <= max(MIN_GARBAGE_BYTES, self._settings.compact_at * used):
            return False
        # Garbage that the last compaction had to leave is no reason for another one.
        return garbage > self._garbage_left + MIN_SHARE_NEW * used

    def compact(self, order: CompactionOrder) -> CompactionReport:
        """Purge old deletions, and free the space of superseded versions. For a worker thread.

        Appends, reads, commits and rollbacks go on meanwhile; another compaction waits.

        Raises:
            StoreError, CorruptLog: files cannot be read or written. Files are as before, or compacted in part.
        """
        with self._compaction_lock:
            report = CompactionReport()
            for vbid, vbucket in list(self.vbuckets.items()):
                if order.is_stopped():
                    report.was_stopped = True
                    return report
                if order.before_time > 0 and (order.vbids is None or vbid in order.vbids):
                    limit = min(order.before_seqno, order.purge_limits.get(vbid, order.before_seqno))
                    report.rows_purged += purge(vbucket, limit, order.before_time)
            if not order.rewrites:
                return report
            used = self.bytes_used
            self._rewrite(order, report)
            report.bytes_freed = max(used - self.bytes_used, report.bytes_freed)
            self._garbage_left = 0 if report.was_stopped else max(self.bytes_used - self._bytes_needed, 0)
            return report

    @abstractmethod
    def _rewrite(self, order: CompactionOrder, report: CompactionReport) -> None:
        """Free the space of superseded versions."""

    @abstractmethod
    def close(self, clean: bool = True) -> None:
        """Commit and close. With clean=False, drop pending rows and leave the files as after a crash.

        Raises: StoreError: the last commit failed. The store is closed all the same, without the pending rows.
        """

    # ------------------------------------------------------------------------------- for the vbuckets

    def would_wait(self, pieces: list[Piece]) -> bool:
        """Whether reading the pieces would probably wait for the disk."""
        return False

    @abstractmethod
    def fetch(self, pieces: list[Piece]) -> None:
        """Let the system read the pieces into its memory, so that reading them does not wait. For a worker thread."""

    @abstractmethod
    def read_pieces(self, pieces: list[Piece], *, by_key: bool = False) -> list[Buffer]:
        """The bytes of the pieces; those in files are verified. `by_key`: use the page cache."""

    def note_damage(self, error: CorruptLog) -> None:
        """Count a read that met damage, and log the damage once."""
        self.read_failures += 1
        place = (error.file, error.offset)
        if place not in self.damage and len(self.damage) < MAX_DAMAGE:
            self.damage[place] = error
            logger.error("%s", error)

    @abstractmethod
    def metadata_changed(self, vbucket: VBucketLog) -> None:
        """Make the vbucket's state, failover log and purge seqno durable."""

    @abstractmethod
    def metadata_deferred(self, vbucket: VBucketLog) -> None:
        """Make them durable with the next commit, before its rows."""

    @abstractmethod
    def roll_back(self, vbucket: VBucketLog, seqno: int) -> None:
        """Make a rollback durable, then truncate the vbucket in memory."""

    @abstractmethod
    def _next_incarnation(self, vbid: int) -> int: ...

    @abstractmethod
    def _drop(self, vbid: int) -> None:
        """Remove a vbucket, if it exists, and its pending rows from memory."""

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close cleanly."""
        self.close()
