"""Deletions that are not on disk yet, and the time that GET_META shows for them.

A server keeps a deleted document in memory until the deletion is persisted, with the expiration that it had; only the
version on disk has the time of the deletion. So GET_META shows the expiration first and the deletion time later.

A bucket in memory persists nothing. There a deletion counts as persisted after `UNTIL_NS`, or as soon as a
client has asked for the persisted seqno, because the answer covers everything.

Source: kv_engine engines/ep/src/vbucket.cc (queueDirty, getMetaData), stored-value.cc (deleteImpl).
"""

from __future__ import annotations

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


class FreshDeletions(dict[bytes, FreshDeletion]):
    """The newest deletions of one vbucket, by key with collection prefix."""

    __slots__ = ()

    def add(self, key: bytes, seqno: int, time: int, unix_ns: int) -> None:
        """Remember a deletion."""
        if len(self) >= FRESH_MAX:
            self.clear()
        self[key] = FreshDeletion(seqno, time, unix_ns)

    def time_of(self, key: bytes, seqno: int, delete_time: int, unix_ns: int, persisted_seqno: int | None) -> int:
        """The time that answers show for a tombstone.

        Args:
            persisted_seqno: of the vbucket; None for a bucket in memory.
        """
        fresh = self.get(key)
        if fresh is None or fresh.seqno != seqno:
            return delete_time
        is_fresh = unix_ns - fresh.at_ns < UNTIL_NS if persisted_seqno is None else seqno > persisted_seqno
        if is_fresh:
            return fresh.time
        del self[key]
        return delete_time
