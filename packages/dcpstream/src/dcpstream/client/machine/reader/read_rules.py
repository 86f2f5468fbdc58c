"""The rules by which a `StreamReader` reads: the user's choices, checked, without where to begin and to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcpstream.client.machine.reader.selection import FixedSelection, Selection
from dcpstream.client.machine.rollback_policy import PurgeGap, RollbackPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRules:
    """The rules of one reader.

    Attributes:
        policy: the reaction to a rollback.
        purge_gap: the reaction to purged deletions.
        collections: names to read (see `selection`), None for all.
        is_stable: whether rows are held back until all copies have them on disk.
        to_zero: whether a rollback always goes back to the beginning of the vbucket: for users that cannot restore
            older versions.
        idle_timeout_s: time without progress after which the reader raises; None = never (except for lost nodes).
        patience_s: how long a node that is needed may stay away, or refuse a vbucket, or end its stream at once, after
            a map was found; until then it is the limit for connecting.
        replicas_after_s: how long the active node of a vbucket may stay away before a replica is read; None = never.
    """

    policy: RollbackPolicy
    collections: Sequence[str] | Selection | FixedSelection | None
    patience_s: float
    idle_timeout_s: float | None = None
    purge_gap: PurgeGap = PurgeGap.RECONCILE
    is_stable: bool = False
    to_zero: bool = False
    replicas_after_s: float | None = None
