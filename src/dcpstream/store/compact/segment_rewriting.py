"""Rewriting segment files: what lives in some neighbours is copied into new ones, which take their place.

Theory of operation. Segments are shared by all vbuckets, and the order of the files is the order of each history. So
a run of neighbours is chosen by what it gives back; of each vbucket the rows that stay are copied, in order of seqno,
which also makes large blocks of small ones; one transaction of the metadata puts the new files in the place of the
old ones and says down to where rollbacks reach now; then each vbucket's index goes over, and the old files are removed.
A crash before the transaction leaves new files that nobody knows, one behind it old ones that nobody needs: opening
removes either.

Rollbacks that the old files tell of void rows in the files before them. If there are any of these, a rollback to the
last row that is left of them goes first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby, pairwise
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.store.compact.choosing import Choice, RolledBackError, choose, slices
from dcpstream.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream.store.index.removal import Rewrite, kept_frames
from dcpstream.store.index.rows import LIVE, POSITION_MASK, RowTable
from dcpstream.store.log import blocks as limits
from dcpstream.store.log.blocks import Buffer, Page, checksum, encode_block_head, encode_rollback, split_rows
from dcpstream.store.log.segmentfile import Segment
from dcpstream.store.log.segments import Segments, SegmentWriter
from dcpstream.store.metadata import InDoubtError
from dcpstream.store.vbucket import VBucketLog

if TYPE_CHECKING:
    from dcpstream.store.base import BucketStore

RUN_SEGMENTS = 8
"""Files of a run at most: bounds the numbers that are held of their rows, some 40 bytes each."""

LEFT_OVER = 0.5
"""A compaction goes on until the share that is superseded is this part of the share at which it begins."""

WORTH = 0.1
"""A file is rewritten if at least this share of it is given back; if all are to be, a tenth of that."""

SMALL = 4
"""A neighbour smaller than this part of a segment is rewritten along with others, so that files do not become many."""


SYNC_BYTES = 8 * 1024 * 1024
"""New files are synced after so many bytes: commits wait for the disk no longer than that takes."""


def size_in_files(frames_bytes: int, rows: int) -> int:
    """About what a vbucket's frames take in segments, with tables and headers, if their blocks are large."""
    pages, blocks = frames_bytes // limits.PAGE_BYTES + 1, frames_bytes // limits.MAX_BLOCK_BYTES + 1
    head = limits.BLOCK_HEADER.size + limits.CHECKSUM.size
    return frames_bytes + limits.END_BYTES * rows + limits.PAGE_BYTES_IN_TABLE * pages + head * blocks if rows else 0


class _Stopped(Exception):
    """The compaction is to end."""


PutInPlace = Callable[[Sequence[Segment], Sequence[Segment], "dict[VBucketLog, int]"], None]


