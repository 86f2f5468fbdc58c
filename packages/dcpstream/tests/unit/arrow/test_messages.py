"""The message-by-message decoder, judged by what was put in."""

from __future__ import annotations

import pytest

from dcpstream.arrow import DecodeOptions, decode_messages
from dcpstream.errors import FieldError, FrameError
from tests.kit import raw_frames


def test_a_few_rows_and_a_marker() -> None:
    chunk = decode_messages(
        raw_frames.marker(opaque=9)
        + raw_frames.mutation(
            b"\x08key", b"{}", seqno=5, rev=2, flags=3, expiry=4, vbucket=6, cas=7, opaque=8, datatype=1
        )
        + raw_frames.deletion(b"\0gone", seqno=6, delete_time=11)
    )
    assert chunk.batch.to_pylist() == [
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
    assert [(row, frame.opcode, frame.opaque) for row, frame in chunk.controls] == [(0, raw_frames.MARKER, 9)]


def test_an_incomplete_frame_is_left_out() -> None:
    buffer = raw_frames.mutation() + raw_frames.mutation()
    for cut in range(1, len(raw_frames.mutation())):
        assert len(decode_messages(buffer[:-cut])) == 1


def test_stream_ids() -> None:
    buffer = raw_frames.mutation(stream_id=512) + raw_frames.mutation()
    chunk = decode_messages(buffer, DecodeOptions(stream_ids=True))
    assert chunk.stream_ids is not None
    assert chunk.stream_ids.tolist() == [512, 0]
    assert decode_messages(buffer).stream_ids is None


def test_chosen_frames_only() -> None:
    frames = [raw_frames.mutation(b"\0a"), raw_frames.mutation(b"\0b"), raw_frames.mutation(b"\0c")]
    chunk = decode_messages(b"".join(frames), starts=[0, len(frames[0]) * 2])
    assert chunk.key.to_pylist() == [b"a", b"c"]


def test_faults_carry_the_frame() -> None:
    first, second = raw_frames.mutation(), raw_frames.frame(0x59, extras=bytes(21), key=b"\0k")
    with pytest.raises(FieldError) as caught:
        decode_messages(first + second)
    assert (caught.value.offset, caught.value.header) == (len(first), second[:24])
    with pytest.raises(FrameError):
        decode_messages(first + bytes(24))
