"""What both clients share: the options of a stream, where each vbucket begins, and what a rollback looks like.

No I/O: the shells ask the cluster, load and save.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dcpstream.client.machine.connection.events import EventGroup
from dcpstream.client.machine.connection.rows import require_columnar
from dcpstream.client.machine.reader.batches import ArrowConverter, ChangeConverter, Converter, ValueFormat
from dcpstream.client.machine.reader.changes import Change
from dcpstream.client.machine.reader.selection import Selection
from dcpstream.client.machine.resume import BranchState, spaced
from dcpstream.client.machine.rollback_policy import (
    OnPurgeGap,
    PurgeGap,
    RewindTo,
    RollbackPolicy,
    check_purge_gap,
    check_rewind_to,
)
from dcpstream.client.machine.tracker import Run
from dcpstream.client.machine.values import UNKNOWN_BRANCH, ManifestEvent, RollbackEvent, VbucketRange
from dcpstream.client.offsets import OffsetStore, SavedOffset
from dcpstream.errors import ConfigError
from dcpstream.model import MAX_SEQNO, Op, StreamOffset

if TYPE_CHECKING:
    import pyarrow as pa

Start = Literal["earliest", "latest"] | Mapping[int, StreamOffset] | OffsetStore
End = None | Literal["latest"] | Mapping[int, int]
OnRollback = Literal["fail", "rewind"] | Callable[[RollbackEvent], None]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream was asked for; see `Client.stream`.

    Raises:
        ConfigError: an option is not allowed.
    """

    start: Start
    end: End
    store: OffsetStore | None
    collections: tuple[str, ...] | None
    value_format: ValueFormat
    columns: tuple[str, ...] | None
    on_rollback: OnRollback
    members: tuple[int, int]
    max_batch_rows: int
    arrow: bool
    read_stable: bool = False
    purge_gap: OnPurgeGap | None = None
    rewind_to: RewindTo = "recorded"

    def __post_init__(self) -> None:
        """Check what can be checked without the cluster."""
        if isinstance(self.start, str) and self.start not in {"earliest", "latest"}:
            raise ConfigError("start", self.start, "'earliest', 'latest', {vbucket: StreamOffset} or an OffsetStore")
        if isinstance(self.end, str) and self.end != "latest":
            raise ConfigError("end", self.end, "None (never), 'latest' or {vbucket: seqno}")
        if isinstance(self.on_rollback, str) and self.on_rollback not in {"fail", "rewind"}:
            raise ConfigError("on_rollback", self.on_rollback, "'fail', 'rewind' or a function of a RollbackEvent")
        check_purge_gap(self.purge_gap, can_rewind=self.policy is not RollbackPolicy.FAIL)
        check_rewind_to(self.rewind_to)
        member, count = self.members
        if not 0 <= member < count:
            raise ConfigError("members", self.members, "(i, n) with 0 <= i < n: this is member i of n")
        if self.max_batch_rows < 1:
            raise ConfigError("max_batch_rows", self.max_batch_rows, "1 or more")

    @property
    def needs_observation(self) -> bool:
        """Whether high seqnos must be known before the stream begins."""
        return self.start == "latest" or self.end == "latest"

    @property
    def offset_store(self) -> OffsetStore | None:
        """Where positions are loaded from and saved to."""
        return self.start if isinstance(self.start, OffsetStore) else self.store

    @property
    def policy(self) -> RollbackPolicy:
        """What the reader does about a rollback."""
        return RollbackPolicy.FAIL if self.on_rollback == "fail" else RollbackPolicy.REWIND

    @property
    def on_purge_gap(self) -> PurgeGap:
        """What the reader does about purged deletions."""
        return check_purge_gap(self.purge_gap, can_rewind=self.policy is not RollbackPolicy.FAIL)

    def own_vbuckets(self, vbucket_count: int) -> list[int]:
        """The vbuckets of this member."""
        member, count = self.members
        return list(range(member, vbucket_count, count))

    def converter(self) -> Converter:
        """What makes the user's batches."""
        if self.arrow:
            return ArrowConverter(self.value_format, self.columns, self.max_batch_rows)
        return ChangeConverter()

    def may_come_out_of_order(self, ranges: Iterable[VbucketRange]) -> bool:
        """Whether a node may send the first snapshot of a vbucket in any order.

        It does so for a single collection that is read from its beginning. A position within such a snapshot does not
        exist: after a cut its rows come again, which only a user can be told who takes back rows after a rollback.
        """
        return (
            self.policy is RollbackPolicy.REWIND
            and not self.read_stable
            and Selection.of(self.collections).may_be_one_collection
            and any(not part.start.seqno for part in ranges)
        )

    def told(self, group: EventGroup) -> EventGroup | tuple[Change, ...]:
        """Events of scopes and collections as the user gets them: for single changes, as changes."""
        return group if self.arrow else tuple(manifest_change(event) for event in group.events)

    def ranges(
        self, vbucket_count: int, saved: Mapping[int, SavedOffset], observed: Mapping[int, BranchState]
    ) -> list[VbucketRange]:
        """What to read.

        Args:
            vbucket_count: of the bucket.
            saved: what the offset store has.
            observed: branches and high seqnos, if `needs_observation`.

        Raises:
            ConfigError: a vbucket is named that the bucket does not have, or whose node cannot be reached.
        """
        own = self.own_vbuckets(vbucket_count)
        named = {*saved, *(self.start if isinstance(self.start, Mapping) else ())}
        beyond = sorted(vbid for vbid in named if vbid >= vbucket_count)
        if beyond:
            raise ConfigError("start", beyond, f"the bucket has {vbucket_count} vbuckets: these are another bucket's")
        result = []
        for vbid in own:
            record = saved.get(vbid) or SavedOffset(self._first(vbid, observed))
            end = MAX_SEQNO
            if self.end == "latest":
                end = self._state(vbid, observed, "end").high_seqno
            elif isinstance(self.end, Mapping):
                end = self.end.get(vbid, record.offset.seqno)
            branch = observed[vbid].vbuuid if vbid in observed else 0
            if end > record.offset.seqno or self.end == "latest":
                # Also a start above "latest" is asked for: the node will say that its history was rolled back.
                given = UNKNOWN_BRANCH if record.is_rolling_back else None
                result.append(VbucketRange(vbid, record.offset, end, record.earlier, branch, given))
        return result

    def _first(self, vbid: int, observed: Mapping[int, BranchState]) -> StreamOffset:
        if self.start == "latest":
            state = self._state(vbid, observed, "start")
            return StreamOffset(state.vbuuid, state.high_seqno, state.high_seqno, state.high_seqno)
        if isinstance(self.start, Mapping):
            return self.start.get(vbid, StreamOffset.ZERO)
        return StreamOffset.ZERO

    @staticmethod
    def _state(vbid: int, observed: Mapping[int, BranchState], option: str) -> BranchState:
        state = observed.get(vbid)
        if state is None:
            why = f"the node of vbucket {vbid} cannot be reached, so its high seqno is not known"
            raise ConfigError(option, "latest", why)
        return state


