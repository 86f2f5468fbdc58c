"""What a reader does when the history that it was reading is not there any more: all of it, or deletions of it."""

from __future__ import annotations

from enum import Enum


class RollbackPolicy(Enum):
    """What a rollback means to the user."""

    FAIL = "fail"
    """Raise RollbackRequired."""
    REWIND = "rewind"
    """Go back and say so with a RollbackEvent, at any time."""
    REWIND_UNREAD = "rewind_unread"
    """As REWIND while no row of the vbucket was given out, else raise RollbackRequired: for planned reads."""


class PurgeGap(Enum):
    """What to do if deletions after a position have been purged: whoever reads on from it would not see them."""

    FAIL = "fail"
    """Raise HistoryPurged."""
    IGNORE = "ignore"
    """Read on from the position, with a warning in the log: deletions may be missing."""
    RECONCILE = "reconcile"
    """Begin the vbucket anew, as after a rollback to 0: everything that was read of it is void and comes again."""


def purged_message(vbid: int, seqno: int) -> str:
    """What to say about purged deletions."""
    return (
        f"vbucket {vbid}: deletions after seqno {seqno} were purged before they were read: what was deleted may still "
        "be there for this reader. Read the vbucket anew (on_rollback='rewind' with purge_gap='reconcile'), or "
        "accept it (purge_gap='ignore')."
    )
