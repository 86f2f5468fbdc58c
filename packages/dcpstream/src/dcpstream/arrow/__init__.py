"""Data messages as Arrow batches.

A `WireChunk` has the rows of a receive as columns: those of the native kernel, or of single frames (`chunk_of`).
`to_changes` gives them the names and types of a table of changes (`changes`, `schema`), with inflated values
(`values`), attributes (`xattrs`) and text (`text`). `filtering` selects rows before that. `documents` makes typed
columns of JSON values.

Needs pyarrow (the extra `arrow`). Knows no sockets and no streams: the opaque of a row names its stream.
"""

from dcpstream.arrow.changes import ChangeContext, ControlRow, control_rows, to_changes
from dcpstream.arrow.chunk import WireChunk
from dcpstream.arrow.filtering import FILTER_COLUMNS, OF_TEXTS, TRANSACTION_PREFIX, Choice, Comparison, RowFilter
from dcpstream.arrow.messages import chunk_of
from dcpstream.arrow.schema import CHANGE_SCHEMA, FULL_SCHEMA, Missing, ValueFormat, change_schema
from dcpstream.arrow.text import escape, unescape

__all__ = [
    "CHANGE_SCHEMA",
    "FILTER_COLUMNS",
    "FULL_SCHEMA",
    "OF_TEXTS",
    "TRANSACTION_PREFIX",
    "ChangeContext",
    "Choice",
    "Comparison",
    "ControlRow",
    "Missing",
    "RowFilter",
    "ValueFormat",
    "WireChunk",
    "change_schema",
    "chunk_of",
    "control_rows",
    "escape",
    "to_changes",
    "unescape",
]
