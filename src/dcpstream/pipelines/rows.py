"""The effect of a batch of change rows on the tables: pure functions over Arrow tables.

A batch holds data rows and control rows. Control rows about rollbacks come before the rows of their vbucket; those
about scopes and collections come between them. Within a batch and a vbucket, seqnos rise.

A collection that was created, dropped or flushed has no documents at that point of the vbucket's history. Older rows of
the collection in that vbucket are ignored, and the table loses its rows of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.columnar import change_schema
from dcpstream.model import Op
from dcpstream.pipelines.progress import RollbackReport

_DOCUMENT_OPS = pa.array([op.value for op in Op if not op.is_control])
_EMPTYING_OPS = pa.array([op.value for op in Op if op.empties_collection])

BATCH_ID = "_batch_id"
"""Column of `changes`: the micro-batch of the row, by which the rows of a batch can be found again."""

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
"""Columns of `current`: the columns of a change that describe a document, not an event."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of one micro-batch.

    Attributes:
        changes: all rows, as they are stored in `changes`.
        rollbacks: its control rows about rollbacks.
        emptied: (scope, collection) → the vbuckets in which the collection has lost all of its documents from before
            this batch.
        events: number of control rows about scopes and collections.
        newest: the newest data row of each document.
        is_removed: bool[newest rows], whether that row removes the document.
    """

    changes: pa.Table
    rollbacks: tuple[RollbackReport, ...]
    newest: pa.Table
    is_removed: pa.Array
    emptied: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    events: int = 0

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
    """Compute the effect of a batch's rows.

    Args:
        changes: rows with the columns of `changes_schema`, of one batch.
    """
    is_control = pc.invert(pc.is_in(changes.column("op"), _DOCUMENT_OPS))
    rollbacks: tuple[RollbackReport, ...] = ()
    emptied: dict[tuple[str, str], tuple[int, ...]] = {}
    events = 0
    data = changes
    if pc.any(is_control).as_py():
        controls = changes.filter(is_control)
        data = changes.filter(pc.invert(is_control))
        is_rollback = pc.equal(controls.column("op"), Op.ROLLBACK.value)
        rollbacks = tuple(_rollback(row) for row in controls.filter(is_rollback).to_pylist())
        events = controls.num_rows - len(rollbacks)
        emptying = controls.filter(pc.is_in(controls.column("op"), _EMPTYING_OPS)).select(
            ["scope", "collection", "vbucket", "seqno"]
        )
        emptied = _places(emptying)
        data = data.filter(pa.array(~_lies_before(data, emptying)))
    newest = data.take(pa.array(newest_rows(data)))
    is_removed = pc.fill_null(pc.equal(newest.column("_change_type"), "delete"), False)
    return BatchRows(changes, rollbacks, newest.select(CURRENT_COLUMNS), is_removed.combine_chunks(), emptied, events)


def _places(emptying: pa.Table) -> dict[tuple[str, str], tuple[int, ...]]:
    """(scope, collection) → vbuckets, rising."""
    found: dict[tuple[str, str], set[int]] = {}
    columns = (emptying.column(name).to_pylist() for name in ("scope", "collection", "vbucket"))
    for scope, collection, vbucket in zip(*columns, strict=True):
        found.setdefault((scope, collection), set()).add(vbucket)
    return {place: tuple(sorted(vbuckets)) for place, vbuckets in sorted(found.items())}


def _lies_before(data: pa.Table, emptying: pa.Table) -> npt.NDArray[np.bool_]:
    """bool[rows]: whether a row's collection lost its documents in the row's vbucket at a later seqno."""
    if not data.num_rows or not emptying.num_rows:
        return np.zeros(data.num_rows, bool)
    both = pa.concat_tables([part.select(emptying.column_names) for part in (data, emptying)])
    codes = _codes(both, ("scope", "collection"), both.column("vbucket").to_numpy().astype(np.int64))
    seqnos = both.column("seqno").to_numpy()
    rows = data.num_rows
    places, place_of = np.unique(codes[rows:], return_inverse=True)
    last = np.full(len(places), -1, np.int64)
    np.maximum.at(last, place_of, seqnos[rows:])
    at = np.minimum(np.searchsorted(places, codes[:rows]), len(places) - 1)
    found: npt.NDArray[np.bool_] = (places[at] == codes[:rows]) & (seqnos[:rows] <= last[at])
    return found


def newest_rows(data: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Indexes of the newest row of each document, rising.

    A document is (scope, collection, key): one key may occur in several collections. Its vbucket follows from the key,
    so its rows are ordered by seqno.
    """
    if data.num_rows == 0:
        return np.empty(0, np.int64)
    codes = _codes(data, ("scope", "collection", "key"), np.zeros(data.num_rows, np.int64))
    order = np.lexsort((data.column("seqno").to_numpy(), codes))
    ordered = codes[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    return np.sort(order[is_last])


def _codes(table: pa.Table, names: Iterable[str], codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64[rows]: a number for each combination of a given code and the values of these columns."""
    for name in names:
        column = table.column(name).combine_chunks().dictionary_encode()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        indices = np.asarray(pc.fill_null(column.indices, 0), dtype=np.int64)
        codes = codes * max(1, len(column.dictionary)) + indices
    return codes


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
