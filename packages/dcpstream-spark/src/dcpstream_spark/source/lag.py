"""The lag of a query, as the source reports it in Spark's progress: short, whatever the number of vbuckets.

```
{"v": 3, "lag": 1200, "worst": {"7": 1100, "12": 100}, "inside": 3, "vbuckets": 1024, "read": 48800}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset

VERSION = 3
WORST_VBUCKETS = 10
"""Vbuckets that a report names: enough to see whether one vbucket, one node or all are behind."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The seqnos that a query has not planned to read yet.

    Attributes:
        total: seqnos between the planned end and the high seqno, of all vbuckets.
        worst: vbucket → its part, largest first, of the vbuckets furthest behind; those at their high seqno are left
            out.
        inside_snapshot: vbuckets whose planned end lies within a snapshot.
        vbuckets: number of vbuckets whose high seqno is known; the others are in none of the numbers.
        read: sum of the seqnos up to the planned end, but no more than there are. With `total`, it is the sum of the
            high seqnos.
    """

    total: int
    worst: Mapping[int, int]
    inside_snapshot: int
    vbuckets: int
    read: int

    @classmethod
    def between(cls, end: Mapping[int, StreamOffset], high_seqnos: Mapping[int, int]) -> Lag:
        """The lag of a planned end."""
        known = {vbid: at for vbid, at in end.items() if vbid in high_seqnos}
        behind = {vbid: high_seqnos[vbid] - at.seqno for vbid, at in known.items() if high_seqnos[vbid] > at.seqno}
        inside = sum(
            at.seqno < (high_seqnos[vbid] if at.snapshot_end is None else at.snapshot_end) for vbid, at in known.items()
        )
        worst = sorted(behind, key=lambda vbid: (-behind[vbid], vbid))[:WORST_VBUCKETS]
        return cls(
            total=sum(behind.values()),
            worst={vbid: behind[vbid] for vbid in worst},
            inside_snapshot=inside,
            vbuckets=len(known),
            read=sum(min(at.seqno, high_seqnos[vbid]) for vbid, at in known.items()),
        )

    def to_json(self) -> dict[str, Any]:
        """The layout of the module's text."""
        return {
            "v": VERSION,
            "lag": self.total,
            "worst": {str(vbid): seqnos for vbid, seqnos in self.worst.items()},
            "inside": self.inside_snapshot,
            "vbuckets": self.vbuckets,
            "read": self.read,
        }

    @classmethod
    def from_json(cls, data: Any) -> Lag:
        """The inverse of `to_json`.

        Raises:
            OffsetError: it is not a report of this source.
        """
        try:
            worst = {int(vbid): int(seqnos) for vbid, seqnos in data["worst"].items()}
            return cls(int(data["lag"]), worst, int(data["inside"]), int(data["vbuckets"]), int(data["read"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OffsetError(f"The progress holds the report of another source: {data!r:.80} ({error!r}).") from error
