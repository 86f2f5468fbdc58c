"""scan: whole frames, and nothing but FrameError for what is none."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from dcpstream.arrow import MAX_BUFFER_BYTES, scan
from dcpstream.errors import FrameError
from dcpstream.wire.frames import MAX_FRAME_BYTES
from tests.kit import raw_frames
from tests.kit.cases import each_case

pytestmark = pytest.mark.usefixtures("each_decoder")

MANY = b"".join(raw_frames.mutation(b"\0%d" % number, bytes(50)) for number in range(800))


def test_index_of_a_few_frames() -> None:
    first, second = raw_frames.mutation(), raw_frames.marker()
    index = scan(first + second + b"\x80\x57")
    assert index.starts.tolist() == [0, len(first)]
    assert index.starts.dtype == np.int64
    assert (len(index), index.consumed, index.end) == (2, len(first + second), len(first + second))


def test_consumed_counts_from_the_start_and_end_from_the_buffer() -> None:
    first, second = raw_frames.mutation(), raw_frames.marker()
    index = scan(first + second, len(first))
    assert index.starts.tolist() == [len(first)]
    assert (index.consumed, index.end) == (len(second), len(first + second))


def test_nothing_is_there() -> None:
    for buffer in (b"", b"\x80", MANY[:23]):
        index = scan(buffer)
        assert (len(index), index.consumed) == (0, 0)


@each_case("copies", [1, 60])
def test_every_cut_of_the_last_frame(copies: int) -> None:
    before = raw_frames.mutation() * copies
    last = raw_frames.deletion(b"\0key", delete_time=3, stream_id=1)
    for cut in range(len(last)):
        assert scan(before + last[:cut]).consumed == len(before)
    assert scan(before + last).consumed == len(before) + len(last)


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
                scan(before + broken + after)
            assert caught.value.offset == len(before)
            assert caught.value.header == (broken + after)[:24]


def test_the_largest_frame_is_awaited() -> None:
    head = bytearray(raw_frames.mutation())
    head[8:12] = struct.pack(">I", MAX_FRAME_BYTES - 24)
    assert scan(bytes(head)).consumed == 0


def test_the_largest_frame_among_many() -> None:
    largest = raw_frames.mutation(b"\0k", bytes(MAX_FRAME_BYTES - 24 - 31 - 2))
    assert len(largest) == MAX_FRAME_BYTES
    index = scan(raw_frames.mutation() * 100 + largest + raw_frames.mutation())
    assert len(index) == 102


@each_case("before", [b"", MANY], ids=["alone", "after many"])
def test_the_first_byte_of_an_incomplete_header_is_looked_at(before: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        scan(before + b"H")
    assert caught.value.offset == len(before)
    for magic in (0x80, 0x81, 0x82, 0x83, 0x08, 0x18):
        assert scan(before + bytes([magic])).consumed == len(before)


def test_garbage_raises_only_frame_errors() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        garbage = chance.randbytes(chance.randrange(4000))
        buffer = chance.choice([b"", MANY[: chance.randrange(len(MANY))]]) + garbage
        try:
            reached: int | None = scan(buffer).consumed
        except FrameError as error:
            reached = error.offset
        assert reached is not None, seed
        assert 0 <= reached <= len(buffer), seed


@each_case("bounds", [(-1, None), (5, 4), (0, 11), (11, None)])
def test_bounds_outside_the_buffer(bounds: tuple[int, int | None]) -> None:
    with pytest.raises(ValueError, match="cannot scan"):
        scan(bytes(10), *bounds)


def test_a_buffer_that_arrow_cannot_count_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_BUFFER_BYTES + 1

    with pytest.raises(ValueError, match="cannot scan"):
        scan(Huge())
