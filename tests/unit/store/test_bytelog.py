"""Where the bytes of a vbucket are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.store import bytelog
from dcpstream.store.bytelog import ByteLog

STEPS = st.lists(st.tuples(st.sampled_from(["append", "seal", "commit", "truncate"]), st.integers(0, 30)), max_size=30)


@given(STEPS, st.integers(0, 200), st.integers(0, 200))
def test_the_pieces_of_a_range_are_its_bytes(steps: list[tuple[str, int]], start: int, length: int) -> None:
    log, whole, files = ByteLog(), b"", b""
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
                log.add_blocks([(held, len(files) + 1000)])
                files += whole[held:]
                log.release(len(whole))
        else:
            whole = whole[: max(len(whole) - amount, 0)]
            log.truncate(len(whole))
    start = min(start, len(whole))
    stop = min(start + length, len(whole))
    found = b"".join(
        files[piece[0] - 1000 : piece[0] - 1000 + piece[1]] if isinstance(piece, tuple) else piece
        for piece in log.pieces(start, stop)
    )
    assert found == whole[start:stop]
    if start < len(whole):
        place = log.locate(start)
        assert (place is None) is (start < log.held_start)
        if place is not None:
            assert place[0][place[1]] == whole[start]


def test_a_large_tail_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytelog, "CHUNK_BYTES", 10)
    log = ByteLog()
    log.append(b"x" * 9)
    assert not log.sealed
    log.append(b"y")
    assert (len(log.sealed), log.tail_start, bytes(log.tail)) == (1, 10, b"")
