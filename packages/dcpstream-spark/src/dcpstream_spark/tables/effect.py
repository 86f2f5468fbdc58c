"""The effect of new batches on the documents, for an engine that holds the rows of a fold in memory.

`effect` reads what it needs of both tables and returns the rows to merge into `current`; `merged` is that merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream_spark.tables.rows import (
    BATCH_ID,
    CURRENT_COLUMNS,
    DOCUMENT_KEY,
    RULE_COLUMNS,
    FoldPlan,
    Indexes,
    Mask,
    key_codes,
    lies_before,
    plan_fold,
    void_rows,
)

IS_REMOVED = "_is_removed"
"""Column of the rows to merge: the document does not exist."""
IS_FORCED = "_is_forced"
"""Column of the rows to merge: the row counts even if `current` has one with a higher seqno."""

_FACTS = (*DOCUMENT_KEY, "vbucket", "seqno")


class Rows(Protocol):
    """A table that can be read."""

    schema: pa.Schema

    def rows(
        self, columns: Iterable[str], condition: pc.Expression | None = None, keys: pa.Array | None = None
    ) -> pa.Table:
        """Some columns of the rows that meet a condition, with the types of the schema.

        Args:
            columns: with `key`, if `keys` are given.
            condition: None for all rows.
            keys: leave out the rows that have another key; control rows have none.
        """
        ...


def later_than(after: int | None) -> pc.Expression:
    """The condition for the rows of the batches above `after`; all rows for None."""
    return pc.field(BATCH_ID) > (-1 if after is None else after)


def effect(
    changes: Rows, current: Rows, after: int | None, upto: int, bounds: Mapping[int, int]
) -> tuple[pa.Table, int]:
    """What the batches above `after` up to `upto` mean for the documents.

    Args:
        changes, current: the tables.
        after: the newest batch in `current`, None = none.
        upto: the newest batch.
        bounds: vbucket → seqno of its rollback in the batch `upto`.

    Cost: memory for the rows of the tail and of the documents that a rollback touched. A rollback scans the keys of its
    vbuckets in `changes`.

    Returns:
        (at most one row per document, with CURRENT_COLUMNS, IS_REMOVED and IS_FORCED; number of documents that a
        rollback brought back to an older state)
    """
    tail_columns = list(dict.fromkeys((*CURRENT_COLUMNS, *RULE_COLUMNS)))
    tail = changes.rows(tail_columns, later_than(after) & (pc.field(BATCH_ID) <= upto))
    older = _older(changes, after, upto, bounds)
    plan = plan_fold(tail, older, bounds, upto)
    rules = pa.concat_tables([tail.select(RULE_COLUMNS), older])
    is_tail = plan.newest < tail.num_rows
    of_tail = tail.take(pa.array(plan.newest[is_tail]))
    of_older = _whole(changes, rules.take(pa.array(plan.newest[~is_tail])))
    parts = [
        _effective(of_tail, plan.is_restored[is_tail]),
        _effective(of_older, np.ones(of_older.num_rows, bool)),
        _removals(rules.take(pa.array(plan.absent)), _untyped(current.schema)),
        _ended(current, rules, plan),
    ]
    return pa.concat_tables(parts), int(plan.is_restored.sum()) + len(plan.absent)


def merged(current: pa.Table, source: pa.Table) -> pa.Table:
    """`current` after the merge of the rows of `effect`, which may have typed columns."""
    ours, theirs = key_codes(current, source)
    order = np.argsort(ours)
    place = np.searchsorted(ours, theirs, sorter=order)
    found = place < len(ours)
    at = order[np.where(found, place, 0)] if len(ours) else np.zeros(len(theirs), np.int64)
    found[found] = ours[at[found]] == theirs[found]
    counts = ~found | source.column(IS_FORCED).to_numpy()
    seqnos = source.column("seqno").to_numpy()
    counts[found] |= seqnos[found] > current.column("seqno").to_numpy()[at[found]]
    kept = np.ones(len(ours), bool)
    kept[at[found & counts]] = False
    taken = source.filter(pa.array(counts & ~source.column(IS_REMOVED).to_numpy())).select(current.schema.names)
    return pa.concat_tables([current.filter(pa.array(kept)), taken])


def _older(changes: Rows, after: int | None, upto: int, bounds: Mapping[int, int]) -> pa.Table:
    """The rows of the batches up to `after` that can restore what a rollback touched; no rows without a void row."""
    none: pa.Table = changes.schema.empty_table().select(RULE_COLUMNS)
    if not bounds:
        return none
    is_rolled_back = pc.field("vbucket").isin(list(bounds))
    is_above = pc.field("seqno") > min(bounds.values())
    void = changes.rows(RULE_COLUMNS, is_rolled_back & is_above & (pc.field(BATCH_ID) < upto))
    void = void.filter(pa.array(void_rows(void, bounds, upto)))
    if not void.num_rows:
        return none
    is_older = pc.field(BATCH_ID) <= (-1 if after is None else after)
    # A void control row may have ended a whole collection.
    keys = None if void.column("key").null_count else pc.unique(void.column("key"))
    return changes.rows(RULE_COLUMNS, is_rolled_back & is_older, keys)


def _whole(changes: Rows, rules: pa.Table) -> pa.Table:
    """The rows of `changes` with all columns, for rows with RULE_COLUMNS."""
    names = ("vbucket", "seqno", BATCH_ID)
    wanted = rules.select(names)
    condition = pc.field(BATCH_ID).isin(pc.unique(wanted.column(BATCH_ID)))
    for name in names[:2]:
        condition &= pc.field(name).isin(pc.unique(wanted.column(name)))
    found = changes.rows(list(dict.fromkeys((*CURRENT_COLUMNS, "_change_type", *names))), condition)
    places = zip(*(found.column(name).to_pylist() for name in names), strict=True)
    index = {place: row for row, place in enumerate(places)}
    rows = zip(*(wanted.column(name).to_pylist() for name in names), strict=True)
    return found.take(pa.array([index[place] for place in rows], pa.int64()))


def _ended(current: Rows, rules: pa.Table, plan: FoldPlan) -> pa.Table:
    """Removals of the documents of `current` that ended with their collection and are in no other row."""
    emptying = rules.take(pa.array(plan.emptying))
    if not emptying.num_rows:
        return _removals(rules.slice(0, 0), _untyped(current.schema))
    held = current.rows(_FACTS, pc.field("vbucket").isin(pc.unique(emptying.column("vbucket"))))
    # Whatever their batch, it is older than those of the tail.
    held = held.append_column(BATCH_ID, pa.repeat(pa.scalar(-1, pa.int64()), held.num_rows))
    held = held.filter(pa.array(lies_before(held, emptying)))
    decided: Indexes = np.concatenate([plan.newest, plan.absent])
    ours, theirs = key_codes(held, rules.take(pa.array(decided)))
    return _removals(held.filter(pa.array(~np.isin(ours, theirs))), _untyped(current.schema))


def _untyped(schema: pa.Schema) -> pa.Schema:
    """The columns of `current` that every pipeline has."""
    return pa.schema([schema.field(name) for name in CURRENT_COLUMNS])


def _effective(rows: pa.Table, is_forced: Mask) -> pa.Table:
    """Rows of `changes` as rows to merge."""
    is_removed = pc.fill_null(pc.equal(rows.column("_change_type"), "delete"), False)
    return _marked(rows.select(CURRENT_COLUMNS), is_removed, pa.array(is_forced, pa.bool_()))


def _removals(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows to merge that remove these documents whatever their seqno."""
    columns = [
        rows.column(field.name) if field.name in _FACTS else pa.nulls(rows.num_rows, field.type) for field in schema
    ]
    every = pa.array([True] * rows.num_rows, pa.bool_())
    return _marked(pa.table(columns, schema=schema), every, every)


def _marked(rows: pa.Table, is_removed: pa.Array | pa.ChunkedArray, is_forced: pa.Array) -> pa.Table:
    marked = rows.append_column(pa.field(IS_REMOVED, pa.bool_()), is_removed)
    return marked.append_column(pa.field(IS_FORCED, pa.bool_()), is_forced)
