"""Whole frames, and nothing but FrameError for what is none."""

from __future__ import annotations

import random
import struct

import pytest

from dcpstream.errors import FieldError, FrameError
from dcpstream.wire.frames import MAX_FRAME_BYTES
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.wire_columns import received

pytestmark = pytest.mark.usefixtures("each_decoder")

MANY = b"".join(raw_frames.mutation(b"\0%d" % number, bytes(50)) for number in range(800))


def consumed(buffer: bytes, start: int = 0) -> int:
    return received(buffer, start)[1] - start


def test_the_end_counts_from_the_begin_of_the_buffer() -> None:
    first, second = raw_frames.mutation(), raw_frames.marker()
    rows, end = received(first + second + b"\x80\x57", len(first))
    assert (rows.count, len(rows.controls), rows.wire_bytes, end) == (0, 1, len(second), len(first + second))


def test_nothing_is_there() -> None:
    for buffer in (b"", b"\x80", MANY[:23]):
        assert consumed(buffer) == 0


@each_case("copies", [1, 60])
def test_every_cut_of_the_last_frame(copies: int) -> None:
    before = raw_frames.mutation() * copies
    last = raw_frames.deletion(b"\0key", delete_time=3, stream_id=1)
    for cut in range(len(last)):
        assert consumed(before + last[:cut]) == len(before)
    assert consumed(before + last) == len(before) + len(last)


def broken_frames() -> dict[str, bytes]:
    long_key = bytearray(raw_frames.mutation(b"\0key", b""))
    long_key[2:4] = struct.pack(">H", 400)
    long_extras = bytearray(raw_frames.frame(0x5C))
    long_extras[4] = 1
    long_framing = bytearray(raw_frames.mutation(stream_id=4))
    long_framing[2] = 250
    huge = bytearray(raw_frames.mutation())
    huge[8:12] = struct.pack(">I", MAX_FRAME_BYTES - 23)
    return {
        "no magic": b"\x47" + raw_frames.mutation()[1:],
        "zeros": bytes(24),
        "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "key longer than the body": bytes(long_key),
        "extras longer than the body": bytes(long_extras),
        "framing extras longer than the body": bytes(long_framing),
        "above 30 MiB": bytes(huge),
    }


@each_case("name", broken_frames())
def test_what_is_no_frame_is_refused_with_its_offset(name: str) -> None:
    broken = broken_frames()[name]
    for before in (b"", raw_frames.mutation() * 3, raw_frames.mutation() * 60, MANY):
        for after in (b"", raw_frames.mutation() * 100, MANY):
            with pytest.raises(FrameError) as caught:
                received(before + broken + after)
            assert caught.value.offset == len(before)
            assert caught.value.header == (broken + after)[:24]


def test_the_largest_frame_is_awaited() -> None:
    head = bytearray(raw_frames.mutation())
    head[8:12] = struct.pack(">I", MAX_FRAME_BYTES - 24)
    assert consumed(bytes(head)) == 0


def test_the_largest_frame_among_many() -> None:
    largest = raw_frames.mutation(b"\0k", bytes(MAX_FRAME_BYTES - 24 - 31 - 2))
    assert len(largest) == MAX_FRAME_BYTES
    rows, _ = received(raw_frames.mutation() * 100 + largest + raw_frames.mutation())
    assert rows.count == 102


@each_case("before", [b"", MANY], ids=["alone", "after many"])
def test_the_first_byte_of_an_incomplete_header_is_looked_at(before: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        received(before + b"H")
    assert caught.value.offset == len(before)
    for magic in (0x80, 0x81, 0x82, 0x83, 0x08, 0x18):
        assert consumed(before + bytes([magic])) == len(before)


def test_garbage_raises_only_frame_errors() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        garbage = chance.randbytes(chance.randrange(4000))
        buffer = chance.choice([b"", MANY[: chance.randrange(len(MANY))]]) + garbage
        try:
            reached: int | None = consumed(buffer)
        except (FrameError, FieldError) as error:
            reached = error.offset
        assert reached is not None, seed
        assert 0 <= reached <= len(buffer), seed
