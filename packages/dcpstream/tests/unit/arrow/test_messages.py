"""The message-by-message decoder, judged by what was put in."""

from __future__ import annotations

import pytest

from dcpstream.errors import FieldError, FrameError
from tests.kit import raw_frames
from tests.kit.wire_columns import batch_of, decode_messages


def test_a_few_rows_and_a_marker() -> None:
    chunk = decode_messages(
        raw_frames.marker(opaque=9)
        + raw_frames.mutation(
            b"\x08key", b"{}", seqno=5, rev=2, flags=3, expiry=4, vbucket=6, cas=7, opaque=8, datatype=1
        )
        + raw_frames.deletion(b"\0gone", seqno=6, delete_time=11)
    )
    assert batch_of(chunk).to_pylist() == [
        {
            "key": b"key",
            "value": b"{}",
            "opcode": 0x57,
            "datatype": 1,
            "vbucket": 6,
            "cas": 7,
            "seqno": 5,
            "rev": 2,
            "flags": 3,
            "expiry": 4,
        },
        {
            "key": b"gone",
            "value": b"",
            "opcode": 0x58,
            "datatype": 0,
            "vbucket": 0,
            "cas": 0,
            "seqno": 6,
            "rev": 2,
            "flags": 0,
            "expiry": 11,
        },
    ]
    assert chunk.opaques.tolist() == [8, 0]
    assert chunk.collection_ids.tolist() == [8, 0]


def test_an_incomplete_frame_is_left_out() -> None:
    buffer = raw_frames.mutation() + raw_frames.mutation()
    for cut in range(1, len(raw_frames.mutation())):
        assert len(decode_messages(buffer[:-cut])) == 1


def test_faults_carry_the_frame() -> None:
    first, second = raw_frames.mutation(), raw_frames.frame(0x59, extras=bytes(21), key=b"\0k")
    with pytest.raises(FieldError) as caught:
        decode_messages(first + second)
    assert caught.value.offset == len(first)
    with pytest.raises(FrameError):
        decode_messages(first + bytes(24))