class Cleaning:
    """One compaction of a disk store's files.

    Args:
        commits: held while no commit and no rollback may be under way.
        put_in_place: makes it durable that new segments count instead of old ones, with the vbuckets' horizons.
    """

    def __init__(
        self,
        store: BucketStore,
        segments: Segments,
        commits: Lock,
        put_in_place: PutInPlace,
        order: CompactionOrder,
        report: CompactionReport,
    ) -> None:
        self._store = store
        self._segments = segments
        self._commits = commits
        self._put_in_place = put_in_place
        self._order = order
        self._report = report

    def run(self) -> None:
        """Rewrite what is worth it.

        Raises:
            StoreError: a file cannot be read or written; what was done before stays done.
            CorruptLog: a file is damaged and stays as it is; others are rewritten all the same.
            RolledBackError: a rollback came in between; likewise.
        """
        self._report.files_before = len(self._segments.all())
        try:
            self._seal_last()
            damage = [self._rewrite_around(run) for run in self._runs(self._live_bytes())]
        except _Stopped:
            self._report.was_stopped = True
            damage = []
        self._report.files_after = len(self._segments.all())
        for error in damage:
            if error is not None:
                raise error

    def _rewrite_around(self, run: list[Segment]) -> CorruptLog | None:
        """Rewrite neighbours, file by file if something in them is damaged: that one stays. Returns what it met."""
        try:
            self._rewrite(run)
        except CorruptLog as error:
            if len(run) > 1:
                for segment in run:
                    self._rewrite_around([segment])
            return error
        return None

    def _seal_last(self) -> None:
        """Begin a new segment if much of the growing one is superseded: only others can be rewritten."""
        with self._commits:
            segments = self._segments.all()
        if not segments:
            return
        last = segments[-1]
        garbage = last.size - self._live_bytes().get(last.number, 0)
        least = WORTH / 10 if self._order.is_full else self._store.settings.compact_at * LEFT_OVER
        is_large = self._order.is_full or last.size * SMALL >= self._segments.segment_bytes
        if is_large and garbage > max(least * last.size, limits.SEGMENT_HEADER.size):
            with self._commits:
                if self._segments.all()[-1] is last:
                    self._segments.seal()

    # ------------------------------------------------------------------------------------------------ what to rewrite

    def _live_bytes(self) -> dict[int, int]:
        """Number of a segment → frames in it that are the newest of their keys."""
        found: dict[int, int] = {}
        for vbucket in list(self._store.vbuckets.values()):
            with self._store.lock:
                parts = vbucket.log.parts()
                stop = vbucket.rows.row_at(vbucket.log.held_start)
            if parts:
                for (_, number), size in zip(parts, self._live_in(vbucket.rows, stop, parts), strict=True):
                    found[number] = found.get(number, 0) + size
            self._breathe()
        return found

    def _live_in(self, rows: RowTable, stop: int, parts: Sequence[tuple[int, int]]) -> list[int]:
        """Of each part (position, number), the frames of rows that nothing superseded."""
        starts = [start for start, _ in parts]
        sizes = [0] * len(parts)
        for begin, end in slices(0, stop):
            with self._store.lock:
                positions, successors = rows.positions[begin:end], rows.successors[begin:end]
                positions.append(rows.start_of(begin + len(positions)))
            column = (np.frombuffer(positions, dtype=np.uint64) & np.uint64(POSITION_MASK)).astype(np.int64)
            lives = np.frombuffer(successors, dtype=np.uint64) == LIVE
            part = np.searchsorted(np.array(starts, dtype=np.int64), column[:-1][lives], side="right") - 1
            for at, size in enumerate(np.bincount(part, weights=np.diff(column)[lives]).tolist()):
                sizes[at] += int(size)
        return sizes

    def _runs(self, live: dict[int, int]) -> list[list[Segment]]:
        """Which neighbours to rewrite together, those that give back most first."""
        segments = self._segments.all()[:-1]
        garbage = {segment: max(segment.size - live.get(segment.number, 0), 0) for segment in segments}
        total = sum(segment.size for segment in segments)
        left = sum(garbage.values())
        goal = 0 if self._order.is_full else self._store.settings.compact_at * LEFT_OVER * total
        least = WORTH / 10 if self._order.is_full else WORTH
        chosen: set[Segment] = set()
        for segment in sorted(segments, key=lambda segment: garbage[segment] / segment.size, reverse=True):
            if left <= goal or garbage[segment] < least * segment.size:
                break
            chosen.add(segment)
            left -= garbage[segment]
        for segment, following in pairwise(segments):
            if following in chosen and segment.size * SMALL < self._segments.segment_bytes:
                chosen.add(segment)
        runs: list[list[Segment]] = []
        for is_chosen, group in groupby(segments, key=chosen.__contains__):
            if is_chosen:
                runs += self._bounded(group, live)
        return sorted(runs, key=lambda run: sum(garbage[segment] for segment in run), reverse=True)

    def _bounded(self, group: Iterable[Segment], live: dict[int, int]) -> list[list[Segment]]:
        """Neighbours in runs of which each leaves about one segment."""
        runs: list[list[Segment]] = [[]]
        size = 0
        for segment in group:
            size += live.get(segment.number, 0)
            if runs[-1] and (size > self._segments.segment_bytes or len(runs[-1]) >= RUN_SEGMENTS):
                runs.append([])
                size = live.get(segment.number, 0)
            runs[-1].append(segment)
        return runs

    # ------------------------------------------------------------------------------------------------------ rewriting

    def _rewrite(self, run: list[Segment]) -> None:
        choices = self._choose(run)
        dropped = sum(choice.bytes_dropped for choice in choices.values())
        size = sum(segment.size for segment in run)
        kept = sum(choice.bytes_kept for choice in choices.values())
        needed = sum(size_in_files(choice.bytes_kept, len(choice.kept)) for choice in choices.values())
        if size - needed < WORTH / 10 * size:
            return  # what was superseded is still needed
        copy = _Copy(self._segments)
        try:
            pages = self._copy(run, choices, copy)
            new = copy.finish()
        except BaseException:
            copy.abandon()
            raise
        with self._commits:
            if any(vbucket.rows.intact_rows < choice.stop for vbucket, choice in choices.items()):
                copy.abandon()
                raise RolledBackError
            try:
                self._put_in_place(run, new, {vbucket: vbucket.horizon_seqno for vbucket in choices})
            except InDoubtError:
                raise  # the new files stay until the next opening, which knows whether they count
            except StoreError:
                copy.abandon()  # or each attempt would leave a copy on a disk that is full
                raise
        for vbucket, choice in choices.items():
            Rewrite(vbucket, choice, self._store.lock).run(self._commits, pages=pages[vbucket])
            self._order.breathe()
        self._segments.retire(run)
        self._report.bytes_copied += kept
        self._report.rows_dropped += sum(choice.stop - choice.first - len(choice.kept) for choice in choices.values())
        self._report.bytes_freed += dropped

    def _choose(self, run: list[Segment]) -> dict[VBucketLog, Choice]:
        """Of each vbucket that has rows in these files, or a rollback, which of them stay."""
        numbers = {segment.number for segment in run}
        choices: dict[VBucketLog, Choice] = {}
        for vbucket in list(self._store.vbuckets.values()):
            # A rollback is as before this, or leads to 0 if it came before the horizon.
            with self._commits:
                rules = vbucket.rules()
                with self._store.lock:
                    log, rows = vbucket.log, vbucket.rows
                    rows.intact_rows = LIVE
                    parts = [*log.parts(), (log.held_start, 0)]
                    within = [part for part, (_, number) in enumerate(parts) if number in numbers]
                    if not within:
                        continue
                    first = rows.row_at(parts[within[0]][0])
                    stop = rows.row_at(parts[within[-1] + 1][0])
            choices[vbucket] = choose(rows, self._store.lock, first, stop, rules)
            self._breathe()
        return choices

    def _copy(self, run: list[Segment], choices: dict[VBucketLog, Choice], copy: _Copy) -> dict[VBucketLog, list[Page]]:
        order = self._segments.all()
        before = {segment.number for segment in order[: order.index(run[0])]}
        rolled_back = {which for segment in run for which in segment.rollbacks} if before else set()
        found: dict[VBucketLog, list[Page]] = {}
        for vbucket in list(self._store.vbuckets.values()):
            choice = choices.get(vbucket)
            if (vbucket.vbid, vbucket.incarnation) in rolled_back:
                copy.add_rollback(vbucket, self._last_seqno_in(vbucket, before))
            if choice is not None:
                found[vbucket] = self._copy_vbucket(vbucket, choice, copy)
        for vbucket, choice in choices.items():
            if vbucket not in found:  # it was deleted meanwhile, but somebody may read it
                found[vbucket] = self._copy_vbucket(vbucket, choice, copy)
        return found

    def _last_seqno_in(self, vbucket: VBucketLog, numbers: set[int]) -> int:
        """The seqno of the last row in these files, the first ones of all; 0 if there is none."""
        with self._store.lock:
            parts = [*vbucket.log.parts(), (vbucket.log.held_start, 0)]
            after = next(start for start, number in parts if number not in numbers)
            row = vbucket.rows.row_at(after)
            return vbucket.rows.seqnos[row - 1] if row else 0

    def _breathe(self) -> None:
        self._order.breathe()
        if self._order.is_stopped():
            raise _Stopped

    def _copy_vbucket(self, vbucket: VBucketLog, choice: Choice, copy: _Copy) -> list[Page]:
        pages: list[Page] = []
        offsets = array("Q", accumulate(map(int.__sub__, choice.ends, choice.starts), initial=0))
        begin = 0
        waiting: list[Buffer] = []
        for _, to, frames in kept_frames(vbucket, choice, self._store.lock):
            waiting += frames
            size = offsets[to] - offsets[begin]
            if size >= limits.MAX_BLOCK_BYTES or to == len(choice.kept):
                copy.add_frames(vbucket, choice, offsets, (begin, to), b"".join(waiting), pages, self._store.lock)
                begin, waiting = to, []
                self._breathe()
        return pages


