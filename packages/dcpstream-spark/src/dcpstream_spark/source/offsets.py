"""The offset at the end of a batch, as JSON for Spark's log.

Spark keeps only END offsets, compares them as text, and never shows the source its checkpoint. Therefore:

- The text is canonical: fixed order of keys, and one text for each position, so that an equal offset is an equal text.
- An offset has all data for the next batch: for each vbucket the position with its snapshot's bounds, and recorded
  positions before it, with their own bounds, for use after a rollback.
- The first offset of a query is a marker of the start ("earliest", "latest", or the user's positions), so it needs no
  network and is always the same. The resolved start is `base` in the first END offset, which Spark logs, so that a
  restart before the first commit starts at the same place.
- It is short. Spark logs it twice for each batch, and shows it twice in each progress event. At 1,024 vbuckets with all
  recorded positions it has about 45 KB.

The layout, version 2:

```
{"v": 2, "bucket": "b", "uuid": "…", "collections": null, "reset": true, "pending": [vbucket, …],
 "names": {scope: {id: collection, …}, …}, "sets": ["0,8-c", null, …],
 "vbuckets": "entry entry …", "base": "entry entry …"}
```

`names`, `sets` and the entries are those of `dcpstream.model.position_text`. An entry is the chain of the vbucket's
position and its recorded positions. After that may follow

- `!` and, if they are not the newest recorded position and the branch of the position, the position at which the batch
  began after a rollback, and `>` with the branch that it read;
- `*` and a position: the start of a batch that read new collections up to there.

`uuid`, `reset`, `pending`, `names`, `sets` and `base` are left out when they are empty. `explained` shows any offset
with plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset
from dcpstream.model.position_text import (
    BEGINNING,
    CollectionSet,
    CollectionSets,
    chain,
    chain_text,
    joined_entries,
    number,
    number_text,
    sets_of,
    split_entries,
)
from dcpstream_spark.options import OffsetSpec

VERSION = 2
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
        refilled: set if the batch that ends here reads collections that the position did not cover: its completed
            start. `earlier` is empty then, because a return to an older position would deliver their rows twice.
    """

    at: StreamOffset
    earlier: tuple[StreamOffset, ...] = ()
    rewound: Rewind | None = None
    refilled: StreamOffset | None = None


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The end of a batch.

    Attributes:
        bucket: the bucket of the seqnos.
        collections: the filter of the query that planned it, None for all.
        vbuckets: every vbucket of the bucket.
        base: the start of the query's first batch, only in that batch's end.
        bucket_uuid: the bucket's uuid; None if it is not known.
        is_reset: whether the batch that ends here began with a bucket that was flushed or made again.
        pending: vbuckets that still have to read what a change of the option collections has added.
    """

    bucket: str
    collections: tuple[str, ...] | None
    vbuckets: Mapping[int, VbucketOffset]
    base: Mapping[int, StreamOffset] | None = None
    bucket_uuid: str | None = None
    is_reset: bool = False
    pending: frozenset[int] = frozenset()

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
        start = SourceOffset.starting_at(self.bucket, self.collections, self.base)
        return replace(start, bucket_uuid=self.bucket_uuid)

    def to_json(self) -> dict[str, Any]:
        """The layout of the module's text, keys always in the same order."""
        sets = CollectionSets()
        vbuckets = joined_entries({vbid: _entry_text(entry, sets) for vbid, entry in sorted(self.vbuckets.items())})
        base = None
        if self.base is not None:
            base = joined_entries(
                {vbid: _entry_text(VbucketOffset(at), sets) for vbid, at in sorted(self.base.items())}
            )
        data: dict[str, Any] = {"v": VERSION, "bucket": self.bucket}
        if self.bucket_uuid is not None:
            data["uuid"] = self.bucket_uuid
        data["collections"] = None if self.collections is None else list(self.collections)
        if self.is_reset:
            data["reset"] = True
        if self.pending:
            data["pending"] = sorted(self.pending)
        data.update(sets.to_json())
        data["vbuckets"] = vbuckets
        if base is not None:
            data["base"] = base
        return data

    @classmethod
    def from_json(cls, data: Any, *, bucket: str) -> SourceOffset:
        """The offset from Spark's log.

        Args:
            data: the parsed JSON.
            bucket: of the query; it must be that of the offset.

        Raises:
            OffsetError: the offset is damaged, of another version, or of another bucket.
        """
        if not isinstance(data, Mapping) or "vbuckets" not in data or "bucket" not in data:
            raise OffsetError(
                f"The checkpoint holds an offset that this source did not write: {_short(data)}. {_ADVICE}"
            )
        if data.get("v") != VERSION:
            raise OffsetError(
                f"The checkpoint's offset has version {data.get('v')!r}; this release reads {VERSION}. {_ADVICE}"
            )
        if data.get("bucket") != bucket:
            raise OffsetError(
                f"The checkpoint belongs to bucket {data.get('bucket')!r}, the query reads {bucket!r}. {_ADVICE}"
            )
        try:
            recorded = data.get("collections")
            recorded = None if recorded is None else tuple(recorded)
            vbuckets, base = _contents(data)
            uuid = data.get("uuid")
            pending = frozenset(int(vbid) for vbid in data.get("pending", ()))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            raise OffsetError(f"The checkpoint's offset is damaged: {error}. {_ADVICE}") from error
        return cls(bucket, recorded, vbuckets, base, uuid, bool(data.get("reset")), pending)


