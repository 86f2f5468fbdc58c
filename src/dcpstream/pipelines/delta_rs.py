"""The engine for one machine: Delta tables in a local directory, written with delta-rs, without Spark.

A batch passes through the driver's memory, and so does the tail of `changes` at a fold. A rollback also reads the keys
of the rolled-back vbuckets in `changes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from dcpstream.pipelines.engine import BatchSummary, FoldReport, TableState, void_bounds
from dcpstream.pipelines.progress import RollbackReport
from dcpstream.pipelines.rows import (
    BATCH_ID,
    CURRENT_COLUMNS,
    DOCUMENT_KEY,
    RULE_COLUMNS,
    FoldPlan,
    Indexes,
    changes_schema,
    current_schema,
    is_control,
    key_codes,
    lies_before,
    plan_fold,
    summary_of,
    with_batch_id,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IS_REMOVED = "_is_removed"
_IS_FORCED = "_is_forced"

_WRITER = WriterProperties(compression="ZSTD", compression_level=1)
"""For JSON less than half the bytes of snappy at about the same speed; files are rewritten often."""

FOLD_ROWS_MIN = 20_000
"""A merge of fewer rows takes about as long: 0.1 s and more, most of it for reading and rewriting files."""


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

    def batch(self, app: str) -> int | None:
        """The newest batch of this writer that the table holds, or None."""
        version = self.open().transaction_version(app)
        return None if version is None else int(version)

    def rows(self, columns: Iterable[str], condition: pc.Expression | None = None) -> pa.Table:
        """Some columns of the rows that meet a condition."""
        names = list(columns)
        table = self.open().to_pyarrow_dataset().to_table(columns=names, filter=condition)
        return table.cast(pa.schema([self.schema.field(name) for name in names]))

    def vacuum(self, retain_hours: float) -> None:
        """Remove files that no version of the last `retain_hours` uses."""
        self.open().vacuum(retention_hours=int(retain_hours), dry_run=False, enforce_retention_duration=False)

    @staticmethod
    def transaction(app: str, batch_id: int) -> CommitProperties:
        """What a commit carries."""
        return CommitProperties(app_transactions=[Transaction(app, batch_id)])


class DeltaRsEngine:
    """The tables `changes` and `current` in a local directory; see `dcpstream.pipelines.engine.TableEngine`.

    Args:
        path: the directory.
        value_format: "binary" or "string", the type of `value`.
    """

    name = "delta-rs"

    def __init__(self, path: Path, value_format: str = "binary") -> None:
        self.fold_rows_min = FOLD_ROWS_MIN
        self.changes = _Table(
            path / "changes",
            changes_schema(value_format),
            (BATCH_ID, "vbucket", "seqno", "_commit_timestamp"),
            "changes",
            "Changes of a Couchbase bucket, each row once",
        )
        self.current = _Table(
            path / "current",
            current_schema(value_format),
            ("vbucket", "seqno"),
            "current",
            "Documents of a Couchbase bucket as they are",
        )

    def state(self) -> TableState:
        """What exists."""
        tables = [table for table in (self.changes, self.current) if table.exists]
        return TableState(
            has_changes=self.changes in tables,
            has_current=self.current in tables,
            is_written=any(table.open().version() > 0 for table in tables),
        )

    def create(self) -> None:
        """Create the tables that do not exist."""
        self.changes.path.parent.mkdir(parents=True, exist_ok=True)
        self.changes.create()
        self.current.create()

    def last_batch(self, app: str) -> int | None:
        """The newest batch of this writer in `changes`, or None."""
        return self.changes.batch(app)

    def folded(self, app: str) -> int | None:
        """The newest batch of this writer in `current`, or None."""
        return self.current.batch(app)

    def append(self, app: str, batch_id: int, frame: DataFrame) -> BatchSummary:
        """Append a batch to `changes`."""
        rows = with_batch_id(frame.toArrow(), batch_id, self.changes.schema)
        write_deltalake(
            str(self.changes.path),
            rows,
            mode="append",
            writer_properties=_WRITER,
            commit_properties=_Table.transaction(app, batch_id),
        )
        return summary_of(batch_id, rows.filter(is_control(rows)), rows.num_rows)

    def summary(self, batch_id: int) -> BatchSummary:
        """What a batch of `changes` holds."""
        rows = self.changes.rows(["op", "vbucket", "value"], pc.field(BATCH_ID) == batch_id)
        return summary_of(batch_id, rows.filter(is_control(rows)), rows.num_rows)

    def tail_rows(self, after: int | None) -> int:
        """Rows of `changes` in batches above `after`."""
        return int(self.changes.open().to_pyarrow_dataset().count_rows(filter=_later_than(after)))

    def current_rows(self) -> int:
        """Documents in `current`."""
        return int(self.current.open().count())

    def fold(self, app: str, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> FoldReport:
        """Bring the batches above `after` up to `upto` into `current`, in one commit."""
        source, restored = self._effect(after, upto, void_bounds(rollbacks))
        values = {name: f"s.{name}" for name in CURRENT_COLUMNS}
        is_newer = f"(s.{_IS_FORCED} or s.seqno > t.seqno)"
        metrics = (
            self.current.open()
            .merge(
                source,
                " and ".join(f"t.{name} = s.{name}" for name in reversed(DOCUMENT_KEY)),
                source_alias="s",
                target_alias="t",
                writer_properties=_WRITER,
                commit_properties=_Table.transaction(app, upto),
            )
            .when_matched_delete(predicate=f"s.{_IS_REMOVED} and {is_newer}")
            .when_matched_update(values, predicate=is_newer)
            .when_not_matched_insert(values, predicate=f"not s.{_IS_REMOVED}")
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
            restored=restored,
            current_rows=self.current_rows(),
        )

    def take_back(self, rollbacks: Sequence[RollbackReport], before_batch: int) -> None:
        """Delete void rows from `changes`."""
        bounds = void_bounds(rollbacks)
        if not bounds:
            return
        void = " or ".join(f"(vbucket = {vbucket} and seqno > {seqno})" for vbucket, seqno in bounds.items())
        self.changes.open().delete(f"{BATCH_ID} < {before_batch} and op <> 'rollback' and ({void})")

    def live(self, after: int | None) -> pa.Table:
        """The documents as of the newest batch."""
        upto = self._newest_batch(after)
        current = self.current.rows(CURRENT_COLUMNS)
        if upto is None:
            return current
        source, _ = self._effect(after, upto, void_bounds(self.summary(upto).rollbacks))
        ours, theirs = key_codes(current, source)
        at = {code: index for index, code in enumerate(ours.tolist())}
        seqnos = current.column("seqno").to_pylist()
        is_kept, is_taken = np.ones(len(ours), bool), np.ones(len(theirs), bool)
        columns = (source.column(name).to_pylist() for name in (_IS_FORCED, _IS_REMOVED, "seqno"))
        for index, (code, is_forced, is_removed, seqno) in enumerate(zip(theirs.tolist(), *columns, strict=True)):
            known = at.get(code)
            is_effective = known is None or is_forced or seqno > seqnos[known]
            if known is not None and is_effective:
                is_kept[known] = False
            is_taken[index] = is_effective and not is_removed
        taken = source.filter(pa.array(is_taken)).select(CURRENT_COLUMNS)
        return pa.concat_tables([current.filter(pa.array(is_kept)), taken])

    def maintain(self, retain_hours: float) -> None:
        """Join small files of `changes`, and remove files that only versions older than `retain_hours` use."""
        self.changes.open().optimize.compact(writer_properties=_WRITER)
        self.changes.vacuum(retain_hours)
        self.current.vacuum(retain_hours)

    def _newest_batch(self, after: int | None) -> int | None:
        newest = pc.max(self.changes.rows([BATCH_ID], _later_than(after)).column(BATCH_ID)).as_py()
        return None if newest is None else int(newest)

    def _effect(self, after: int | None, upto: int, bounds: Mapping[int, int]) -> tuple[pa.Table, int]:
        """What the batches mean for `current`.

        Returns:
            (the columns of `current`, whether the document is removed, and whether that holds also for a row of
            `current` with a higher seqno; number of rows that a rollback restored)
        """
        tail_columns = list(dict.fromkeys((*CURRENT_COLUMNS, *RULE_COLUMNS)))
        tail = self.changes.rows(tail_columns, _later_than(after) & (pc.field(BATCH_ID) <= upto))
        is_older = pc.field("vbucket").isin(list(bounds)) & (pc.field(BATCH_ID) <= (-1 if after is None else after))
        older = self.changes.rows(RULE_COLUMNS, is_older) if bounds else tail.slice(0, 0).select(RULE_COLUMNS)
        plan = plan_fold(tail, older, bounds, upto)
        rules = pa.concat_tables([tail.select(RULE_COLUMNS), older])
        is_tail = plan.newest < tail.num_rows
        of_tail = tail.take(pa.array(plan.newest[is_tail]))
        of_older = self._whole(rules.take(pa.array(plan.newest[~is_tail])))
        parts = [
            _effective(of_tail, plan.is_restored[is_tail]),
            _effective(of_older, np.ones(of_older.num_rows, bool)),
            _removals(rules.take(pa.array(plan.absent)), self.current.schema),
            self._ended(rules, plan),
        ]
        return pa.concat_tables(parts), int(plan.is_restored.sum()) + len(plan.absent)

    def _whole(self, rules: pa.Table) -> pa.Table:
        """The rows of `changes` with all columns, for rows with RULE_COLUMNS."""
        columns = list(dict.fromkeys((*CURRENT_COLUMNS, "_change_type", BATCH_ID)))
        wanted = pa.Table.from_pydict({name: rules.column(name) for name in ("vbucket", "seqno", BATCH_ID)})
        conditions = [pc.field(name).isin(pc.unique(wanted.column(name))) for name in wanted.column_names]
        found = self.changes.rows(columns, conditions[0] & conditions[1] & conditions[2])
        places = list(zip(*(found.column(name).to_pylist() for name in wanted.column_names), strict=True))
        at = {place: index for index, place in enumerate(places)}
        rows = zip(*(wanted.column(name).to_pylist() for name in wanted.column_names), strict=True)
        return found.take(pa.array([at[place] for place in rows], pa.int64()))

    def _ended(self, rules: pa.Table, plan: FoldPlan) -> pa.Table:
        """Removals of the documents of `current` that ended with their collection and are in no other row."""
        emptying = rules.take(pa.array(plan.emptying))
        if not emptying.num_rows:
            return _removals(rules.slice(0, 0), self.current.schema)
        is_near = pc.field("vbucket").isin(pc.unique(emptying.column("vbucket")))
        held = self.current.rows((*DOCUMENT_KEY, "vbucket", "seqno"), is_near)
        held = held.filter(pa.array(lies_before(held, emptying)))
        decided: Indexes = np.concatenate([plan.newest, plan.absent])
        ours, theirs = key_codes(held, rules.take(pa.array(decided)))
        return _removals(held.filter(pa.array(~np.isin(ours, theirs))), self.current.schema)


def _later_than(after: int | None) -> pc.Expression:
    return pc.field(BATCH_ID) > (-1 if after is None else after)


def _effective(rows: pa.Table, is_forced: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Table:
    """Rows of `changes` as rows for the merge."""
    is_removed = pc.fill_null(pc.equal(rows.column("_change_type"), "delete"), False)
    return _marked(rows.select(CURRENT_COLUMNS), is_removed, pa.array(is_forced, pa.bool_()))


def _removals(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows for the merge that remove these documents whatever their seqno."""
    known = (*DOCUMENT_KEY, "vbucket", "seqno")
    columns = [
        rows.column(field.name) if field.name in known else pa.nulls(rows.num_rows, field.type) for field in schema
    ]
    every = pa.array([True] * rows.num_rows, pa.bool_())
    return _marked(pa.table(columns, schema=schema), every, every)


def _marked(rows: pa.Table, is_removed: pa.Array | pa.ChunkedArray, is_forced: pa.Array) -> pa.Table:
    marked = rows.append_column(pa.field(_IS_REMOVED, pa.bool_()), is_removed)
    return marked.append_column(pa.field(_IS_FORCED, pa.bool_()), is_forced)
