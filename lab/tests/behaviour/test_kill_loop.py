"""Kill -9 at random moments under load: `lab/tools/kill_loop.py` with fewer runs, and a look at whether it can fail."""

from __future__ import annotations

import random

import pytest

from lab.tools.kill_loop import KillLoop, Loss, run

FAST_RUNS = 5
SLOW_RUNS = 300


def test_nothing_persisted_is_lost_when_killed():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    checked, persisted = run(FAST_RUNS, seed, shows_progress=False)
    print(f"{FAST_RUNS} kills, {checked} writes checked, {persisted} persisted")
    assert checked >= persisted > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_persisted_is_lost_when_killed_often():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    checked, persisted = run(SLOW_RUNS, seed, shows_progress=True)
    assert checked >= persisted > 0


@pytest.mark.parametrize("fault", ["lost", "other value", "old branch"])
def test_the_loop_notices(tmp_path, fault):
    loop = KillLoop(tmp_path, "every", seed=1)
    loop.run()
    vbucket = next(item for item in loop.vbuckets if item.persisted)
    if fault == "lost":
        vbucket.persisted = len(vbucket.writes) + 1
    elif fault == "other value":
        vbucket.writes[vbucket.persisted - 1] = (b"another key", b"v")
    else:
        vbucket.vbuuid ^= 1
    with pytest.raises(Loss, match=r"vbucket"):
        loop.finish()
