"""What a vbucket's history and its bucket store know of each other."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from dcpstream.errors import CorruptLog
from dcpstream.store.log.bytelog import Buffer, PageFile, Piece

if TYPE_CHECKING:
    from dcpstream.store.vbucket import VBucketLog


class Owner(Protocol):
    """What a vbucket needs of its bucket store."""

    lock: Lock
    is_durable: bool
    pending_bytes: int
    dirty: dict[int, VBucketLog]

    @property
    def files(self) -> Mapping[int, PageFile]:
        """The files that hold pages, by number."""
        ...

    def read_pieces(self, pieces: list[Piece], *, by_key: bool = False) -> list[Buffer]:
        """The pieces, those that are in files read and verified; `by_key`: with pages that are kept for the next."""
        ...

    def note_damage(self, error: CorruptLog) -> None:
        """A read met bytes that are not what was written."""
        ...

    def would_wait(self, pieces: list[Piece]) -> bool:
        """Whether reading the pieces would wait for the disk, as far as that can be told."""
        ...

    def metadata_changed(self, vbucket: VBucketLog) -> None:
        """State, failover log or purge seqno were set: make it durable."""
        ...

    def roll_back(self, vbucket: VBucketLog, seqno: int) -> None:
        """Make the rollback durable and call `truncate`."""
        ...


class NotAtHand(Exception):
    """What was to be read without waiting is on the disk alone: have `pieces` fetched (`BucketStore.fetch`) first."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(f"{len(pieces)} pieces")
        self.pieces = pieces
