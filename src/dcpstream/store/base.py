"""What memory and disk store have in common: the vbuckets of one bucket, its manifest, and the interface."""

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
from dcpstream.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream.store.log.bytelog import Buffer, Piece
from dcpstream.store.log.page_cache import CacheStats
from dcpstream.store.log.segmentfile import Segment
from dcpstream.store.vbucket import VBucketLog

logger = logging.getLogger(__name__)

MAX_VBUCKETS = 1024
"""vbuckets of a bucket: the server's number."""

MAX_PENDING_BYTES = 256 * 1024 * 1024
"""Bytes appended but not yet committed beyond which `has_room` is false and writes should be refused for a moment.

Some seconds of writing at full speed; a flusher that is further behind than that has a slow or a full disk.
"""


MIN_GARBAGE_BYTES = 8 * 1024 * 1024
"""Less than this is not worth a compaction."""

MIN_SHARE_NEW = 0.05
"""Share of the whole that must have been superseded since the last compaction before there is another one."""


MAX_DAMAGE = 100
"""Damaged pages that are remembered and logged: each is found again by every read. More of them mean a broken disk."""


class BucketStore(ABC):
    """The vbuckets of one bucket. A context manager: leaving it closes the store cleanly.

    Attributes:
        vbuckets: vbid → its history; vbuckets that do not exist here are missing.
        vbucket_count: how many the bucket has over all nodes.
        is_durable: whether commits write files.
        was_clean: whether the store was closed before it was opened; true for a new one.
        lock: guards rows and buffers of all vbuckets; held for some microseconds per vbucket that a commit takes.
        dirty: vbuckets with rows that are not committed.
        pending_bytes: the size of those rows.
        is_failing: whether the last commit failed.
        files: the segment files by number; none in memory.
        read_failures: reads that met damage in a file.
        damage: what they met, by file and offset; at most `MAX_DAMAGE`.
    """

    is_durable = False

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
        self._pending_limit = MAX_PENDING_BYTES
        self.read_failures = 0
        self.damage: dict[tuple[str, int], CorruptLog] = {}
        self.files: dict[int, Segment] = {}
        self._manifest = Manifest.DEFAULT
        self._settings = settings or BucketSettings()
        self._compaction_lock = Lock()
        self._garbage_left = 0

    @property
    def place(self) -> str:
        """The directory that it is kept in; empty in memory."""
        return ""

    @property
    def has_room(self) -> bool:
        """Whether more may be written; if not, writers should be told to try again. `why_full` tells why."""
        return self.pending_bytes < self._pending_limit

    @property
    def why_full(self) -> str:
        """Why nothing more may be written, for people."""
        if self._is_over_quota:
            return f"The bucket's memory quota of {self.settings.ram_quota_bytes} bytes is used up"
        if not self._pending_limit:
            return "The last commit failed: the disk is full or broken"
        return "Writes wait for the disk"

    @property
    def memory_bytes(self) -> int:
        """About what the bucket takes in memory: index, frames that are not in files, cache."""
        return sum(vbucket.memory_bytes for vbucket in list(self.vbuckets.values())) + self.cached_bytes

    @property
    def cached_bytes(self) -> int:
        """Blocks of files that are kept in memory for the next read."""
        return self.cache_stats.size

    @abstractmethod
    def fit_cache(self, room: int) -> None:
        """Let the cache take at most so many bytes, and what the settings allow."""

    @property
    def takes_deletions(self) -> bool:
        """Whether documents may be deleted: also if the quota is used up, or it could never be otherwise again."""
        return self.pending_bytes < MAX_PENDING_BYTES and (self.has_room or self._is_over_quota)

    @property
    def is_over_quota(self) -> bool:
        """Whether writes are refused because the bucket takes more memory than it may."""
        return self._is_over_quota

    def set_over_quota(self, is_over: bool) -> None:
        """Tell whether the bucket takes more memory than it may; then nothing more is written until told otherwise."""
        self._is_over_quota = is_over
        self._limit()

    def note_commit(self, *, has_failed: bool) -> None:
        """Tell how the last commit went."""
        self.is_failing = has_failed
        self._limit()

    def _limit(self) -> None:
        """With `persist=every` a write that cannot be made durable is not taken; else it may wait in memory."""
        is_refused = self._is_over_quota or (self.is_failing and self._settings.persist is Persist.EVERY)
        self._pending_limit = 0 if is_refused else MAX_PENDING_BYTES

    @property
    def file_bytes(self) -> int:
        """What the history takes on disk; 0 in memory."""
        return 0

    @property
    def cache_stats(self) -> CacheStats:
        """What the cache of pages holds and has done; nothing in memory."""
        return CacheStats(0, 0, 0, 0, 0)

    @property
    def manifest(self) -> Manifest:
        """The bucket's scopes and collections; setting it is durable at once."""
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @property
    def settings(self) -> BucketSettings:
        """The bucket's settings; setting them is durable at once."""
        return self._settings

    @settings.setter
    def settings(self, settings: BucketSettings) -> None:
        self._settings = settings

    def create_vbucket(self, vbid: int, state: VbucketState, failover_log: FailoverLog) -> VBucketLog:
        """A new, empty vbucket in place of whatever was there.

        Raises: ConfigError: no such vbucket in this bucket.
        """
        if not 0 <= vbid < self.vbucket_count:
            raise ConfigError("vbid", vbid, f"a number below {self.vbucket_count}")
        vbucket = VBucketLog(self, vbid, state, failover_log, incarnation=self._next_incarnation(vbid))
        # One step on disk: its line replaces the old one's, whose blocks are void by their incarnation.
        self.metadata_changed(vbucket)
        self._drop(vbid)
        self.vbuckets[vbid] = vbucket
        return vbucket

    @abstractmethod
    def delete_vbucket(self, vbid: int) -> None:
        """Forget a vbucket and all it holds, durably; nothing happens if it is not there."""

    @contextmanager
    def metadata_batch(self, *, may_wait: bool = False) -> Iterator[None]:
        """What is set inside (states, failover logs, vbuckets made) becomes durable in one step at the end.

        Args:
            may_wait: if the disk is full, what was set holds all the same, and is durable before the next commit is.
        """
        yield

    @abstractmethod
    def commit(self) -> list[tuple[int, int]]:
        """Make everything appended so far durable, with one write and one sync for all vbuckets.

        May be called from another thread than the appends'; appends go on meanwhile and are in the next commit.

        Returns: (vbid, persisted seqno) of each vbucket that moved.
        Raises: StoreError: disk full or failing; nothing of it counts as persisted, all stays readable, and a later
            commit tries again.
        """

    # ----------------------------------------------------------------------------------------------------- compaction

    @property
    @abstractmethod
    def bytes_used(self) -> int:
        """What files or buffers take, superseded versions included."""

    @property
    def live_bytes(self) -> int:
        """Frames of the newest versions."""
        return sum(vbucket.rows.end - vbucket.rows.stale_bytes for vbucket in list(self.vbuckets.values()))

    @property
    def fragmentation(self) -> float:
        """Share of files or buffers that a compaction could give back, 0 to 1."""
        used = self.bytes_used
        return max(used - self._bytes_needed, 0) / used if used else 0.0

    @property
    def _bytes_needed(self) -> int:
        """About what files or buffers would take if all of them were compacted."""
        needed = 0
        for vbucket in list(self.vbuckets.values()):
            rows = vbucket.rows
            kept = min(rows.stale_bytes, vbucket.rollback_bytes)
            needed += self._size_of(rows.end - rows.stale_bytes + kept, len(rows.keys))
        return needed

    def _size_of(self, frames_bytes: int, rows: int) -> int:
        """About what a vbucket's frames take in files or buffers."""
        return frames_bytes

    @property
    def compaction_due(self) -> bool:
        """Whether so much was superseded (`BucketSettings.compact_at`) that `compact` should be called. Cheap."""
        used = self.bytes_used
        garbage = used - self._bytes_needed
        if self._settings.compact_at >= 1 or garbage <= max(MIN_GARBAGE_BYTES, self._settings.compact_at * used):
            return False
        # What the last compaction could not give back, it cannot now: only what came since is a reason.
        return garbage > self._garbage_left + MIN_SHARE_NEW * used

    def compact(self, order: CompactionOrder) -> CompactionReport:
        """Purge old deletions, and give back what superseded versions take. Meant for a worker thread.

        Appends, reads, commits and rollbacks go on meanwhile; no other compaction, which waits.

        Raises:
            StoreError, CorruptLog: files cannot be read or written. What is there is as before or compacted in part.
        """
        with self._compaction_lock:
            report = CompactionReport()
            for vbid, vbucket in list(self.vbuckets.items()):
                if order.is_stopped():
                    report.was_stopped = True
                    return report
                if order.before_time > 0 and (order.vbids is None or vbid in order.vbids):
                    limit = min(order.before_seqno, order.purge_limits.get(vbid, order.before_seqno))
                    report.rows_purged += vbucket.purge(limit, order.before_time)
            if not order.rewrites:
                return report
            used = self.bytes_used
            self._rewrite(order, report)
            report.bytes_freed = max(used - self.bytes_used, report.bytes_freed)
            self._garbage_left = 0 if report.was_stopped else max(self.bytes_used - self._bytes_needed, 0)
            return report

    @abstractmethod
    def _rewrite(self, order: CompactionOrder, report: CompactionReport) -> None:
        """Give back what superseded versions take."""

    @abstractmethod
    def close(self, clean: bool = True) -> None:
        """Commit and close. With clean=False drop what is pending and leave the files as a crash would.

        Raises: StoreError: the last commit failed. The store is closed all the same, without what was pending.
        """

    # ------------------------------------------------------------------------------------ for the vbuckets (Owner)

    def would_wait(self, pieces: list[Piece]) -> bool:
        """Whether reading the pieces would wait for the disk, as far as that can be told."""
        return False

    @abstractmethod
    def fetch(self, pieces: list[Piece]) -> None:
        """Let the system read the pieces into its memory, so that reading them does not wait. For a worker thread."""

    @abstractmethod
    def read_pieces(self, pieces: list[Piece], *, by_key: bool = False) -> list[Buffer]:
        """The pieces, those that are in files read and verified; `by_key`: with pages that are kept for the next."""

    def note_damage(self, error: CorruptLog) -> None:
        """Count it, and log it if it is news."""
        self.read_failures += 1
        place = (error.file, error.offset)
        if place not in self.damage and len(self.damage) < MAX_DAMAGE:
            self.damage[place] = error
            logger.error("%s", error)

    @abstractmethod
    def metadata_changed(self, vbucket: VBucketLog) -> None:
        """Make the vbucket's state, failover log and purge seqno durable."""

    @abstractmethod
    def roll_back(self, vbucket: VBucketLog, seqno: int) -> None:
        """Make a rollback durable, then truncate the vbucket in memory."""

    @abstractmethod
    def _next_incarnation(self, vbid: int) -> int: ...

    @abstractmethod
    def _drop(self, vbid: int) -> None:
        """Take a vbucket, if it is there, and its pending rows out of memory."""

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close cleanly."""
        self.close()
