"""The effect of rows of `changes` on `current`: the rules of `dcpstream_spark.tables.engine` over Arrow tables.

A batch holds data rows and control rows. Control rows about rollbacks come before the rows of their vbucket; those
about scopes and collections come between them. Within a batch and a vbucket, seqnos rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow import change_schema
from dcpstream.model import Op

_DOCUMENT_OPS = pa.array([op.value for op in Op if not op.is_control])
_EMPTYING_OPS = pa.array([op.value for op in Op if op.empties_collection])

BATCH_ID = "_batch_id"
"""Column of `changes`: the micro-batch of the row, by which the rows of a batch can be found again."""

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

RULE_COLUMNS = (*DOCUMENT_KEY, "vbucket", "seqno", "op", "_change_type", BATCH_ID)
"""Columns of `changes` that decide about the effect of a row."""

_VBUCKETS = 1 << 16

Indexes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


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


def with_keys(table: pa.Table, keys: pa.Array) -> pa.Table:
    """The rows that have one of these keys, and the control rows, which have none."""
    key = table.column("key")
    return table.filter(pc.or_(pc.is_null(key), pc.is_in(key, value_set=keys)))


def is_control(table: pa.Table) -> pa.ChunkedArray:
    """bool[rows]: whether a row is a control row."""
    return pc.invert(pc.is_in(table.column("op"), _DOCUMENT_OPS))


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The rows that decide about `current`, as indexes of the tail followed by the older rows.

    Attributes:
        newest: the newest effective row of each document that the fold decides about; a deletion removes it.
        is_restored: bool[newest], whether the row counts even if `current` has one with a higher seqno: a void one.
        absent: for each document that has no effective row any more, one of its rows.
        emptying: the control rows of the tail that end all older rows of `current` in their collection and vbucket.
    """

    newest: Indexes
    is_restored: Mask
    absent: Indexes
    emptying: Indexes


def plan_fold(tail: pa.Table, older: pa.Table, bounds: Mapping[int, int], upto: int) -> FoldPlan:
    """Decide which rows count.

    Args:
        tail: the batches to fold, with RULE_COLUMNS.
        older: with a rollback, all earlier rows of its vbuckets in `changes` that may restore a document or end its
            collection, with RULE_COLUMNS.
        bounds: vbucket → seqno of its rollback in the batch `upto`.
        upto: the newest batch of the tail.
    """
    rows = pa.concat_tables([part.select(RULE_COLUMNS) for part in (tail, older)]).combine_chunks()
    controls = _mask(is_control(rows))
    emptying = controls & _mask(pc.is_in(rows.column("op"), _EMPTYING_OPS))
    void = void_rows(rows, bounds, upto)
    documents = key_codes(rows)[0]
    is_tail = np.arange(rows.num_rows) < tail.num_rows
    touched = np.unique(documents[void & ~controls])
    if (void & emptying).any():
        places = _places(rows)
        lost = ~controls & np.isin(places, places[void & emptying])
        touched = np.union1d(touched, documents[lost])
    counts = np.flatnonzero(~controls & ~void & (is_tail | np.isin(documents, touched)))
    ends = rows.filter(pa.array(emptying & ~void))
    counts = counts[~lies_before(rows.take(pa.array(counts)), ends)]
    newest = counts[_last_of_each(documents[counts], _numbers(rows, "seqno")[counts])]
    gone = np.setdiff1d(touched, documents[newest])
    data = np.flatnonzero(~controls)
    _, first = np.unique(documents[data], return_index=True)
    representatives = data[first]
    return FoldPlan(
        newest=newest,
        is_restored=np.isin(documents[newest], touched),
        absent=representatives[np.isin(documents[representatives], gone)],
        emptying=np.flatnonzero(emptying & ~void & is_tail),
    )


