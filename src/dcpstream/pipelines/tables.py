"""The two Delta tables, written with delta-rs, one commit per batch.

A commit carries the batch's number as an application transaction, so the table itself records the batches that it
holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from dcpstream.pipelines.rows import BATCH_ID, CURRENT_COLUMNS, BatchRows, changes_schema, current_schema

_IS_REMOVED = "_is_removed"

_WRITER = WriterProperties(compression="ZSTD", compression_level=1)
"""For JSON less than half the bytes of snappy at about the same speed; files are rewritten often."""


class _Table:
    """A Delta table that applies each batch once.

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

    def last_batch(self, app: str) -> int | None:
        """The newest batch of this writer that the table holds, or None."""
        version = self.open().transaction_version(app)
        return None if version is None else int(version)

    def vacuum(self, retain_hours: float) -> int:
        """Remove files that no version of the last `retain_hours` uses; returns their number."""
        removed = self.open().vacuum(retention_hours=int(retain_hours), dry_run=False, enforce_retention_duration=False)
        return len(removed)

    @staticmethod
    def _commit(app: str, batch_id: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(app, batch_id)])


class ChangesTable(_Table):
    """Each delivered row once; rows that a rollback made void are removed, and its control row stays.

    Args:
        path: its directory.
        value_format: "binary" or "string".
    """

    def __init__(self, path: Path, value_format: str) -> None:
        schema = changes_schema(value_format)
        skipping = (BATCH_ID, "vbucket", "seqno", "_commit_timestamp")
        super().__init__(path, schema, skipping, "changes", "Changes of a Couchbase bucket, each row once")

    def apply(self, app: str, batch_id: int, rows: BatchRows) -> None:
        """Append a batch and remove the rows that it makes void, in one commit."""
        void = rows.void_vbuckets
        if not void:
            write_deltalake(
                str(self.path),
                rows.changes,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=self._commit(app, batch_id),
            )
            return
        # Replace the rows that match the predicate by the batch. delta-rs requires that the new rows match it, too,
        # hence the condition on the batch's number, which no old row has.
        vbuckets = ", ".join(map(str, void))
        write_deltalake(
            str(self.path),
            rows.changes,
            mode="overwrite",
            predicate=f"{BATCH_ID} = {batch_id} or (vbucket in ({vbuckets}) and op <> 'rollback')",
            writer_properties=_WRITER,
            commit_properties=self._commit(app, batch_id),
        )

    def read_batch(self, batch_id: int) -> pa.Table:
        """The rows of a batch."""
        table = self.open().to_pyarrow_dataset().to_table(filter=pc.field(BATCH_ID) == batch_id)
        return table.cast(self.schema)

    def compact(self) -> None:
        """Join the small files of small batches."""
        self.open().optimize.compact(writer_properties=_WRITER)


def _quoted(name: str) -> str:
    """A text as an SQL literal."""
    return "'" + name.replace("'", "''") + "'"


class CurrentTable(_Table):
    """One row per existing document.

    Args:
        path: its directory.
        value_format: "binary" or "string".
    """

    def __init__(self, path: Path, value_format: str) -> None:
        schema = current_schema(value_format)
        super().__init__(path, schema, ("vbucket", "seqno"), "current", "Documents of a Couchbase bucket as they are")

    def apply(self, app: str, batch_id: int, rows: BatchRows) -> None:
        """Merge a batch and remove the rows that it makes void, in one commit.

        A row is replaced by a row of the same document with a higher seqno, or, in a vbucket that was rolled back, by
        any row of it. A deletion removes the row. Rows of a vbucket that was rolled back, or of a collection that lost
        its documents, are removed if the batch does not have them again.
        """
        source = rows.newest.append_column(_IS_REMOVED, rows.is_removed)
        is_void = f"t.vbucket in ({', '.join(map(str, rows.void_vbuckets))})" if rows.void_vbuckets else "false"
        is_newer = f"s.seqno > t.seqno or {is_void}" if rows.void_vbuckets else "s.seqno > t.seqno"
        values = {name: f"s.{name}" for name in CURRENT_COLUMNS}
        merge = (
            self.open()
            .merge(
                source,
                "t.key = s.key and t.collection = s.collection and t.scope = s.scope",
                source_alias="s",
                target_alias="t",
                writer_properties=_WRITER,
                commit_properties=self._commit(app, batch_id),
            )
            .when_matched_delete(predicate=f"s.{_IS_REMOVED} and ({is_newer})")
            .when_matched_update(values, predicate=is_newer)
            .when_not_matched_insert(values, predicate=f"not s.{_IS_REMOVED}")
        )
        gone = [
            f"(t.scope = {_quoted(scope)} and t.collection = {_quoted(collection)} "
            f"and t.vbucket in ({', '.join(map(str, vbuckets))}))"
            for (scope, collection), vbuckets in rows.emptied.items()
        ]
        gone += [is_void] if rows.void_vbuckets else []
        if gone:
            merge = merge.when_not_matched_by_source_delete(predicate=" or ".join(gone))
        merge.execute()
