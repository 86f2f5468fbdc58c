"""The decode bench: its frames are frames, and it reports the names that are asked of it."""

from __future__ import annotations

import pytest

from lab.bench import decode
from lab.bench.goals import GOALS
from tests.kit.wire_columns import decode_wire, received


@pytest.mark.parametrize("value_bytes", decode.VALUE_SIZES)
def test_the_corpus_is_whole_frames_of_the_size_that_it_says(value_bytes: int) -> None:
    buffers = decode.corpus(value_bytes, 2_500_000, 1_000_000)
    assert len(buffers) == 3
    for buffer in buffers:
        rows, end = received(buffer)
        assert end == len(buffer)
        chunk = decode_wire(buffer)
        assert 0 <= len(rows.controls) <= 1 + len(chunk) // decode.ROWS_PER_SNAPSHOT + 1
        assert {len(value.as_py()) for value in chunk.value[:100]} == {value_bytes}
        assert {len(key.as_py()) for key in chunk.key[:100]} == {17}
    assert buffers[0] != buffers[1]


def test_every_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "QUICK_CORPUS_BYTES", 1)
    monkeypatch.setattr(decode, "RECEIVE_BYTES", 50_000)
    monkeypatch.setattr(decode, "SMALL_RECEIVE_BYTES", 20_000)
    monkeypatch.setattr(decode, "TAIL_CALLS", 2)
    result = decode.run(quick=True)
    assert not result["missing"]
    assert {goal.name for goal in GOALS if goal.part == "decode"} <= set(result["ratios"])
    assert all(value > 0 for value in result["ratios"].values())
    assert {figure["name"] for figure in result["figures"]} >= {"decode.256.schema", "decode.256.single_message_us"}
