"""Retention of superseded versions for streams of changes: by age, by size, or both.

`review` is called from time to time; it moves each vbucket's `kept_from_seqno`, from which on a compaction drops
nothing. Which seqno was the last at which time is remembered as a few marks a vbucket, in memory: after a restart the
age of what is there counts from then, so it is kept longer rather than shorter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dcpstream_node.store.index.rows import LIVE

if TYPE_CHECKING:
    from dcpstream.model import BucketSettings
    from dcpstream_node.store import BucketStore, VBucketLog

MARKS = 64
"""Marks of a vbucket: history is kept up to a 64th of its time longer than asked for."""


def keep_history(log: VBucketLog, settings: BucketSettings) -> None:
    """Begin to keep every version of a vbucket, if the bucket does."""
    log.kept_from_seqno = 0 if settings.keeps_history else LIVE


class Retention:
    """The retention of one bucket."""

    def __init__(self, store: BucketStore) -> None:
        self._store = store
        self._marks: dict[int, deque[tuple[float, int]]] = {}
        self._branches: dict[int, tuple[VBucketLog, int]] = {}
        """The histories of the marks: another one after a rollback, or when the vbucket was created again."""

    def review(self, now: float) -> None:
        """Say from which seqno on each vbucket keeps its versions.

        Args:
            now: monotonic seconds.
        """
        settings = self._store.settings
        for vbid in self._branches.keys() - self._store.vbuckets.keys():
            del self._branches[vbid], self._marks[vbid]
        for vbid, log in list(self._store.vbuckets.items()):
            if not settings.keeps_history:
                keep_history(log, settings)
                continue
            kept_from = 0
            if settings.history_retention_s:
                kept_from = self._by_age(vbid, log, now, settings.history_retention_s)
            if settings.history_retention_bytes:
                share = settings.history_retention_bytes // self._store.vbucket_count
                kept_from = max(kept_from, log.seqno_before_end(share))
            log.kept_from_seqno = kept_from

    def _by_age(self, vbid: int, log: VBucketLog, now: float, age_s: float) -> int:
        """The first seqno that is not too old, as far as the marks show."""
        known, truncations = self._branches.get(vbid), log.rows.truncations
        if known is None or known[0] is not log or known[1] != truncations:
            self._branches[vbid], self._marks[vbid] = (log, truncations), deque([(now, 0)])
        marks = self._marks[vbid]
        if log.high_seqno > marks[-1][1] and now - marks[-1][0] >= age_s / MARKS:
            marks.append((now, log.high_seqno))
        while len(marks) > 1 and marks[1][0] < now - age_s:
            marks.popleft()
        return marks[0][1] + 1 if marks[0][0] < now - age_s else 0
