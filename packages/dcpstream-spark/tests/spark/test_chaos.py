"""A few rounds of the chaos suite; `make chaos` plays more, and kills drivers, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.chaos.host import Host, SparkHost
from lab.chaos.plain import PlainHost
from lab.chaos.rounds import play
from lab.chaos.scenario import Draw, draw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def check(sink: str, seed: int, host: Host) -> None:
    scenario = draw(seed, Draw(sinks=(sink,)))
    result = play(scenario, host)
    assert not result.differences, "\n".join([*scenario.lines(), *result.events, *result.differences])
    assert result.rows
    assert result.rollbacks


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sink", "seed"), [("delta-rs", 4), ("parquet", 5)])
def test_a_round(spark: SparkSession, sink: str, seed: int) -> None:
    check(sink, seed, SparkHost(spark))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sink", "seed"),
    [*(pytest.param("delta-rs", seed, marks=pytest.mark.slow) for seed in (1, 7)), ("parquet", 2)],
)
def test_a_round_without_spark(sink: str, seed: int) -> None:
    check(sink, seed, PlainHost())
