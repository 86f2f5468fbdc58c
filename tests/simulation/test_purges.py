"""No deleted document stays with a reader whose first snapshot was cut, whatever the nodes have purged.

Two models: a small one for very many lives, and the client itself over a pretend node. A failing life prints its seed;
replay it with `python -c "from tests.kit.purge_model import *; print(run(SEED))"`, or with `tests.kit.purge_world`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from unittest import mock

import pytest

from tests.kit.cases import each_case

pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")

from tests.kit import purge_model, purge_world
from tests.kit.consumer_world import Kind
from tests.simulation.test_resume_model import first_seed

SMALL_RUNS, SLOW_SMALL_RUNS = 300, 20_000
FAST_RUNS, SLOW_RUNS = 6, 1_000

RELEASES = pytest.mark.parametrize("has_v22", [False, True], ids=["7.2", "8.0"])


def check_small(runs: int, *, has_v22: bool) -> None:
    counts: Counter[str] = Counter()
    first = first_seed()
    print(f"{runs} lives from seed {first} (repeat with DCPSTREAM_SEED={first})")
    for seed in range(first, first + runs):
        assert purge_model.run(seed, has_v22=has_v22, counts=counts) is None
    print(dict(counts))
    assert counts["resumed"] > runs / 50
    assert counts["refused"] > runs / 50


@RELEASES
def test_no_deleted_document_stays(has_v22: bool) -> None:
    check_small(SMALL_RUNS, has_v22=has_v22)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@RELEASES
def test_no_deleted_document_stays_in_many_lives(has_v22: bool) -> None:
    check_small(SLOW_SMALL_RUNS, has_v22=has_v22)


FIRST_SEEDS = {
    purge_model.LATER_LIMIT: 251,
    purge_model.ANY_LIMIT: 586,
    purge_model.NO_COMPARISON: 118,
    purge_model.OTHER_VBUCKET: 118,
    purge_model.ASKED_BEFORE: 2028,
    purge_model.MAYBE_DEAD: 2965,
    purge_model.NO_BOUNDS: 348,
    purge_model.FROM_MEMORY: 12369,
    purge_model.SECOND_SNAPSHOT: 608,
}
"""Seeds that show what goes wrong without a part of the rule."""


@each_case("fault", purge_model.FAULTS)
def test_the_small_model_notices_a_missing_part_of_the_rule(fault: str) -> None:
    seed = FIRST_SEEDS[fault]
    assert purge_model.run(seed) is None
    assert purge_model.run(seed, fault=fault) is not None


def check(kind: Kind, runs: int, *, has_v22: bool) -> None:
    first = first_seed()
    print(f"{runs} lives from seed {first} (repeat with DCPSTREAM_SEED={first})")
    for seed in range(first, first + runs):
        assert purge_world.run(seed, kind, has_v22=has_v22, keeps_newest=seed % 2 == 0) is None


@RELEASES
@pytest.mark.parametrize("kind", ["batches", "changes"])
def test_a_consumer_keeps_no_deleted_document(kind: Kind, has_v22: bool) -> None:
    check(kind, FAST_RUNS, has_v22=has_v22)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@RELEASES
@pytest.mark.parametrize("kind", ["batches", "changes"])
def test_a_consumer_keeps_no_deleted_document_in_many_runs(kind: Kind, has_v22: bool) -> None:
    check(kind, SLOW_RUNS, has_v22=has_v22)


@each_case("name", purge_world.WRONG)
def test_the_model_notices_a_wrong_client(name: str) -> None:
    """Seeds are fixed here: this tests the model, which must not depend on luck."""
    with contextlib.ExitStack() as patches:
        for wrong in purge_world.WRONG[name]:
            patches.enter_context(mock.patch.object(wrong.owner, wrong.attribute, wrong.replacement))
        seed = purge_world.WRONG[name][0].first_seed
        assert purge_world.run(seed, "changes", has_v22=False) is not None
