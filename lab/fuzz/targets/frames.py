"""Bytes of a connection, in any pieces: the same frames as in one piece, or the same FrameError; memory is bounded.

Input: the size of the pieces (0: one piece), the limit of a frame's size (0: the usual one), and the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.errors import ConfigError, FrameError
from dcpstream.wire import MAX_FRAME_BYTES, Frame, FrameReader
from dcpstream_node.commands.decode import as_object, as_text, frame_bytes
from dcpstream_node.commands.decode import frames as decoded_frames
from lab.fuzz import seeds as shared

FRAMES_AT = 2
MAX_BYTES = 2048
LIMIT_STEP = 64


def seeds() -> Iterator[bytes]:
    frames = [frame for _, frame in shared.recorded_frames()]
    for at in range(0, len(frames), 7):
        yield bytes((at % 40, 0)) + b"".join(frames[at : at + 3])[: MAX_BYTES - 2]
    yield b"\x03\x00# a comment\n80 00 0000"


def check(data: bytes) -> None:
    if len(data) < FRAMES_AT:
        return
    size, limit, stream = data[0], data[1] * LIMIT_STEP or MAX_FRAME_BYTES, data[2:]
    whole, error = read([stream], limit)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)] if size else [stream]
    in_pieces, error_in_pieces = read(pieces, limit)
    assert in_pieces == whole
    assert error_in_pieces == error
    read_bytes = b"".join(frame.encode() for frame in whole)
    assert stream.startswith(read_bytes)
    if limit == MAX_FRAME_BYTES:
        compare_with_command(stream, whole, has_error=error is not None)
    text_of(stream)


def read(pieces: list[bytes], limit: int) -> tuple[list[Frame], tuple[object, ...] | None]:
    """The frames, and (text, offset, header) of the error behind them."""
    reader = FrameReader(limit)
    frames: list[Frame] = []
    for piece in pieces:
        reader.receive_data(piece)
        try:
            frames += reader.frames()
        except FrameError as error:
            return frames, (str(error), error.offset, error.header)
        assert reader.pending_bytes <= limit
    return frames, None


def compare_with_command(stream: bytes, frames: list[Frame], *, has_error: bool) -> None:
    """`dcpstream decode` shows the same frames, then an error if there is more."""
    shown: list[Frame] = []
    try:
        for offset, frame in decoded_frames(stream):
            as_text(offset, frame)
            as_object(offset, frame)
            shown.append(frame)
    except FrameError:
        assert has_error or sum(frame.size for frame in frames) < len(stream)
    else:
        assert not has_error
    assert shown == frames


def text_of(stream: bytes) -> None:
    """Any input is bytes, hexadecimal text, or refused."""
    for form in ("auto", "hex", "binary"):
        try:
            frame_bytes(stream, form)
        except ConfigError:
            assert form != "binary"
