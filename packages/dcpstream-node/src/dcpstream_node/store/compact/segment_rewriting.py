"""Rewriting segment files: the live frames of adjacent files are copied into new files, which replace the old ones.

Theory of operation. All vbuckets share the segments, and the order of the files is the order of each history. So the
compaction chooses runs of adjacent files that give back much. It copies the rows that stay, vbucket by vbucket in order
of seqno, which also turns small blocks into large ones. One transaction of the metadata lists the new files in place of
the old ones, and records the new rollback horizons. Then each vbucket's index changes over, and the old files are
removed. A crash before the transaction leaves new files that are not listed, a crash after it leaves old files that are
not needed; the next opening removes either.

A rollback block in the old files voids rows in files before them. If there are files before, the new files begin with a
rollback to the last row that is left in those.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from threading import Lock

import numpy as np

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream_node.store.compact.retention import Choice, RolledBackError, choose, rules_for, slices
from dcpstream_node.store.compact.row_removal import RowRemoval, kept_frames
from dcpstream_node.store.index.rows import LIVE, POSITION_MASK
from dcpstream_node.store.log import blocks as limits
from dcpstream_node.store.log.blocks import BlockPlace, Page, encode_frames, encode_rollback, split_rows
from dcpstream_node.store.log.segment_file import Segment
from dcpstream_node.store.log.segments import Segments, SegmentWriter
from dcpstream_node.store.metadata import InDoubtError
from dcpstream_node.store.vbucket import VBucketLog

RUN_SEGMENTS = 8
"""Largest number of files of a run: bounds the memory for the numbers of their rows, some 40 bytes each."""

LEFT_OVER = 0.5
"""A compaction ends when the superseded share is this part of the share at which compactions begin."""

WORTH = 0.1
"""A file is rewritten if at least this share of it is given back; in a full compaction, a tenth of that."""

SMALL = 4
"""A file smaller than this part of a segment is rewritten along with its neighbours, so that small files do not pile
up."""

SYNC_BYTES = 8 * 1024 * 1024
"""New files are synced after this many bytes, so that commits do not wait long for the disk."""


def size_in_files(frames_bytes: int, rows: int) -> int:
    """The approximate size of a vbucket's frames in segments, with tables and headers, in large blocks."""
    pages, blocks = frames_bytes // limits.PAGE_BYTES + 1, frames_bytes // limits.MAX_BLOCK_BYTES + 1
    head = limits.BLOCK_HEADER.size + limits.CHECKSUM.size
    return frames_bytes + limits.END_BYTES * rows + limits.PAGE_BYTES_IN_TABLE * pages + head * blocks if rows else 0


class _Stopped(Exception):
    """The compaction was asked to end."""


PutInPlace = Callable[[Sequence[Segment], Sequence[Segment], "dict[VBucketLog, int]"], None]


