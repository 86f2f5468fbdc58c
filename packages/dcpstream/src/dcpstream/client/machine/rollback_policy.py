"""Lost history: the user's choices for rollbacks and purged deletions, and the decision between the two.

A node refuses a position with "roll back to 0" for two reasons: it does not know the branch, or it purged deletions
after the position. A second request that ignores purged deletions finds out: the node accepts it only in the second
case.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Literal

from dcpstream.errors import ConfigError, HistoryPurged

OnPurgeGap = Literal["fail", "ignore", "reconcile"]
RewindTo = Literal["recorded", "zero"]

logger = logging.getLogger(__name__)


class RollbackPolicy(Enum):
    """The user's choice for rollbacks."""

    FAIL = "fail"
    """Raise RollbackRequired."""
    REWIND = "rewind"
    """Go back and report a RollbackEvent, at any time."""
    REWIND_UNREAD = "rewind_unread"
    """As REWIND while no row of the vbucket was delivered, else raise RollbackRequired: for planned reads."""


class PurgeGap(Enum):
    """The user's choice for purged deletions after a position, which reading on from it would miss."""

    FAIL = "fail"
    """Raise HistoryPurged."""
    IGNORE = "ignore"
    """Read on from the position, with a warning in the log: deletions may be missing."""
    RECONCILE = "reconcile"
    """Read the vbucket again from its beginning, as after a rollback to 0: everything that was read of it is void and
    comes again."""

    def needs_probe(self, rollback_seqno: int, seqno: int) -> bool:
        """Whether to ask the node why it refused a position: for its branch, or for purged deletions.

        Args:
            rollback_seqno: the seqno of the node's answer.
            seqno: of the refused position.
        """
        return self is not PurgeGap.RECONCILE and rollback_seqno == 0 and seqno > 0

    def accept_purged(self, vbid: int, seqno: int) -> None:
        """Deletions after this position were purged: log a warning.

        Raises:
            HistoryPurged: the policy is FAIL.
        """
        message = (
            f"vbucket {vbid}: deletions after seqno {seqno} were purged before they were read: what was deleted may "
            "still be there for this reader. Read the vbucket again (on_rollback='rewind' with purge_gap='reconcile'), "
            "or accept it (purge_gap='ignore')."
        )
        if self is PurgeGap.FAIL:
            raise HistoryPurged(message)
        logger.warning("%s They are left out, as purge_gap is 'ignore'.", message)


def check_purge_gap(purge_gap: OnPurgeGap | None, *, can_rewind: bool) -> PurgeGap:
    """The policy for purged deletions; None follows the policy for rollbacks.

    Raises:
        ConfigError: no such policy, or one that needs to go back where that is not allowed.
    """
    if purge_gap is None:
        return PurgeGap.RECONCILE if can_rewind else PurgeGap.FAIL
    if purge_gap not in {member.value for member in PurgeGap}:
        raise ConfigError("purge_gap", purge_gap, "'fail', 'ignore' or 'reconcile'")
    if purge_gap == "reconcile" and not can_rewind:
        raise ConfigError("purge_gap", purge_gap, "with a rollback policy that goes back, as on_rollback='rewind'")
    return PurgeGap(purge_gap)


def check_rewind_to(rewind_to: RewindTo) -> bool:
    """Whether a rollback begins the vbucket from 0.

    Raises:
        ConfigError: no such choice.
    """
    if rewind_to not in {"recorded", "zero"}:
        raise ConfigError("rewind_to", rewind_to, "'recorded' or 'zero'")
    return rewind_to == "zero"


def branch_message(vbid: int, seqno: int) -> str:
    """The text of an error: a recorded position is accepted, but on another branch than the recorded one."""
    return (
        f"vbucket {vbid}: the bucket's history goes on in another branch than the one of the recorded position (there "
        f"was a failover, or a node lost changes). The position at seqno {seqno} is still valid, but rows above it "
        "that were read and not acknowledged may be void. Read on with on_rollback='rewind' and take back all rows of "
        f"the vbucket above seqno {seqno} when the rollback is reported; those that are valid come again."
    )
