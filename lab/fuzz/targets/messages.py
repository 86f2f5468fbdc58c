"""Any frame becomes a message that gives the same frame back; a strict decoder gives that message, or a FieldError."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dcpstream.errors import FieldError, FrameError, WireError
from dcpstream.wire import Frame, RawRequest, RawResponse, decode_frame, decode_message
from dcpstream.wire.keys import decode_frame_infos, key_fault, leb128_encode, split_collection_key
from dcpstream.wire.shape import read_frame_infos, shape_of
from lab.fuzz import seeds as shared

FRAMES_AT = 0
MAX_BYTES = 1024


def seeds() -> Iterator[bytes]:
    yield from (frame for _, frame in shared.recorded_frames() if len(frame) <= MAX_BYTES)
    yield from shared.made_frames()


def check(data: bytes) -> None:
    try:
        frame = decode_frame(data)
    except FrameError:
        return
    encoded = data[: frame.size]
    assert frame.encode() == encoded
    message = decode_message(frame)
    assert message.to_frame() == frame
    assert message.encode() == encoded
    repr(message)
    try:
        assert decode_message(frame, strict=True) == message
    except FieldError:
        assert isinstance(message, RawRequest | RawResponse)
    read_properties(message)
    read_parts(frame)


def read_properties(message: Any) -> None:
    """Read the properties that a message computes from its value; they raise nothing but a WireError."""
    for name in dir(type(message)):
        if not name.startswith("_") and isinstance(getattr(type(message), name), property):
            try:
                getattr(message, name)
            except WireError:
                continue


def read_parts(frame: Frame) -> None:
    """Keys and framing extras are read, or refused with a FieldError; a receiver's check gives a fault or none."""
    try:
        infos = list(decode_frame_infos(frame.framing))
        assert sum(len(value) for _, value in infos) < len(frame.framing) or not frame.framing
    except FieldError:
        pass
    try:
        collection_id, key = split_collection_key(frame.key)
        assert leb128_encode(collection_id) + key == frame.key
    except FieldError:
        assert key_fault(frame.key) is not None
    for has_collections in (False, True):
        shape = shape_of(frame.opcode, has_collections=has_collections)
        if shape is not None and frame.is_request:
            shape.fault(frame, has_prefix=has_collections)
            read_frame_infos(shape, frame.framing)
