"""Chance, and the names of branches drawn from it."""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.runtime import new_vbuuid


class Scripted:
    """Hands out the given numbers."""

    def __init__(self, *numbers: int) -> None:
        self._numbers: Iterator[int] = iter(numbers)

    def getrandbits(self, count: int) -> int:
        number = next(self._numbers)
        assert number < 1 << count
        return number


def test_a_vbuuid_is_never_zero() -> None:
    assert new_vbuuid(Scripted(0, 0, 7)) == 7
