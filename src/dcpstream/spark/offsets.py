"""The offset at the end of a batch, as JSON for Spark's log.

Spark keeps only END offsets, compares them as text, and never shows the source its checkpoint. Therefore:

- The text is canonical: fixed order of keys, u64 as decimal text, so that an equal offset is an equal text.
- An offset has all data for the next batch: for each vbucket the position with its snapshot's bounds, and the last
  recorded positions before it, with their own bounds, for use after a rollback.
- The first offset of a query is a marker of the start ("earliest", "latest", or the user's positions), so it needs no
  network and is always the same. The resolved start is `base` in the first END offset, which Spark logs, so that a
  restart before the first commit starts at the same place.

The layout, version 1 (a position is ``[vbuuid, seqno, snapshot start, snapshot end or null, manifest uid]``, and after
them the number of an entry of `names`, if it is known which collections the position covers):

```
{"v": 1, "bucket": "b", "collections": null, "names": [{"0": "_default._default", …}, …],
 "vbuckets": {"0": {"at": position, "earlier": [position, …], "rewound": [position, vbuuid]}, …},
 "base": {"0": position, …}}
```

`earlier` is left out when empty. `rewound` is present if the batch began at another position of the vbucket than the
end of the previous batch. `base` is present only in the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpstream.errors import OffsetError
from dcpstream.model import CollectionName, StreamOffset
from dcpstream.spark.options import OffsetSpec

VERSION = 1
"""Version of the layout."""

_ADVICE = "Start the query with another checkpointLocation (and empty tables), or restore the checkpoint."


@dataclass(frozen=True, slots=True)
class Rewind:
    """A rollback that was found when the batch was planned.

    Attributes:
        to: the position that the node accepts.
        vbuuid: the branch that is read from there.
    """

    to: StreamOffset
    vbuuid: int


@dataclass(frozen=True, slots=True)
class VbucketOffset:
    """One vbucket at the end of a batch.

    Attributes:
        at: the position.
        earlier: recorded positions before it, newest first, at most `RECORDED_POSITIONS`.
        rewound: set if the batch that ends here began with a rollback.
    """

    at: StreamOffset
    earlier: tuple[StreamOffset, ...] = ()
    rewound: Rewind | None = None


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The end of a batch.

    Attributes:
        bucket: the bucket of the seqnos.
        collections: the filter of the query, None for all. Another filter would need another start.
        vbuckets: every vbucket of the bucket.
        base: the start of the query's first batch, only in that batch's end.
    """

    bucket: str
    collections: tuple[str, ...] | None
    vbuckets: Mapping[int, VbucketOffset]
    base: Mapping[int, StreamOffset] | None = None

    @classmethod
    def starting_at(
        cls, bucket: str, collections: tuple[str, ...] | None, positions: Mapping[int, StreamOffset]
    ) -> SourceOffset:
        """The offset of a query that begins at these positions."""
        return cls(bucket, collections, {vbid: VbucketOffset(at) for vbid, at in sorted(positions.items())})

    def based_on(self, start: SourceOffset) -> SourceOffset:
        """The same end, with the resolved start written into it."""
        return replace(self, base={vbid: entry.at for vbid, entry in start.vbuckets.items()})

    def base_offset(self) -> SourceOffset:
        """The start of the query's first batch.

        Raises:
            OffsetError: the offset is not the end of a first batch.
        """
        if self.base is None:
            raise OffsetError(f"The checkpoint's first batch does not say where it began. {_ADVICE}")
        return SourceOffset.starting_at(self.bucket, self.collections, self.base)

    def to_json(self) -> dict[str, Any]:
        """The layout of the module's text, keys always in the same order."""
        names = _Names()
        vbuckets = {str(vbid): _entry_json(entry, names) for vbid, entry in sorted(self.vbuckets.items())}
        data: dict[str, Any] = {
            "v": VERSION,
            "bucket": self.bucket,
            "collections": None if self.collections is None else list(self.collections),
        }
        if names.listed:
            data["names"] = [{f"{item.collection_id:x}": item.path for item in found} for found in names.listed]
        data["vbuckets"] = vbuckets
        if self.base is not None:
            data["base"] = {str(vbid): position_json(at) for vbid, at in sorted(self.base.items())}
        return data

    @classmethod
    def from_json(cls, data: Any, *, bucket: str, collections: tuple[str, ...] | None) -> SourceOffset:
        """The offset from Spark's log.

        Args:
            data: the parsed JSON.
            bucket, collections: of the query; they must be those of the offset.

        Raises:
            OffsetError: the offset is damaged, of another version, or of another bucket or filter.
        """
        if not isinstance(data, Mapping) or "vbuckets" not in data:
            raise OffsetError(
                f"The checkpoint holds an offset that this source did not write: {_short(data)}. {_ADVICE}"
            )
        if data.get("v") != VERSION:
            raise OffsetError(f"The checkpoint's offset has version {data.get('v')!r}, known is {VERSION}. {_ADVICE}")
        if data.get("bucket") != bucket:
            raise OffsetError(
                f"The checkpoint belongs to bucket {data.get('bucket')!r}, the query reads {bucket!r}. {_ADVICE}"
            )
        try:
            recorded = data.get("collections")
            recorded = None if recorded is None else tuple(recorded)
            names = [
                tuple(sorted(CollectionName.of(int(number, 16), path) for number, path in found.items()))
                for found in data.get("names", ())
            ]
            vbuckets = {int(vbid): _entry(entry, names) for vbid, entry in data["vbuckets"].items()}
            base = data.get("base")
            base = None if base is None else {int(vbid): position(at) for vbid, at in base.items()}
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise OffsetError(f"The checkpoint's offset is damaged: {error}. {_ADVICE}") from error
        if recorded != collections:
            raise OffsetError(
                f"The checkpoint was made with collections {_list(recorded)}, the query asks for {_list(collections)}: "
                f"rows of a collection that is new here would be missing. {_ADVICE}"
            )
        return cls(bucket, collections, vbuckets, base)


