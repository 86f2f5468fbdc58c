"""Bytes ↔ messages. Sans-IO: nothing here touches sockets, clocks, files or chance.

Received bytes go through `FrameReader`, which cuts them into `Frame`s: a header and the parts of the body, without
meaning. `decode_message` makes a `Message` of a frame: an object of the class that `dcpstream.wire.messages` declares
for its opcode and shape. The other way, a message's `encode`, or its class's `pack`, gives the bytes.

- `codes`, `status`: the protocol's numbers by name.
- `frames`: header, `Frame`, `FrameReader`.
- `layout`: how a message is declared, and the table of all of them; `messages`: the declarations.
- `shape`: the check of a request by its receiver, derived from the table.
- `keys`, `values`, `system_events`: the contents of keys, framing extras and values.
- `stored`: a vbucket's history as blocks of frames, and how a stream sends them.
"""

from dcpstream.wire.codes import (
    Datatype,
    Feature,
    FrameInfoId,
    Magic,
    MarkerFlag,
    Opcode,
    OpenFlag,
    StreamEndReason,
    StreamFlag,
    SystemEventId,
    as_code,
    code_name,
)
from dcpstream.wire.fields import Field, Record
from dcpstream.wire.frames import (
    HEADER,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_FRAME_BYTES_BEFORE_AUTH,
    MAX_FRAME_BYTES_BEFORE_AUTH_72,
    Frame,
    FrameReader,
    Head,
    RequestFields,
    decode_frame,
    encode_request,
    encode_response,
    frame_length,
)
from dcpstream.wire.layout import Kind, Layout, Message, Part, RawRequest, RawResponse, decode_message
from dcpstream.wire.messages import LAYOUTS
from dcpstream.wire.status import STATUS_ERRORS, Status, status_error

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "LAYOUTS",
    "MAX_FRAME_BYTES",
    "MAX_FRAME_BYTES_BEFORE_AUTH",
    "MAX_FRAME_BYTES_BEFORE_AUTH_72",
    "STATUS_ERRORS",
    "Datatype",
    "Feature",
    "Field",
    "Frame",
    "FrameInfoId",
    "FrameReader",
    "Head",
    "Kind",
    "Layout",
    "Magic",
    "MarkerFlag",
    "Message",
    "Opcode",
    "OpenFlag",
    "Part",
    "RawRequest",
    "RawResponse",
    "Record",
    "RequestFields",
    "Status",
    "StreamEndReason",
    "StreamFlag",
    "SystemEventId",
    "as_code",
    "code_name",
    "decode_frame",
    "decode_message",
    "encode_request",
    "encode_response",
    "frame_length",
    "status_error",
]
