"""How far back a rollback reaches after a compaction, which takes superseded rows away."""

from __future__ import annotations

from dcpstream.store.index.rows import RowTable
from dcpstream.store.index.snapshots import ReceivedSnapshots

ROLLBACK_PART, MIN_ROLLBACK_BYTES = 16, 8 * 1024
ROLLBACK_ROWS = 10_000
"""How far back a rollback reaches after a compaction: over so many rows, whose frames take at most a 16th of what
lives (or the minimum, if that is more). It is what disk use grows by for it; a copy that has to go back further begins
anew, as a server's does."""

ROLLBACK_SNAPSHOT = 4
"""A received snapshot that the horizon falls into is kept whole if it is at most so many times that size."""


def rollback_bytes(rows: RowTable) -> int:
    """Frames up to this size are kept for rollbacks although they were superseded."""
    return max((rows.end - rows.stale_bytes) // ROLLBACK_PART, MIN_ROLLBACK_BYTES)


def next_horizon(rows: RowTable, snapshots: ReceivedSnapshots, stop: int) -> int:
    """The oldest seqno down to which rollbacks shall reach, of those before the row `stop`."""
    reach = rollback_bytes(rows)
    row = max(rows.row_at(max(rows.end - reach, 0)), len(rows.seqnos) - ROLLBACK_ROWS, 0)
    row = min(row, stop)
    if not row:
        return 0
    seqno = rows.seqnos[row - 1]
    snapshot = snapshots.at(row)
    if snapshot is not None and snapshot.start_seqno < seqno < snapshot.end_seqno:
        # A rollback into a received snapshot goes to its start.
        start = rows.row_after(snapshot.start_seqno)
        if rows.end - rows.start_of(start) <= ROLLBACK_SNAPSHOT * reach:
            return snapshot.start_seqno
    return seqno