def start_marker(spec: OffsetSpec) -> dict[str, Any]:
    """The first offset of a query: where to start, not resolved yet. A constant for the same options."""
    start: Any = spec.kind
    if spec.kind == "positions":
        start = {str(vbid): value for vbid, value in sorted(spec.positions.items())}
    return {"v": VERSION, "start": start}


def is_start_marker(data: Any) -> bool:
    """Whether the parsed JSON is the first offset of a query."""
    return isinstance(data, Mapping) and data.get("v") == VERSION and "start" in data


def position_json(at: StreamOffset) -> list[str | None]:
    """A position as a list of texts: `[vbuuid, seqno, snapshot start, snapshot end or null, manifest uid]`."""
    end = None if at.snapshot_end is None else str(at.snapshot_end)
    return [str(at.vbuuid), str(at.seqno), str(at.snapshot_start), end, str(at.manifest_uid)]


class _Names:
    """The sets of collections that positions refer to, each once, in order of occurrence."""

    def __init__(self) -> None:
        self.listed: dict[tuple[CollectionName, ...], int] = {}

    def position(self, at: StreamOffset) -> list[Any]:
        """A position, with the number of its set."""
        if at.collections is None:
            return [*position_json(at)]
        return [*position_json(at), self.listed.setdefault(at.collections, len(self.listed))]


def position(data: Any, names: Sequence[tuple[CollectionName, ...]] = ()) -> StreamOffset:
    """The inverse of `position_json`.

    Args:
        data: the list; a number of a set of names may follow.
        names: the sets; without them that number is ignored.

    Raises:
        ValueError: it is not a position.
    """
    if not isinstance(data, list) or len(data) not in {5, 6}:
        raise ValueError(f"not a position: {_short(data)}")
    if len(data) == 6:
        at = position(data[:5])
        return at.with_collections(names[data[5]]) if names else at
    vbuuid, seqno, start, end, uid = data
    numbers = [vbuuid, seqno, start, uid] if end is None else [vbuuid, seqno, start, end, uid]
    if not all(isinstance(number, str) and number.isdecimal() for number in numbers):
        raise ValueError(f"not a position: {_short(data)}")
    return StreamOffset(int(vbuuid), int(seqno), int(start), None if end is None else int(end), int(uid))


def user_position(data: Any, *, vbuuid_of_branch: int) -> StreamOffset:
    """A position as a user writes it in startingOffsets.

    Args:
        data: a seqno (text or number), the list of `position_json`, an entry of an offset, or an object with the
            fields of StreamOffset.
        vbuuid_of_branch: the newest branch of the vbucket, for a bare seqno: it is taken for a snapshot's end.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(data, Mapping) and "at" in data:
        data = data["at"]
    if isinstance(data, list):
        return position(data)
    if isinstance(data, Mapping):
        if "vbuuid" in data:
            return StreamOffset.from_json(
                {"snapshot_start": data.get("seqno"), "snapshot_end": data.get("seqno"), **data}
            )
        data = data.get("seqno")
    seqno = user_seqno(data)
    return StreamOffset(vbuuid_of_branch, seqno, seqno, seqno) if seqno else StreamOffset.ZERO


def user_seqno(data: Any) -> int:
    """The seqno of a position as a user writes it.

    Raises:
        ValueError: there is none, or it is not a u64.
    """
    if isinstance(data, Mapping):
        data = data["at"] if "at" in data else data.get("seqno")
    if isinstance(data, list):
        return position(data).seqno
    if isinstance(data, bool) or not isinstance(data, int | str) or not str(data).isdecimal() or int(data) >= 2**64:
        raise ValueError(f"not a seqno: {_short(data)}")
    return int(data)


def _entry_json(entry: VbucketOffset, names: _Names) -> dict[str, Any]:
    data: dict[str, Any] = {"at": names.position(entry.at)}
    if entry.earlier:
        data["earlier"] = [names.position(at) for at in entry.earlier]
    if entry.rewound is not None:
        data["rewound"] = [names.position(entry.rewound.to), str(entry.rewound.vbuuid)]
    return data


def _entry(data: Mapping[str, Any], names: Sequence[tuple[CollectionName, ...]]) -> VbucketOffset:
    rewound = data.get("rewound")
    return VbucketOffset(
        position(data["at"], names),
        tuple(position(at, names) for at in data.get("earlier", ())),
        None if rewound is None else Rewind(position(rewound[0], names), int(rewound[1])),
    )


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _list(names: tuple[str, ...] | None) -> str:
    return "all" if names is None else ",".join(names)
