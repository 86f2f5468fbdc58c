"""Boundaries: many lanes find what following one by one finds, whatever values hold."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from dcpstream.columnar import boundaries
from dcpstream.columnar.boundaries import find_boundaries
from tests.kit import raw_frames


def one_by_one(buffer: bytes, start: int, stop: int) -> tuple[list[int], int]:
    """The judge: the plainest loop."""
    starts = []
    at = start
    while stop - at >= 24:
        after = at + 24 + int.from_bytes(buffer[at + 8 : at + 12], "big")
        if after > stop:
            break
        starts.append(at)
        at = after
    return starts, at


def check(buffer: bytes, start: int = 0, stop: int | None = None) -> None:
    stop = len(buffer) if stop is None else stop
    starts, end = find_boundaries(buffer, start, stop)
    expected, expected_end = one_by_one(buffer, start, stop)
    assert starts.dtype == np.int64
    assert (starts.tolist(), end) == (expected, expected_end)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each call of the one-by-one loop followed."""
    counts: list[int] = []
    walk = boundaries._walk

    def counting(*args: object, **options: object) -> tuple[list[int], int]:
        starts, at = walk(*args, **options)  # type: ignore[arg-type]
        counts.append(len(starts))
        return starts, at

    monkeypatch.setattr(boundaries, "_walk", counting)
    return counts


def stream(count: int, size: Callable[[int], int], seed: int = 1, **fields: object) -> bytes:
    chance = random.Random(seed)
    return b"".join(
        raw_frames.mutation(b"\0key%d" % number, chance.randbytes(size(number)), seqno=number + 1, **fields)  # type: ignore[arg-type]
        for number in range(count)
    )


@pytest.mark.parametrize("size", [0, 64, 256, 1024])
def test_small_frames_are_found_in_lanes(size: int, walked: list[int]) -> None:
    buffer = stream(3000, lambda _: size)
    check(buffer)
    assert sum(walked) < 500, "most frames were followed one by one"


def test_frames_with_stream_ids_are_found_in_lanes(walked: list[int]) -> None:
    check(stream(3000, lambda _: 100, stream_id=9))
    assert sum(walked) < 500


def test_large_frames_are_followed_one_by_one(walked: list[int]) -> None:
    check(stream(500, lambda _: 5000))
    assert sum(walked) == 500


def test_a_crowd_of_answers_in_front_does_not_spoil_the_mean(walked: list[int]) -> None:
    answers = raw_frames.frame(0x53, magic=0x81, value=bytes(16)) * 1000
    check(answers + stream(4000, lambda _: 300))
    assert sum(walked) < 2500


@pytest.mark.parametrize("seed", range(20))
def test_mixed_sizes_and_kinds(seed: int) -> None:
    chance = random.Random(seed)
    parts = []
    for number in range(chance.randrange(500, 3000)):
        kind = chance.random()
        value = chance.randbytes(chance.choice([0, 1, 30, 200, 200, 200, 3000]))
        if kind < 0.8:
            parts.append(raw_frames.mutation(b"\0%d" % number, value))
        elif kind < 0.9:
            parts.append(raw_frames.deletion(b"\0%d" % number, delete_time=chance.choice([None, 5])))
        else:
            parts.append(chance.choice(raw_frames.controls()))
    check(b"".join(parts))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 463, 464, 465, 600])
def test_every_count_around_the_choices(count: int) -> None:
    check(stream(count, lambda _: 20))


def test_cut_anywhere() -> None:
    buffer = stream(800, lambda number: number % 90)
    for cut in range(len(buffer) - 300, len(buffer)):
        check(buffer[:cut])
        check(buffer, 0, cut)


def test_bytes_behind_the_stop_are_not_read() -> None:
    buffer = stream(800, lambda _: 50)
    for cut in range(len(buffer) - 150, len(buffer)):
        assert find_boundaries(buffer + buffer, 0, cut)[1] == find_boundaries(buffer[:cut], 0, cut)[1]


def test_the_last_frame_is_a_header_alone() -> None:
    buffer = stream(900, lambda _: 50) + raw_frames.frame(0x5C)
    check(buffer)
    assert find_boundaries(buffer, 0, len(buffer))[1] == len(buffer)


