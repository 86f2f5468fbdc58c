"""A bucket store in memory, lost at the end of the process."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Lock

from dcpstream.model import BucketSettings
from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.base import BucketStore
from dcpstream_node.store.compact.compaction import CompactionOrder, CompactionReport
from dcpstream_node.store.compact.retention import RolledBackError, choose, rules_for
from dcpstream_node.store.compact.row_removal import RowRemoval, kept_frames
from dcpstream_node.store.index.rows import LIVE
from dcpstream_node.store.log.frame_log import CHUNK_BYTES
from dcpstream_node.store.log.segment_file import Piece
from dcpstream_node.store.vbucket import VBucketLog

REWRITE_BYTES = 32 * 1024 * 1024
"""Frames that are rewritten at a time: bounds the additional memory of a compaction."""

WORTH = 8
"""Buffers are rewritten if at least an 8th of their bytes is superseded."""


class MemoryBucketStore(BucketStore):
    """Histories in memory; an appended row counts as persisted at once, as in the server's ephemeral buckets.

    Frames lie in buffers of about 1 MiB each; a compaction frees the frames of superseded rows.

    Args:
        vbucket_count: the bucket's number of vbuckets; none exists until `create_vbucket`.
    """

    def __init__(self, vbucket_count: int, settings: BucketSettings | None = None) -> None:
        super().__init__(vbucket_count, settings)
        # A compaction moves the horizon, which must not change in the middle of a rollback.
        self._rollback_lock = Lock()

    def commit(self) -> list[tuple[int, int]]:
        """Nothing to do."""
        return []

    def close(self, clean: bool = True) -> None:
        """Forget everything."""
        self.vbuckets.clear()

    def delete_vbucket(self, vbid: int) -> None:
        """See `BucketStore.delete_vbucket`."""
        self._drop(vbid)

    def read_pieces(self, pieces: list[Piece], *, by_key: bool = False) -> list[Buffer]:
        """The pieces themselves: there are no files."""
        return [piece for piece in pieces if not isinstance(piece, tuple)]

    def fit_cache(self, room: int) -> None:
        """Nothing to do."""

    def fetch(self, pieces: list[Piece]) -> None:
        """Nothing to do."""

    def metadata_changed(self, vbucket: VBucketLog) -> None:
        """Nothing to do."""

    def metadata_deferred(self, vbucket: VBucketLog) -> None:
        """Nothing to do."""

    def roll_back(self, vbucket: VBucketLog, seqno: int) -> None:
        """Truncate the vbucket."""
        with self._rollback_lock:
            vbucket.truncate(vbucket.reachable(seqno))

    def _save(self, name: str, value: object) -> None:
        """Nothing to do."""

    def _next_incarnation(self, vbid: int) -> int:
        return 0

    def _drop(self, vbid: int) -> None:
        self.vbuckets.pop(vbid, None)

    # --------------------------------------------------------------------------------------------------- compaction

    @property
    def bytes_used(self) -> int:
        """See `BucketStore.bytes_used`."""
        return sum(vbucket.rows.end for vbucket in list(self.vbuckets.values()))

    def _rewrite(self, order: CompactionOrder, report: CompactionReport) -> None:
        for vbucket in list(self.vbuckets.values()):
            if order.is_stopped():
                report.was_stopped = True
                return
            if vbucket.rows.stale_bytes:
                try:
                    self._rewrite_vbucket(vbucket, order, report)
                except RolledBackError:
                    continue  # the next compaction takes it

    def _rewrite_vbucket(self, vbucket: VBucketLog, order: CompactionOrder, report: CompactionReport) -> None:
        lock, log, rows = self.lock, vbucket.log, vbucket.rows
        with self._rollback_lock:
            rules = rules_for(vbucket, is_durable=False)
        with lock:
            log.seal()
            rows.intact_rows = LIVE
            truncations = rows.truncations
        begin = 0
        while not order.is_stopped():
            with lock:
                end = log.sealed_end(begin, REWRITE_BYTES)
                first, stop = rows.row_at(begin), rows.row_at(end)
                if end == begin or rows.truncations != truncations:
                    return
            choice = choose(vbucket, first, stop, rules)
            dropped = choice.bytes_dropped
            if not dropped or (dropped * WORTH < end - begin and not order.is_full):
                begin = end
                continue
            buffers: list[tuple[int, bytearray]] = []
            place = 0
            for _, _, pieces in kept_frames(vbucket, choice):
                frames = b"".join(pieces)
                if not buffers or len(buffers[-1][1]) + len(frames) > CHUNK_BYTES:
                    buffers.append((place, bytearray()))
                buffers[-1][1].extend(frames)
                place += len(frames)
            RowRemoval(vbucket, choice).run(nullcontext(), buffers=buffers)
            order.breathe()
            report.rows_dropped += stop - first - len(choice.kept)
            report.bytes_copied += place
            report.bytes_freed += dropped
            begin = end - dropped