class _Copy:
    """The new files of one run."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._writers: list[SegmentWriter] = []
        self._done: list[Segment] = []
        self._unsynced = 0

    def _writer(self) -> SegmentWriter:
        if not self._writers or self._writers[-1].size >= self._segments.segment_bytes:
            self._finish_last()
            self._writers.append(self._segments.begin_rewrite())
        return self._writers[-1]

    def _finish_last(self) -> None:
        if len(self._writers) > len(self._done):
            self._done.append(self._writers[-1].finish())

    def finish(self) -> list[Segment]:
        """Make all of them durable."""
        self._finish_last()
        return self._done

    def abandon(self) -> None:
        """Remove all of them."""
        for writer in self._writers:
            writer.abandon()

    def add_rollback(self, vbucket: VBucketLog, seqno: int) -> None:
        """What the vbucket has above this seqno in the files before is void."""
        writer = self._writer()
        block = encode_rollback(
            writer.segment.salt, vbucket.vbid, vbucket.incarnation, commit_offset=writer.size, seqno=seqno
        )
        writer.write([block], len(block))
        writer.segment.rollbacks.add((vbucket.vbid, vbucket.incarnation))

    def add_frames(
        self,
        vbucket: VBucketLog,
        choice: Choice,
        offsets: array[int],
        kept: tuple[int, int],
        frames: bytes,
        pages: list[Page],
        lock: Lock,
    ) -> None:
        """Write kept rows [from, to) as blocks, and note where their pages are.

        Args:
            offsets: where the frame of each kept row begins among those that stay.
        """
        begin, to = kept
        base = offsets[begin]
        places = [offset - base for offset in offsets[begin : to + 1]]
        view = memoryview(frames)
        for first, stop in split_rows(places, limits.MAX_BLOCK_BYTES):
            writer = self._writer()
            salt, start = writer.segment.salt, places[first]
            occurring = 0
            for kinds in set(choice.kinds[begin + first : begin + stop]):
                occurring |= kinds
            page_ends, checksums = [], []
            for row, end in split_rows(places[first : stop + 1], limits.PAGE_BYTES):
                page_ends.append(places[first + end] - start)
                checksums.append(checksum(view[places[first + row] : places[first + end]], salt))
            with lock:
                if vbucket.rows.intact_rows < choice.stop:
                    raise RolledBackError
                marks = vbucket.marks_of(choice.kept[begin + first], choice.kept[begin + stop - 1] + 1)
            head = encode_block_head(
                salt,
                vbucket.vbid,
                vbucket.incarnation,
                commit_offset=writer.size,
                seqnos=(choice.seqnos[begin + first], choice.seqnos[begin + stop - 1]),
                occurring=occurring,
                ends=[place - start for place in places[first + 1 : stop + 1]],
                page_ends=page_ends,
                page_checksums=checksums,
                marks=marks,
            )
            address, since = (writer.address | writer.size) + len(head), 0
            buffers: list[Buffer] = [head, view[start : places[stop]]]
            writer.write(buffers, len(head) + places[stop] - start)
            self._unsynced += len(head) + places[stop] - start
            if self._unsynced >= SYNC_BYTES:
                writer.sync()
                self._unsynced = 0
            for end, page_checksum in zip(page_ends, checksums, strict=True):
                pages.append((base + start + since, address + since, end - since, page_checksum))
                since = end
