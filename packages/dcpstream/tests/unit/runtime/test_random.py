"""Chance, and the names of branches drawn from it."""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.runtime import SystemRandom, new_vbuuid
from tests.kit.cases import each_case


class Scripted:
    """Hands out the given numbers."""

    def __init__(self, *numbers: int) -> None:
        self._numbers: Iterator[int] = iter(numbers)

    def getrandbits(self, count: int) -> int:
        number = next(self._numbers)
        assert number < 1 << count
        return number


@each_case("count", [1, 8, 48, 128])
def test_numbers_have_no_more_bits_than_asked_for(count: int) -> None:
    assert all(0 <= SystemRandom().getrandbits(count) < 1 << count for _ in range(50))


def test_a_vbuuid_is_never_zero() -> None:
    assert new_vbuuid(Scripted(0, 0, 7)) == 7


def test_a_vbuuid_may_use_all_48_bits() -> None:
    assert new_vbuuid(Scripted((1 << 48) - 1)) == (1 << 48) - 1


def test_vbuuids_differ() -> None:
    assert len({new_vbuuid(SystemRandom()) for _ in range(100)}) == 100
