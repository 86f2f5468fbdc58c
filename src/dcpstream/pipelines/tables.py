"""The two Delta tables, written with delta-rs: each method is one commit, and a batch that is in it stays out.

A commit carries the batch's number as an application transaction, so the table itself knows which batches it holds.
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
"""Less than half the bytes of snappy for JSON at about the same speed; files are rewritten often."""


class _Table:
    """A Delta table that applies each batch once.

    Args:
        path: its directory.
        schema: its columns.
        skipping: columns to keep statistics of. Those of keys and values are large and find nothing.
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
        """Remove files that no version younger than that uses; returns how many."""
        removed = self.open().vacuum(retention_hours=int(retain_hours), dry_run=False, enforce_retention_duration=False)
        return len(removed)

    @staticmethod
    def _commit(app: str, batch_id: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(app, batch_id)])


class ChangesTable(_Table):
    """Each delivered row once; what a rollback made void is taken out, its control row stays.

    Args:
        path: its directory.
        value_format: "binary" or "string".
    """

    def __init__(self, path: Path, value_format: str) -> None:
        schema = changes_schema(value_format)
        skipping = (BATCH_ID, "vbucket", "seqno", "_commit_timestamp")
        super().__init__(path, schema, skipping, "changes", "Changes of a Couchbase bucket, each row once")

    def apply(self, app: str, batch_id: int, rows: BatchRows) -> None:
        """Append a batch; one commit, also if it takes rows back."""
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
        # Replace what the predicate matches by the batch: delta-rs demands that new rows match it too, hence the part
        # with the batch's number, which no old row has.
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
        """The rows that a batch has written."""
        table = self.open().to_pyarrow_dataset().to_table(filter=pc.field(BATCH_ID) == batch_id)
        return table.cast(self.schema)

    def compact(self) -> None:
        """Join the small files of small batches."""
        self.open().optimize.compact(writer_properties=_WRITER)


def _quoted(name: str) -> str:
    """A text as SQL writes it."""
    return "'" + name.replace("'", "''") + "'"


class CurrentTable(_Table):
    """One row per document that exists.

    Args:
        path: its directory.
        value_format: "binary" or "string".
    """

    def __init__(self, path: Path, value_format: str) -> None:
        schema = current_schema(value_format)
        super().__init__(path, schema, ("vbucket", "seqno"), "current", "Documents of a Couchbase bucket as they are")

    def apply(self, app: str, batch_id: int, rows: BatchRows) -> None:
        """Merge a batch; one commit, also if it takes rows back.

        A document's row is replaced by one with a higher seqno, or by any of a vbucket that was rolled back; a deletion
        removes it; rows of a vbucket that was rolled back, or of a collection that lost its documents, which the batch
        does not bring again are removed.
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