def test_begin_in_the_middle() -> None:
    buffer = stream(900, lambda _: 50)
    start = find_boundaries(buffer, 0, len(buffer))[0][10]
    check(buffer, int(start))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer(kind: Callable[[bytes], bytes]) -> None:
    buffer = stream(700, lambda _: 50)
    starts, end = find_boundaries(kind(buffer), 0, len(buffer))
    assert (starts.tolist(), end) == one_by_one(buffer, 0, len(buffer))


class TestForgedHeaders:
    """Values that hold what looks like frames: guesses land there, and must be thrown away."""

    @pytest.mark.parametrize("seed", range(10))
    def test_values_that_are_chains_of_whole_frames(self, seed: int) -> None:
        chance = random.Random(seed)
        chain = b"".join(
            raw_frames.mutation(b"\0forged%d" % i, chance.randbytes(chance.randrange(60))) for i in range(20)
        )
        parts = [
            raw_frames.mutation(
                b"\0%d" % number, chain[: chance.randrange(len(chain))] if chance.random() < 0.7 else b"x"
            )
            for number in range(3000)
        ]
        check(b"".join(parts))

    def test_every_guess_is_forged(self, walked: list[int]) -> None:
        """A header in every value that a lane must find before the next true one."""
        forged = raw_frames.mutation(b"\0forged", bytes(40))[:60]
        buffer = b"".join(raw_frames.mutation(b"\0%d" % number, bytes(30) + forged * 12) for number in range(2000))
        check(buffer)
        assert sum(walked) > 1500, "the test does not test what it means to"

    def test_chains_that_run_into_the_true_one(self) -> None:
        """A forged header whose length leads to a true boundary makes a lane with one frame too many."""
        parts = []
        for number in range(3000):
            inner = raw_frames.mutation(b"\0in", bytes(number % 50))
            parts.append(raw_frames.mutation(b"\0%d" % number, bytes(100) + inner))
        check(b"".join(parts))

    def test_chains_that_jump_over_lanes(self) -> None:
        """A forged length of megabytes, and one that leaves the buffer."""
        parts = []
        for number in range(3000):
            forged = bytearray(raw_frames.mutation(b"\0in"))
            forged[8:12] = (1 << (number % 32)).to_bytes(4, "big")
            parts.append(raw_frames.mutation(b"\0%d" % number, bytes(number % 40) + bytes(forged) + bytes(100)))
        check(b"".join(parts))

    def test_chains_of_headers_only(self) -> None:
        """The slowest forged chain: frames of 24 zero bytes."""
        head = raw_frames.frame(0x57)
        parts = [raw_frames.mutation(b"\0%d" % number, (head * 8)[: number % 190]) for number in range(3000)]
        check(b"".join(parts))

    @pytest.mark.parametrize("byte", [0x00, 0x80, 0x57, 0xFF])
    def test_values_of_one_byte(self, byte: int) -> None:
        check(b"".join(raw_frames.mutation(b"\0%d" % number, bytes([byte]) * 300) for number in range(1500)))

    @pytest.mark.parametrize("cut", range(0, 400, 7))
    def test_the_last_frame_is_cut_and_holds_frames(self, cut: int) -> None:
        inner = raw_frames.mutation(b"\0in", bytes(30)) * 5
        buffer = stream(1500, lambda _: 60) + raw_frames.mutation(b"\0big", inner)
        check(buffer[: len(buffer) - cut])

    def test_a_whole_stream_inside_a_value(self) -> None:
        inner = stream(2000, lambda _: 60)
        check(stream(1000, lambda _: 60) + raw_frames.mutation(b"\0big", inner) + stream(1000, lambda _: 60, seed=2))
        cut = stream(1000, lambda _: 60) + raw_frames.mutation(b"\0big", inner)
        check(cut[:-1])


@pytest.mark.parametrize("seed", range(10))
def test_garbage_ends(seed: int) -> None:
    """Lengths are trusted here; the loop must end and agree all the same."""
    chance = random.Random(seed)
    check(stream(600, lambda _: 40) + chance.randbytes(20_000))
    check(chance.randbytes(5000))
    check(bytes(5000))
