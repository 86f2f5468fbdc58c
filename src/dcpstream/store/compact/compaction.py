"""What a compaction is told, what it tells, and the part of it that both kinds of store share.

`docs/explanation/compaction.md` explains the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MAX_SEQNO = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOrder:
    """What to compact, and what to purge with it.

    Attributes:
        before_time: deletions and ends of collections older than this go, epoch seconds.
        before_seqno: only those up to this one.
        purge_limits: of some vbuckets, a seqno beyond which nothing may be purged.
        vbids: only these vbuckets are purged; None for all.
        rewrites: whether anything is rewritten; else only purged.
        is_full: rewrite all files that hold anything superseded, not only those that give back much.
        is_stopped: asked now and then; if true, the compaction ends early.
        breathe: called after each step of some ms; may sleep, so that others have the processor and the disk.
    """

    before_time: int = 0
    before_seqno: int = MAX_SEQNO
    purge_limits: Mapping[int, int] = field(default_factory=dict)
    vbids: frozenset[int] | None = None
    rewrites: bool = True
    is_full: bool = False
    is_stopped: Callable[[], bool] = lambda: False
    breathe: Callable[[], None] = lambda: None


@dataclass(slots=True)
class CompactionReport:
    """What a compaction did.

    Attributes:
        rows_purged: deletions and ends of collections.
        rows_dropped: rows that went, purged ones included.
        bytes_copied: frames that stayed of what was rewritten.
        bytes_freed: by which files or buffers shrank.
        files_before, files_after: segments.
        was_stopped: it ended early.
    """

    rows_purged: int = 0
    rows_dropped: int = 0
    bytes_copied: int = 0
    bytes_freed: int = 0
    files_before: int = 0
    files_after: int = 0
    was_stopped: bool = False
