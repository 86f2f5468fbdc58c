"""Consumers that stop at any row stay exact, and the model that says so would notice if they did not.

A failing run prints its seed; replay it with
`python -c "from tests.kit.consumer_world import *; print(run(SEED, 'batches'))"`.
"""

from __future__ import annotations

from unittest import mock

import pytest

pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")

from tests.kit.consumer_world import WRONG, Kind, run
from tests.simulation.test_resume_model import first_seed

FAST_RUNS = 8
SLOW_RUNS = 4_000
TEETH_RUNS = 150

KINDS = pytest.mark.parametrize("kind", ["batches", "changes"])
MODES = pytest.mark.parametrize(
    "options",
    [{}, {"keeps_newest": True}, {"reads_stable": True}],
    ids=["all versions", "one version of each document", "stable rows only"],
)


def check(kind: Kind, runs: int, options: dict[str, bool]) -> None:
    first = first_seed()
    print(f"{runs} runs from seed {first} (repeat with DCPSTREAM_SEED={first})")
    for seed in range(first, first + runs):
        assert run(seed, kind, **options) is None


@KINDS
@MODES
def test_what_a_consumer_holds_is_what_the_bucket_holds(kind: Kind, options: dict[str, bool]) -> None:
    check(kind, FAST_RUNS, options)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@KINDS
@MODES
def test_what_a_consumer_holds_is_what_the_bucket_holds_in_many_runs(kind: Kind, options: dict[str, bool]) -> None:
    check(kind, SLOW_RUNS, options)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_the_model_notices_a_wrong_client(name: str) -> None:
    """Seeds are fixed here: this tests the model, which must not depend on luck."""
    wrong = WRONG[name]
    with mock.patch.object(wrong.owner, wrong.attribute, wrong.replacement):
        seeds = range(wrong.first_seed, wrong.first_seed + TEETH_RUNS)
        assert any(run(seed, wrong.kind) is not None for seed in seeds)
