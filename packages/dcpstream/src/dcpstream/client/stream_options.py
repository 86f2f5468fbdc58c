"""The options of a stream: their names, defaults, checks, and meaning, for both clients, Spark and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from dcpstream.client.machine.reader.batches import ArrowConverter, ValueFormat
from dcpstream.client.machine.reader.read_rules import ReadRules
from dcpstream.client.machine.reader.selection import Selection
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.rollback_policy import (
    OnPurgeGap,
    RewindTo,
    RollbackPolicy,
    check_purge_gap,
    check_rewind_to,
)
from dcpstream.client.machine.values import UNKNOWN_BRANCH, RollbackEvent, VbucketRange
from dcpstream.client.offsets import OffsetStore, SavedOffset
from dcpstream.client.settings.options import MAX_BATCH_ROWS
from dcpstream.errors import ConfigError
from dcpstream.model import MAX_SEQNO, StreamOffset

Start = Literal["earliest", "latest"] | Mapping[int, StreamOffset] | OffsetStore
End = None | Literal["latest"] | Mapping[int, int]
OnRollback = Literal["fail", "rewind"] | Callable[[RollbackEvent], None]

_NOT_FOR = {
    "stream": ("keys_only",),
    "changes": ("value_format", "columns", "max_batch_rows"),
    "messages": (
        "value_format",
        "columns",
        "max_batch_rows",
        "keys_only",
        "on_rollback",
        "read_stable",
        "skip_deletes",
        "replicas_after_s",
    ),
    "read_ranges": ("start", "end", "store", "members", "keys_only", "replicas_after_s"),
}
"""Method → the options that it does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of `Client.stream`, `changes` and `messages`, of `AsyncClient`, and of `Cluster.read_ranges`.

    Attributes:
        start: "earliest", "latest", positions, or an OffsetStore: what it has, the rest from the beginning.
        end: None for ever, "latest" for the high seqnos of now, or {vbucket: seqno}; a vbucket that is not named is not
            read then. A start at or above the end has no rows, but a rollback of it is reported.
        store: where positions are saved, and where saved ones are taken from before `start` is looked at. Before the
            first rows of a vbucket are given out, the position where they begin is saved; with the start "latest" those
            of all vbuckets, before anything is read, so that a later run skips nothing.
        collections: "scope.collection"; "scope.*", or a scope's bare name, for the scope with collections that are
            created later; a bare name for a collection of the scope _default (a name that is both is refused, but
            "_default" is the default collection). None for all. A saved position knows which collections it covers: one
            that was dropped meanwhile is reported, one that is new to the filter is read from its beginning.
        value_format: of Arrow batches: "binary" or "string".
        columns: of Arrow batches: names of CHANGE_SCHEMA to fill, None for all.
        max_batch_rows: rows of an Arrow batch at most.
        keys_only: of single changes: whether the nodes leave the documents out, which saves most of the bytes;
            `change.value` is then empty.
        on_rollback: "fail" raises RollbackRequired; "rewind" goes back and gives a control row; a function is called
            with the RollbackEvent and then the stream goes back without one; the position gone back to is saved when a
            later batch is acknowledged. A rollback is also reported if the node accepts a saved position on another
            branch of history: rows above it that were not acknowledged may be void.
        rewind_to: how far a rollback goes back: "recorded" to a saved position that is still valid, "zero" to the
            beginning of the vbucket. A consumer that keeps one version of each document needs "zero": the older
            versions that void ones have replaced do not come again.
        purge_gap: the reaction if deletions after the position were purged before they were read: "fail" raises
            HistoryPurged, "ignore" reads on with a warning, "reconcile" begins the vbucket again, as a rollback to 0.
            None: "fail" if `on_rollback` is "fail", else "reconcile".
        read_stable: hold changes back until the active node and all replicas have them on disk: what a failover can
            lose is never seen. Costs their latency, and waits while a replica of the map is away.
        history: every version of each document that the bucket still keeps arrives, each at its seqno, where the
            bucket has a change history; without one, and where the history begins later than the position, the newest
            versions. An event HistoryGap says where older versions may be missing.
        skip_deletes: nodes of release 8.5 and later leave out deletions and expirations of the time before the stream
            began, as far as they read it from disk: a first load is shorter, and has the same documents. Only for a
            consumer that has nothing of the bucket: the option has no effect if the store has a record of a vbucket at
            seqno 0, nor with `history`.
        replicas_after_s: seconds that a vbucket's active node may stay away before the vbucket is read from a replica,
            until the active node is back; None never reads from replicas. A replica may lag, and what it has may be
            rolled back if another copy becomes active: a rollback is then reported, as after any failover. A refusal
            of a replica counts as no answer. High seqnos, for "latest", come from active nodes alone.
        members: (i, n): read only the vbuckets of member i (from 0) of n.
        idle_timeout_s: seconds without progress after which the read raises; None to wait for ever. A stream that is
            only opened again is no progress.

    Raises:
        ConfigError: an option is not allowed.
    """

    start: Start = "earliest"
    end: End = None
    store: OffsetStore | None = None
    collections: Sequence[str] | None = None
    value_format: ValueFormat = "binary"
    columns: Sequence[str] | None = None
    max_batch_rows: int = MAX_BATCH_ROWS
    keys_only: bool = False
    on_rollback: OnRollback = "fail"
    rewind_to: RewindTo = "recorded"
    purge_gap: OnPurgeGap | None = None
    read_stable: bool = False
    history: bool = False
    skip_deletes: bool = False
    replicas_after_s: float | None = None
    members: tuple[int, int] = (0, 1)
    idle_timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the cluster."""
        for name in ("collections", "columns"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
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
        if self.replicas_after_s is not None:
            if not self.replicas_after_s >= 0:
                raise ConfigError("replicas_after_s", self.replicas_after_s, "0 or more seconds, or None")
            if self.read_stable:
                message = (
                    "replicas_after_s reads while the active node is away, and read_stable waits for it. Give one of "
                    "them"
                )
                raise ConfigError("replicas_after_s", self.replicas_after_s, "None, with read_stable", message=message)
        if self.max_batch_rows < 1:
            raise ConfigError("max_batch_rows", self.max_batch_rows, "1 or more")

    def check_for(self, method: str) -> None:
        """Refuse options that a method does not have.

        Raises:
            ConfigError: one of them is not the default.
        """
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _NOT_FOR[method] and value != item.default:
                message = f"{method}() has no option {item.name}. Leave it out of its StreamOptions"
                raise ConfigError(item.name, value, f"left out for {method}()", message=message)

    @property
    def needs_observation(self) -> bool:
        """Whether high seqnos must be known before the stream begins."""
        return self.start == "latest" or self.end == "latest"

    @property
    def offset_store(self) -> OffsetStore | None:
        """The store that positions are loaded from and saved to."""
        return self.start if isinstance(self.start, OffsetStore) else self.store

    @property
    def policy(self) -> RollbackPolicy:
        """The reader's policy for rollbacks."""
        return RollbackPolicy.FAIL if self.on_rollback == "fail" else RollbackPolicy.REWIND

    def arrow_converter(self) -> ArrowConverter:
        """The converter for Arrow batches.

        Raises:
            ConfigError: pyarrow is missing.
        """
        return ArrowConverter(self.value_format, self.columns, self.max_batch_rows)

    def rules(self, patience_s: float) -> ReadRules:
        """The rules for the reader of a stream."""
        return ReadRules(
            policy=self.policy,
            purge_gap=check_purge_gap(self.purge_gap, can_rewind=self.policy is not RollbackPolicy.FAIL),
            collections=self.collections,
            is_stable=self.read_stable,
            to_zero=self.rewind_to == "zero",
            idle_timeout_s=self.idle_timeout_s,
            patience_s=patience_s,
            replicas_after_s=self.replicas_after_s,
        )

    def own_vbuckets(self, vbucket_count: int) -> list[int]:
        """The vbuckets of this member."""
        member, count = self.members
        return list(range(member, vbucket_count, count))

    def may_come_out_of_order(self, ranges: Iterable[VbucketRange]) -> bool:
        """Whether a node may send the first snapshot of a vbucket in any order.

        It does so for a single collection that is read from its beginning. A position within such a snapshot does not
        exist: after a cut its rows come again, so the user must be able to take back rows after a rollback.
        """
        return (
            self.policy is RollbackPolicy.REWIND
            and not self.read_stable
            and not self.history
            and Selection.of(self.collections).may_be_one_collection
            and any(not part.start.seqno for part in ranges)
        )

    def may_skip_deletes(self, ranges: Iterable[VbucketRange]) -> bool:
        """Whether nodes may leave deletions out of streams that begin at 0: the consumer has no rows of these vbuckets.

        A record of a vbucket at 0 says that an earlier run may have given out rows, and deletions of these documents
        may lie anywhere in the history. Within a run, a vbucket begins at 0 again only after a rollback was reported
        that takes back all its rows, or before its first row.
        """
        if not self.skip_deletes or self.history:
            return False
        first = [part for part in ranges if not part.start.seqno]
        return bool(first) and not any(part.start.vbuuid or part.given_vbuuid or part.earlier for part in first)

    def ranges(
        self, vbucket_count: int, saved: Mapping[int, SavedOffset], observed: Mapping[int, BranchState]
    ) -> list[VbucketRange]:
        """The ranges to read.

        Args:
            vbucket_count: of the bucket.
            saved: the records of the offset store.
            observed: branches and high seqnos, if `needs_observation`.

        Raises:
            ConfigError: the bucket lacks a vbucket that is named, or its node cannot be reached.
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
                if vbid not in self.end:
                    continue
                end = self.end[vbid]
            branch = observed[vbid].vbuuid if vbid in observed else 0
            # A start at or above the end is put to the node, too: only the node knows whether that history was rolled
            # back. The request costs no rows.
            if record.offset.seqno or record.is_rolling_back or end or self.end == "latest":
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


DEFAULTS = StreamOptions()
"""All changes of a bucket, for ever."""
