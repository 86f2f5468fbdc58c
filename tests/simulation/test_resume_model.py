"""The resume rule loses nothing, and the model that says so would notice if it did.

A failing run prints its seed; replay it with
`python -c "from tests.kit.resume_world import *; print(run(SEED, RIGHT, PlannedReader))"`.
"""

from __future__ import annotations

import os
import secrets

import pytest

from tests.kit.cases import each_case
from tests.kit.resume_world import RIGHT, WRONG, LiveReader, PlannedReader, run

FAST_RUNS = 300
SLOW_RUNS = 100_000
TEETH_RUNS = 20_000
KINDS: dict[str, type[PlannedReader] | type[LiveReader]] = {"planned batches": PlannedReader, "live stream": LiveReader}


def first_seed() -> int:
    """Another part of the seeds at each run; DCPSTREAM_SEED repeats one."""
    return int(os.environ.get("DCPSTREAM_SEED") or secrets.randbits(40))


def check(kind: str, runs: int) -> None:
    first = first_seed()
    print(f"{runs} runs from seed {first} (repeat with DCPSTREAM_SEED={first})")
    for seed in range(first, first + runs):
        assert run(seed, RIGHT, KINDS[kind]) is None


@each_case("kind", KINDS)
def test_nothing_is_lost(kind: str) -> None:
    check(kind, FAST_RUNS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_in_many_runs(kind: str) -> None:
    check(kind, SLOW_RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_the_model_notices_a_wrong_rule(name: str) -> None:
    """Seeds are fixed here: this tests the model, which must not depend on luck."""
    assert any(run(seed, WRONG[name], PlannedReader) is not None for seed in range(TEETH_RUNS))
