"""The engine for one machine: Delta tables in a local directory, written with delta-rs, without Spark.

A batch passes through the driver's memory, and so do the tail of `changes` at a fold and the history of the keys that a
rollback touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from dcpstream.pipelines.effect import IS_FORCED, IS_REMOVED, effect, later_than, merged
from dcpstream.pipelines.engine import BatchSummary, FoldReport, TableState, void_bounds
from dcpstream.pipelines.progress import RollbackReport
from dcpstream.pipelines.rows import (
    BATCH_ID,
    CURRENT_COLUMNS,
    DOCUMENT_KEY,
    changes_schema,
    current_schema,
    is_control,
    summary_of,
    with_batch_id,
    with_keys,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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

    def rows(
        self, columns: Iterable[str], condition: pc.Expression | None = None, keys: pa.Array | None = None
    ) -> pa.Table:
        """Some columns of the rows that meet a condition; with `keys`, no rows that have another key."""
        names = list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        dataset = self.open().to_pyarrow_dataset()
        if keys is None:
            return dataset.to_table(columns=names, filter=condition).cast(schema)
        batches = dataset.to_batches(columns=names, filter=condition)
        found = [with_keys(pa.Table.from_batches([batch]).cast(schema), keys) for batch in batches]
        return pa.concat_tables([schema.empty_table(), *found])

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
        return int(self.changes.open().to_pyarrow_dataset().count_rows(filter=later_than(after)))

    def current_rows(self) -> int:
        """Documents in `current`."""
        return int(self.current.open().count())

    def fold(self, app: str, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> FoldReport:
        """Bring the batches above `after` up to `upto` into `current`, in one commit."""
        source, restored = effect(self.changes, self.current, after, upto, void_bounds(rollbacks))
        values = {name: f"s.{name}" for name in CURRENT_COLUMNS}
        is_newer = f"(s.{IS_FORCED} or s.seqno > t.seqno)"
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
            .when_matched_delete(predicate=f"s.{IS_REMOVED} and {is_newer}")
            .when_matched_update(values, predicate=is_newer)
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
        bounds = void_bounds(self.summary(upto).rollbacks)
        source, _ = effect(self.changes, self.current, after, upto, bounds)
        return merged(current, source)

    def maintain(self, retain_hours: float) -> None:
        """Join small files of `changes`, and remove files that only versions older than `retain_hours` use."""
        self.changes.open().optimize.compact(writer_properties=_WRITER)
        self.changes.vacuum(retain_hours)
        self.current.vacuum(retain_hours)

    def _newest_batch(self, after: int | None) -> int | None:
        newest = pc.max(self.changes.rows([BATCH_ID], later_than(after)).column(BATCH_ID)).as_py()
        return None if newest is None else int(newest)
