"""Rounds follow from their seeds."""

from __future__ import annotations

from lab.chaos.scenario import SPARK, WORLD, Draw, draw


def test_a_seed_gives_one_round() -> None:
    assert draw(5) == draw(5)
    assert len({draw(seed).phases for seed in range(50)}) == 50


def test_all_trouble_comes() -> None:
    choice = Draw(spark=(*SPARK.items(), ("kill_driver", 1)))
    rounds = [draw(seed, choice) for seed in range(300)]
    happened = {event.what for one in rounds for phase in one.phases for event in phase.events}
    assert happened >= {*WORLD, *SPARK, "kill_driver", "write", "copy", "persist"} - {"nothing"}
    assert {one.sink for one in rounds} == {"delta-rs", "delta", "parquet"}
    assert any(phase.replays for one in rounds for phase in one.phases)
    for one in rounds:
        last = one.phases[-1]
        assert (last.until, last.die_at, last.replays) == ("available", "", False)
        assert all(event.what == "write" and not event.after for event in last.events)


def test_the_shares_of_a_series() -> None:
    rounds = [draw(seed, Draw(executors_share=0.1)) for seed in range(600)]
    executors = [one for one in rounds if one.has_executors]
    assert 30 < len(executors) < 90
    assert any(event.what == "kill_executor" for one in executors for phase in one.phases for event in phase.events)
    tables = [one for one in rounds if one.sink != "parquet"]
    assert 0.3 < sum(bool(one.schemas) for one in tables) / len(tables) < 0.5
    assert all(one.fold_rows == 1 for one in rounds if one.fold_pause_s)
    assert any(one.fold_pause_s for one in tables)
    first_deaths = [one for one in tables if one.phases[0].die_at]
    assert first_deaths, "a query may die in its first batch"