def start_marker(spec: OffsetSpec) -> dict[str, Any]:
    """The first offset of a query: where to start, not resolved yet. A constant for the same options."""
    start: Any = spec.kind
    if spec.kind == "positions":
        start = {str(vbid): value for vbid, value in sorted(spec.positions.items())}
    return {"v": VERSION, "start": start}


def is_start_marker(data: Any) -> bool:
    """Whether the parsed JSON is the first offset of a query."""
    return isinstance(data, Mapping) and "start" in data and data.get("v") == VERSION


def positions_of(data: Any) -> dict[int, StreamOffset]:
    """Vbucket → position, of an offset of any bucket.

    Raises:
        OffsetError: it is not an offset of this source, or is damaged.
    """
    return {vbid: entry.at for vbid, entry in _any_offset(data).vbuckets.items()}


def explained(data: Any) -> dict[str, Any]:
    """An offset of any bucket with plain numbers, for people.

    Raises:
        OffsetError: it is not an offset of this source, or is damaged.
    """
    offset = _any_offset(data)
    result: dict[str, Any] = {"bucket": offset.bucket, "uuid": offset.bucket_uuid, "collections": offset.collections}
    result["vbuckets"] = {
        str(vbid): {
            "at": entry.at.to_json(),
            "earlier": [at.to_json() for at in entry.earlier],
            **({} if entry.rewound is None else {"rewound": entry.rewound.to.to_json()}),
            **({} if entry.refilled is None else {"refilled": entry.refilled.to_json()}),
        }
        for vbid, entry in sorted(offset.vbuckets.items())
    }
    if offset.base is not None:
        result["base"] = {str(vbid): at.to_json() for vbid, at in sorted(offset.base.items())}
    return result


def user_position(data: Any, *, vbuuid_of_branch: int) -> StreamOffset:
    """A position as a user writes it in startingOffsets.

    Args:
        data: a seqno (text or number), an entry of an offset, or an object with the fields of StreamOffset.
        vbuuid_of_branch: the newest branch of the vbucket, for a bare seqno: it is taken for a snapshot's end.

    Raises:
        ValueError: it is none of these.
    """
    given = _given(data)
    if given is not None:
        return given
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
    given = _given(data)
    if given is not None:
        return given.seqno
    if isinstance(data, Mapping):
        data = data.get("seqno")
    if isinstance(data, bool) or not isinstance(data, int | str) or not str(data).isdecimal() or int(data) >= 2**64:
        raise ValueError(f"not a seqno: {_short(data)}")
    return int(data)


def _given(data: Any) -> StreamOffset | None:
    """The position of an entry of an offset; None if `data` is something else."""
    if isinstance(data, str) and (data.startswith(BEGINNING) or "@" in data):
        return _entry(data, ()).at
    return None


def _contents(data: Mapping[str, Any]) -> tuple[dict[int, VbucketOffset], dict[int, StreamOffset] | None]:
    """Vbuckets and base of an offset."""
    sets = sets_of(data)
    vbuckets = {vbid: _entry(text, sets) for vbid, text in split_entries(data["vbuckets"]).items()}
    base = data.get("base")
    if base is not None:
        base = {vbid: _entry(text, sets).at for vbid, text in split_entries(base).items()}
    return vbuckets, base


def _entry_text(entry: VbucketOffset, sets: CollectionSets) -> str:
    text = chain_text((entry.at, *entry.earlier), sets.number)
    if entry.rewound is not None:
        text += "!"
        if not _is_implied(entry.rewound.to, entry.earlier):
            text += chain_text((entry.rewound.to,), sets.number)
        if entry.rewound.vbuuid != entry.at.vbuuid:
            text += ">" + number_text(entry.rewound.vbuuid)
    if entry.refilled is not None:
        text += "*" + chain_text((entry.refilled,), sets.number)
    return text


def _entry(text: str, sets: Sequence[CollectionSet]) -> VbucketOffset:
    text, has_refilled, refilled = text.partition("*")
    text, has_rewound, rewound = text.partition("!")
    at, *earlier = chain(text, sets)
    rewind = None
    if has_rewound:
        to, _, vbuuid = rewound.partition(">")
        begun = chain(to, sets) or (_implied_begin(earlier),)
        rewind = Rewind(begun[0], number(vbuuid) if vbuuid else at.vbuuid)
    return VbucketOffset(at, tuple(earlier), rewind, chain(refilled, sets)[0] if has_refilled else None)


def _implied_begin(earlier: Sequence[StreamOffset]) -> StreamOffset:
    """The beginning of a batch after a rollback, if nothing else is written: the newest recorded position."""
    return earlier[0] if earlier else StreamOffset.ZERO


def _is_implied(to: StreamOffset, earlier: Sequence[StreamOffset]) -> bool:
    implied = _implied_begin(earlier)
    return to == implied and to.collections == implied.collections


def _any_offset(data: Any) -> SourceOffset:
    if not isinstance(data, Mapping):
        raise OffsetError(f"This is not an offset of the source dcp: {_short(data)}.")
    return SourceOffset.from_json(data, bucket=str(data.get("bucket")))


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 80 else f"{text[:77]}…"
