"""The writes of a round by seqno, on the branch that the cluster is on now. The judge's own memory of the bucket."""

from __future__ import annotations

from dataclasses import dataclass, field

Name = tuple[str, str, str]
"""(scope, collection, key)"""


@dataclass(frozen=True, slots=True)
class Write:
    """One write: its document and the value that it gave, None for a deletion.

    An extended attribute that was written alone leaves the value as it was: `is_xattr`.
    """

    name: Name
    value: bytes | None
    is_xattr: bool = False


@dataclass
class History:
    """The content of each copy of a vbucket by seqno, and the copy that counts.

    A snapshot that a copy received leaves out older versions, so a copy may lack some of its writes, but it has no
    others. Seqnos without an entry belong to changes of scopes and collections.

    Attributes:
        active: vbucket → the number of the node whose copy counts.
        names: every document that was ever written.
    """

    active: list[int]
    names: set[Name] = field(default_factory=set)
    _copies: dict[tuple[int, int], dict[int, Write]] = field(default_factory=dict)

    def writes(self, vbid: int) -> dict[int, Write]:
        """Seqno → write of a vbucket, on the branch that the cluster is on."""
        return self._copies.setdefault((self.active[vbid], vbid), {})

    def add(self, vbid: int, seqno: int, write: Write) -> None:
        """A write that a node has answered."""
        own = self.writes(vbid)
        assert seqno > max(own, default=0), f"vbucket {vbid}: the seqno {seqno} does not rise"
        own[seqno] = write
        self.names.add(write.name)

    def copy(self, vbid: int, source: int, target: int, high_seqno: int) -> None:
        """A copy has received another one's writes up to a seqno."""
        known = self._copies.get((source, vbid), {})
        self._copies[target, vbid] = {seqno: write for seqno, write in known.items() if seqno <= high_seqno}

    def cut(self, number: int, vbid: int, high_seqno: int) -> None:
        """A copy has lost everything above a seqno."""
        self.copy(vbid, number, number, high_seqno)
