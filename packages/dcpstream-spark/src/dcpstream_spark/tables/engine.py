"""The interface of a table engine for pipelines, and the values that they exchange.

An engine keeps two tables:

- `changes`: a log. `append` adds each batch once, in one commit. Every row carries its batch in `_batch_id`.
- `current`: one row per existing document. `fold` brings the effect of a range of batches into it, in one commit.

Several pairs may share one `changes`: each has a table `current` of its own, for the rows of some collections. Such an
engine is a part: it keeps only the log, or only one `current`; `dcpstream_spark.tables.many` joins them.

A commit carries the name of its writer and the batch's number as a transaction identifier, so the tables themselves
record what they hold. The engine keeps no other state.

The effect of `changes` on `current`, the same for every engine:

1. A rollback of vbucket v to seqno P in batch j makes rows of v void that have a seqno above P and a batch below j. The
   rollback's own control row is never void.
2. A row whose `op` empties a collection (`Op.empties_collection`) at seqno s of vbucket v in batch j ends older rows:
   data rows of the same scope, collection and vbucket have no effect if their seqno is at most s and their batch at
   most j. A later batch may bring lower seqnos: a query that begins to read a collection begins at seqno 0.
3. Of the other data rows, the one with the highest seqno is the document (scope, collection, key), unless its
   `_change_type` is delete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import pyarrow.compute as pc

from dcpstream.model import Op
from dcpstream_spark.tables.progress import RollbackReport
from dcpstream_spark.tables.rows import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from dcpstream_spark.tables.document_types import DocumentTypes


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The content of a batch in `changes`.

    Attributes:
        batch_id: its number.
        rows: data rows.
        events: control rows about scopes and collections.
        rollbacks: control rows about rollbacks. A vbucket may have several; the lowest `to_seqno` counts.
        collections: those with changes of documents, or that were created; only from `append` of a part that keeps the
            log.
    """

    batch_id: int
    rows: int = 0
    events: int = 0
    rollbacks: tuple[RollbackReport, ...] = ()
    collections: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class CollectionTail:
    """The rows of one collection that a fold looks at; see `FoldQuery.collections`."""

    scope: str
    collection: str
    total: int
    documents: int
    emptying: int
    created: int


@dataclass(frozen=True, slots=True)
class TailFacts:
    """Facts that the caller of a fold knows, so that the engine need not ask.

    Attributes:
        rows: of the tail of this table.
        emptying: those that empty a collection.
        current_rows: documents in `current` before the fold.
        relation: name of a relation with the tail of all tables, which is faster to read than `changes`; None for none.
    """

    rows: int
    emptying: int
    current_rows: int
    relation: str | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """The tail of a log that several tables share.

    Attributes:
        collections: by scope and name.
        relation: see `TailFacts`.
    """

    collections: tuple[CollectionTail, ...]
    relation: str | None = None


Part: TypeAlias = Literal["both", "log", "current"]
"""The tables that an engine keeps."""


@dataclass(frozen=True, slots=True)
class FoldReport:
    """The result of a fold of `current`.

    Attributes:
        upto: the newest batch that `current` holds now.
        documents: documents that were inserted or replaced.
        removed: documents that were removed.
        restored: those of both that a rollback brought back to an older state.
        current_rows: documents in the table now.
        rejected: documents among those that the fold decided about that do not fit the schema.
        fold_s: seconds that it took; 0 in the answer of an engine.
    """

    upto: int
    documents: int
    removed: int
    restored: int
    current_rows: int
    rejected: int = 0
    fold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TableState:
    """The tables that exist.

    Attributes:
        has_changes, has_current: whether the table exists.
        is_written: whether one of them has rows, or holds a batch.
    """

    has_changes: bool
    has_current: bool
    is_written: bool


