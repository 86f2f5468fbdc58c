"""Branches of a vbucket's history.

The history of a vbucket is a line of seqnos. It forks when a copy becomes active that lacks the newest changes. Each
branch has a name (vbuuid) and a first seqno. The failover log lists these pairs, newest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_FAILOVER_ENTRIES = 25
"""Largest number of entries in a log, the server's default for max_failover_entries; the oldest is dropped."""


@dataclass(frozen=True, slots=True)
class FailoverEntry:
    """A branch: `vbuuid` names it (u64, not 0), `seqno` is where it began (u64)."""

    vbuuid: int
    seqno: int


@dataclass(frozen=True, slots=True)
class FailoverLog:
    """The branches that a copy of a vbucket knows, newest first; never empty.

    Source: kv_engine engines/ep/src/failover-table.cc.
    """

    entries: tuple[FailoverEntry, ...]

    def __post_init__(self) -> None:
        """Refuse a log without an entry."""
        if not self.entries:
            raise ValueError("a failover log has at least one entry")

    @classmethod
    def of(cls, *entries: tuple[int, int]) -> FailoverLog:
        """A log from (vbuuid, seqno) pairs, newest first."""
        return cls(tuple(FailoverEntry(vbuuid, seqno) for vbuuid, seqno in entries))

    @property
    def newest(self) -> FailoverEntry:
        """The current branch."""
        return self.entries[0]

    def __iter__(self) -> Iterator[FailoverEntry]:
        """The entries, newest first."""
        return iter(self.entries)

    def __len__(self) -> int:
        """The number of known branches."""
        return len(self.entries)

    def upper(self, vbuuid: int, high_seqno: int) -> int | None:
        """The last seqno that belongs to the branch, or None if the branch is not known.

        Searched from the oldest entry, as the server does; the newest branch reaches up to `high_seqno`.
        """
        newer = len(self.entries)
        for index in range(len(self.entries) - 1, -1, -1):
            newer = index - 1
            if self.entries[index].vbuuid == vbuuid:
                return high_seqno if newer < 0 else self.entries[newer].seqno
        return None

    def pushed(self, entry: FailoverEntry) -> FailoverLog:
        """The log with a new branch: entries above its seqno are void, and the oldest beyond 25 is dropped."""
        kept = tuple(old for old in self.entries if old.seqno <= entry.seqno)
        return FailoverLog(((entry, *kept))[:MAX_FAILOVER_ENTRIES])

    def pruned(self, seqno: int) -> FailoverLog | None:
        """The log after a rollback to `seqno`: branches that began above it are void; None if none is left."""
        kept = tuple(entry for entry in self.entries if entry.seqno <= seqno)
        return FailoverLog(kept) if kept else None

    def to_json(self) -> list[list[str]]:
        """Pairs of decimal text, because JSON numbers lose bits of a u64."""
        return [[str(entry.vbuuid), str(entry.seqno)] for entry in self.entries]

    @classmethod
    def from_json(cls, data: Iterable[Iterable[str]]) -> FailoverLog:
        """The inverse of `to_json`, without invalid entries.

        Invalid are branches without a name (0), and branches that began above a newer one.

        Raises:
            ValueError: no entry is left, or an entry is not a pair of numbers.
        """
        kept: list[FailoverEntry] = []
        for vbuuid, seqno in data:
            entry = FailoverEntry(int(vbuuid), int(seqno))
            if entry.vbuuid and (not kept or entry.seqno <= kept[-1].seqno):
                kept.append(entry)
        return cls(tuple(kept))
