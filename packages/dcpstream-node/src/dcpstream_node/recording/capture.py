"""Frames out of captured connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dcpstream.errors import ConfigError, FrameError, WireError
from dcpstream.wire import HEADER_BYTES, Frame, decode_frame
from dcpstream.wire.frames import MAGICS, MAX_FRAME_BYTES, frame_length
from dcpstream_node.recording.tcp import Conversation

_TLS_HANDSHAKE = b"\x16\x03"


class CapturedFrame(NamedTuple):
    """One frame of a connection.

    Attributes:
        time_ns: when its last byte was captured.
        is_from_server: its direction.
        offset: its place in the bytes of its direction.
    """

    time_ns: int
    is_from_server: bool
    offset: int
    frame: Frame


def frames_of(conversation: Conversation) -> Iterator[CapturedFrame]:
    """The frames of a connection, in the order in which they were complete.

    A capture that began in the middle of the connection begins at the first packet that begins with a frame.

    Raises:
        FrameError: bytes that are no frame. ConfigError: the connection is encrypted.
    """
    buffers = bytearray(), bytearray()
    offsets = [0, 0]
    for time_ns, is_from_server, data in conversation.pieces:
        buffer = buffers[is_from_server]
        if not buffer and not offsets[is_from_server]:
            if data[:2] == _TLS_HANDSHAKE:
                message = f"{conversation.client} to {conversation.server} is encrypted (TLS) and cannot be read"
                raise ConfigError("FILE", "a capture", "a connection without TLS", message=message)
            if not _begins_with_a_frame(data):
                continue
        buffer += data
        while len(buffer) >= HEADER_BYTES:
            offset = offsets[is_from_server]
            try:
                size = frame_length(buffer, 0, MAX_FRAME_BYTES)
                if len(buffer) < size:
                    break
                frame = decode_frame(bytes(buffer[:size]))
            except FrameError as error:
                ends = conversation.client, conversation.server
                source, destination = reversed(ends) if is_from_server else ends
                raise FrameError(
                    f"{source} to {destination}: {error.reason}",
                    offset=offset,
                    header=error.header,
                    hint="The bytes are counted from the first frame of this direction. Is the port one of a node's "
                    "data? Choose with --ports",
                ) from error
            del buffer[:size]
            offsets[is_from_server] += size
            yield CapturedFrame(time_ns, is_from_server, offset, frame)


def _begins_with_a_frame(data: bytes) -> bool:
    if len(data) < HEADER_BYTES or data[0] not in MAGICS:
        return False
    try:
        frame_length(data, 0, MAX_FRAME_BYTES)
    except WireError:
        return False
    return True
