"""Filters of rows: comparisons of columns, all of which must be true.

A filter is evaluated on a `WireChunk`, before values are inflated and columns are built, so a row that is left out
costs only its decoding. It compares the very columns that `to_changes` builds, with the rules of SQL: a comparison with
null is not true, so filtered rows equal the rows of a full read to which the same comparisons are applied.

Control rows are different. A table needs the row that says that a vbucket was rolled back, whichever keys it holds. So
`RowFilter` has two kinds of comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow.changes import ChangeContext, change_column
from dcpstream.arrow.chunk import WireChunk
from dcpstream.arrow.schema import CHANGE_SCHEMA

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in", "not in", "startswith", "is null", "is not null"]

FILTER_COLUMNS = tuple(name for name in CHANGE_SCHEMA.names if name not in {"value", "xattrs"})
"""Columns that can be compared: all but those that are made from the value's bytes."""

_CONTROL_COLUMNS = frozenset(("vbucket", "op"))
"""Columns whose comparisons decide about control rows, too."""

_CONTROL_NAME_COLUMNS = frozenset(("scope", "collection"))
"""The same for control rows that have a value there; the row of a rollback has none, and concerns all collections."""

_BY_OPERATOR: dict[str, Callable[..., pa.BooleanArray]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a column.

    Attributes:
        column: of `FILTER_COLUMNS`.
        operator: "startswith" only for strings.
        value: of the column's Python type, a datetime with a time zone for timestamps; a tuple for "in" and "not in",
            None for "is null" and "is not null". Neither it nor a member of it is None otherwise.
    """

    column: str
    operator: Operator
    value: Any = None

    def of(self, values: pa.Array) -> pa.BooleanArray:
        """Whether it is true, for each of the values; null counts as false."""
        kind = values.type
        if self.operator == "is null":
            return pc.is_null(values)
        if self.operator == "is not null":
            return pc.is_valid(values)
        if self.operator == "startswith":
            found = pc.starts_with(values, self.value)
        elif self.operator in {"in", "not in"}:
            found = pc.is_in(values, value_set=pa.array(self.value, kind))
            if self.operator == "not in":
                found = pc.and_(pc.invert(found), pc.is_valid(values))
        else:
            found = _BY_OPERATOR[self.operator](values, pa.scalar(self.value, kind))
        return pc.fill_null(found, False)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Comparisons of which all must be true.

    Attributes:
        comparisons: of changes of documents. Only those of `vbucket` and `op` decide about a control row, too, and
            those of `scope` and `collection` if the row has a value there.
        exact: comparisons of all rows, control rows included.
    """

    comparisons: tuple[Comparison, ...] = ()
    exact: tuple[Comparison, ...] = ()

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are compared."""
        return frozenset(one.column for one in (*self.comparisons, *self.exact))

    def rows(self, chunk: WireChunk, context: ChangeContext) -> npt.NDArray[np.bool_]:
        """bool[rows], whether each row of the chunk stays; they are all changes of documents."""
        stays = np.ones(len(chunk), np.bool_)
        for one in (*self.comparisons, *self.exact):
            stays &= one.of(change_column(chunk, one.column, context)).to_numpy(zero_copy_only=False)
        return stays

    def control_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The control rows that stay.

        Args:
            batch: with at least `columns`.
        """
        stays = np.ones(batch.num_rows, np.bool_)
        for one in self.exact:
            stays &= one.of(batch.column(one.column)).to_numpy(zero_copy_only=False)
        for one in self.comparisons:
            values = batch.column(one.column)
            if one.column in _CONTROL_COLUMNS:
                stays &= one.of(values).to_numpy(zero_copy_only=False)
            elif one.column in _CONTROL_NAME_COLUMNS:
                stays &= pc.or_(one.of(values), values.is_null()).to_numpy(zero_copy_only=False)
        return batch.filter(pa.array(stays))

    def vbuckets(self, count: int) -> frozenset[int]:
        """The vbuckets below `count` that can have a row that stays; no other needs to be read."""
        stays = np.ones(count, np.bool_)
        vbids = pa.array(range(count), pa.int32())
        for one in (*self.comparisons, *self.exact):
            if one.column == "vbucket":
                stays &= one.of(vbids).to_numpy(zero_copy_only=False)
        return frozenset(np.flatnonzero(stays).tolist())