class SegmentRewriting:
    """One compaction of a disk store's files.

    Args:
        vbuckets: the store's, by vbid.
        compact_at: see `BucketSettings`.
        commits: the lock that keeps commits and rollbacks out.
        put_in_place: durably lists new segments in place of old ones, with the vbuckets' horizons.
    """

    def __init__(
        self,
        vbuckets: Mapping[int, VBucketLog],
        segments: Segments,
        compact_at: float,
        commits: Lock,
        put_in_place: PutInPlace,
        order: CompactionOrder,
        report: CompactionReport,
    ) -> None:
        self._vbuckets = vbuckets
        self._segments = segments
        self._compact_at = compact_at
        self._commits = commits
        self._put_in_place = put_in_place
        self._order = order
        self._report = report

    def run(self) -> None:
        """Rewrite the files that are worth it.

        Raises:
            StoreError: a file cannot be read or written; the runs before it stay rewritten.
            CorruptLog: a file is damaged and stays as it is; the other files are rewritten.
            RolledBackError: a rollback came in between; the runs before it stay rewritten.
        """
        try:
            self._seal_last()
            damage = [self._rewrite_around(run) for run in self._runs(self._live_bytes())]
        except _Stopped:
            self._report.was_stopped = True
            damage = []
        for error in damage:
            if error is not None:
                raise error

    def _rewrite_around(self, run: list[Segment]) -> CorruptLog | None:
        """Rewrite a run; if a file in it is damaged, each file alone, without that one. Returns the damage."""
        try:
            self._rewrite(run)
        except CorruptLog as error:
            if len(run) > 1:
                for segment in run:
                    self._rewrite_around([segment])
            return error
        return None

    def _seal_last(self) -> None:
        """Begin a new segment if much of the growing one is superseded, because only the others can be rewritten."""
        with self._commits:
            segments = self._segments.all()
        if not segments:
            return
        last = segments[-1]
        garbage = last.size - self._live_bytes().get(last.number, 0)
        least = WORTH / 10 if self._order.is_full else self._compact_at * LEFT_OVER
        is_large = self._order.is_full or last.size * SMALL >= self._segments.segment_bytes
        if is_large and garbage > max(least * last.size, limits.SEGMENT_HEADER.size):
            with self._commits:
                if self._segments.all()[-1] is last:
                    self._segments.roll()

    # ------------------------------------------------------------------------------------------------ what to rewrite

    def _live_bytes(self) -> dict[int, int]:
        """Bytes of live frames in each segment, by the segment's number."""
        found: dict[int, int] = {}
        for vbucket in list(self._vbuckets.values()):
            with vbucket.lock:
                parts = vbucket.log.parts()
                stop = vbucket.rows.row_at(vbucket.log.held_start)
            if parts:
                for (_, number), size in zip(parts, self._live_in(vbucket, stop, parts), strict=True):
                    found[number] = found.get(number, 0) + size
            self._breathe()
        return found

    @staticmethod
    def _live_in(vbucket: VBucketLog, stop: int, parts: Sequence[tuple[int, int]]) -> list[int]:
        """Bytes of live frames in each part (position, number) of one vbucket."""
        rows, starts = vbucket.rows, [start for start, _ in parts]
        sizes = [0] * len(parts)
        for begin, end in slices(0, stop):
            with vbucket.lock:
                positions, successors = rows.positions[begin:end], rows.successors[begin:end]
                positions.append(rows.start_of(begin + len(positions)))
            column = (np.frombuffer(positions, dtype=np.uint64) & np.uint64(POSITION_MASK)).astype(np.int64)
            lives = np.frombuffer(successors, dtype=np.uint64) == LIVE
            part = np.searchsorted(np.array(starts, dtype=np.int64), column[:-1][lives], side="right") - 1
            for at, size in enumerate(np.bincount(part, weights=np.diff(column)[lives]).tolist()):
                sizes[at] += int(size)
        return sizes

    def _runs(self, live: dict[int, int]) -> list[list[Segment]]:
        """The runs of adjacent files to rewrite together; runs that give back most come first."""
        segments = self._segments.all()[:-1]
        garbage = {segment: max(segment.size - live.get(segment.number, 0), 0) for segment in segments}
        total = sum(segment.size for segment in segments)
        left = sum(garbage.values())
        goal = 0 if self._order.is_full else self._compact_at * LEFT_OVER * total
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
        """Adjacent files in runs of which each leaves about one segment."""
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
            return  # most superseded rows are still needed
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
                raise  # the new files stay; the next opening finds out whether they are listed
            except StoreError:
                copy.abandon()  # else each attempt would leave a copy on a full disk
                raise
        for vbucket, choice in choices.items():
            RowRemoval(vbucket, choice).run(self._commits, pages=pages[vbucket])
            self._order.breathe()
        self._segments.retire(run)
        self._report.bytes_copied += kept
        self._report.rows_dropped += sum(choice.stop - choice.first - len(choice.kept) for choice in choices.values())
        self._report.bytes_freed += dropped

    def _choose(self, run: list[Segment]) -> dict[VBucketLog, Choice]:
        """Choose the rows that stay, for each vbucket that has rows in these files."""
        numbers = {segment.number for segment in run}
        choices: dict[VBucketLog, Choice] = {}
        for vbucket in list(self._vbuckets.values()):
            # A rollback comes before this, or leads to 0 if its seqno is below the new horizon.
            with self._commits:
                rules = rules_for(vbucket, is_durable=True)
                with vbucket.lock:
                    log, rows = vbucket.log, vbucket.rows
                    rows.intact_rows = LIVE
                    parts = [*log.parts(), (log.held_start, 0)]
                    within = [part for part, (_, number) in enumerate(parts) if number in numbers]
                    if not within:
                        continue
                    first = rows.row_at(parts[within[0]][0])
                    stop = rows.row_at(parts[within[-1] + 1][0])
            choices[vbucket] = choose(vbucket, first, stop, rules)
            self._breathe()
        return choices

    def _copy(self, run: list[Segment], choices: dict[VBucketLog, Choice], copy: _Copy) -> dict[VBucketLog, list[Page]]:
        order = self._segments.all()
        before = {segment.number for segment in order[: order.index(run[0])]}
        rolled_back = {which for segment in run for which in segment.rollbacks} if before else set()
        found: dict[VBucketLog, list[Page]] = {}
        for vbucket in list(self._vbuckets.values()):
            choice = choices.get(vbucket)
            if (vbucket.vbid, vbucket.incarnation) in rolled_back:
                copy.add_rollback(vbucket, self._last_seqno_in(vbucket, before))
            if choice is not None:
                found[vbucket] = self._copy_vbucket(vbucket, choice, copy)
        for vbucket, choice in choices.items():
            if vbucket not in found:  # it was deleted meanwhile, but a reader may still use it
                found[vbucket] = self._copy_vbucket(vbucket, choice, copy)
        return found

    def _last_seqno_in(self, vbucket: VBucketLog, numbers: set[int]) -> int:
        """The seqno of the last row in these files, which are the oldest ones; 0 if there is none."""
        with vbucket.lock:
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
        offsets = choice.offsets()
        begin = 0
        waiting: list[Buffer] = []
        for _, to, frames in kept_frames(vbucket, choice):
            waiting += frames
            size = offsets[to] - offsets[begin]
            if size >= limits.MAX_BLOCK_BYTES or to == len(choice.kept):
                copy.add_frames(vbucket, choice, offsets, (begin, to), b"".join(waiting), pages)
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
        if not self._writers or self._writers[-1].segment.size >= self._segments.segment_bytes:
            self._finish_last()
            self._writers.append(self._segments.begin_rewrite())
        return self._writers[-1]

    def _finish_last(self) -> None:
        if len(self._writers) > len(self._done):
            self._done.append(self._writers[-1].finish())

    def finish(self) -> list[Segment]:
        """Make all files durable."""
        self._finish_last()
        return self._done

    def abandon(self) -> None:
        """Remove all files."""
        for writer in self._writers:
            writer.abandon()

    def add_rollback(self, vbucket: VBucketLog, seqno: int) -> None:
        """Void the vbucket's rows above this seqno in the files before."""
        writer = self._writer()
        block = encode_rollback(
            writer.segment.salt, vbucket.vbid, vbucket.incarnation, commit_offset=writer.segment.size, seqno=seqno
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
    ) -> None:
        """Write the kept rows [from, to) as blocks.

        Args:
            offsets: the position of each kept row among the frames that stay, and the end.
            frames: the rows' bytes.
            pages: the blocks' pages are added here.
        """
        begin, to = kept
        base = offsets[begin]
        view = memoryview(frames)

        def read(start: int, stop: int) -> list[Buffer]:
            return [view[start - base : stop - base]]

        places = offsets[begin : to + 1]
        for first, stop in split_rows(places, limits.MAX_BLOCK_BYTES):
            writer = self._writer()
            occurring = 0
            for kinds in set(choice.kinds[begin + first : begin + stop]):
                occurring |= kinds
            with vbucket.lock:
                if vbucket.rows.intact_rows < choice.stop:
                    raise RolledBackError
                marks = vbucket.snapshots.covering(choice.kept[begin + first], choice.kept[begin + stop - 1] + 1)
            place = BlockPlace(
                writer.segment.salt,
                vbucket.vbid,
                vbucket.incarnation,
                commit_offset=writer.segment.size,
                seqnos=(choice.seqnos[begin + first], choice.seqnos[begin + stop - 1]),
                occurring=occurring,
                marks=marks,
            )
            block = encode_frames(place, places[first : stop + 1], read)
            pages += block.pages(places[first], writer.segment.address | writer.segment.size)
            size = len(block.head) + places[stop] - places[first]
            writer.write([block.head, *block.frames], size)
            self._unsynced += size
            if self._unsynced >= SYNC_BYTES:
                writer.sync()
                self._unsynced = 0
