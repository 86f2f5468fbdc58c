"""A bucket store on disk: segment files for the history, SQLite for the metadata.

Theory of operation: appends go to memory. A commit takes the pending rows of all vbuckets, writes them as blocks with
one write and one sync, and then moves each vbucket's persisted seqno. Values are read from the files; the index stays
in memory and is rebuilt when the store opens.

Locks, in the order in which they are taken: the commit lock, for whole commits and for everything that must not happen
during one (rollback, deletion of a vbucket); the store's lock, for rows and buffers; the metadata's own.

Everything that a commit has reported, and everything that was set on a vbucket or the store, survives kill -9 and a
power cut. `docs/explanation/store-format.md` describes the files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from dcpstream.errors import CorruptLog, StoreError, StoreInUse, StoreMismatch
from dcpstream.model import BucketSettings
from dcpstream.runtime import Clock, FileSystem, Random, SystemFileSystem, make_durable_directory, make_private
from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.base import BucketStore
from dcpstream_node.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream_node.store.compact.retention import RolledBackError
from dcpstream_node.store.compact.segment_rewriting import SegmentRewriting, size_in_files
from dcpstream_node.store.index.rows import KIND_SHIFT, POSITION_MASK
from dcpstream_node.store.log import blocks as limits
from dcpstream_node.store.log.blocks import BlockPlace, Page, encode_frames, encode_rollback, segment_number, split_rows
from dcpstream_node.store.log.page_cache import CacheStats
from dcpstream_node.store.log.segment_file import Piece, Segment
from dcpstream_node.store.log.segments import SEGMENT_BYTES, Listing, Segments, SegmentSizes
from dcpstream_node.store.metadata import (
    FILE_NAME,
    FORMAT,
    MISSING_HINT,
    Metadata,
    VbucketMetadata,
    is_of_disk,
    make_metadata,
)
from dcpstream_node.store.recovery import Recovery
from dcpstream_node.store.vbucket import VBucketLog

logger = logging.getLogger(__name__)

MAX_COMMIT_BYTES = 64 * 1024 * 1024
"""A larger commit is done in steps: bounds the memory of one write, and the size of a segment."""

PARTS_OF_STORE = 8
MIN_SEGMENT_BYTES = 4 * 1024 * 1024
"""While a node compacts the store, a segment takes an 8th of the live bytes, between this and `SEGMENT_BYTES`. A
compaction rewrites one segment at a time, and must not let the files grow beyond twice the live bytes."""


def make_store(path: Path, vbucket_count: int, settings: BucketSettings | None, file_system: FileSystem) -> None:
    """Make the directory and the files of a store without vbuckets, closed cleanly. Durable on return.

    Raises: StoreError: they cannot be made.
    """
    values = {
        "format": FORMAT,
        "vbucket_count": str(vbucket_count),
        "segments": "[]",
        "closed_at": json.dumps([0, 0]),
        "settings": json.dumps((settings or BucketSettings()).to_json()),
    }
    try:
        make_durable_directory(file_system, path)
        make_metadata(path, values, file_system)
    except OSError as error:
        raise StoreError(f"the store in {path} cannot be made durable: {error}") from error


class _Pending(NamedTuple):
    """One vbucket's part of a commit: rows [first, stop), `size` bytes from position `start`."""

    vbucket: VBucketLog
    first: int
    stop: int
    start: int
    size: int

    def encode(self, segment: Segment, at: int, buffers: list[Buffer], pages: list[Page]) -> int:
        """Encode the rows as blocks that begin at offset `at` of a segment; returns where they end.

        Runs without the store's lock: a commit in progress keeps these rows and sealed buffers as they are.

        Args:
            buffers, pages: the bytes to write, and their pages, are added here.
        """
        vbucket = self.vbucket
        tagged = vbucket.rows.positions[self.first : self.stop].tolist()
        is_plain = max(tagged) <= POSITION_MASK
        places = tagged if is_plain else [position & POSITION_MASK for position in tagged]
        places.append(self.start + self.size)
        seqnos = vbucket.rows.seqnos
        for first, stop in split_rows(places, limits.MAX_BLOCK_BYTES):
            occurring = 0
            if not is_plain:
                for position in tagged[first:stop]:
                    occurring |= position
            place = BlockPlace(
                segment.salt,
                vbucket.vbid,
                vbucket.incarnation,
                commit_offset=segment.size,
                seqnos=(seqnos[self.first + first], seqnos[self.first + stop - 1]),
                occurring=occurring >> KIND_SHIFT,
                marks=vbucket.snapshots.covering(self.first + first, self.first + stop),
            )
            block = encode_frames(place, places[first : stop + 1], vbucket.log.held)
            buffers.append(block.head)
            buffers += block.frames
            pages += block.pages(places[first], segment.address | at)
            at += len(block.head) + places[stop] - places[first]
        return at