class TableEngine(Protocol):
    """Writes the tables of one pipeline.

    Every method may be interrupted between two commits. Calling it again then completes the work.

    Two threads call it. One calls `create`, `append`, `take_back` and the questions, one after the other. While it
    does, the other may be in `fold` without rollbacks, or in `maintain` with at least an hour of `retain_hours`; never
    in both. Nothing else runs while `take_back` or a `fold` with rollbacks runs. Any thread may call `live` at any
    time.

    Attributes:
        name: "delta", "iceberg", "delta-rs".
        fold_rows_min: rows of `changes` below which a fold costs the engine as much as for fewer.
    """

    name: str
    fold_rows_min: int

    def state(self) -> TableState:
        """The tables that exist."""
        ...

    def typed_columns(self) -> pa.Schema | None:
        """The columns of the table `current` other than CURRENT_COLUMNS; None without a table."""
        ...

    def use(self, types: DocumentTypes | None) -> None:
        """From now on fill these typed columns of `current`, which has them, or is created with them; None for none."""
        ...

    def retype(self, app: str | None, *, from_changes: bool) -> None:
        """Write `current` again with the columns of `use`, in one commit; the batches that it holds stay the same.

        Args:
            app: the writer; None if nobody has written yet.
            from_changes: make the rows of these batches of `changes`; otherwise of the values in `current`.

        Raises:
            FieldError: a document does not fit, and mode is FAILFAST.
        """
        ...

    def rejects(self) -> DataFrame | pa.Table:
        """The documents as of the newest batch that do not fit the types: REJECT_COLUMNS."""
        ...

    def create(self) -> None:
        """Create the tables that do not exist."""
        ...

    def last_batch(self, app: str) -> int | None:
        """The newest batch of this writer in `changes`, or None."""
        ...

    def folded(self, app: str) -> int | None:
        """The newest batch of this writer in `current`, or None."""
        ...

    def append(self, app: str, batch_id: int, frame: DataFrame) -> BatchSummary:
        """Append a batch to `changes` in one commit, also one without rows.

        Args:
            app: the writer.
            batch_id: above `last_batch`.
            frame: the source's columns.
        """
        ...

    def summary(self, batch_id: int) -> BatchSummary:
        """The content of a batch of `changes`."""
        ...

    def tail_rows(self, after: int | None) -> int:
        """Rows of `changes` in batches above `after`; all of them for None."""
        ...

    def current_rows(self) -> int:
        """Documents in `current`."""
        ...

    def fold(
        self,
        app: str,
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
        facts: TailFacts | None = None,
    ) -> FoldReport:
        """Bring the batches above `after` up to `upto` into `current`, in one commit.

        A row of `current` is replaced or removed by a row with a higher seqno. A key that a void row has touched is
        brought to the state of the rows of `changes` that are left, of all batches. If a void row had emptied a
        collection, this holds for all keys of that collection and vbucket.

        Args:
            app: the writer.
            after: the newest batch in `current`; None = none.
            upto: the newest batch in `changes`.
            rollbacks: those of the batch `upto`. No other batch of the range has any.
            facts: what is known of these batches.
        """
        ...

    def take_back(self, rollbacks: Sequence[RollbackReport], before_batch: int) -> None:
        """Delete void rows from `changes`: see rule 1, with j = `before_batch`. A second call changes nothing."""
        ...

    def live(self, app: str | None, least: int | None = None) -> DataFrame | pa.Table:
        """The documents as of the newest batch, from one version of `current` and one of `changes`.

        A commit after the call changes nothing of the answer. The columns are those of `current`.

        Args:
            app: the writer; None if nobody has written yet.
            least: a batch up to which `current` holds everything, although its commits carry an older number.
        """
        ...

    def versions(self, places: Iterable[Place] | None = None) -> DataFrame | pa.Table:
        """Every version of the documents in `changes`, see `versions_sql`; of these collections, or of all."""
        ...

    def maintain(self, retain_hours: float) -> None:
        """Join small files of `changes`, and remove files that only versions older than `retain_hours` use."""
        ...

    def publish(self, app: str, least: int | None = None) -> None:
        """Make the views again, if there are any.

        Args:
            app: the writer.
            least: as for `live`.
        """
        ...


class LogEngine(TableEngine, Protocol):
    """Keeps only `changes`, for several tables. Other engines have `fold`, `live` and the questions about `current`."""

    def tail(self, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> AbstractContextManager[Tail]:
        """The rows that a fold looks at, also those that rollbacks make void. Its relation ends with the block."""
        ...

    def changes_of(self, places: Iterable[Place]) -> DataFrame | pa.Table:
        """The rows of `changes` of some collections, and the control rows about rollbacks."""
        ...


class Parts(Protocol):
    """Makes the engines of tables that share one log.

    Attributes:
        name: of the engine.
    """

    name: str

    def log(self) -> LogEngine:
        """The engine of `changes`."""
        ...

    def table(self, name: str, places: Collection[Place]) -> AbstractContextManager[TableEngine]:
        """The engine of one table `current`. It may be used until the block ends, by one thread.

        Args:
            name: of the table.
            places: the collections whose rows it has.
        """
        ...

    def has_views(self) -> bool:
        """Whether tables have views, which are made again before a rollback is folded."""
        ...


def later(one: int | None, other: int | None) -> int | None:
    """The later of two batches; None is before all."""
    return max((batch for batch in (one, other) if batch is not None), default=None)


def void_bounds(rollbacks: Sequence[RollbackReport]) -> dict[int, int]:
    """Vbucket → the lowest seqno that it was rolled back to, by vbucket."""
    bounds: dict[int, int] = {}
    for rollback in rollbacks:
        bounds[rollback.vbucket] = min(rollback.to_seqno, bounds.get(rollback.vbucket, rollback.to_seqno))
    return dict(sorted(bounds.items()))


def rollback_reports(rows: Sequence[dict[str, Any]]) -> tuple[RollbackReport, ...]:
    """The rollbacks in control rows.

    Args:
        rows: with `vbucket` and `value`, the JSON of `RollbackEvent.details` as text or bytes.
    """
    return tuple(RollbackReport.from_row(row["vbucket"], row["value"]) for row in rows)


def summary_of(batch_id: int, controls: pa.Table, row_count: int) -> BatchSummary:
    """The summary of a batch.

    Args:
        batch_id: its number.
        controls: its control rows, with the columns op, vbucket and value.
        row_count: all of its rows.
    """
    is_rollback = pc.equal(controls.column("op"), Op.ROLLBACK.value)
    rollbacks = rollback_reports(controls.filter(is_rollback).select(["vbucket", "value"]).to_pylist())
    return BatchSummary(batch_id, row_count - controls.num_rows, controls.num_rows - len(rollbacks), rollbacks)
