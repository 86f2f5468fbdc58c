from __future__ import annotations

import pytest

from lab.bench.common import Figure, measure_in_turns, median_of_ratios, report


def test_calls_take_turns_and_every_round_is_kept() -> None:
    order: list[str] = []
    first, second = measure_in_turns(lambda: order.append("a"), lambda: order.append("b"), repeats=3, warm_ups=1)
    assert order == ["a", "b", "a", "b", "a", "b", "a", "b"]
    assert first.repeats == second.repeats == 3
    assert len(first.cpu_rates(10)) == 3


def test_ratio_is_taken_round_by_round() -> None:
    assert median_of_ratios((1.0, 20.0, 3.0), (2.0, 40.0, 3.0)) == 0.5


def test_what_was_not_measured_is_missing_and_not_zero() -> None:
    figure = Figure(name="decode.256", value=3.0, unit="GB/s", baseline="memcpy", baseline_value=12.0, repeats=7)
    document = report([figure], {"decode.256.of_memcpy": 0.25, "decode.64.of_memcpy": None})
    assert document["ratios"] == {"decode.256.of_memcpy": 0.25}
    assert document["missing"] == {"decode.64.of_memcpy": "not measured"}
    assert document["figures"][0]["ratio"] == pytest.approx(0.25)
