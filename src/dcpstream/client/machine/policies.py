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


def branch_message(vbid: int, seqno: int) -> str:
    """What to say if a recorded position is accepted, but on another branch than the recorded one."""
    return (
        f"vbucket {vbid}: the bucket's history goes on in another branch than the one of the recorded position (there "
        f"was a failover, or a node lost changes). The position at seqno {seqno} is still valid, but rows above it "
        "that were read and not acknowledged may be void. Read on with on_rollback='rewind' and take back all rows of "
        f"the vbucket above seqno {seqno} when the rollback is told; those that are valid come again."
    )


def purged_message(vbid: int, seqno: int) -> str:
    """What to say about purged deletions."""
    return (
        f"vbucket {vbid}: deletions after seqno {seqno} were purged before they were read: what was deleted may still "
        "be there for this reader. Read the vbucket anew (on_rollback='rewind' with purge_gap='reconcile'), or "
        "accept it (purge_gap='ignore')."
    )
