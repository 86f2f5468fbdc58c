"""Filters of rows: conditions of columns, all of which must be true.

A filter is evaluated on a `WireChunk`, before values are inflated and columns are built, so a row that is left out
costs only its decoding. It compares the very columns that `to_changes` builds, with the rules of SQL: a comparison with
null is not true, so filtered rows equal the rows of a full read to which the same comparisons are applied.

System documents are what services and SDKs write for themselves: the documents of scopes and collections with a name of
the system's, as `_system`, and the records of distributed transactions, whose keys begin with `_txn:`.

Control rows are different. A table needs the row that says that a vbucket was rolled back, whichever keys it holds. So
`RowFilter` has two kinds of comparisons, and its choices never leave out a control row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow.changes import ChangeContext, change_column
from dcpstream.arrow.chunk import WireChunk
from dcpstream.arrow.schema import CHANGE_SCHEMA
from dcpstream.model.collections import is_system_name

Operator: TypeAlias = Literal[
    "=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null",
    "startswith", "not startswith", "like", "not like", "ilike", "not ilike", "rlike", "not rlike",
]  # fmt: skip

_OF_TEXTS: dict[str, Callable[[pa.Array, str], pa.BooleanArray]] = {
    "startswith": pc.starts_with,
    "like": pc.match_like,
    "ilike": lambda values, text: pc.match_like(values, text, ignore_case=True),
    "rlike": pc.match_substring_regex,
}
OF_TEXTS = frozenset((*_OF_TEXTS, *(f"not {name}" for name in _OF_TEXTS)))
"""Operators that only columns of texts have."""

FILTER_COLUMNS = tuple(name for name in CHANGE_SCHEMA.names if name not in {"value", "xattrs"})
"""Columns that can be compared: all but those that are made from the value's bytes."""

TRANSACTION_PREFIX = "_txn:"
"""Keys of the records of distributed transactions begin so: `_txn:atr-…` and `_txn:client-record`."""

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
        operator: those of OF_TEXTS only for strings. `like` knows `%` and `_`, and a backslash before one of them
            takes it as it is; `rlike` finds a regular expression of RE2 anywhere in the text.
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
        if self.operator in OF_TEXTS:
            found = _OF_TEXTS[self.operator.removeprefix("not ")](values, self.value)
            if self.operator.startswith("not "):
                found = pc.invert(found)
        elif self.operator in {"in", "not in"}:
            found = pc.is_in(values, value_set=pa.array(self.value, kind))
            if self.operator == "not in":
                found = pc.and_(pc.invert(found), pc.is_valid(values))
        else:
            found = _BY_OPERATOR[self.operator](values, pa.scalar(self.value, kind))
        return pc.fill_null(found, False)


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives of which one must be true; each is a conjunction.

    Attributes:
        alternatives: each a tuple of conditions that must all be true.
    """

    alternatives: tuple[tuple[Comparison | Choice, ...], ...]

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are compared."""
        return frozenset[str]().union(
            *(one.columns if isinstance(one, Choice) else (one.column,) for some in self.alternatives for one in some)
        )

    def of(self, column: Callable[[str], pa.Array]) -> npt.NDArray[np.bool_]:
        """bool[rows], whether it is true.

        Args:
            column: returns a column by name.
        """
        found: npt.NDArray[np.bool_] | None = None
        for alternative in self.alternatives:
            stays = _all_of(alternative, column)
            found = stays if found is None else found | stays
        assert found is not None
        return found


def _all_of(conditions: Iterable[Comparison | Choice], column: Callable[[str], pa.Array]) -> npt.NDArray[np.bool_]:
    stays: npt.NDArray[np.bool_] | None = None
    for one in conditions:
        found = one.of(column) if isinstance(one, Choice) else one.of(column(one.column)).to_numpy(zero_copy_only=False)
        stays = found if stays is None else stays & found
    assert stays is not None
    return stays


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Conditions of which all must be true.

    Attributes:
        comparisons: of changes of documents. Only those of `vbucket` and `op` decide about a control row, too, and
            those of `scope` and `collection` if the row has a value there.
        exact: comparisons of all rows, control rows included.
        choices: of changes of documents alone.
        leaves_out_system: whether system documents are left out, and the control rows of their collections.
    """

    comparisons: tuple[Comparison, ...] = ()
    exact: tuple[Comparison, ...] = ()
    choices: tuple[Choice, ...] = ()
    leaves_out_system: bool = False

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are compared."""
        compared = (one.column for one in (*self.comparisons, *self.exact))
        return frozenset(compared).union(*(one.columns for one in self.choices))

    @property
    def control_columns(self) -> frozenset[str]:
        """The columns that `control_rows` needs."""
        return self.columns | _CONTROL_NAME_COLUMNS if self.leaves_out_system else self.columns

    def rows(self, chunk: WireChunk, context: ChangeContext) -> npt.NDArray[np.bool_]:
        """bool[rows], whether each row of the chunk stays; they are all changes of documents."""
        stays = np.ones(len(chunk), np.bool_)
        columns: dict[str, pa.Array] = {}

        def column(name: str) -> pa.Array:
            if name not in columns:
                columns[name] = change_column(chunk, name, context)
            return columns[name]

        if self.comparisons or self.exact or self.choices:
            stays &= _all_of((*self.comparisons, *self.exact, *self.choices), column)
        if self.leaves_out_system:
            # Without the columns of texts, which cost more than the rest of a row.
            for number in context.system_ids:
                stays &= chunk.collection_ids != number
            if _some_begin_with(chunk.key, TRANSACTION_PREFIX[0]):
                stays &= ~pc.starts_with(chunk.key, TRANSACTION_PREFIX).to_numpy(zero_copy_only=False)
        return stays

    def control_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The control rows that stay.

        Args:
            batch: with at least `control_columns`.
        """
        stays = np.ones(batch.num_rows, np.bool_)
        if self.leaves_out_system:
            places = zip(batch.column("scope").to_pylist(), batch.column("collection").to_pylist(), strict=True)
            stays &= np.array([not _is_system(*place) for place in places], np.bool_)
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


def _some_begin_with(keys: pa.BinaryArray, character: str) -> bool:
    """Whether a key may begin with a character: a third of the time of `starts_with`, which nearly no reader needs."""
    _, places, data = keys.buffers()
    if data is None or not data.size:
        return False
    begins = np.frombuffer(places, np.int32, len(keys), keys.offset * np.dtype(np.int32).itemsize)
    # The place of an empty key is that of the next one, or the end.
    return bool((np.frombuffer(data, np.uint8).take(begins, mode="clip") == ord(character)).any())


def _is_system(scope: str | None, collection: str | None) -> bool:
    """Whether it is a place of the system's; a name that is not known is none."""
    return any(name is not None and is_system_name(name) for name in (scope, collection))