MAX_UNACKNOWLEDGED = 10_000
"""Batches whose positions are kept apart until they are acknowledged; beyond it the oldest are joined to the next."""


class Positions:
    """The records of a stream: what is saved when the user acknowledges, and what before something is given out.

    An acknowledgement covers the batch and all before it. Batches are numbered as they are given out.

    Two things are saved without an acknowledgement (`due`), as the next run could not be exact otherwise if this one
    ends before the next acknowledgement:

    - Before the first rows of a vbucket that has no record: where they begin, and on which branch. Without it the next
      run would not know that rows were given out at all, and could not tell that they are void.
    - Before a rollback below the record: the position gone back to, marked as a rollback that may or may not have been
      carried out. Without it the next run might go on above the rows that the user has kept, or, without the mark,
      leave the user with rows that it has not taken back.

    Args:
        ranges: what is read.
        store: where records are saved, or None.
        saved: the records that there are.

    Attributes:
        branches: gives vbucket → branch for the vbuckets that are being read.
    """

    def __init__(
        self, ranges: Sequence[VbucketRange], store: OffsetStore | None, saved: Mapping[int, SavedOffset] | None = None
    ) -> None:
        self._earlier = {part.vbid: part.earlier for part in ranges}
        self.branches: Callable[[], Mapping[int, int]] = dict
        self._saved = {vbid: record.offset for vbid, record in (saved or {}).items()}
        self._starts: dict[int, StreamOffset] = {}
        if store is not None and saved is not None:
            self._starts = {part.vbid: part.start for part in ranges if part.vbid not in saved}
        self._store = store
        self._given: deque[tuple[int, Mapping[int, StreamOffset]]] = deque()
        self._next = 0

    def due(self, offsets: Mapping[int, StreamOffset], rollback: RollbackEvent | None) -> dict[int, SavedOffset]:
        """What must be saved (`write`) before rows with these positions, or a rollback, are given out."""
        records = {}
        if self._starts and not self._starts.keys().isdisjoint(offsets):
            # All that are known by now, at once: a save costs as much as a save of one of them.
            known = {**self.branches(), **{vbid: offset.vbuuid for vbid, offset in offsets.items()}}
            for vbid, start in list(self._starts.items()):
                if vbid in known:
                    del self._starts[vbid]
                    records[vbid] = SavedOffset(start if start.vbuuid else replace(start, vbuuid=known[vbid]))
        if rollback is not None:
            vbid, at = rollback.vbid, rollback.resumed_at
            # What was given out before and is acknowledged only now must not bring back a position above this one.
            self._given = deque(
                (number, {other: offset for other, offset in given.items() if other != vbid})
                for number, given in self._given
            )
            self._earlier[vbid] = tuple(old for old in self._earlier.get(vbid, ()) if old.seqno < at.seqno)
            saved = records[vbid].offset if vbid in records else self._saved.get(vbid)
            # A record below says by itself that what was read above it may be void, as one on another branch does.
            is_below = (
                saved is None or saved.seqno < at.seqno or (saved.seqno == at.seqno and saved.vbuuid != at.vbuuid)
            )
            if not is_below:
                records[vbid] = SavedOffset(at, self._earlier[vbid], is_rolling_back=True)
        return records

    def give(self, offsets: Mapping[int, StreamOffset]) -> int:
        """A batch is given out with these positions after it; returns its number."""
        number = self._next
        self._next += 1
        if self._store is not None and offsets:
            if len(self._given) >= MAX_UNACKNOWLEDGED:
                _, oldest = self._given.popleft()
                following, others = self._given[0]
                self._given[0] = (following, {**oldest, **others})
            self._given.append((number, offsets))
        return number

    def acknowledge(self, number: int) -> None:
        """The batch of that number and those before it are dealt with: save their positions."""
        done: dict[int, StreamOffset] = {}
        while self._given and self._given[0][0] <= number:
            done.update(self._given.popleft()[1])
        self.save(done)

    def save(self, done: Mapping[int, StreamOffset]) -> None:
        """Everything up to these positions is dealt with."""
        records = {}
        for vbid, offset in done.items():
            earlier = tuple(old for old in self._earlier.get(vbid, ()) if old.seqno < offset.seqno)
            records[vbid] = SavedOffset(offset, earlier)
            self._earlier[vbid] = spaced(earlier, offset)
        self.write(records)

    def write(self, records: Mapping[int, SavedOffset]) -> None:
        """Replace these records."""
        if self._store is not None and records:
            self._store.save(records)
            self._saved.update((vbid, record.offset) for vbid, record in records.items())


