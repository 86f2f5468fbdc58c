"""Deletions that are not on disk yet, and the time that GET_META shows for them.

A server keeps a deleted document in memory until the deletion is persisted, with the expiration that it had; only the
version on disk has the time of the deletion. So GET_META shows the expiration first and the deletion time later.

A bucket in memory persists nothing. There a deletion counts as persisted after `UNTIL_NS`, or as soon as a
client has asked for the persisted seqno, because the answer covers everything.

A deletion that is no longer fresh is forgotten when its vbucket's next one is added, or when its time is asked for.

Source: kv_engine engines/ep/src/vbucket.cc (queueDirty, getMetaData), stored-value.cc (deleteImpl).
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple

FRESH_MAX: Final = 1_000
"""Remembered deletions of a vbucket; older ones show their own time at once."""

UNTIL_NS: Final = 10_000_000
"""Time for which a deletion in memory is fresh: about as long as a server's disk takes."""


class FreshDeletion(NamedTuple):
    """A deletion that may not be persisted.

    Attributes:
        seqno: of the tombstone.
        time: shown instead of the time of the deletion.
        at_ns: when it was made, nanoseconds since 1970.
    """

    seqno: int
    time: int
    at_ns: int

    def is_persisted(self, unix_ns: int, persisted_seqno: int | None) -> bool:
        """Whether it is no longer fresh.

        Args:
            persisted_seqno: of the vbucket; None for a bucket in memory.
        """
        return unix_ns - self.at_ns >= UNTIL_NS if persisted_seqno is None else self.seqno <= persisted_seqno


class FreshDeletions(dict[bytes, FreshDeletion]):
    """The newest deletions of one vbucket, by key with collection prefix, oldest first."""

    __slots__ = ()

    def add(self, key: bytes, seqno: int, time: int, unix_ns: int, persisted_seqno: int | None) -> None:
        """Remember a deletion, and forget those that are persisted.

        Args:
            persisted_seqno: of the vbucket; None for a bucket in memory.
        """
        self.pop(key, None)  # an assignment alone would leave it in its old place
        persisted = list(takewhile(lambda old: self[old].is_persisted(unix_ns, persisted_seqno), self))
        if len(persisted) == len(self) or len(self) >= FRESH_MAX:
            self.clear()  # which also frees the room of the dict
        else:
            for old in persisted:
                del self[old]
        self[key] = FreshDeletion(seqno, time, unix_ns)

    def time_of(self, key: bytes, seqno: int, delete_time: int, unix_ns: int, persisted_seqno: int | None) -> int:
        """The time that answers show for a tombstone.

        Args:
            persisted_seqno: of the vbucket; None for a bucket in memory.
        """
        fresh = self.get(key)
        if fresh is None or fresh.seqno != seqno:
            return delete_time
        if fresh.is_persisted(unix_ns, persisted_seqno):
            del self[key]
            return delete_time
        return fresh.time
