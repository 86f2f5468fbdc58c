"""Many frames at once into Arrow batches.

`scan` finds the whole frames in a receive buffer, `decode_wire` makes columns of their data messages, `to_changes`
gives them the names and types of a table of changes. `decode_messages` does what `decode_wire` does message by message:
the same result, by the plainest code.

Needs numpy and pyarrow (the extra `arrow`). Knows no sockets and no streams: which rows belong to which stream is their
opaque, and what to do about control frames is the caller's.
"""

from dcpstream.columnar.changes import ChangeContext, ControlRow, control_rows, rollback_row, to_changes
from dcpstream.columnar.chunk import WIRE_SCHEMA, DecodeOptions, WireChunk
from dcpstream.columnar.frame_index import MAX_BUFFER_BYTES, FrameIndex, scan
from dcpstream.columnar.messages import decode_messages
from dcpstream.columnar.rows import decode_wire
from dcpstream.columnar.schema import CHANGE_SCHEMA, Missing, ValueFormat, change_schema
from dcpstream.columnar.text import escape, unescape

__all__ = [
    "CHANGE_SCHEMA",
    "MAX_BUFFER_BYTES",
    "WIRE_SCHEMA",
    "ChangeContext",
    "ControlRow",
    "DecodeOptions",
    "FrameIndex",
    "Missing",
    "ValueFormat",
    "WireChunk",
    "change_schema",
    "control_rows",
    "decode_messages",
    "decode_wire",
    "escape",
    "rollback_row",
    "scan",
    "to_changes",
    "unescape",
]