def void_rows(rows: pa.Table, bounds: Mapping[int, int], before_batch: int) -> Mask:
    """bool[rows]: whether a rollback in the batch `before_batch` makes a row void."""
    void = np.zeros(rows.num_rows, bool)
    if not bounds:
        return void
    bound_of = np.full(_VBUCKETS, np.iinfo(np.int64).max)
    bound_of[list(bounds)] = list(bounds.values())
    is_above = _numbers(rows, "seqno") > bound_of[_numbers(rows, "vbucket")]
    is_story = _mask(pc.equal(rows.column("op"), Op.ROLLBACK.value))
    found: Mask = is_above & (_numbers(rows, BATCH_ID) < before_batch) & ~is_story
    return found


def lies_before(data: pa.Table, emptying: pa.Table) -> Mask:
    """bool[rows]: whether a row has no effect because its collection ended: rule 2 of `dcpstream_spark.tables.engine`.

    Args:
        data: rows with scope, collection, vbucket, seqno, and their batch.
        emptying: the control rows, with the same columns.
    """
    if not data.num_rows or not emptying.num_rows:
        return np.zeros(data.num_rows, bool)
    names = ["scope", "collection", "vbucket", "seqno", BATCH_ID]
    both = pa.concat_tables([part.select(names) for part in (data, emptying)])
    rows = data.num_rows
    place = np.unique(_places(both), return_inverse=True)[1]
    seqnos, seqno = np.unique(_numbers(both, "seqno"), return_inverse=True)
    batches, batch = np.unique(_numbers(both, BATCH_ID), return_inverse=True)
    # By place, newest batch first. The highest seqno so far is then that of the same or a later batch, and a later
    # place begins above all seqnos of the places before it.
    order_of = place * len(batches) + (len(batches) - 1 - batch)
    events = rows + np.argsort(order_of[rows:], kind="stable")
    highest = np.maximum.accumulate(place[events] * len(seqnos) + seqno[events])
    at = np.searchsorted(order_of[events], order_of[:rows], side="right") - 1
    found: Mask = (at >= 0) & (highest[at] >= place[:rows] * len(seqnos) + seqno[:rows])
    return found


def key_codes(*tables: pa.Table) -> list[Indexes]:
    """For each table int64[rows]: equal numbers for rows of the same document, also across the tables."""
    both = pa.concat_tables([table.select(DOCUMENT_KEY) for table in tables])
    codes = _codes(both, DOCUMENT_KEY, np.zeros(both.num_rows, np.int64))
    ends = np.cumsum([table.num_rows for table in tables])[:-1]
    return np.split(codes, ends)


def places(rows: pa.Table) -> npt.NDArray[np.void]:
    """[rows]: vbucket, seqno and batch of each, as one value that can be compared. No two data rows have the same."""
    numbers = np.stack([_numbers(rows, name) for name in ("vbucket", "seqno", BATCH_ID)], axis=1)
    return np.ascontiguousarray(numbers).view([("vbucket", "i8"), ("seqno", "i8"), ("batch", "i8")]).reshape(-1)


def _last_of_each(codes: Indexes, seqnos: Indexes) -> Indexes:
    """For each code the index of its highest seqno, rising."""
    if not len(codes):
        return np.empty(0, np.int64)
    order = np.lexsort((seqnos, codes))
    ordered = codes[order]
    last: Indexes = np.sort(order[np.append(ordered[1:] != ordered[:-1], True)])
    return last


def _places(table: pa.Table) -> Indexes:
    """int64[rows]: a number for each scope, collection and vbucket."""
    return _codes(table, ("scope", "collection"), _numbers(table, "vbucket"))


def _codes(table: pa.Table, names: Iterable[str], codes: Indexes) -> Indexes:
    """int64[rows]: a number for each combination of a given code and the values of these columns."""
    for name in names:
        column = table.column(name).combine_chunks().dictionary_encode()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        # A null is a value of its own: number 0.
        indices = np.asarray(pc.fill_null(pc.add(column.indices, 1), 0), dtype=np.int64)
        codes = codes * (len(column.dictionary) + 1) + indices
    return codes


def _numbers(table: pa.Table, name: str) -> Indexes:
    numbers: Indexes = table.column(name).to_numpy().astype(np.int64, copy=False)
    return numbers


def _mask(values: pa.ChunkedArray) -> Mask:
    found: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(bool)
    return found
