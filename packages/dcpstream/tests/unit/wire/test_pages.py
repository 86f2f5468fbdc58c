"""The example packets of the protocol's pages on ADD_STREAM, CLOSE_STREAM and STREAM_END, byte for byte."""

from __future__ import annotations

import pytest

from dcpstream import wire
from dcpstream.errors import FieldError
from dcpstream.wire import Magic, Opcode, Status, StreamEndReason, StreamFlag
from dcpstream.wire.messages import dcp
from tests.kit.cases import each_case

# Each page draws the packet in rows of four bytes; these are its rows.
ADD_STREAM = bytes.fromhex("80510000 04000005 00000004 00000001 00000000 00000000 00000001")
ADD_STREAM_RESPONSE = bytes.fromhex("81510000 04000000 00000004 00000001 00000000 00000000 00001000")
CLOSE_STREAM = bytes.fromhex("80520000 00000005 00000000 deadbeef 00000000 00000000")
STREAM_END = bytes.fromhex("80550000 04000000 00000004 deadbeef 00000000 00000000 00000000")


def test_add_stream_of_the_page() -> None:
    message = wire.decode_message(wire.decode_frame(ADD_STREAM), strict=True)
    assert message == dcp.AddStream(vbid=5, opaque=1, flags=StreamFlag.TAKEOVER, magic=Magic.REQUEST)
    assert dcp.AddStream(vbid=5, opaque=1, flags=StreamFlag.TAKEOVER).encode() == ADD_STREAM
    assert message.encode() == ADD_STREAM


def test_add_stream_response_of_the_page() -> None:
    message = wire.decode_message(wire.decode_frame(ADD_STREAM_RESPONSE), strict=True)
    assert isinstance(message, dcp.AddStreamResponse)
    assert (message.status, message.opaque, message.stream_opaque) == (Status.SUCCESS, 1, 0x1000)
    assert dcp.AddStreamResponse(opaque=1, stream_opaque=0x1000).encode() == ADD_STREAM_RESPONSE


def test_close_stream_of_the_page() -> None:
    message = wire.decode_message(wire.decode_frame(CLOSE_STREAM), strict=True)
    assert message == dcp.CloseStream(vbid=5, opaque=0xDEADBEEF, magic=Magic.REQUEST)
    assert dcp.CloseStream(vbid=5, opaque=0xDEADBEEF).encode() == CLOSE_STREAM


def test_stream_end_of_the_page() -> None:
    message = wire.decode_message(wire.decode_frame(STREAM_END), strict=True)
    assert message == dcp.StreamEnd(vbid=0, opaque=0xDEADBEEF, reason=StreamEndReason.OK, magic=Magic.REQUEST)
    assert dcp.StreamEnd(opaque=0xDEADBEEF, reason=0).encode() == STREAM_END


@each_case(
    ("name", "code"),
    [("OK", 0), ("CLOSED", 1), ("STATE_CHANGED", 2), ("DISCONNECTED", 3), ("TOO_SLOW", 4)],
)
def test_reasons_of_the_page(name: str, code: int) -> None:
    assert StreamEndReason[name] == code


@each_case(
    ("name", "bit"),
    [
        ("TAKEOVER", 0x01),
        ("DISK_ONLY", 0x02),
        ("TO_LATEST", 0x04),
        ("NO_VALUE", 0x08),
        ("ACTIVE_ONLY", 0x10),
        ("STRICT_VBUUID", 0x20),
        ("FROM_LATEST", 0x40),
        ("IGNORE_PURGED_TOMBSTONES", 0x80),
    ],
)
def test_flags_of_the_page(name: str, bit: int) -> None:
    assert StreamFlag[name] == bit


def test_an_unknown_reason_survives() -> None:
    message = wire.decode_message(wire.decode_frame(dcp.StreamEnd(reason=99, opaque=7).encode()))
    assert isinstance(message, dcp.StreamEnd)
    assert message.reason == 99
    assert wire.as_code(StreamEndReason, message.reason) == 99


@each_case(
    ("opcode", "extras", "key", "value"),
    [
        (Opcode.DCP_ADD_STREAM, b"", b"", b""),
        (Opcode.DCP_ADD_STREAM, b"\0" * 4, b"k", b""),
        (Opcode.DCP_ADD_STREAM, b"\0" * 4, b"", b"v"),
        (Opcode.DCP_CLOSE_STREAM, b"\0" * 4, b"", b""),
        (Opcode.DCP_CLOSE_STREAM, b"", b"k", b""),
        (Opcode.DCP_CLOSE_STREAM, b"", b"", b"v"),
        (Opcode.DCP_STREAM_END, b"", b"", b""),
        (Opcode.DCP_STREAM_END, b"\0" * 4, b"k", b""),
        (Opcode.DCP_STREAM_END, b"\0" * 4, b"", b"v"),
    ],
)
def test_what_the_pages_forbid_is_refused_and_not_lost(opcode: int, extras: bytes, key: bytes, value: bytes) -> None:
    data = wire.encode_request(opcode, extras=extras, key=key, value=value)
    frame = wire.decode_frame(data)
    with pytest.raises(FieldError, match="fits no layout"):
        wire.decode_message(frame, strict=True)
    assert wire.decode_message(frame).encode() == data
