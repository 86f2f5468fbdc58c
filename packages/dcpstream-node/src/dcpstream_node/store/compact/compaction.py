"""The order and the report of a compaction. `docs/explanation/compaction.md` explains compaction as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MAX_SEQNO = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOrder:
    """The extent of a compaction: the rows to purge, and the files to rewrite.

    Attributes:
        before_time: purge deletions and ends of collections older than this, epoch seconds.
        before_seqno: purge only up to this seqno.
        purge_limits: vbid → a seqno above which nothing may be purged.
        vbids: purge only these vbuckets; None for all.
        rewrites: whether files or buffers are rewritten after the purge.
        is_full: rewrite all files that hold superseded rows, not only those that give back much.
        is_stopped: asked now and then; if true, the compaction ends early.
        breathe: called after each step of at most some ms; may sleep, to leave processor and disk to others.
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
    """The result of a compaction.

    Attributes:
        rows_purged: purged deletions and ends of collections.
        rows_dropped: removed rows, purged ones included.
        bytes_copied: frames that stayed in rewritten files or buffers.
        bytes_freed: by how much files or buffers shrank.
        was_stopped: whether it ended early.
    """

    rows_purged: int = 0
    rows_dropped: int = 0
    bytes_copied: int = 0
    bytes_freed: int = 0
    was_stopped: bool = False
