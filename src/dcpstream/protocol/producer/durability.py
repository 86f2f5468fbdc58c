"""What a producer needs to know of durable writes in a vbucket, and what it tells of them.

Durable writes are prepared, then committed or aborted; prepares and aborts have seqnos of their own, which only streams
with sync writes see. A replica that takes part says how far it has prepared; who keeps the vbucket decides from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["DurableWrites"]


class DurableWrites(Protocol):
    """The durable writes of one vbucket."""

    @property
    def high_prepared_seqno(self) -> int:
        """The last prepare that this copy has, as durable as its level asks for; 0 if none."""
        ...

    @property
    def high_completed_seqno(self) -> int:
        """The last prepare that was committed or aborted; 0 if none."""
        ...

    @property
    def commits(self) -> Mapping[int, int]:
        """Seqno of a commit in memory → seqno of its prepare."""
        ...

    def visible_seqno(self, seqno: int) -> int:
        """The last seqno at or below this one that is no prepare or abort; 0 if there is none."""
        ...

    def first_visible_after(self, seqno: int) -> int | None:
        """The first seqno above this one that is no prepare or abort; None if there is none yet."""
        ...

    def first_hidden_after(self, seqno: int) -> int | None:
        """The first seqno above this one that is a prepare or abort; None if there is none yet."""
        ...

    def acknowledged(self, name: str, seqno: int) -> None:
        """The replica of this name has prepared everything up to `seqno`."""
        ...
