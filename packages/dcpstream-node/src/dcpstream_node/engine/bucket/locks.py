"""Documents of a vbucket that are locked by GET_LOCKED: only writes with the CAS of the lock are allowed.

Locks are in memory only, end when the vbucket changes its role, and do not appear in the history or in DCP. Readers of
a locked document do not see its CAS. UNLOCK, a write with the lock's CAS, or the end of its time unlock it.

Source: kv_engine engines/ep/src/vbucket.cc (getLocked, checkCasForWrite), kv_bucket.cc (unlockKey).
"""

from __future__ import annotations

from typing import NamedTuple

LOCKS_MAX = 1_000
"""Locks of a vbucket at a time: each takes some 300 bytes, so those of 1,024 vbuckets 300 MB at the worst. Those whose
time is over make room first."""

HIDDEN_CAS = (1 << 64) - 1
"""The CAS of a locked document, as clients without the lock see it."""


class Lock(NamedTuple):
    """A document's lock.

    Attributes:
        cas: what its owner was given.
        until_ns: when it ends, nanoseconds since 1970.
        seqno: of the version that was locked; a later one is not.
        since_ns: when it began, likewise.
    """

    cas: int
    until_ns: int
    seqno: int
    since_ns: int = 0


class Locks(dict[bytes, Lock]):
    """The locks of one vbucket, by key with collection prefix; a dict, so that looking for none costs nothing."""

    __slots__ = ()

    def find(self, key: bytes, seqno: int, unix_ns: int) -> Lock | None:
        """The lock on this version of a document; None if it has none, or none any more.

        A lock whose beginning lies in the future begins again: the clock was set back, and the lock would otherwise
        last longer by as much.
        """
        lock = self.get(key)
        if lock is None:
            return None
        if unix_ns < lock.since_ns:
            lock = self[key] = lock._replace(since_ns=unix_ns, until_ns=unix_ns + lock.until_ns - lock.since_ns)
        if lock.seqno != seqno or lock.until_ns <= unix_ns:
            del self[key]
            return None
        return lock

    def take(self, key: bytes, lock: Lock, unix_ns: int) -> bool:
        """Lock a document that is not locked; False if there are too many locks."""
        if len(self) >= LOCKS_MAX:
            for name in [name for name, held in self.items() if held.until_ns <= unix_ns]:
                del self[name]
            if len(self) >= LOCKS_MAX:
                return False
        self[key] = lock
        return True

    def release(self, key: bytes) -> None:
        """Unlock a document."""
        self.pop(key, None)
