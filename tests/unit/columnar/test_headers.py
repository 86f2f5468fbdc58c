"""Headers in columns: the same numbers as one by one, also at the buffer's end."""

from __future__ import annotations

import numpy as np
import pytest

from dcpstream.columnar.headers import Headers, gather, swap_words
from dcpstream.wire.frames import decode_frame
from tests.kit import raw_frames

FRAMES = [
    raw_frames.mutation(
        b"\0key", b"value", seqno=2**64 - 1, rev=2**63, flags=7, expiry=8, vbucket=1023, cas=9, opaque=10
    ),
    raw_frames.deletion(b"\0k", delete_time=99, datatype=7, stream_id=5),
    raw_frames.frame(0x53, magic=0x81, vbucket=0x23, value=bytes(8)),
    raw_frames.frame(0x5C, magic=0x18, framing=b"\x00", key=bytes(255)),
    raw_frames.frame(0x57, magic=0x80, key=bytes(0x1234)),
    raw_frames.deletion(b"\0"),
]
BUFFER = b"".join(FRAMES)
STARTS = np.cumsum([0] + [len(frame) for frame in FRAMES[:-1]])


def headers(buffer: bytes = BUFFER) -> Headers:
    return Headers(swap_words(gather(buffer, STARTS, 48)))


def test_columns() -> None:
    columns = headers()
    for row, at in enumerate(STARTS.tolist()):
        frame = decode_frame(BUFFER, at)
        assert (columns.magic[row], columns.opcode[row], columns.datatype[row]) == (
            frame.magic,
            frame.opcode,
            frame.datatype,
        )
        assert (columns.vbucket[row], columns.opaque[row], columns.cas[row]) == (frame.vbid, frame.opaque, frame.cas)
        assert columns.magic_and_opcode[row] == frame.magic << 8 | frame.opcode
        assert (columns.extras_length[row], columns.body[row]) == (len(frame.extras), frame.size - 24)
        framing, key = columns.part_lengths()
        assert framing is not None
        assert (framing[row], key[row]) == (len(frame.framing), len(frame.key))
    assert (columns.seqno[0], columns.rev[0]) == (2**64 - 1, 2**63)
    assert (columns.flags_field[0], columns.expiration[0]) == (7, 8)
    assert not columns.broken().any()


def test_selected_rows() -> None:
    some = headers().select(np.array([4, 0]))
    assert some.opcode.tolist() == [0x57, 0x57]
    assert some.key_field.tolist() == [0x1234, 4]


def test_no_framing_extras_at_all() -> None:
    framing, key = headers().select(np.array([0, 2, 4])).part_lengths()
    assert framing is None
    assert key.tolist() == [4, 0, 0x1234]


@pytest.mark.parametrize("width", [24, 48])
@pytest.mark.parametrize("length", [0, 1, 23, 24, 47, 48, 49, 100])
def test_bytes_behind_the_end_are_zero(width: int, length: int) -> None:
    buffer = bytes(range(1, length + 1))
    positions = np.arange(length, dtype=np.int64)
    found = gather(buffer, positions, width)
    assert len(found) == length
    for at, value in zip(positions.tolist(), found.tolist(), strict=True):
        assert bytes(value) == buffer[at : at + width].ljust(width, b"\0")


@pytest.mark.parametrize(
    ("change", "broken"),
    [({0: 0x80}, False), ({0: 0x84}, True), ({2: 0xFF}, True), ({4: 0xFF}, True), ({8: 2}, True), ({8: 1}, False)],
)
@pytest.mark.parametrize("others", [[], [raw_frames.mutation(stream_id=3)]], ids=["classic only", "mixed"])
def test_broken_headers(change: dict[int, int], broken: bool, others: list[bytes]) -> None:
    frame = bytearray(raw_frames.mutation(value=bytes(100)))
    for at, byte in change.items():
        frame[at] = byte
    buffer = b"".join(others) + bytes(frame)
    starts = np.array([0, len(others[0])] if others else [0])
    found = Headers(swap_words(gather(buffer, starts, 48))).broken()
    assert found.tolist() == [False] * len(others) + [broken]
