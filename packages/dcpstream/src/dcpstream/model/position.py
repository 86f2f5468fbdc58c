"""The position of a reader in a vbucket.

A DCP snapshot is deduplicated: a reader in the middle of one may lack old versions that the rest of the snapshot
supersedes. A seqno alone is therefore not a position; a seqno with its branch and the bounds of its snapshot is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dcpstream.model.collections import DEFAULT_COLLECTION_ID, CollectionName

MAX_SEQNO = 2**64 - 1
"""The largest seqno on the wire: as an end seqno it means "never ends", as a snapshot end "not known"."""


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """Bounds of a snapshot: its changes are consistent only when `end_seqno` is reached."""

    start_seqno: int
    end_seqno: int

    def __post_init__(self) -> None:
        """Refuse an end before the start."""
        if not 0 <= self.start_seqno <= self.end_seqno <= MAX_SEQNO:
            raise ValueError(f"not a snapshot: {self.start_seqno}..{self.end_seqno}")

    def __contains__(self, seqno: object) -> bool:
        """Whether a seqno lies within the bounds."""
        return isinstance(seqno, int) and self.start_seqno <= seqno <= self.end_seqno


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """All that is needed to resume a vbucket's stream; written and read as one record.

    Attributes:
        vbuuid: u64, the branch; 0 only until something is received.
        seqno: u64, the last processed one.
        snapshot_start: u64, start of the snapshot that covers `seqno`.
        snapshot_end: u64 end of that snapshot, or None while it is not known: such an offset was planned before it
            was read, and its end must be completed (or taken as 2^64-1) before it is sent.
        manifest_uid: u64, uid of the newest collections manifest that the reader has seen.
        collections: those whose rows up to `seqno` the reader has, by ascending id; None if unknown. A resuming reader
            compares them with the manifest: it reports dropped collections, and reads new ones from their beginning.
            Neither they nor the uid count when positions are compared.
        purge_limit: u64, for a reader in its first snapshot: the end of that snapshot as it began. No deletion up to
            there can be missing, whatever a node has purged of them; see docs/explanation/resume.md. None if there is
            no such seqno above the position's own. It does not count when positions are compared.
    """

    vbuuid: int
    seqno: int
    snapshot_start: int
    snapshot_end: int | None
    manifest_uid: int = field(default=0, compare=False)
    collections: tuple[CollectionName, ...] | None = field(default=None, compare=False)
    purge_limit: int | None = field(default=None, compare=False)

    ZERO: ClassVar[StreamOffset]

    def __post_init__(self) -> None:
        """Refuse a seqno outside its snapshot: the server would answer ERANGE."""
        end = MAX_SEQNO if self.snapshot_end is None else self.snapshot_end
        if not 0 <= self.snapshot_start <= self.seqno <= end <= MAX_SEQNO:
            raise ValueError(f"seqno {self.seqno} is not within its snapshot {self.snapshot_start}..{end}")
        limit = self.purge_limit
        if limit is not None and not (self.snapshot_start < self.seqno < limit <= (self.snapshot_end or 0)):
            raise ValueError(
                f"the purge limit {limit} is not above seqno {self.seqno} and within its snapshot "
                f"{self.snapshot_start}..{self.snapshot_end}, or nothing of that snapshot was read"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone: short, and fast for the thousands of positions in Spark's tasks."""
        fields = (self.vbuuid, self.seqno, self.snapshot_start, self.snapshot_end, self.manifest_uid, self.collections)
        return StreamOffset, fields if self.purge_limit is None else (*fields, self.purge_limit)

    @property
    def least_manifest_uid(self) -> int:
        """The version of the manifest that the position knows: an older one says nothing about its collections."""
        had = self.collections
        # Each change of the collections makes a new version, and version 0 has the default collection alone.
        has_others = (
            had is not None and len(had) > 0 and (len(had) > 1 or had[0].collection_id != DEFAULT_COLLECTION_ID)
        )
        return max(self.manifest_uid, int(has_others)) if self.seqno else 0

    @property
    def is_planned(self) -> bool:
        """Whether the snapshot's end is still unknown."""
        return self.snapshot_end is None

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether rows of the snapshot may still be missing."""
        return self.snapshot_end is None or self.seqno < self.snapshot_end

    def with_snapshot_end(self, end_seqno: int) -> StreamOffset:
        """The same position with its snapshot's end known."""
        return StreamOffset(
            self.vbuuid, self.seqno, self.snapshot_start, end_seqno, self.manifest_uid, self.collections
        )

    def request_bounds(self) -> tuple[int, int, int]:
        """(start, snapshot start, snapshot end) to send in STREAM_REQ; an unknown end goes as 2^64-1.

        The unknown end costs one rollback at most, and never data.
        """
        return self.seqno, self.snapshot_start, MAX_SEQNO if self.snapshot_end is None else self.snapshot_end

    def with_collections(self, collections: Iterable[CollectionName] | None, manifest_uid: int = 0) -> StreamOffset:
        """The same position of a reader that has these collections, by a manifest of this version."""
        known = None if collections is None else tuple(sorted(collections))
        uid = max(self.manifest_uid, manifest_uid)
        return StreamOffset(
            self.vbuuid, self.seqno, self.snapshot_start, self.snapshot_end, uid, known, self.purge_limit
        )

    def to_json(self) -> dict[str, Any]:
        """A dict for people, with every u64 as decimal text: JSON numbers lose bits above 2^53.

        Stores have positions in the notation of `position_text`.
        """
        data: dict[str, Any] = {
            "vbuuid": str(self.vbuuid),
            "seqno": str(self.seqno),
            "snapshot_start": str(self.snapshot_start),
            "snapshot_end": None if self.snapshot_end is None else str(self.snapshot_end),
            "manifest_uid": str(self.manifest_uid),
        }
        if self.purge_limit is not None:
            data["purge_limit"] = str(self.purge_limit)
        if self.collections is not None:
            data["collections"] = {f"{item.collection_id:x}": item.path for item in self.collections}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamOffset:
        """The inverse of `to_json`.

        Raises:
            ValueError: a field is missing, is not a number, or the position is impossible.
        """
        try:
            end = data["snapshot_end"]
            named, limit = data.get("collections"), data.get("purge_limit")
            return cls(
                vbuuid=int(data["vbuuid"]),
                seqno=int(data["seqno"]),
                snapshot_start=int(data["snapshot_start"]),
                snapshot_end=None if end is None else int(end),
                manifest_uid=int(data.get("manifest_uid") or 0),
                collections=None if named is None else tuple(sorted(_collections(named))),
                purge_limit=None if limit is None else int(limit),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a stream offset: {data!r} ({error!r})") from error


def _collections(named: Mapping[str, str]) -> Iterable[CollectionName]:
    return (CollectionName.of(int(number, 16), path) for number, path in named.items())


StreamOffset.ZERO = StreamOffset(0, 0, 0, 0)
