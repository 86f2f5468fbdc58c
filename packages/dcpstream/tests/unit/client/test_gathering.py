"""The time that a read waits for more bytes."""

from __future__ import annotations

import pytest

from dcpstream.client.gathering import (
    BOUNDED_WAIT_S,
    FOLLOWING_WAIT_S,
    GAP_S,
    LEAST_WAIT_S,
    WAIT_SHARE,
    Gathering,
)


def waits(gathering: Gathering, since: float, seconds: float, longest_s: float, gap_s: float = 0.0005) -> list[float]:
    """The waits of pieces that follow each other for some time."""
    now, found = since, []
    while now < since + seconds:
        found.append(gathering.wait_s(now - gap_s, now, longest_s))
        now += gap_s + found[-1]
    return found


def test_a_piece_after_a_silence_is_read_at_once() -> None:
    gathering = Gathering()
    assert gathering.wait_s(10.0 - GAP_S, 10.0, BOUNDED_WAIT_S) == 0.0
    assert waits(gathering, 10.0, 1.0, BOUNDED_WAIT_S)[-1] == BOUNDED_WAIT_S
    assert gathering.wait_s(20.0, 20.0 + 2 * GAP_S, BOUNDED_WAIT_S) == 0.0


def test_pieces_after_long_gaps_are_all_read_at_once() -> None:
    assert set(waits(Gathering(), 10.0, 1.0, BOUNDED_WAIT_S, gap_s=GAP_S * 1.01)) == {0.0}


@pytest.mark.parametrize("longest_s", [BOUNDED_WAIT_S, FOLLOWING_WAIT_S])
def test_the_wait_grows_to_its_limit(longest_s: float) -> None:
    gathering = Gathering()
    gathering.wait_s(0.0, 10.0, longest_s)
    found = waits(gathering, 10.0, 1.0, longest_s)
    assert found == sorted(found)
    assert found[-1] == longest_s
    assert len(found) < 2.0 / longest_s


@pytest.mark.parametrize("seconds", [0.005, 0.02, 0.1])
def test_a_short_answer_is_hardly_later(seconds: float) -> None:
    gathering = Gathering()
    gathering.wait_s(0.0, 10.0, BOUNDED_WAIT_S)
    for wait_s in waits(gathering, 10.0, seconds, BOUNDED_WAIT_S):
        assert wait_s <= seconds * WAIT_SHARE
        assert not 0.0 < wait_s < LEAST_WAIT_S


def test_questions_wait_for_nothing() -> None:
    gathering = Gathering()
    gathering.wait_s(0.0, 10.0, 0.0)
    assert set(waits(gathering, 10.0, 0.1, 0.0)) == {0.0}
