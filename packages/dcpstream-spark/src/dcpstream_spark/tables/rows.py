"""The columns of `changes` and `current`, and rows of them as Arrow tables.

A batch holds data rows and control rows. Control rows about rollbacks come before the rows of their vbucket; those
about scopes and collections come between them. Within a batch and a vbucket, seqnos rise.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow import change_schema
from dcpstream.model import Op

_DOCUMENT_OPS = pa.array([op.value for op in Op if not op.is_control])

BATCH_ID = "_batch_id"
"""Column of `changes`: the micro-batch of the row, by which the rows of a batch can be found again."""

PLACE_COLUMNS = ("vbucket", "seqno", BATCH_ID)
"""Columns that distinguish a data row of `changes` from every other."""

Place: TypeAlias = tuple[str, str]
"""Scope and collection."""

DOCUMENT_KEY = ("scope", "collection", "key")
"""Columns that name a document: one key may occur in several collections."""

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

IS_REMOVED = "_is_removed"
"""Column of the rows to merge: the document does not exist."""

IS_FORCED = "_is_forced"
"""Column of the rows to merge: the row counts even if `current` has one with a higher seqno, which has no effect."""

IS_RESTORED = "_is_restored"
"""Column of the rows to merge: a rollback made a row of the document void."""

MERGE_MARKS = (IS_REMOVED, IS_FORCED, IS_RESTORED)


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


def is_control(table: pa.Table) -> pa.ChunkedArray:
    """bool[rows]: whether a row is a control row."""
    return pc.invert(pc.is_in(table.column("op"), _DOCUMENT_OPS))


def with_tables(rows: pa.Table) -> frozenset[Place]:
    """The collections that have changes of documents among these rows, or that were created."""
    ops = pa.array([*_DOCUMENT_OPS.to_pylist(), Op.COLLECTION_CREATED.value])
    has_table = pc.and_(pc.is_in(rows.column("op"), ops), pc.is_valid(rows.column("scope")))
    found = rows.filter(has_table).select(["scope", "collection"]).group_by(["scope", "collection"]).aggregate([])
    return frozenset(zip(*(found.column(name).to_pylist() for name in ("scope", "collection")), strict=True))


def at_places(rows: pa.Table, decided: pa.Table) -> pa.Table:
    """Some data rows of `changes`, with MERGE_MARKS.

    Args:
        rows: with `key` and PLACE_COLUMNS.
        decided: the places of the wanted ones, with MERGE_MARKS. No two data rows have the same place.
    """
    rows = rows.filter(pc.is_valid(rows.column("key")))
    numbered = _places(rows).append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    wanted = _places(decided)
    for name in MERGE_MARKS:
        wanted = wanted.append_column(name, decided.column(name))
    found = wanted.join(numbered, PLACE_COLUMNS, join_type="inner", use_threads=False)
    rows = rows.take(found.column("_row"))
    for name in MERGE_MARKS:
        rows = rows.append_column(name, found.column(name))
    return rows


def removals(decided: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows to merge that remove documents: null but for their names and places, with MERGE_MARKS.

    Args:
        decided: with DOCUMENT_KEY, PLACE_COLUMNS and MERGE_MARKS.
        schema: of `current`, without typed columns.
    """
    count = decided.num_rows
    columns = [
        decided.column(one.name).cast(one.type) if one.name in decided.schema.names else pa.nulls(count, one.type)
        for one in schema
    ]
    marks = [decided.column(name) for name in MERGE_MARKS]
    return pa.table([*columns, *marks], names=[*schema.names, *MERGE_MARKS])


def _places(rows: pa.Table) -> pa.Table:
    return rows.select(PLACE_COLUMNS).cast(pa.schema([(name, pa.int64()) for name in PLACE_COLUMNS]))
