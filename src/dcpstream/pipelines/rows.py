"""What a batch of change rows means for the tables: pure functions over Arrow tables.

A batch holds data rows and, before a vbucket's rows, at most a few control rows that take back what was read of the
vbucket before. Within a batch and a vbucket, seqnos rise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.columnar import change_schema
from dcpstream.pipelines.progress import RollbackReport

BATCH_ID = "_batch_id"
"""Column of `changes`: the micro-batch that delivered the row. With it the rows of a batch can be found again."""

CURRENT_COLUMNS = (
    "key",
    "value",
    "scope",
    "collection",
    "vbucket",
    "vbuuid",
    "seqno",
    "rev",
    "cas",
    "flags",
    "datatype",
    "expiry",
    "xattrs",
    "_commit_timestamp",
)
"""Columns of `current`: those of a change that describe a document, not an event."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of one micro-batch.

    Attributes:
        changes: all rows, as they are stored in `changes`.
        rollbacks: its control rows.
        newest: of each document the newest data row.
        is_removed: bool[newest rows], whether that row removes the document.
    """

    changes: pa.Table
    rollbacks: tuple[RollbackReport, ...]
    newest: pa.Table
    is_removed: pa.Array

    @property
    def void_vbuckets(self) -> tuple[int, ...]:
        """Vbuckets whose older rows are void, rising."""
        return tuple(sorted({rollback.vbucket for rollback in self.rollbacks}))


def changes_schema(value_format: str) -> pa.Schema:
    """The columns of `changes`."""
    return change_schema(value_format).append(pa.field(BATCH_ID, pa.int64()))


def current_schema(value_format: str) -> pa.Schema:
    """The columns of `current`."""
    schema = change_schema(value_format)
    return pa.schema([schema.field(name) for name in CURRENT_COLUMNS])


def with_batch_id(table: pa.Table, batch_id: int, schema: pa.Schema) -> pa.Table:
    """The rows with the batch's number, in exactly the schema of `changes`."""
    number = pa.repeat(pa.scalar(batch_id, pa.int64()), table.num_rows)
    columns = [number if name == BATCH_ID else table.column(name) for name in schema.names]
    return pa.table(columns, names=schema.names).cast(schema)


def batch_rows(changes: pa.Table) -> BatchRows:
    """What a batch's rows mean.

    Args:
        changes: rows with the columns of `changes_schema`, of one batch.
    """
    is_control = pc.fill_null(pc.equal(changes.column("op"), "rollback"), False)
    rollbacks: tuple[RollbackReport, ...] = ()
    data = changes
    if pc.any(is_control).as_py():
        rollbacks = tuple(_rollback(row) for row in changes.filter(is_control).to_pylist())
        data = changes.filter(pc.invert(is_control))
    # System events and the like have no key; they are history, not documents.
    if data.column("key").null_count:
        data = data.filter(pc.is_valid(data.column("key")))
    newest = data.take(pa.array(newest_rows(data)))
    is_removed = pc.fill_null(pc.equal(newest.column("_change_type"), "delete"), False)
    return BatchRows(changes, rollbacks, newest.select(CURRENT_COLUMNS), is_removed.combine_chunks())


def newest_rows(data: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Indexes of the newest row of each document, rising.

    A document is (scope, collection, key): one key may occur in several collections. Its vbucket follows from the key,
    so its rows are ordered by seqno.
    """
    if data.num_rows == 0:
        return np.empty(0, np.int64)
    codes = np.zeros(data.num_rows, np.int64)
    for name in ("scope", "collection", "key"):
        column = data.column(name).combine_chunks().dictionary_encode()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        codes = codes * max(1, len(column.dictionary)) + _indices(column)
    order = np.lexsort((data.column("seqno").to_numpy(), codes))
    ordered = codes[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    return np.sort(order[is_last])


def _indices(column: pa.DictionaryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    indices = pc.fill_null(column.indices, 0)
    return np.asarray(indices, dtype=np.int64)


def _rollback(row: dict[str, object]) -> RollbackReport:
    value = row["value"]
    assert isinstance(value, str | bytes)
    detail = json.loads(value)
    vbucket = row["vbucket"]
    assert isinstance(vbucket, int)
    return RollbackReport(
        vbucket=vbucket,
        from_seqno=int(detail["from_seqno"]),
        to_seqno=int(detail["to_seqno"]),
        old_vbuuid=int(detail["old_vbuuid"]),
        new_vbuuid=int(detail["new_vbuuid"]),
    )
