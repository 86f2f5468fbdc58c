"""The places of a vbucket's bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream_node.store.log import frame_log
from dcpstream_node.store.log.frame_log import FrameLog

FILE: Any = object()

STEPS = st.lists(st.tuples(st.sampled_from(["append", "seal", "commit", "truncate"]), st.integers(0, 30)), max_size=30)


@given(STEPS, st.integers(0, 200), st.integers(0, 200))
def test_the_pieces_of_a_range_are_its_bytes(steps: list[tuple[str, int]], start: int, length: int) -> None:
    log, whole, files = FrameLog({1: FILE}), b"", b""
    for step, amount in steps:
        if step == "append":
            data = bytes(range(len(whole) % 200, len(whole) % 200 + amount))
            log.append(data)
            whole += data
        elif step == "seal":
            log.seal()
        elif step == "commit":
            log.seal()
            held = log.held_start
            if held < len(whole):
                middle = (held + len(whole)) // 2
                for begin, end in ((held, middle), (middle, len(whole))):
                    if begin < end:
                        log.add_pages([(begin, 1 << 32 | len(files), end - begin, begin)])
                        files += whole[begin:end]
                files += b"a header"
                log.release(len(whole))
        else:
            whole = whole[: max(len(whole) - amount, 0)]
            log.truncate(len(whole))
    start = min(start, len(whole))
    stop = min(start + length, len(whole))
    found = b"".join(
        files[piece[1] : piece[1] + piece[2]][piece[3] : piece[4]] if isinstance(piece, tuple) else piece
        for piece in log.pieces(start, stop)
    )
    assert found == whole[start:stop]
    if start < len(whole):
        place = log.locate(start)
        assert (place is None) is (start < log.held_start)
        if place is not None:
            assert place[0][place[1]] == whole[start]


def test_a_large_tail_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_log, "CHUNK_BYTES", 10)
    log = FrameLog()
    log.append(b"x" * 9)
    log.append(b"y")
    assert not log.sealed
    log.append(b"z")
    assert (len(log.sealed), log.tail_start, bytes(log.tail)) == (1, 10, b"z")


def test_a_read_stops_where_a_piece_ends_unless_little_of_it_is_left() -> None:
    log = FrameLog({1: FILE})
    address = 1 << 32 | 1000
    log.add_pages([(0, address, 20, 11), (20, address + 9000, 10, 22)])
    log.tail_start = 30
    log.append(b"x" * 8)
    log.seal()
    log.append(b"y" * 8)
    assert [log.contiguous(start, 12) for start in (0, 8, 16, 17, 18, 20)] == [12, 12, 4, 3, 12, 10]
    assert [log.contiguous(start, 12) for start in (28, 30, 35, 36, 38, 40)] == [12, 8, 3, 12, 12, 12]


def test_a_read_of_less_than_the_piece_holds_is_left_alone() -> None:
    log = FrameLog()
    log.append(b"x" * 8)
    log.seal()
    assert [log.contiguous(0, wanted) for wanted in (1, 7, 8, 9, 32, 33, 36)] == [1, 7, 8, 8, 8, 8, 36]


@given(st.lists(st.integers(1, 14), min_size=1, max_size=30), st.integers(0, 10))
def test_many_frames_fill_the_buffers_and_none_is_cut(sizes: list[int], before: int) -> None:
    log = FrameLog()
    log.append(bytes(before))
    data = bytes(range(1, sum(sizes) + 1)) if sum(sizes) < 256 else bytes(sum(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_log, "CHUNK_BYTES", 10)
        log.append_frames(data, sizes)
    buffers = [bytes(buffer) for _, buffer in log.sealed] + [bytes(log.tail)]
    assert b"".join(buffers) == bytes(before) + data
    bounds = {before + sum(sizes[:count]) for count in range(len(sizes) + 1)}
    places = [start for start, _ in log.sealed] + [log.tail_start]
    assert {*places[1:]} <= bounds
    for start, buffer in zip(places, buffers, strict=True):
        assert len(buffer) <= 10 or start + len(buffer) == min(bound for bound in bounds if bound > start)
    for buffer, following in zip(buffers, places[1:], strict=False):
        first = min((bound for bound in bounds if bound > following), default=following + 11)
        assert len(buffer) + first - following > 10 or len(buffer) > 10