class DiskBucketStore(BucketStore):
    """Histories in segment files of a directory, which is created if it does not exist.

    Args:
        path: the directory; one process at a time.
        vbucket_count: the bucket's number of vbuckets. An existing store must have been made with this number.
        settings: of a new store; an existing one keeps its own.
        file_system: holds the segments and the lock; the SQLite file is always in the system's.
        segment_bytes: size at which a new segment file is begun.
        clock, random: for the time of slow reads and the salts of new files; the system's by default.

    Attributes:
        was_clean: whether the store was closed cleanly before this opening. If not, rows that clients have seen may be
            lost, and active vbuckets need a new branch at `VBucketLog.branch_seqno`.
        cut_bytes: bytes of a torn commit that the opening cut off.

    Raises:
        CorruptLog: damage that is no torn commit.
        StoreError: in use by another process, made for another number of vbuckets, or unreadable.
    """

    is_durable = True

    def __init__(
        self,
        path: str | Path,
        vbucket_count: int,
        settings: BucketSettings | None = None,
        *,
        file_system: FileSystem | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        super().__init__(vbucket_count, settings)
        self.path = Path(path)
        self.place = str(self.path)
        self._file_system = file_system or SystemFileSystem()
        self._commit_lock = Lock()
        self._segment_bytes = segment_bytes
        self._lines_lock = Lock()  # from reading a vbucket until its line is durable, so that no older line wins
        self._batched: dict[int, VBucketLog] | None = None
        self._deferred_values: dict[str, str] = {}
        self._deferred_vbuckets: dict[int, VBucketLog] = {}
        self._has_adopted = False
        self._horizons: dict[int, int] = {}
        try:
            make_durable_directory(self._file_system, self.path)
            self._directory_lock = self._file_system.lock_directory(self.path)
        except BlockingIOError as error:
            raise StoreInUse(f"the store in {self.path} is in use by another process or another bucket") from error
        except OSError as error:
            raise StoreError(f"the store in {self.path} cannot be opened: {error}") from error
        self._is_open = True
        self._closing = ExitStack()  # closes in the reverse order of opening
        self._closing.callback(self._directory_lock.release)
        try:
            self._open(clock, random)
        except BaseException:
            self._shut()
            raise

    def _open(self, clock: Clock | None, random: Random | None) -> None:
        make_private(self.path)
        if not (self.path / FILE_NAME).exists():
            self._make()
        metadata = self._metadata = Metadata(self.path)
        self._closing.callback(metadata.close)
        found = metadata.contents()
        made_for = found.vbucket_count
        if made_for != self.vbucket_count:
            raise StoreMismatch(
                f"the store in {self.path} was made for {made_for} vbuckets and cannot be opened with "
                f"{self.vbucket_count}: keys would be looked for in the wrong ones. Give the number it was "
                f"made with: --vbuckets {made_for}, Node(vbuckets={made_for})."
            )
        self.was_clean = found.closed_at is not None
        self._manifest = found.manifest
        self._settings = found.settings or self._settings
        self._incarnations: dict[int, int] = {}
        self._gone: set[tuple[int, int]] = set()
        for line in found.lines.values():
            self._incarnations[line.vbid] = line.incarnation
            if line.state is not None and line.failover_log is not None:
                self.vbuckets[line.vbid] = VBucketLog(
                    self,
                    line.vbid,
                    line.state,
                    line.failover_log,
                    purge_seqno=line.purge_seqno,
                    max_deleted_rev=line.max_deleted_rev,
                    incarnation=line.incarnation,
                )
                self._horizons[line.vbid] = line.horizon_seqno
        segments = self._segments = Segments(
            self.path,
            self._file_system,
            Listing(found.order, found.retired),
            metadata.put,
            SegmentSizes(self._segment_bytes, self._settings.cache_bytes),
            files=self.files,
            clock=clock,
            random=random,
        )
        self._closing.callback(segments.close)
        recovery = Recovery(self.vbuckets, segments, found.closed_at)
        recovery.run()
        for vbid, vbucket in self.vbuckets.items():
            # Only now: rollbacks in the files may be older than the horizon.
            vbucket.horizon_seqno = min(self._horizons[vbid], vbucket.high_seqno)
        self.cut_bytes = recovery.cut_bytes
        # From here on a crash counts as a crash, also before the first commit.
        self._put_or_defer({"closed_at": "", "settings": json.dumps(self._settings.to_json())})

    def _make(self) -> None:
        """Make the files of a new store, closed cleanly. The store exists as soon as its metadata file does."""
        if any(segment_number(name) is not None for name in self._file_system.names(self.path)):
            raise CorruptLog(str(self.path / FILE_NAME), 0, "a file", "no file next to segments", MISSING_HINT)
        make_store(self.path, self.vbucket_count, self._settings, self._file_system)

    def _save(self, name: str, value: object) -> None:
        self._metadata.put({name: json.dumps(value)})

    # ----------------------------------------------------------------------------------- metadata that has to wait

    def _put_or_defer(self, values: dict[str, str], vbuckets: Iterable[VBucketLog] = ()) -> None:
        """Write the metadata of an opening; on a full disk it waits for `_put_deferred`.

        The store can be read then. The segments are not written before `_put_deferred` has succeeded. Until then the
        files are as the opening found them, and consistent.
        """
        self._deferred_values |= {name: value for name, value in values.items() if self._metadata.get(name) != value}
        self._deferred_vbuckets |= {vbucket.vbid: vbucket for vbucket in vbuckets}
        try:
            self._put_deferred()
        except StoreError as error:
            if not is_of_disk(error):
                raise
            logger.warning(
                "%s is opened for reading, because the disk takes no writes: %s. Writes are kept in memory; they "
                "become durable when the disk takes them again",
                self.path,
                str(error).rstrip("."),
            )

    def _put_deferred(self) -> None:
        """Write the metadata that `_put_or_defer` could not write. Raises: StoreError: it still cannot be written."""
        if not self._deferred_values and not self._deferred_vbuckets:
            return
        with self._lines_lock:
            self._metadata.put(self._deferred_values, map(self._line, self._deferred_vbuckets.values()))
            self._deferred_values, self._deferred_vbuckets = {}, {}
            self._has_adopted = False

    def metadata_deferred(self, vbucket: VBucketLog) -> None:
        """See `BucketStore.metadata_deferred`: the lines of many vbuckets share one transaction."""
        with self._lines_lock:
            self._deferred_vbuckets[vbucket.vbid] = vbucket
            self._has_adopted = True

    @property
    def needs_commit(self) -> bool:
        """See `BucketStore.needs_commit`. Metadata that an opening on a full disk deferred waits for the first rows."""
        return self._has_adopted or bool(self.dirty)

    # ------------------------------------------------------------------------------------------------------- commit

    def commit(self) -> list[tuple[int, int]]:
        """See `BucketStore.commit`."""
        persisted: list[tuple[int, int]] = []
        with self._commit_lock:
            if self._has_adopted:
                self._put_deferred()
            with self.lock:
                # Vbuckets that become dirty from now on are for the next commit, or this one might never end.
                waiting, self.dirty = self.dirty, {}
            while batch := self._take(waiting):
                try:
                    blocks = self._write(batch)
                except BaseException as error:
                    with self.lock:
                        self.dirty = {part.vbucket.vbid: part.vbucket for part in batch} | waiting | self.dirty
                    if not isinstance(error, StoreError):
                        raise
                    size = sum(part.size for part in batch)
                    raise StoreError(
                        f"{error}. {size} bytes of {len(batch)} vbuckets are not persisted; they are kept in memory, "
                        "and the next commit tries again. Free space on the disk, or see what the system says of it."
                    ) from error
                with self.lock:
                    for part, placed in zip(batch, blocks, strict=True):
                        part.vbucket.flushed(part.stop, placed)
                        self.pending_bytes -= part.size
                        persisted.append((part.vbucket.vbid, part.vbucket.persisted_seqno))
        return persisted

    def _take(self, waiting: dict[int, VBucketLog]) -> list[_Pending]:
        """Seal the pending rows of waiting vbuckets, up to `MAX_COMMIT_BYTES` (but at least one vbucket)."""
        batch: list[_Pending] = []
        size = 0
        with self.lock:
            for vbid in [*waiting]:
                if size >= MAX_COMMIT_BYTES:
                    break
                vbucket = waiting.pop(vbid)
                first, stop = vbucket.flushed_rows, len(vbucket.rows.seqnos)
                if first == stop:
                    continue
                vbucket.log.seal()
                start = vbucket.log.held_start
                batch.append(_Pending(vbucket, first, stop, start, vbucket.rows.end - start))
                size += batch[-1].size
        return batch

    def _write(self, batch: list[_Pending]) -> list[list[Page]]:
        self._put_deferred()
        segment = self._segments.place()
        buffers: list[Buffer] = []
        at = segment.size
        placed: list[list[Page]] = []
        for part in batch:
            pages: list[Page] = []
            at = part.encode(segment, at, buffers, pages)
            placed.append(pages)
        self._segments.write(buffers, at - segment.size)
        return placed

    def roll_back(self, vbucket: VBucketLog, seqno: int) -> None:
        """Write a rollback block if persisted rows go, then truncate.

        A failed commit may have left whole blocks after the committed end of a file. They are cut off first, or a new
        file is begun, so that they cannot count later. If the disk fails so that the rollback block can neither be made
        durable nor be cut off, only the next opening shows whether it counts.
        """
        with self._commit_lock:
            seqno = vbucket.reachable(seqno)
            self._put_deferred()
            if self._segments.must_roll:
                self._segments.place()
            if vbucket.persisted_seqno > seqno:
                segment = self._segments.place()
                block = encode_rollback(
                    segment.salt, vbucket.vbid, vbucket.incarnation, commit_offset=segment.size, seqno=seqno
                )
                self._segments.write([block], len(block))
                segment.rollbacks.add((vbucket.vbid, vbucket.incarnation))
            before = vbucket.unflushed_bytes
            vbucket.truncate(seqno)
            with self.lock:
                self.pending_bytes -= before - vbucket.unflushed_bytes
        if not seqno and self._horizons.pop(vbucket.vbid, 0):
            with suppress(StoreError):  # the old horizon only allows fewer rollbacks after a restart
                self.metadata_changed(vbucket)

    # ----------------------------------------------------------------------------------------------------- metadata

    def metadata_changed(self, vbucket: VBucketLog) -> None:
        """Write the vbucket's line, now or at the end of the batch."""
        with self._lines_lock:
            if self._batched is not None:
                self._batched[vbucket.vbid] = vbucket
            else:
                self._put_lines([vbucket])

    def _put_lines(self, vbuckets: Iterable[VBucketLog]) -> None:
        lines = [self._line(vbucket) for vbucket in vbuckets]
        self._metadata.put({}, lines)
        for line in lines:
            self._deferred_vbuckets.pop(line.vbid, None)

    def _line(self, vbucket: VBucketLog) -> VbucketMetadata:
        return VbucketMetadata(
            vbucket.vbid,
            vbucket.incarnation,
            vbucket.state,
            vbucket.failover_log,
            vbucket.purge_seqno,
            self._horizons.get(vbucket.vbid, 0),
            vbucket.max_deleted_rev,
        )

    def put_in_place(self, old: Sequence[Segment], new: Sequence[Segment], horizons: dict[VBucketLog, int]) -> None:
        """List rewritten segments, and record the horizons that they were rewritten for, in one durable step.

        For a compaction, which holds the commit lock.
        """
        with self._lines_lock:
            # A vbucket that was deleted or created again has another line, or none.
            still = {
                vbucket: horizon
                for vbucket, horizon in horizons.items()
                if self._incarnations[vbucket.vbid] == vbucket.incarnation
                and (vbucket.vbid, vbucket.incarnation) not in self._gone
            }
            lines = [replace(self._line(vbucket), horizon_seqno=horizon) for vbucket, horizon in still.items()]
            self._segments.replace(old, new, lambda values: self._metadata.put(values, lines))
            for vbucket, horizon in still.items():
                self._horizons[vbucket.vbid] = horizon

    @contextmanager
    def metadata_batch(self, *, may_wait: bool = False) -> Iterator[None]:
        """See `BucketStore.metadata_batch`. Not nested, and from one thread."""
        self._batched = {}
        try:
            yield
        finally:
            with self._lines_lock:
                changed, self._batched = self._batched, None
                if changed and not may_wait:
                    self._put_lines(changed.values())
            if changed and may_wait:
                self._put_or_defer({}, changed.values())

    def _next_incarnation(self, vbid: int) -> int:
        with self._lines_lock:
            incarnation = self._incarnations[vbid] = self._incarnations.get(vbid, 0) + 1
            self._horizons.pop(vbid, None)
        return incarnation

    def delete_vbucket(self, vbid: int) -> None:
        """See `BucketStore.delete_vbucket`."""
        vbucket = self.vbuckets.get(vbid)
        if vbucket is not None:
            with self._lines_lock:
                self._metadata.put({}, [VbucketMetadata(vbid, vbucket.incarnation, None, None, 0)])
                self._deferred_vbuckets.pop(vbid, None)
                # Only now: a vbucket that could not be deleted exists at the next opening, and needs its horizon.
                self._gone.add((vbid, vbucket.incarnation))
                if self._batched is not None:
                    self._batched.pop(vbid, None)
            self._drop(vbid)

    def _drop(self, vbid: int) -> None:
        with self._commit_lock, self.lock:
            vbucket = self.vbuckets.pop(vbid, None)
            if vbucket is not None and self.dirty.pop(vbid, None) is not None:
                self.pending_bytes -= vbucket.unflushed_bytes

    # ------------------------------------------------------------------------------------------------ reading, end

    @property
    def compaction_due(self) -> bool:
        """See `BucketStore.compaction_due`. Also adapts the size of new segments to the size of the store.

        A rewritten segment is on the disk twice for a moment, so a segment should be a small part of the whole.
        """
        part = max(self.live_bytes // PARTS_OF_STORE, MIN_SEGMENT_BYTES)
        self._segments.segment_bytes = min(part, self._segment_bytes)
        return super().compaction_due

    def _size_of(self, frames_bytes: int, rows: int) -> int:
        return size_in_files(frames_bytes, rows)

    @property
    def bytes_used(self) -> int:
        """The size of all segments."""
        return sum(segment.size for segment in self._segments.all())

    def _rewrite(self, order: CompactionOrder, report: CompactionReport) -> None:
        self._put_deferred()
        try:
            SegmentRewriting(
                self.vbuckets,
                self._segments,
                self._settings.compact_at,
                self._commit_lock,
                self.put_in_place,
                order,
                report,
            ).run()
        except RolledBackError:
            report.was_stopped = True
            logger.info("%s was rolled back while it was compacted; the next compaction goes on", self.path)

    def fit_cache(self, room: int) -> None:
        """See `BucketStore.fit_cache`."""
        self._segments.cache.capacity = max(min(self._settings.cache_bytes, room), 0)

    @property
    def cache_stats(self) -> CacheStats:
        """See `BucketStore.cache_stats`."""
        return self._segments.cache.stats

    def read_pieces(self, pieces: list[Piece], *, by_key: bool = False) -> list[Buffer]:
        """See `BucketStore.read_pieces`."""
        return self._segments.read_pieces(pieces, by_key=by_key)

    def would_wait(self, pieces: list[Piece]) -> bool:
        """See `BucketStore.would_wait`."""
        return self._segments.would_wait(pieces)

    def fetch(self, pieces: list[Piece]) -> None:
        """See `BucketStore.fetch`."""
        self._segments.fetch(pieces)

    def close(self, clean: bool = True) -> None:
        """See `BucketStore.close`; a second time does nothing."""
        with self._compaction_lock:
            self._close(clean)

    def _close(self, clean: bool) -> None:
        if not self._is_open:
            return
        try:
            if clean:
                self._close_cleanly()
        finally:
            self._shut()

    def _close_cleanly(self) -> None:
        try:
            self.commit()
        except StoreError as error:
            raise StoreError(
                f"{error.__cause__ or error}. The store in {self.path} is closed without the last {self.pending_bytes} "
                "bytes, which were never reported as persisted. What was is there when it is opened again."
            ) from error
        self._segments.settle()
        if "closed_at" in self._deferred_values:
            return  # nothing was written since the last clean close, which the file still records
        try:
            self._put_deferred()
        except StoreError as error:
            if not is_of_disk(error):
                raise
            logger.warning("%s was read only; the next opening is again one after a crash: %s", self.path, error)
            return
        self._metadata.put({"closed_at": json.dumps(self._segments.end)})

    def _shut(self) -> None:
        self._is_open = False
        self._closing.close()
