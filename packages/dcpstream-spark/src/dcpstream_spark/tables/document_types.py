"""The typed columns of `current`: the fields of the documents, and the column of corrupt records.

`value` holds the exact bytes of a document. The typed columns are nothing but a function of `value` and of
these types. A fold computes them for the rows that it writes, so they need no history of their own: a rollback restores
the value, and the columns follow. `dcpstream_spark.typed_columns.fitting` says what they hold, and which rows stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.errors import ConfigError
from dcpstream_spark.tables.rows import (
    BATCH_ID,
    CURRENT_COLUMNS,
    IS_FORCED,
    IS_REMOVED,
    IS_RESTORED,
    changes_schema,
)
from dcpstream_spark.typed_columns.fitting import CORRUPT, DocumentColumns, Mode, corrupt_records

REASON = "reason"
"""Column of rejects: why the document does not fit."""

REJECT_COLUMNS = ("key", "scope", "collection", "vbucket", "seqno", BATCH_ID, "_commit_timestamp", REASON, "value")
"""Columns of rejects."""

SHOWN_FIELDS = 5
"""Fields that a message names."""

_RESERVED = frozenset(
    name.lower() for name in (*CURRENT_COLUMNS, CORRUPT, BATCH_ID, IS_REMOVED, IS_FORCED, IS_RESTORED)
)
_FORBIDDEN = frozenset(" ,;{}()\n\t=`'\"\\.")
"""Characters that a column of a Delta table, or a quoted name in SQL, does not take."""


@dataclass(frozen=True)
class DocumentTypes:
    """Types of the fields of documents.

    Attributes:
        fields, mode: as for `DocumentColumns`.
        prefix: of the columns' names; behind it follows the field's name.
        documents: the rule for the fields and the mode.

    Raises:
        ConfigError: a field cannot be a column, or an unknown mode.
    """

    fields: pa.Schema
    mode: Mode = "PERMISSIVE"
    prefix: str = ""
    documents: DocumentColumns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the names."""
        if not len(self.fields):
            raise ConfigError("schema", "", "at least one field")
        if _FORBIDDEN.intersection(self.prefix):
            raise ConfigError("field_prefix", self.prefix, "a text without spaces, dots, quotes, brackets, commas")
        bad = sorted(name for name in _names_in(self.fields) if not is_column_name(name))
        if bad:
            raise ConfigError(
                "schema", ", ".join(bad[:SHOWN_FIELDS]), "field names without spaces, dots, quotes, brackets, commas"
            )
        names = [name.lower() for name in self.columns.names[:-1]]
        clashes = [one.name for one, name in zip(self.fields, names, strict=True) if name in _RESERVED]
        if clashes:
            raise ConfigError(
                "field_prefix",
                self.prefix,
                f"a prefix like doc_, because current has columns {', '.join(clashes[:SHOWN_FIELDS])} of its own",
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                "schema", ", ".join(twice[:SHOWN_FIELDS]), "fields whose names differ in more than upper and lower case"
            )
        object.__setattr__(self, "documents", DocumentColumns(self.fields, self.mode))

    @property
    def columns(self) -> pa.Schema:
        """The columns other than CURRENT_COLUMNS: the fields, and `_corrupt_record`."""
        typed = [pa.field(self.prefix + one.name, one.type) for one in self.fields]
        return pa.schema([*typed, pa.field(CORRUPT, pa.string())])

    def with_columns(self, rows: pa.Table, documents: pa.ChunkedArray) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Rows with the typed columns behind the others.

        Args:
            rows: any.
            documents: their values, null where there is no document.

        Returns: (the rows, bool[rows]: whether the document does not fit)
        """
        values = _bytes(documents)
        parsed = self.documents.parse(values)
        corrupt = corrupt_records(values, parsed.is_malformed, pa.string())
        for one, column in zip(self.columns, [*parsed.columns, corrupt], strict=True):
            rows = rows.append_column(one, column)
        return rows, parsed.is_malformed

    def effect(self, source: pa.Table) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """The rows to merge with the typed columns. A row that does not stay removes its document.

        Returns: as `with_columns`
        """
        is_removed, values = source.column(IS_REMOVED), source.column("value")
        typed, is_unfit = self.with_columns(source, pc.if_else(is_removed, pa.scalar(None, values.type), values))
        is_gone = pc.or_(is_removed, pa.array(~self.documents.stay(is_unfit)))
        return typed.set_column(typed.schema.get_field_index(IS_REMOVED), IS_REMOVED, is_gone), is_unfit


def is_column_name(name: str) -> bool:
    """Whether a field of this name can be a column."""
    return bool(name) and not _FORBIDDEN.intersection(name)


def rejects_schema(value_format: str) -> pa.Schema:
    """The columns of rejects."""
    known = changes_schema(value_format).append(pa.field(REASON, pa.string()))
    return pa.schema([known.field(name) for name in REJECT_COLUMNS])


def _names_in(fields: Iterable[pa.Field]) -> Sequence[str]:
    names: list[str] = []
    for one in fields:
        names.append(one.name)
        kind = one.type
        while pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        if pa.types.is_struct(kind):
            names += _names_in(kind)
    return names


def _bytes(values: pa.ChunkedArray) -> pa.Array:
    """One array of bytes; text as UTF-8."""
    array = values.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    return array if array.type == pa.binary() else array.cast(pa.binary())
