"""Scenarios: a seed does the same again, and errors of any kind become failures."""

from __future__ import annotations

import pytest

from lab.simulation.judges import Violation
from lab.simulation.scenario import Scenario, play


def test_a_seed_repeats_itself() -> None:
    first, second, other = (play(seed, is_traced=True) for seed in (5, 5, 6))
    assert first.trace == second.trace
    assert first.counts == second.counts
    assert first.trace != other.trace
    assert not first.failure


def test_a_trace_changes_nothing() -> None:
    assert play(7).counts == play(7, is_traced=True).counts


@pytest.mark.parametrize("error", [Violation("a promise is broken"), KeyError("n7")])
def test_an_error_is_a_failure(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: Scenario, number: int) -> None:
        raise error

    monkeypatch.setattr(Scenario, "_operate", fail)
    report = play(1)
    assert str(error) in report.failure


def test_seeds_do_all_that_can_be_done() -> None:
    done = {name for seed in range(60) for name in play(seed).counts}
    assert {
        "cancel rebalance",
        "crash in rebalance",
        "fail over alive",
        "fail over crashed",
        "fail over gracefully",
        "fail over stale",
        "rebalance in",
        "rebalance out",
        "swap",
        "cut",
        "stall",
        "reader",
    } <= done
