"""What goes for good from a vbucket's history, and finding rows by their time.

Deletions that are old enough, and ends of collections, are purged: nobody sees them any more, nor what they superseded.
A compaction then takes them out of the files. Only the highest seqno among them is written down, before they go; an
opening purges everything up to it again that is still in the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from dcpstream.errors import CorruptLog
from dcpstream.store.index.rows import DELETED, KIND_SHIFT, SYSTEM, UNTOLD_REVISION
from dcpstream.store.index.selection import timed_rows
from dcpstream.store.items import (
    COLLECTION_EVENT,
    SYSTEM_COLLECTION,
    cas_of,
    index_key,
    is_end_event,
    tombstone_revision,
)

if TYPE_CHECKING:
    from dcpstream.store.log.bytelog import Piece
    from dcpstream.store.vbucket import VBucketLog

PURGE_ROWS = 4096
"""Rows whose keys are read, and which are purged, in one step: some ms without the lock, and one or two with it."""

ALL_TIMES = 1 << 32
"""Later than every time that a row can have."""

_DEFAULT_COLLECTION = bytes((SYSTEM_COLLECTION,)) + COLLECTION_EVENT + bytes(4)
"""Index key of the default collection's events: without its end it would be there again."""

Lock = AbstractContextManager[object]


def purge(vbucket: VBucketLog, lock: Lock, before_seqno: int, before_time: int) -> int:
    """See `VBucketLog.purge`."""
    # The last row stays; and what would be the last one after a crash, or the opening would not purge it again.
    limit = min(before_seqno, max(vbucket.persisted_seqno - 1, 0))
    purged, truncations = 0, vbucket.rows.truncations
    for seqnos in _timed(vbucket, lock, limit, DELETED, before_time):
        named = zip(keys_of(vbucket, lock, seqnos), seqnos, strict=True)
        going = [(key, seqno) for key, seqno in named if key is not None]
        purged += _purge(vbucket, lock, going, truncations)
    return purged + _purge(vbucket, lock, _ends(vbucket, lock, limit, before_time), truncations)


def _purge(vbucket: VBucketLog, lock: Lock, going: Sequence[tuple[bytes, int]], truncations: int) -> int:
    """Purge, if no rollback came since there were so many: after one, the same seqnos may be of living documents."""
    with lock:
        if not going or vbucket.rows.truncations != truncations:
            return 0
        before = vbucket.purge_seqno
    # First the metadata: after a crash in between, the opening purges what lies up to the purge seqno.
    highest = max(seqno for _, seqno in going)
    vbucket.purge_seqno = max(before, highest)
    with lock:
        if vbucket.rows.truncations == truncations:
            return vbucket.rows.purge(going)
    vbucket.purge_seqno = before
    return 0


def purge_again(vbucket: VBucketLog, lock: Lock) -> None:
    """Purge what was purged before the store was opened, as far as it still is in the files."""
    limit = min(vbucket.purge_seqno, vbucket.high_seqno - 1)
    if limit <= 0:
        return
    rows = vbucket.rows
    purged = {seqno for seqnos in _timed(vbucket, lock, limit, DELETED, ALL_TIMES) for seqno in seqnos}
    if purged:
        rows.purge([(key, seqno) for key, seqno in rows.keys.items() if seqno in purged])
    rows.purge(_ends(vbucket, lock, limit, ALL_TIMES))


def expired(vbucket: VBucketLog, lock: Lock, unix_s: int, limit: int) -> list[bytes]:
    """See `VBucketLog.expired`."""
    found: list[bytes] = []
    for seqnos in _timed(vbucket, lock, vbucket.high_seqno, 0, unix_s + 1):
        at = 0
        while at < len(seqnos) and len(found) < limit:
            some = seqnos[at : at + limit - len(found)]
            found += [key for key in keys_of(vbucket, lock, some) if key is not None]
            at += len(some)
        if len(found) >= limit:
            break
    return found


