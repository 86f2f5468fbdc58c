"""The decoder from many frames at once to Arrow batches.

`scan` finds the whole frames in a receive buffer, a `FrameIndex`. `decode_wire` makes columns of the data messages, a
`WireChunk`: with the native kernel, or message by message in plain Python (`decode_messages`). `to_changes` gives them
the names and types of a table of changes (`changes`, `schema`), with inflated values (`values`), attributes (`xattrs`)
and text (`text`). `filtering` selects rows before that. `documents` makes typed columns of JSON values.

Needs pyarrow (the extra `arrow`). Knows no sockets and no streams: the opaque of a row names its stream, and control
frames are returned to the caller.
"""

from dcpstream.arrow.changes import ChangeContext, ControlRow, control_rows, rollback_row, to_changes
from dcpstream.arrow.chunk import WIRE_SCHEMA, DecodeOptions, WireChunk
from dcpstream.arrow.filtering import FILTER_COLUMNS, OF_TEXTS, TRANSACTION_PREFIX, Choice, Comparison, RowFilter
from dcpstream.arrow.frame_index import MAX_BUFFER_BYTES, FrameIndex, scan
from dcpstream.arrow.messages import decode_messages
from dcpstream.arrow.rows import decode_rows, decode_wire
from dcpstream.arrow.schema import CHANGE_SCHEMA, FULL_SCHEMA, Missing, ValueFormat, change_schema
from dcpstream.arrow.text import escape, unescape

__all__ = [
    "CHANGE_SCHEMA",
    "FILTER_COLUMNS",
    "FULL_SCHEMA",
    "MAX_BUFFER_BYTES",
    "OF_TEXTS",
    "TRANSACTION_PREFIX",
    "WIRE_SCHEMA",
    "ChangeContext",
    "Choice",
    "Comparison",
    "ControlRow",
    "DecodeOptions",
    "FrameIndex",
    "Missing",
    "RowFilter",
    "ValueFormat",
    "WireChunk",
    "change_schema",
    "control_rows",
    "decode_messages",
    "decode_rows",
    "decode_wire",
    "escape",
    "rollback_row",
    "scan",
    "to_changes",
    "unescape",
]
