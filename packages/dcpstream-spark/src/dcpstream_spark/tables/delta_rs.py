"""The engine for one machine: Delta tables in a local directory, written with delta-rs, without Spark.

A batch passes through the driver's memory, and so do the tail of `changes` at a fold and the history of the keys that a
rollback touches. A batch that is appended while a fold runs needs memory in addition to the fold's. Every call opens
the tables again, so that calls of several threads share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError
from pyarrow import fs

from dcpstream.errors import LeaseRefused
from dcpstream.model import Op
from dcpstream_spark.tables.document_types import REASON, DocumentTypes, rejects_schema
from dcpstream_spark.tables.engine import (
    BatchSummary,
    CollectionTail,
    FoldReport,
    Part,
    TableState,
    Tail,
    TailFacts,
    later,
    rollback_reports,
    summary_of,
    void_bounds,
)
from dcpstream_spark.tables.fold_sql import (
    NARROW_COLUMNS,
    NO_BATCH,
    WINS,
    FoldQuery,
    rows_of_collections,
    same_document,
    void_rows,
)
from dcpstream_spark.tables.progress import RollbackReport
from dcpstream_spark.tables.rows import (
    BATCH_ID,
    CURRENT_COLUMNS,
    IS_REMOVED,
    IS_RESTORED,
    MERGE_MARKS,
    PLACE_COLUMNS,
    Place,
    at_places,
    changes_schema,
    current_schema,
    is_control,
    removals,
    with_batch_id,
    with_tables,
)
from dcpstream_spark.tables.versions_sql import versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITER = WriterProperties(compression="ZSTD", compression_level=1)
"""For JSON less than half the bytes of snappy at about the same speed; files are rewritten often."""

FOLD_ROWS_MIN = 20_000
"""A merge of fewer rows takes about as long: 0.1 s and more, most of it for reading and rewriting files."""

_ONE_THREAD = {"datafusion.execution.target_partitions": "1"}
"""A fold has too few rows for more threads: they cost CPU time and memory, and end no sooner."""

_RETYPED = "dcpstream.retyped"
"""Marks a commit that changed the columns of `current` and brought no batch."""


class _Table:
    """A Delta table whose commits carry transaction identifiers.

    Args:
        path: its directory.
        schema: its columns.
        skipping: columns with statistics. Statistics of keys and values are large and skip nothing.
        name, description: for people.
    """

    def __init__(self, path: Path, schema: pa.Schema, skipping: Iterable[str], name: str, description: str) -> None:
        self.path = path
        self.schema = schema
        self._skipping = ",".join(skipping)
        self._name = name
        self._description = description

    @property
    def exists(self) -> bool:
        """Whether there is a table at the path."""
        return bool(DeltaTable.is_deltatable(str(self.path)))

    def create(self) -> None:
        """Create the table if there is none."""
        if not self.exists:
            DeltaTable.create(
                str(self.path),
                self.schema,
                name=self._name,
                description=self._description,
                configuration={"delta.dataSkippingStatsColumns": self._skipping},
            )

    def open(self) -> DeltaTable:
        """The table in its newest version."""
        return DeltaTable(str(self.path))

    @property
    def is_written(self) -> bool:
        """Whether it holds a batch: whether there was another commit than its creation and changes of its columns."""
        table = self.open()
        known = [entry for entry in table.history() if entry["operation"] == "CREATE TABLE" or _RETYPED in entry]
        return table.version() >= len(known)

    def batch(self, app: str) -> int | None:
        """The newest batch of this writer that the table holds, or None."""
        return self.version().batch(app)

    def version(self) -> _Version:
        """The rows of the newest version."""
        return _Version(self.open(), self.schema, self.path)

    def vacuum(self, retain_hours: float) -> None:
        """Remove files that no version of the last `retain_hours` uses."""
        self.open().vacuum(retention_hours=int(retain_hours), dry_run=False, enforce_retention_duration=False)

    @staticmethod
    def transaction(app: str, batch_id: int) -> CommitProperties:
        """The properties of a commit: the writer and the batch as a transaction."""
        return CommitProperties(app_transactions=[Transaction(app, batch_id)])


class _Version:
    """One version of a table. Later commits do not change its rows.

    Args:
        table: in that version.
        schema: its columns.
        path: its directory.
    """

    def __init__(self, table: DeltaTable, schema: pa.Schema, path: Path) -> None:
        self.schema = schema
        self.table = table
        self._path = path

    def batch(self, app: str | None) -> int | None:
        """The newest batch of this writer that the version holds, or None."""
        version = None if app is None else self.table.transaction_version(app)
        return None if version is None else int(version)

    def rows(self, columns: Sequence[str], condition: pc.Expression | None = None) -> pa.Table:
        """Some columns of the rows that meet a condition."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        return self.table.to_pyarrow_dataset().to_table(columns=list(columns), filter=condition).cast(schema)

    def files(self) -> ds.Dataset:
        """The rows, read without delta-rs, which does not read while it writes."""
        place = fs.SubTreeFileSystem(str(self._path), fs.LocalFileSystem())
        return self.table.to_pyarrow_dataset(filesystem=place)

    def unfolded(self, query: FoldQuery) -> FoldQuery:
        """The query for all batches above its `after`, also while one with rollbacks waits for its fold."""
        is_rollback = later_than(query.after) & (pc.field("op").cast(pa.string()) == Op.ROLLBACK.value)
        found = self.rows(["vbucket", "value", BATCH_ID], is_rollback).to_pylist()
        newest = max((row[BATCH_ID] for row in found), default=None)
        bounds = void_bounds(rollback_reports([row for row in found if row[BATCH_ID] == newest]))
        return replace(query, upto=newest, bounds=bounds)

    def summary(self, batch_id: int) -> BatchSummary:
        """The content of a batch of `changes`."""
        rows = self.rows(["op", "vbucket", "value"], pc.field(BATCH_ID) == batch_id)
        return summary_of(batch_id, rows.filter(is_control(rows)), rows.num_rows)


