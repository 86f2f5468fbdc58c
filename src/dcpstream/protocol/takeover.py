"""What a takeover does to the bucket whose vbucket it hands over."""

from __future__ import annotations

from typing import Protocol

__all__ = ["TakeoverHost"]


class TakeoverHost(Protocol):
    """The bucket of a producer that hands vbuckets over; both take effect at once."""

    def hand_over(self, vbid: int) -> None:
        """The other node has the vbucket: it is dead here, and every other stream out of it ends."""
        ...

    def put_off_writes(self, vbid: int, *, is_on: bool) -> None:
        """Clients' writes are told to try again later, or are taken again."""
        ...
