"""The time that a read waits for more bytes."""

from __future__ import annotations

import pytest

from dcpstream.client.machine.reader.gathering import (
    BOUNDED_WAIT_S,
    FOLLOWING_WAIT_S,
    GAP_S,
    LEAST_WAIT_S,
    WAIT_SHARE,
    Gathering,
)

BEGIN = 10.0


def waits(gathering: Gathering, seconds: float, gap_s: float = 0.0005, *, has_rows: bool = True) -> list[float]:
    """The waits of pieces that follow each other for some time."""
    now, found = BEGIN, []
    while now < BEGIN + seconds:
        gathering.idle(now - gap_s)
        found.append(gathering.wait_s(now))
        if has_rows:
            gathering.rows_came(now)
        now += gap_s + found[-1]
    return found


@pytest.mark.parametrize("longest_s", [BOUNDED_WAIT_S, FOLLOWING_WAIT_S])
def test_the_wait_grows_to_its_limit(longest_s: float) -> None:
    found = waits(Gathering(longest_s), 1.0)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0.0, longest_s)
    assert len(found) < 2.0 / longest_s


def test_a_piece_after_a_silence_is_read_at_once() -> None:
    gathering = Gathering(BOUNDED_WAIT_S)
    assert waits(gathering, 1.0)[-1] == BOUNDED_WAIT_S
    gathering.idle(20.0)
    assert gathering.wait_s(20.0 + 2 * GAP_S) == 0.0


def test_pieces_after_long_gaps_are_all_read_at_once() -> None:
    assert set(waits(Gathering(BOUNDED_WAIT_S), 1.0, gap_s=GAP_S * 1.01)) == {0.0}


def test_answers_before_the_first_rows_are_read_at_once() -> None:
    assert set(waits(Gathering(BOUNDED_WAIT_S), 1.0, has_rows=False)) == {0.0}


@pytest.mark.parametrize("seconds", [0.005, 0.02, 0.1])
def test_the_end_of_a_short_read_is_hardly_later(seconds: float) -> None:
    for wait_s in waits(Gathering(BOUNDED_WAIT_S), seconds):
        assert wait_s <= seconds * WAIT_SHARE
        assert not 0.0 < wait_s < LEAST_WAIT_S