def _timed(vbucket: VBucketLog, lock: Lock, end_seqno: int, kinds: int, before_time: int) -> Iterator[list[int]]:
    """Seqnos of rows by their kind and time, some at a time; see `timed_rows`."""
    row = 0
    while True:
        with lock:
            stop = vbucket.rows.row_after(end_seqno)
            seqnos, row = timed_rows(vbucket.rows, row, stop, kinds, before_time, PURGE_ROWS)
        if seqnos:
            yield seqnos
        if row >= stop:
            return


def keys_of(vbucket: VBucketLog, lock: Lock, seqnos: Sequence[int]) -> list[bytes | None]:
    """The index keys of rows, None for those that have gone or are damaged. Reads their frames."""
    return [None if frame is None else index_key(frame) for frame in _frames_of(vbucket, lock, seqnos)]


def _frames_of(vbucket: VBucketLog, lock: Lock, seqnos: Sequence[int]) -> Iterator[bytes | memoryview | None]:
    for first in range(0, len(seqnos), PURGE_ROWS):
        groups: list[list[Piece] | None] = []
        with lock:
            rows = vbucket.rows
            for seqno in seqnos[first : first + PURGE_ROWS]:
                row = rows.row_of(seqno)
                is_there = row < len(rows.seqnos) and rows.seqnos[row] == seqno
                groups.append(vbucket.log.pieces(*rows.extent(row)) if is_there else None)
        for group in groups:
            try:
                frame = None if group is None else vbucket.fetch(group, by_key=True)
            except CorruptLog:
                frame = None  # it was noted; what cannot be read stays, and holds up nothing else
            yield frame


def _ends(vbucket: VBucketLog, lock: Lock, limit: int, before_time: int) -> list[tuple[bytes, int]]:
    """(key, seqno) of ends of collections and scopes that may be purged.

    Events tell no time. But what was written next does, by its CAS, and they are older than that. The newest event
    always stays: it tells which manifest the history has reached.
    """
    if before_time <= 0:
        return []
    events = [seqno for seqnos in _timed(vbucket, lock, vbucket.high_seqno, SYSTEM, ALL_TIMES) for seqno in seqnos]
    ends = []
    for seqno, frame in zip(events[:-1], _frames_of(vbucket, lock, events[:-1]), strict=True):
        if frame is None or seqno > limit or not is_end_event(frame):
            continue
        key = index_key(frame)
        is_old = before_time >= ALL_TIMES or _time_after(vbucket, lock, seqno) < before_time
        if is_old and key != _DEFAULT_COLLECTION:
            ends.append((key, seqno))
    return ends


def _time_after(vbucket: VBucketLog, lock: Lock, seqno: int) -> int:
    """When the first change behind a seqno was made, epoch seconds; `ALL_TIMES` if there is none."""
    with lock:
        rows = vbucket.rows
        row = rows.row_after(seqno)
        while row < len(rows.seqnos) and rows.positions[row] >> KIND_SHIFT & SYSTEM:
            row += 1
        if row == len(rows.seqnos):
            return ALL_TIMES
        pieces = vbucket.log.pieces(*rows.extent(row))
    return cas_of(vbucket.fetch(pieces, by_key=True)) // 1_000_000_000


def highest_deleted_rev(vbucket: VBucketLog) -> int:
    """The highest revision among the deletions that are still there, superseded ones included."""
    rows = vbucket.rows
    kinds = np.frombuffer(rows.positions, dtype=np.uint64) >> np.uint64(KIND_SHIFT)
    deleted = np.flatnonzero(kinds & DELETED).tolist()
    revisions = np.frombuffer(rows.revisions, dtype=np.uint32)[deleted].tolist() if deleted else []
    highest = 0
    for row, revision in zip(deleted, revisions, strict=True):
        is_known = revision != UNTOLD_REVISION
        highest = max(
            highest, revision if is_known else tombstone_revision(vbucket.fetch(vbucket.log.pieces(*rows.extent(row))))
        )
    return highest
