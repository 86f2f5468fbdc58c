"""Columns: the same as message by message, for every kind of frame."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from dcpstream.arrow import WireChunk
from dcpstream.errors import FieldError
from dcpstream.wire.frames import decode_frame
from dcpstream.wire.keys import leb128_encode
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.wire_columns import batch_of, decode_messages, decode_wire, received

pytestmark = pytest.mark.usefixtures("each_decoder")


def decode(buffer: bytes, collections: bool = True) -> WireChunk:
    """Fast, checked against the other one."""
    chunk = decode_wire(buffer, collections)
    raw_frames.same(chunk, decode_messages(buffer, collections))
    return chunk


def many(frames: list[bytes], minimum: int = 100) -> list[bytes]:
    """The frames over and over, so that the fast path is taken."""
    return list(itertools.islice(itertools.cycle(frames), max(minimum, len(frames))))


class TestFields:
    def test_all_fields_of_every_kind(self) -> None:
        frames = [
            raw_frames.mutation(
                b"\0a",
                b"one",
                seqno=2**64 - 1,
                rev=2**63,
                flags=2**32 - 1,
                expiry=2**31 + 5,
                vbucket=1023,
                cas=2**64 - 2,
                opaque=0xFFFFFFFF,
                datatype=1,
            ),
            raw_frames.deletion(b"\0b", seqno=3, rev=4, vbucket=5, cas=6, opaque=7),
            raw_frames.deletion(b"\0c", b"tombstone", seqno=3, rev=4, delete_time=99, datatype=4),
            raw_frames.expiration(b"\0d", seqno=8, rev=9, delete_time=77),
        ]
        chunk = decode(b"".join(many(frames)))
        assert batch_of(chunk).slice(0, 4).to_pylist() == [
            {
                "key": b"a",
                "value": b"one",
                "opcode": 0x57,
                "datatype": 1,
                "vbucket": 1023,
                "cas": 2**64 - 2,
                "seqno": 2**64 - 1,
                "rev": 2**63,
                "flags": 2**32 - 1,
                "expiry": 2**31 + 5,
            },
            {
                "key": b"b",
                "value": b"",
                "opcode": 0x58,
                "datatype": 0,
                "vbucket": 5,
                "cas": 6,
                "seqno": 3,
                "rev": 4,
                "flags": 0,
                "expiry": 0,
            },
            {
                "key": b"c",
                "value": b"tombstone",
                "opcode": 0x58,
                "datatype": 4,
                "vbucket": 0,
                "cas": 0,
                "seqno": 3,
                "rev": 4,
                "flags": 0,
                "expiry": 99,
            },
            {
                "key": b"d",
                "value": b"",
                "opcode": 0x59,
                "datatype": 0,
                "vbucket": 0,
                "cas": 0,
                "seqno": 8,
                "rev": 9,
                "flags": 0,
                "expiry": 77,
            },
        ]
        assert chunk.opaques[:4].tolist() == [0xFFFFFFFF, 7, 0, 0]

    @each_case("count", [0, 1, 49, 500])
    def test_any_number_of_rows(self, count: int) -> None:
        chunk = decode(b"".join(raw_frames.mutation(b"\0%d" % n, b"v%d" % n, seqno=n + 1) for n in range(count)))
        assert len(chunk) == batch_of(chunk).num_rows == count
        assert chunk.key.to_pylist() == [b"%d" % n for n in range(count)]
        assert chunk.value.to_pylist() == [b"v%d" % n for n in range(count)]

    def test_empty_keys_and_values(self) -> None:
        chunk = decode(
            b"".join(many([raw_frames.mutation(b"", b""), raw_frames.mutation(b"", b"x"), raw_frames.deletion(b"")])),
            collections=False,
        )
        assert chunk.key.to_pylist()[:3] == [b"", b"", b""]
        assert chunk.value.to_pylist()[:3] == [b"", b"x", b""]

    def test_the_last_frame_is_shorter_than_the_gathered_words(self) -> None:
        """A deletion of 43 bytes at the very end; 48 are gathered."""
        for tail in (
            [raw_frames.deletion(b"\0")],
            [raw_frames.frame(0x5C)],
            [raw_frames.frame(0x5C), raw_frames.frame(0x5C)],
        ):
            decode(b"".join([*many([raw_frames.mutation()]), *tail]))

    def test_behind_a_start_and_before_a_stop(self) -> None:
        buffer = raw_frames.stream_end() + raw_frames.mutation() * 70 + b"rubbish that was never received"
        rows, end = received(buffer, len(raw_frames.stream_end()), len(buffer) - 31)
        assert (rows.count, end) == (70, len(buffer) - 31)


class TestControls:
    @each_case("copies", [1, 10])
    def test_every_other_frame_stands_at_its_place(self, copies: int) -> None:
        frames = []
        for number, control in enumerate(raw_frames.controls() * copies):
            frames += [control, *[raw_frames.mutation(seqno=number + 1)] * (number % 3)]
        rows, _ = received(b"".join(frames))
        assert [frame.encode() for _, frame in rows.controls] == raw_frames.controls() * copies
        rows_before = np.cumsum([0] + [number % 3 for number in range(len(rows.controls) - 1)])
        assert [row for row, _ in rows.controls] == rows_before.tolist()

    def test_only_controls(self) -> None:
        chunk = decode(b"".join(many(raw_frames.controls())))
        assert len(chunk) == 0
        assert batch_of(chunk).num_rows == 0


class TestCollections:
    IDS = (0, 1, 8, 0x7F, 0x80, 0x555, 0x5555, 0xFFFF, 0xCAFEF00, 0xCAFEF00D, 0xFFFFFFFF)

    @each_case("number", IDS)
    def test_one_collection(self, number: int) -> None:
        chunk = decode(b"".join(many([raw_frames.mutation(leb128_encode(number) + b"key")])))
        assert set(chunk.collection_ids.tolist()) == {number}
        assert set(chunk.key.to_pylist()) == {b"key"}

    def test_mixed(self) -> None:
        chunk = decode(b"".join(raw_frames.mutation(leb128_encode(n) + b"key") for n in self.IDS * 10))
        assert chunk.collection_ids.tolist() == list(self.IDS) * 10

    def test_keys_without_prefix_stay_whole(self) -> None:
        chunk = decode(b"".join(many([raw_frames.mutation(b"\x80\x80 plain")])), collections=False)
        assert chunk.key[0].as_py() == b"\x80\x80 plain"
        assert not chunk.collection_ids.any()

    @each_case(
        "key",
        [
            b"",
            b"\x80",
            b"\xff\xff\xff\xff",
            b"\x80\x00key",
            b"\xff\xff\xff\xff\x1f key",
            b"\xff\xff\xff\xff\xff\x01 key",
        ],
        ids=["none", "one byte of two", "four of five", "not shortest", "33 bits", "six bytes"],
    )
    @each_case("copies", [0, 100])
    def test_unreadable_ids(self, key: bytes, copies: int) -> None:
        before = raw_frames.mutation(leb128_encode(300) + b"key") * copies
        buffer = before + raw_frames.mutation(key, b"value") + raw_frames.mutation() * copies
        with pytest.raises(FieldError, match="collection id"):
            decode_wire(buffer)

    def test_an_unreadable_id_at_the_very_end(self) -> None:
        buffer = raw_frames.mutation() * 100 + raw_frames.mutation(b"", b"")
        with pytest.raises(FieldError, match="collection id"):
            decode_wire(buffer)


@each_case("opcode", [0x57, 0x58, 0x59])
@each_case("length", [0, 17, 19, 22, 30, 32])
@each_case("copies", [0, 100])
def test_extras_of_another_length(opcode: int, length: int, copies: int) -> None:
    before = raw_frames.mutation() * copies + raw_frames.deletion() * copies
    buffer = before + raw_frames.frame(opcode, extras=bytes(length), key=b"\0k", value=bytes(50))
    with pytest.raises(FieldError, match=f"extras of {length} bytes") as caught:
        decode_wire(buffer)
    assert caught.value.offset == len(before)


def test_a_wrong_length_among_mutations_only() -> None:
    buffer = raw_frames.mutation() * 100 + raw_frames.frame(0x57, extras=bytes(20), key=b"\0k")
    with pytest.raises(FieldError, match="extras of 20 bytes"):
        decode_wire(buffer)


class TestMemory:
    """A receive buffer is used again at once; what was decoded must not change, nor hold the buffer."""

    @each_case("copies", [10, 400])
    @each_case("view", [bytearray, memoryview])
    def test_the_buffer_is_free_afterwards(self, copies: int, view: Callable[[bytearray], bytearray]) -> None:
        frames = many(
            [
                raw_frames.mutation(b"\0key", bytes(range(256)), cas=7),
                raw_frames.deletion(stream_id=4),
                raw_frames.marker(opaque=3),
            ],
            copies,
        )
        buffer = bytearray(b"".join(frames))
        chunk = decode_wire(view(buffer))
        expected = decode_messages(bytes(buffer))
        batch = batch_of(chunk)
        buffer[:] = b"\xaa" * len(buffer)
        raw_frames.same(chunk, expected)
        assert batch.equals(batch_of(expected))
        buffer.clear()  # a bytearray that somebody still looks into refuses this with a BufferError

    def test_after_an_error_too(self) -> None:
        buffer = bytearray(raw_frames.mutation() * 100 + raw_frames.mutation(b""))
        caught: FieldError | None = None
        try:
            decode_wire(buffer)
        except FieldError as error:  # pytest.raises would keep the traceback, and with it the buffer
            caught = error.with_traceback(None)
            caught.__cause__ = caught.__context__ = None
        assert caught is not None
        buffer.clear()


def test_large_batches_of_small_rows() -> None:
    """More rows than the cached indices."""
    buffer = raw_frames.mutation(b"\0k", b"") * 70_000
    chunk = decode_wire(buffer)
    assert len(chunk) == 70_000
    assert set(chunk.key.to_pylist()) == {b"k"}
    batch_of(chunk).validate(full=True)


@each_case("seed", range(10))
def test_values_that_hold_frames(seed: int) -> None:
    chance = random.Random(seed)
    chain = b"".join(raw_frames.mutation(b"\0forged%d" % number, chance.randbytes(40)) for number in range(10))
    parts = [raw_frames.mutation(b"\0%d" % number, chain[: chance.randrange(len(chain))]) for number in range(1500)]
    parts[700:700] = raw_frames.controls()
    chunk = decode(b"".join(parts))
    assert chunk.key.to_pylist() == [b"%d" % number for number in range(1500)]


def test_controls_are_the_frames_themselves() -> None:
    buffer = raw_frames.mutation() * 60 + raw_frames.marker_v2(vbucket=3, opaque=9)
    assert received(buffer)[0].controls == [(60, decode_frame(buffer, len(raw_frames.mutation()) * 60))]
