"""Documents of a vbucket that somebody locked with GET_LOCKED: who has the lock's CAS may write, others may not.

Locks are in memory only, and gone when the vbucket leaves this node's care; neither the history nor DCP knows of them.
While a document is locked nobody is shown a CAS of it; what unlocks it is UNLOCK, a write with the lock's CAS, or time.

Source: kv_engine engines/ep/src/vbucket.cc (getLocked, checkCasForWrite), kv_bucket.cc (unlockKey).
"""

from __future__ import annotations

from typing import NamedTuple

LOCKS_MAX = 10_000
"""Locks of a vbucket at a time: each takes some 300 bytes, and those whose time is over make room first."""

HIDDEN_CAS = (1 << 64) - 1
"""What others see as the CAS of a document that is locked."""


class Lock(NamedTuple):
    """A document's lock.

    Attributes:
        cas: what its owner was given.
        until_ns: when it ends, nanoseconds since 1970.
        seqno: of the version that was locked; a later one is not.
    """

    cas: int
    until_ns: int
    seqno: int


class Locks:
    """The locks of one vbucket, by key with collection prefix."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[bytes, Lock] = {}

    def __bool__(self) -> bool:
        """Whether anything may be locked."""
        return bool(self._locks)

    def find(self, key: bytes, seqno: int, unix_ns: int) -> Lock | None:
        """The lock on this version of a document; None if it has none, or none any more."""
        lock = self._locks.get(key)
        if lock is None:
            return None
        if lock.seqno != seqno or lock.until_ns <= unix_ns:
            del self._locks[key]
            return None
        return lock

    def take(self, key: bytes, lock: Lock, unix_ns: int) -> bool:
        """Lock a document that is not locked; False if there are too many locks."""
        if len(self._locks) >= LOCKS_MAX:
            self._locks = {name: held for name, held in self._locks.items() if held.until_ns > unix_ns}
            if len(self._locks) >= LOCKS_MAX:
                return False
        self._locks[key] = lock
        return True

    def release(self, key: bytes) -> None:
        """Unlock a document."""
        self._locks.pop(key, None)

    def clear(self) -> None:
        """Unlock all."""
        self._locks.clear()
