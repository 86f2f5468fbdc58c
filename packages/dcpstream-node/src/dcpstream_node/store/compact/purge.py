"""Purging old deletions and old ends of collections from a vbucket's history.

No reader sees a purged row any more, nor the rows that it superseded; a compaction later removes them from the files.
The metadata records only the highest purged seqno, before the purge. When the store is opened, deletions up to that
seqno that are still in the files are purged again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dcpstream_node.store.index.rows import KIND_SHIFT
from dcpstream_node.store.items import (
    COLLECTION_EVENT,
    DELETED,
    SYSTEM,
    SYSTEM_COLLECTION,
    UNTOLD_REVISION,
    cas_of,
    index_key,
    is_end_event,
    tombstone_revision,
)
from dcpstream_node.store.vbucket import VBucketLog

ALL_TIMES = 1 << 32
"""Later than every time that a row can have."""

_DEFAULT_COLLECTION = bytes((SYSTEM_COLLECTION,)) + COLLECTION_EVENT + bytes(4)
"""Index key of the default collection's events. Its end stays, because without it the collection would exist again."""


def purge(vbucket: VBucketLog, before_seqno: int, before_time: int) -> int:
    """Drop deletions and ends of collections: those up to a seqno that were made before a time.

    The last row always stays, and rows that are not persisted stay. `purge_seqno` rises to the highest purged seqno.

    Args:
        before_seqno: the highest seqno that may be purged.
        before_time: epoch seconds; only rows that were made earlier are purged.

    Returns: the number of purged rows.
    """
    # The last row stays, and the last persisted row too: after a crash it is the last, and would not be purged again.
    limit = min(before_seqno, max(vbucket.persisted_seqno - 1, 0))
    purged, truncations = 0, vbucket.rows.truncations
    for seqnos in vbucket.timed_seqnos(limit, DELETED, before_time):
        named = zip(vbucket.keys_of(seqnos), seqnos, strict=True)
        going = [(key, seqno) for key, seqno in named if key is not None]
        purged += _purge(vbucket, going, truncations)
    return purged + _purge(vbucket, _ends(vbucket, limit, before_time), truncations)


def _purge(vbucket: VBucketLog, going: Sequence[tuple[bytes, int]], truncations: int) -> int:
    """Purge, unless a rollback happened since `truncations` was read: the seqnos may be those of new rows then."""
    with vbucket.lock:
        if not going or vbucket.rows.truncations != truncations:
            return 0
        before = vbucket.purge_seqno
    # The metadata first: after a crash in between, the next opening purges the rows up to the purge seqno.
    highest = max(seqno for _, seqno in going)
    vbucket.set_purge_seqno(max(before, highest))
    with vbucket.lock:
        if vbucket.rows.truncations == truncations:
            return vbucket.rows.purge(going)
    vbucket.set_purge_seqno(before)
    return 0


def purge_again(vbucket: VBucketLog) -> None:
    """Purge again, while the store opens, the rows that were purged earlier and are still in the files."""
    limit = min(vbucket.purge_seqno, vbucket.high_seqno - 1)
    if limit <= 0:
        return
    rows = vbucket.rows
    purged = {seqno for seqnos in vbucket.timed_seqnos(limit, DELETED, ALL_TIMES) for seqno in seqnos}
    if purged:
        rows.purge([(key, seqno) for key, seqno in rows.keys.items() if seqno in purged])
    rows.purge(_ends(vbucket, limit, ALL_TIMES))


def _ends(vbucket: VBucketLog, limit: int, before_time: int) -> list[tuple[bytes, int]]:
    """(key, seqno) of the ends of collections and scopes that may be purged.

    Events have no time, but they are older than the CAS of the next document. The newest event always stays, because
    it holds the number of the manifest that the history has reached.
    """
    if before_time <= 0:
        return []
    events = [seqno for seqnos in vbucket.timed_seqnos(vbucket.high_seqno, SYSTEM, ALL_TIMES) for seqno in seqnos]
    ends = []
    for seqno, frame in zip(events[:-1], vbucket.frames_of(events[:-1]), strict=True):
        if frame is None or seqno > limit or not is_end_event(frame):
            continue
        key = index_key(frame)
        is_old = before_time >= ALL_TIMES or _time_after(vbucket, seqno) < before_time
        if is_old and key != _DEFAULT_COLLECTION:
            ends.append((key, seqno))
    return ends


def _time_after(vbucket: VBucketLog, seqno: int) -> int:
    """The time of the first change after a seqno, epoch seconds; `ALL_TIMES` if there is none."""
    with vbucket.lock:
        rows = vbucket.rows
        row = rows.row_after(seqno)
        while row < len(rows.seqnos) and rows.positions[row] >> KIND_SHIFT & SYSTEM:
            row += 1
        if row == len(rows.seqnos):
            return ALL_TIMES
        pieces = vbucket.log.pieces(*rows.extent(row))
    return cas_of(vbucket.fetch(pieces)) // 1_000_000_000


def highest_deleted_rev(vbucket: VBucketLog) -> int:
    """The highest revision of any deletion in the history, superseded ones included."""
    rows = vbucket.rows
    kinds = np.frombuffer(rows.positions, dtype=np.uint64) >> np.uint64(KIND_SHIFT)
    deleted = np.flatnonzero(kinds & DELETED).tolist()
    revisions = np.frombuffer(rows.revisions, dtype=np.uint32)[deleted].tolist() if deleted else []
    highest = 0
    for row, revision in zip(deleted, revisions, strict=True):
        if revision != UNTOLD_REVISION:
            highest = max(highest, revision)
        else:
            frame = vbucket.fetch(vbucket.log.pieces(*rows.extent(row)), by_key=False)
            highest = max(highest, tombstone_revision(frame))
    return highest
