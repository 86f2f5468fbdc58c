"""Frames to begin with: one or two of each kind, recorded from a real server and its clients, or encoded here."""

from __future__ import annotations

from functools import cache

from dcpstream.wire import LAYOUTS, Frame, Kind, Magic, Part, decode_frame
from tests.kit import recorded

MAX_FRAME_BYTES = 1500
"""Longer recordings add bytes and no code."""
EXAMPLES = 2
"""Recorded frames of one kind."""


@cache
def recorded_frames() -> tuple[tuple[str, bytes], ...]:
    """(direction, frame): `c2s` or `s2c`."""
    found: dict[tuple[object, ...], int] = {}
    result = []
    for line in recorded.all_frames():
        if line.is_malformed or len(line.frame) > MAX_FRAME_BYTES:
            continue
        frame = decode_frame(line.frame)
        status = frame.status if frame.is_response else 0
        kind = (line.direction, frame.magic, frame.opcode, status, len(frame.extras), frame.datatype)
        found[kind] = found.get(kind, 0) + 1
        if found[kind] <= EXAMPLES:
            result.append((line.direction, line.frame))
    return tuple(result)


@cache
def made_frames() -> tuple[bytes, ...]:
    """A frame of each layout of the message table, with zeros in its fields."""
    result = []
    for layout in LAYOUTS:
        extras = b"".join(
            (item.fixed or 0).to_bytes(item.width, "big") for item in layout.fields if item.place == "extras"
        )
        value = b"".join(
            (item.fixed or 0).to_bytes(item.width, "big") for item in layout.fields if item.place == "value"
        )
        is_request = layout.kind is Kind.REQUEST
        frame = Frame(
            Magic.REQUEST if is_request else Magic.RESPONSE,
            layout.opcode,
            vbid=0 if is_request or not layout.statuses else layout.statuses[0],
            extras=extras,
            key=b"" if layout.key is Part.NONE else b"\0key",
            value=value + (b"" if layout.rest is Part.NONE else b'{"a":1}'),
        )
        result.append(frame.encode())
    return tuple(dict.fromkeys(result))
