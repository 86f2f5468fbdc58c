"""Kill -9 while buckets are made and deleted, and during first starts: `lab/tools/kill_creation.py` with a few runs."""

from __future__ import annotations

import random

import pytest

from lab.tools.kill_creation import CreationLoop, Fault, run

FAST_RUNS = 1
SLOW_RUNS = 60


def test_no_kill_while_buckets_are_made_does_harm():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    answered, _ = run(FAST_RUNS, seed)
    assert answered > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_kill_of_many_while_buckets_are_made_does_harm():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    answered, _ = run(SLOW_RUNS, seed)
    assert answered > SLOW_RUNS


@pytest.mark.parametrize("fault", ["lost", "not removed"])
def test_the_loop_notices(tmp_path, fault):
    loop = CreationLoop(tmp_path, seed=1)
    while not loop.buckets.certain - {loop.buckets.in_doubt}:
        loop.run()
    if fault == "lost":
        loop.buckets.certain.add("another")
    else:
        loop.buckets.certain -= {next(iter(loop.buckets.certain - {loop.buckets.in_doubt}))}
    with pytest.raises(Fault, match="are there instead of"):
        loop.finish()
