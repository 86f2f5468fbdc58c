from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from dcpstream_spark.source.prefetch import prefetched
from tests.kit.cases import each_case


def numbers(count: int, seen: list[str] | None = None, error: BaseException | None = None) -> Generator[int]:
    try:
        yield from range(count)
        if error is not None:
            raise error
    finally:
        if seen is not None:
            seen.append(threading.current_thread().name)


@each_case("count", [0, 1, 2, 3, 100])
def test_all_items_in_order(count: int) -> None:
    assert list(prefetched(numbers(count))) == list(range(count))


def test_an_error_comes_after_the_items_before_it() -> None:
    items = prefetched(numbers(3, error=KeyError("no more")))
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="no more"):
        next(items)


def test_who_stops_early_closes_the_generator_in_its_thread() -> None:
    seen: list[str] = []
    items = prefetched(numbers(1000, seen))
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert seen == ["dcpstream-prefetch"]
    assert not [thread for thread in threading.enumerate() if thread.name == "dcpstream-prefetch"]


def test_it_reads_ahead_but_not_far() -> None:
    is_ahead = threading.Event()
    made: list[int] = []

    def items() -> Generator[int]:
        for number in range(100):
            made.append(number)
            if number == 3:
                is_ahead.set()
            yield number

    ahead = prefetched(items(), depth=2)
    assert next(ahead) == 0
    # One is out, two are ready, the fourth waits to be put.
    assert is_ahead.wait(10)
    assert len(made) == 4
    assert list(ahead) == list(range(1, 100))
