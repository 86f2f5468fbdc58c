"""Time and randomness under the control of a test."""

from __future__ import annotations

from dcpstream_node.testing.simulation import START_S, START_UNIX_S, SeededRandom, VirtualClock


def test_both_clocks_move_together_and_only_by_hand() -> None:
    clock = VirtualClock()
    assert (clock.monotonic(), clock.time_ns()) == (START_S, START_UNIX_S * 10**9)
    clock.now += 2.5
    assert (clock.monotonic(), clock.time_ns()) == (START_S + 2.5, START_UNIX_S * 10**9 + 2_500_000_000)


def test_a_seed_gives_the_same_bits_again() -> None:
    first, again, other = SeededRandom(7), SeededRandom(7), SeededRandom(8)
    drawn = [first.getrandbits(48) for _ in range(3)]
    assert drawn == [again.getrandbits(48) for _ in range(3)]
    assert drawn != [other.getrandbits(48) for _ in range(3)]
