"""Reads of a batch narrowed by a filter of rows: fewer collections, and earlier ends.

Pure functions. A batch that asks for less must have the rows of a whole read to which the filter is applied, control
rows included. Control rows make that difficult, because a stream of some collections has no events of scopes and none
of collections that are gone, and a comparison of the option `where` does not leave control rows out by their seqno.

Starts are not narrowed. A start above 0 is a position that a node can refuse, because of a failover or of purged
deletions, and the read would report a rollback that a whole read does not have.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from dcpstream.arrow import Comparison, RowFilter
from dcpstream.model import CollectionName, Op

_ABSENT_IN_CONTROL_ROWS = frozenset(("key", "_change_type"))
"""Columns that are null in every control row."""

_UNNAMED = "0x"
"""The names of a collection that is gone begin so; they are its id."""

_CONTROL_OPS = tuple(op.value for op in Op if op.is_control)


def may_keep_control_rows(row_filter: RowFilter) -> bool:
    """Whether a control row can pass."""
    if any(one.column in _ABSENT_IN_CONTROL_ROWS and one.operator != "is null" for one in row_filter.exact):
        return False
    ops = pa.array(_CONTROL_OPS)
    stays = np.ones(len(ops), np.bool_)
    for one in _all(row_filter, "op"):
        stays &= one.of(ops).to_numpy(zero_copy_only=False)
    return bool(stays.any())


def last_seqno(row_filter: RowFilter) -> int | None:
    """The highest seqno of a row that can pass; None for no limit. It may be negative."""
    compared = list(row_filter.exact)
    if not may_keep_control_rows(row_filter):
        compared += row_filter.comparisons
    last: int | None = None
    for one in compared:
        if one.column != "seqno":
            continue
        if one.operator in {"=", "<="}:
            limit = one.value
        elif one.operator == "<":
            limit = one.value - 1
        elif one.operator == "in":
            limit = max(one.value)
        else:
            continue
        last = limit if last is None else min(last, limit)
    return last


def wanted_collections(
    row_filter: RowFilter, living: Iterable[CollectionName], gone: Iterable[CollectionName] = ()
) -> tuple[CollectionName, ...] | None:
    """The collections whose rows can pass; None if the filter does not say, or if other control rows could pass.

    Args:
        row_filter: the filter.
        living: the collections that the batch would read.
        gone: collections that do not exist any more, but whose names the reader knows.
    """
    compared = [*_all(row_filter, "scope"), *_all(row_filter, "collection")]
    if not compared:
        return None
    if may_keep_control_rows(row_filter):
        if not any(_excludes_unnamed(one) for one in row_filter.exact):
            return None
        if _passing(compared, gone):
            return None
    return _passing(compared, living)


def _all(row_filter: RowFilter, column: str) -> list[Comparison]:
    return [one for one in (*row_filter.comparisons, *row_filter.exact) if one.column == column]


def _excludes_unnamed(one: Comparison) -> bool:
    """Whether a row must have the name of a collection, and not an id in its place."""
    if one.column != "collection":
        return False
    if one.operator == "startswith":
        return not one.value.startswith(_UNNAMED) and not _UNNAMED.startswith(one.value)
    if one.operator in {"=", "in"}:
        values = one.value if one.operator == "in" else (one.value,)
        return not any(value.startswith(_UNNAMED) for value in values)
    return False


def _passing(compared: Iterable[Comparison], names: Iterable[CollectionName]) -> tuple[CollectionName, ...]:
    found = tuple(names)
    stays = np.ones(len(found), np.bool_)
    for one in compared:
        texts = [getattr(name, one.column) for name in found]
        stays &= one.of(pa.array(texts, pa.string())).to_numpy(zero_copy_only=False)
    return tuple(name for name, is_wanted in zip(found, stays, strict=True) if is_wanted)