def save_after(store: OffsetStore, change: Change) -> None:
    """A change is dealt with, and no more are asked for: save the position after it. Its stream is closed."""
    record, at = store.load().get(change.vbid, SavedOffset(StreamOffset.ZERO)), change.offset
    saved = record.offset
    if record.is_rolling_back or saved.seqno < at.seqno or (saved.seqno == at.seqno and saved.vbuuid != at.vbuuid):
        part = VbucketRange(change.vbid, saved, MAX_SEQNO, (saved, *record.earlier))
        Positions([part], store).save({change.vbid: at})


class BatchForm(Protocol):
    """What says how batches look."""

    @property
    def value_format(self) -> ValueFormat:
        """Type of the column `value`."""
        ...

    @property
    def columns(self) -> Sequence[str] | None:
        """Which columns are built; None for all."""
        ...


def rollback_batch(event: RollbackEvent, form: BatchForm, time_ns: int) -> pa.RecordBatch:
    """The control row that tells a table about a rollback."""
    columnar = require_columnar()
    row: pa.RecordBatch = columnar.rollback_row(
        event.vbid,
        event.from_seqno,
        event.to_seqno,
        event.old_vbuuid,
        event.new_vbuuid,
        value_format=form.value_format,
        columns=form.columns,
        time=time_ns / 1e9,
    )
    return row


def manifest_batch(events: Iterable[ManifestEvent], form: BatchForm, time_ns: int) -> pa.RecordBatch:
    """The control rows that tell a table about scopes and collections."""
    columnar = require_columnar()
    rows = [
        columnar.ControlRow(
            event.op, event.vbid, event.seqno, event.vbuuid, event.details(), event.scope, event.collection or None
        )
        for event in events
    ]
    batch: pa.RecordBatch = columnar.control_rows(
        rows, time=time_ns / 1e9, value_format=form.value_format, columns=form.columns
    )
    return batch


def manifest_change(event: ManifestEvent) -> Change:
    """The change that tells about a scope or collection: the op says what happened, the value is JSON."""
    return _control_change(
        event.op,
        event.details(),
        event.offset,
        vbid=event.vbid,
        vbuuid=event.vbuuid,
        seqno=event.seqno,
        scope=event.scope,
        collection=event.collection,
    )


def rollback_change(event: RollbackEvent) -> Change:
    """The change that tells about a rollback: the op is "rollback", the value JSON."""
    value: dict[str, Any] = {
        "from_seqno": str(event.from_seqno),
        "to_seqno": str(event.to_seqno),
        "old_vbuuid": str(event.old_vbuuid),
        "new_vbuuid": str(event.new_vbuuid),
    }
    return _control_change(
        Op.ROLLBACK, value, event.resumed_at, vbid=event.vbid, vbuuid=event.new_vbuuid, seqno=event.to_seqno
    )


def _control_change(
    op: Op,
    value: Mapping[str, Any],
    offset: StreamOffset,
    *,
    vbid: int,
    vbuuid: int,
    seqno: int,
    scope: str = "",
    collection: str = "",
) -> Change:
    """A change that is no document's: its value tells as JSON what happened, and `offset` is the position after it."""
    return Change(
        op=op.value,
        key=b"",
        value=json.dumps(value).encode(),
        scope=scope,
        collection=collection,
        vbid=vbid,
        vbuuid=vbuuid,
        seqno=seqno,
        rev=0,
        cas=0,
        flags=0,
        datatype=0,
        expiry=0,
        _run=Run.standing(vbid, offset),
    )