def _refused(reason: str) -> LeaseRefused:
    return LeaseRefused(
        f"a batch was not appended ({reason}): another process keeps the tables of this pipeline, too. Stop one of "
        "them; no row is lost, and none is there twice."
    )


class DeltaRsEngine:
    """The tables `changes` and `current` in a local directory; see `dcpstream_spark.tables.engine.TableEngine`.

    Args:
        path: the directory.
        value_format: "binary" or "string", the type of `value`.
        table: the directory of `current` in `path`; by default `path` itself.
        part: the tables that the engine keeps. `current` is not used by one that keeps the log.
        places: the collections whose rows `current` has; None for all.
        keeps_dropped: see `FoldQuery`.
    """

    name = "delta-rs"

    def __init__(
        self,
        path: Path,
        value_format: str = "binary",
        *,
        table: str = "",
        part: Part = "both",
        places: Collection[Place] | None = None,
        keeps_dropped: bool = False,
    ) -> None:
        self.fold_rows_min = FOLD_ROWS_MIN
        self._part = part
        self._all_rows = FoldQuery(
            "changes" if places is None else rows_of_collections("changes", places),
            "current",
            None,
            NO_BATCH,
            carried=NARROW_COLUMNS,
            keeps_dropped=keeps_dropped,
        )
        self.changes = _Table(
            path / "changes",
            changes_schema(value_format),
            (BATCH_ID, "vbucket", "seqno", "_commit_timestamp"),
            "changes",
            "Changes of a Couchbase bucket, each row once",
        )
        self.current = _Table(
            path / table / "current",
            current_schema(value_format),
            ("vbucket", "seqno"),
            "current",
            "Documents of a Couchbase bucket as they are",
        )

        self._kept = [one for one, other in ((self.changes, "current"), (self.current, "log")) if part != other]
        self._untyped = self.current.schema
        self._types: DocumentTypes | None = None

    def typed_columns(self) -> pa.Schema | None:
        """The columns of `current` other than CURRENT_COLUMNS, from the table's log; None without a table."""
        if not self.current.exists:
            return None
        schema = pa.schema(self.current.open().schema())
        return pa.schema([field for field in schema if field.name not in CURRENT_COLUMNS])

    def use(self, types: DocumentTypes | None) -> None:
        """From now on fill these typed columns of `current`."""
        self._types = types
        self.current.schema = pa.schema([*self._untyped, *([] if types is None else types.columns)])

    def retype(self, app: str | None, *, from_changes: bool) -> None:
        """Write `current` again with the columns of `use`, in one commit."""
        upto = None if app is None else self.folded(app)

        def parts() -> Iterator[pa.Table]:
            if from_changes and upto is not None:
                return self._newest(self._query(None, upto, void_bounds(self.summary(upto).rollbacks)))
            return self._values_of_current()

        schema = self.current.schema
        if self._types is not None and self._types.mode == "FAILFAST":
            # Inside the generator below delta-rs would report the error in words of its own.
            for part in parts():
                self._typed(part)
        rows = (
            batch
            for part in parts()
            for batch in self._typed(part)[0].filter(~pc.field(IS_REMOVED)).select(schema.names).to_batches()
        )
        write_deltalake(
            str(self.current.path),
            pa.RecordBatchReader.from_batches(schema, rows),
            mode="overwrite",
            schema_mode="overwrite",
            writer_properties=_WRITER,
            commit_properties=CommitProperties(custom_metadata={_RETYPED: "true"}),
        )

    def rejects(self) -> pa.Table:
        """The documents as of the newest batch that do not fit the types."""
        types = self._types
        assert types is not None
        schema = rejects_schema(str(self.changes.schema.field("value").type))
        parts = [schema.empty_table()]
        for documents in self._newest(replace(self.changes.version().unfolded(self._all_rows), is_open=True)):
            typed, is_unfit = types.with_columns(documents, documents.column("value"))
            unfit = typed.filter(pa.array(is_unfit))
            reasons = [types.documents.reason(value) for value in unfit.column("value").to_pylist()]
            parts.append(unfit.append_column(REASON, pa.array(reasons, pa.string())).select(schema.names).cast(schema))
        return pa.concat_tables(parts)

    def _typed(self, rows: pa.Table, *, is_checked: bool = True) -> tuple[pa.Table, int]:
        """Rows to merge with the typed columns, and the number of documents that do not fit.

        Raises:
            FieldError: one does not fit, mode is FAILFAST, and it is to be checked.
        """
        if self._types is None:
            return rows, 0
        typed, is_unfit = self._types.effect(rows)
        if is_checked:
            self._types.documents.check(rows, is_unfit)
        return typed, int(is_unfit.sum())

    def _newest(self, query: FoldQuery) -> Iterator[pa.Table]:
        """The newest effective row of each document that exists, with the columns of `changes` and MERGE_MARKS.

        Memory: for the keys of `changes`, and for one block of its rows.
        """
        changes = self.changes.version()
        decided = _answer(changes, self.current.version(), query.newest())
        decided = decided.filter(~pc.field(IS_REMOVED))

        def found(batch: pa.RecordBatch) -> pa.Table:
            return at_places(pa.Table.from_batches([batch]).cast(changes.schema), decided)

        return map(found, changes.files().to_batches(columns=changes.schema.names))

    def _values_of_current(self) -> Iterator[pa.Table]:
        """The rows of `current`, with CURRENT_COLUMNS and IS_REMOVED."""
        untyped = self._untyped

        def kept(batch: pa.RecordBatch) -> pa.Table:
            rows = pa.Table.from_batches([batch]).cast(untyped)
            return rows.append_column(IS_REMOVED, pa.repeat(pa.scalar(False), rows.num_rows))

        return map(kept, self.current.version().files().to_batches(columns=untyped.names))

    def state(self) -> TableState:
        """The tables that exist."""
        tables = [table for table in self._kept if table.exists]
        return TableState(
            has_changes=self.changes in tables,
            has_current=self.current in tables,
            is_written=any(table.is_written for table in tables),
        )

    def create(self) -> None:
        """Create the tables that do not exist."""
        for table in self._kept:
            table.path.parent.mkdir(parents=True, exist_ok=True)
            table.create()

    def last_batch(self, app: str) -> int | None:
        """The newest batch of this writer in `changes`, or None."""
        return self.changes.batch(app)

    def folded(self, app: str) -> int | None:
        """The newest batch of this writer in `current`, or None."""
        return self.current.batch(app)

    def append(self, app: str, batch_id: int, frame: DataFrame) -> BatchSummary:
        """Append a batch to `changes`."""
        rows = with_batch_id(frame.toArrow(), batch_id, self.changes.schema)
        # A commit fails if another one with this writer's name was made since this version.
        table = self.changes.open()
        held = table.transaction_version(app)
        if held is not None and held >= batch_id:
            raise _refused(f"the table changes holds batch {held} already")
        try:
            write_deltalake(
                table,
                rows,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=_Table.transaction(app, batch_id),
            )
        except CommitFailedError as error:
            raise _refused(str(error)) from error
        summary = summary_of(batch_id, rows.filter(is_control(rows)), rows.num_rows)
        return replace(summary, collections=with_tables(rows)) if self._part == "log" else summary

    def summary(self, batch_id: int) -> BatchSummary:
        """The content of a batch of `changes`."""
        return self.changes.version().summary(batch_id)

    @contextmanager
    def tail(self, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> Iterator[Tail]:
        """The rows that a fold looks at."""
        changes = self.changes.version()
        sql = self._query(after, upto, void_bounds(rollbacks)).collections()
        found = _answer(changes, None, sql).to_pylist()
        yield Tail(tuple(CollectionTail(**row) for row in found))

    def changes_of(self, places: Iterable[Place]) -> pa.Table:
        """The rows of `changes` of some collections, and the control rows about rollbacks."""
        wanted = pc.field("op").cast(pa.string()) == Op.ROLLBACK.value
        for scope, collection in places:
            wanted |= (pc.field("scope") == scope) & (pc.field("collection") == collection)
        changes = self.changes.version()
        return changes.rows(changes.schema.names, wanted)

    def versions(self, places: Iterable[Place] | None = None) -> pa.Table:
        """Every version of the documents in `changes`, see `versions_sql`; of these collections, or of all."""
        return _answer(self.changes.version(), None, versions("changes", places))

    def publish(self, app: str, least: int | None = None) -> None:
        """Nothing to do: there are no views."""

    def tail_rows(self, after: int | None) -> int:
        """Rows of `changes` in batches above `after`."""
        return int(self.changes.open().to_pyarrow_dataset().count_rows(filter=later_than(after)))

    def current_rows(self) -> int:
        """Documents in `current`."""
        return int(self.current.open().count())

    def fold(
        self,
        app: str,
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
        facts: TailFacts | None = None,
    ) -> FoldReport:
        """Bring the batches above `after` up to `upto` into `current`, in one commit."""
        changes, current = self.changes.version(), self.current.version()
        decided = _decided(changes, current, self._query(after, upto, void_bounds(rollbacks)), is_merged=True)
        source, rejected = self._typed(decided)
        values = {f'"{name}"': f's."{name}"' for name in self.current.schema.names}
        metrics = (
            self.current.open()
            .merge(
                source,
                same_document("t", "s"),
                source_alias="s",
                target_alias="t",
                writer_properties=_WRITER,
                commit_properties=_Table.transaction(app, upto),
            )
            .when_matched_delete(predicate=f"s.{IS_REMOVED} and {WINS}")
            .when_matched_update(values, predicate=WINS)
            .when_not_matched_insert(values, predicate=f"not s.{IS_REMOVED}")
            .execute()
        )
        if self.current.batch(app) != upto:
            # delta-rs leaves out a commit that changes no row, and with it the transaction.
            self.current.open().create_write_transaction(
                [], mode="append", schema=self.current.schema, commit_properties=_Table.transaction(app, upto)
            )
        return FoldReport(
            upto=upto,
            documents=metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"],
            removed=metrics["num_target_rows_deleted"],
            restored=pc.sum(decided.column(IS_RESTORED)).as_py() or 0,
            current_rows=self.current_rows(),
            rejected=rejected,
        )

    def take_back(self, rollbacks: Sequence[RollbackReport], before_batch: int) -> None:
        """Delete void rows from `changes`."""
        bounds = void_bounds(rollbacks)
        if bounds:
            self.changes.open().delete(void_rows(bounds, before_batch))

    def live(self, app: str | None, least: int | None = None) -> pa.Table:
        """The documents as of the newest batch."""
        # In this order. A version of `current` that is newer than this one of `changes` holds all of its batches. An
        # older one does not hold the rollbacks in it, so the rows that they made void are still in `changes`.
        changes, current = self.changes.version(), self.current.version()
        after = later(current.batch(app), least)
        if not changes.rows([BATCH_ID], later_than(after)).num_rows:
            return current.rows(current.schema.names)
        query = changes.unfolded(self._query(after, None, {}))
        kept = _answer(changes, current, query.kept(current.schema.names)).cast(current.schema)
        newest, _ = self._typed(_decided(changes, current, query), is_checked=False)
        return pa.concat_tables([kept, newest.filter(~pc.field(IS_REMOVED)).select(current.schema.names)])

    def maintain(self, retain_hours: float) -> None:
        """Join small files of `changes`, and remove files that only versions older than `retain_hours` use."""
        if self.changes in self._kept:
            self.changes.open().optimize.compact(writer_properties=_WRITER)
        for table in self._kept:
            table.vacuum(retain_hours)

    def _query(self, after: int | None, upto: int | None, bounds: Mapping[int, int]) -> FoldQuery:
        return replace(self._all_rows, after=NO_BATCH if after is None else after, upto=upto, bounds=bounds)


def later_than(after: int | None) -> pc.Expression:
    """The condition for the rows of the batches above `after`; all rows for None."""
    return pc.field(BATCH_ID) > (NO_BATCH if after is None else after)


def _answer(changes: _Version, current: _Version | None, sql: str) -> pa.Table:
    """The answer of the query engine of delta-rs, which needs memory for the columns that the query names."""
    tables = QueryBuilder(_ONE_THREAD).register("changes", changes.table)
    if current is not None:
        tables = tables.register("current", current.table)
    found = pa.table(tables.execute(sql).read_all())
    kinds = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return found.cast(pa.schema([one.with_type(kinds.get(one.type, one.type)) for one in found.schema]))


def _decided(changes: _Version, current: _Version, query: FoldQuery, *, is_merged: bool = False) -> pa.Table:
    schema = pa.schema([current.schema.field(name) for name in CURRENT_COLUMNS])
    return decided_rows(partial(_answer, changes, current), changes.rows, schema, query, is_merged=is_merged)


def decided_rows(
    answer: Callable[[str], pa.Table],
    rows: Callable[[Sequence[str], pc.Expression], pa.Table],
    schema: pa.Schema,
    query: FoldQuery,
    *,
    is_merged: bool,
) -> pa.Table:
    """The documents that the tail decides about, with CURRENT_COLUMNS and MERGE_MARKS.

    Args:
        answer: runs a query of `query`, which carries NARROW_COLUMNS.
        rows: reads columns of the rows of `changes` that meet a condition.
        schema: of `current`, without typed columns.
        query: says which rows decide. Only those of documents that exist are read.
        is_merged: whether the rows are to be merged into `current`.
    """
    has_ended = is_merged and answer(query.facts()).column("emptying")[0].as_py() > 0
    decided = answer(query.newest(has_ended=has_ended))
    there = decided.filter(~pc.field(IS_REMOVED))
    condition = pc.scalar(True)
    for name in PLACE_COLUMNS:
        condition &= pc.field(name).isin(pc.unique(there.column(name)))
    found = at_places(rows([*CURRENT_COLUMNS, BATCH_ID], condition), there)
    gone = removals(decided.filter(pc.field(IS_REMOVED)), schema)
    return pa.concat_tables([found.select([*CURRENT_COLUMNS, *MERGE_MARKS]).cast(gone.schema), gone])
