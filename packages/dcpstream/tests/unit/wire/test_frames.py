"""Frames: encoding, decoding, cutting a stream into frames, limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream import wire
from dcpstream.errors import FieldError, FrameError, WireError
from dcpstream.wire import Frame, FrameReader, Magic, Opcode
from dcpstream.wire.columns import check_rest
from dcpstream.wire.messages import dcp
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.strategies import any_frames


@given(any_frames())
def test_bytes_to_frame_to_bytes_is_the_identity(frame: Frame) -> None:
    data = frame.encode()
    again = wire.decode_frame(data)
    assert again == frame
    assert hash(again) == hash(frame)
    assert again.encode() == data
    assert again.size == len(data)


@given(st.lists(any_frames(), max_size=6), st.lists(st.integers(0, 400), max_size=12))
def test_a_stream_may_be_split_anywhere(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(frame.encode() for frame in frames)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = FrameReader()
    received = []
    for begin, end in itertools.pairwise(edges):
        reader.receive_data(data[begin:end])
        received.extend(reader.frames())
    assert received == frames
    assert reader.pending_bytes == 0


def test_a_stream_may_come_byte_by_byte() -> None:
    frames = [Frame(Magic.REQUEST, Opcode.GET, key=b"k", opaque=n) for n in range(3)]
    reader = FrameReader()
    received = []
    for byte in b"".join(frame.encode() for frame in frames):
        reader.receive_data(bytes([byte]))
        received.extend(reader.frames())
    assert received == frames


@given(st.binary(max_size=200))
def test_garbage_raises_wire_errors_only(data: bytes) -> None:
    reader = FrameReader()
    reader.receive_data(data)
    try:
        for frame in reader.frames():
            assert wire.decode_message(frame).encode() == frame.encode()
    except WireError:
        pass


@rule("HDR-03")
def test_a_bad_magic_is_reported_with_its_place_in_the_stream() -> None:
    reader = FrameReader()
    reader.receive_data(wire.encode_request(Opcode.NOOP))
    reader.receive_data(wire.encode_request(Opcode.NOOP) + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    received = []
    with pytest.raises(FrameError, match=r"^0x47 is not a magic, so no frame begins at byte 48 ") as caught:
        received.extend(reader.frames())
    assert caught.value.offset == 48
    assert caught.value.header is not None
    assert caught.value.header.startswith(b"GET /")


@rule("HDR-03")
@each_case("data", [b"", b"\x80", b"\x18\x50\0"])
def test_a_frame_that_is_not_whole_yet_begins_with_a_magic(data: bytes) -> None:
    check_rest(b"??" + data + b"?", 2, 2 + len(data))
    if data:
        with pytest.raises(FrameError, match="0x3f is not a magic"):
            check_rest(b"??" + data, 1, 2 + len(data))


@rule("HDR-04")
def test_parts_longer_than_the_body_are_refused() -> None:
    data = bytearray(wire.encode_request(Opcode.SET, extras=b"\0" * 8, key=b"key"))
    data[8:12] = (5).to_bytes(4, "big")
    with pytest.raises(FrameError, match="take 11 bytes, but the body has 5, in the frame at byte 0"):
        wire.decode_frame(bytes(data))


@rule("HDR-21")
def test_the_limit_is_checked_as_soon_as_the_header_is_there() -> None:
    reader = FrameReader(max_frame_bytes=1024)
    reader.receive_data(wire.encode_request(Opcode.SET, key=b"k", value=b"v" * 2000)[:24])
    with pytest.raises(FrameError, match="a frame of 2025 bytes, more than the allowed 1024, at byte 0"):
        reader.next_frame()


def test_the_limit_may_be_raised_after_authentication() -> None:
    reader = FrameReader(wire.MAX_FRAME_BYTES_BEFORE_AUTH)
    reader.max_frame_bytes = wire.MAX_FRAME_BYTES
    data = wire.encode_request(Opcode.SET, key=b"k", value=b"v" * 100_000)
    reader.receive_data(data)
    frame = reader.next_frame()
    assert frame is not None
    assert frame.encode() == data


@rule("HDR-02")
def test_less_than_a_frame_is_refused() -> None:
    data = wire.encode_request(Opcode.SET, key=b"key", value=b"value")
    with pytest.raises(FrameError, match="the data ends after 10 of the 24 bytes of the header at byte 0"):
        wire.decode_frame(data[:10])
    with pytest.raises(FrameError, match="the data ends 2 bytes before the end of the frame at byte 0"):
        wire.decode_frame(data[:-2])


def test_a_response_reads_the_vbucket_field_as_status() -> None:
    frame = wire.decode_frame(wire.encode_response(Opcode.GET, status=wire.Status.KEY_ENOENT, opaque=3))
    assert frame.is_response
    assert not frame.is_request
    assert frame.status == wire.Status.KEY_ENOENT


def test_framing_extras_make_a_flexible_frame() -> None:
    data = wire.encode_request(Opcode.DCP_CLOSE_STREAM, framing=b"\x22\x00\x07", vbid=4)
    assert data[0] == Magic.FLEX_REQUEST
    assert (data[2], data[3]) == (3, 0)
    message = wire.decode_message(wire.decode_frame(data))
    assert isinstance(message, dcp.CloseStream)
    assert message.stream_id == 7


@rule("HDR-01", "HDR-05")
@each_case(
    "frame",
    [
        Frame(Magic.REQUEST, Opcode.GET, framing=b"\x22\0\1"),
        Frame(Magic.FLEX_REQUEST, Opcode.GET, key=b"k" * 256),
        Frame(Magic.FLEX_REQUEST, Opcode.GET, framing=b"f" * 256),
        Frame(Magic.REQUEST, Opcode.GET, key=b"k" * 65536),
        Frame(Magic.REQUEST, Opcode.GET, vbid=65536),
        Frame(Magic.REQUEST, Opcode.GET, cas=-1),
    ],
)
def test_what_does_not_fit_the_header_is_refused(frame: Frame) -> None:
    with pytest.raises(FieldError):
        frame.encode()


@rule("HDR-05")
@each_case(("framing", "key"), [(255, 255), (256, 1), (1, 256)])
def test_flexible_framing_has_a_byte_for_each_length(framing: int, key: int) -> None:
    frame = Frame(Magic.FLEX_REQUEST, Opcode.DCP_MUTATION, framing=b"f" * framing, key=b"k" * key, extras=bytes(31))
    message = dcp.Mutation(by_seqno=0, rev_seqno=0, framing=frame.framing, key=frame.key)
    if max(framing, key) == 255:
        assert wire.decode_frame(frame.encode()) == frame
        assert wire.decode_frame(message.encode()).key == frame.key
    else:
        for made in (frame, message):
            with pytest.raises(FieldError, match="255 bytes of key and of framing extras"):
                made.encode()


def test_a_frame_names_itself() -> None:
    text = repr(Frame(Magic.REQUEST, Opcode.DCP_STREAM_END, vbid=5, opaque=1, extras=b"\0\0\0\1"))
    assert "DCP_STREAM_END" in text
    assert "vb=5" in text
