"""Whole clusters from a seed, under the eyes of judges: the first seeds, and those that found a bug.

More of them: `make sim SEEDS=10000`. A failure prints the command that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.simulation.scenario import play

SEEDS = 200
GROUP = 10

FOUND = {
    37: "a failover gave up to make a live node's copies dead when one connection was lost: two active copies",
    42: "a reader asked a node that had left for the map, for ever, and no other one",
    143: "the same of a node that was failed over, and named itself in its last map",
    308: "a node that clients were told of did not have the map yet, and told its own: another bucket, it seemed",
    26: "a promoted copy wrote at once that a collection was dropped: the judge took it for what the copy had before",
    53: "a reader that was to read a new collection first gave up when the collection was dropped meanwhile",
    174: "a judge forgot that a node without power had told that it has a prepare in memory",
    204: "the connection was lost over which a new node was to get its first map: its own made clients give up",
    322: "a copy that was promoted wrote the outcome of a durable write at once",
    577: "a copy that took over dropped a collection at once: the judge took that for a loss",
    755: "a replica that was rolled back acknowledged prepares of a snapshot of which it had a part",
    1050: "a check of the simulator took an aborted prepare for a document",
    1052: "a node whose connection was lost never heard of new collections",
    20442: "a judge missed documents of a collection that was dropped since",
}
"""Seed → the bug that it found when that was there. The draws may have changed since."""


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(GROUP, SEEDS, GROUP))]
)
def test_seeds_keep_every_promise(first: int) -> None:
    for seed in range(first, first + GROUP):
        report = play(seed)
        assert not report.failure, f"{report.failure}\npython -m lab.simulation --seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_a_bug(seed: int) -> None:
    assert not play(seed).failure


def trace_of(seed: int, hash_seed: str) -> str:
    """The trace in a process of its own, where sets have another order."""
    return subprocess.run(
        [sys.executable, "-m", "lab.simulation", "--seed", str(seed), "--trace"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 21])
def test_the_same_seed_does_the_same_in_every_process(seed: int) -> None:
    first = trace_of(seed, "1")
    assert first == trace_of(seed, "2")
    assert len(first.splitlines()) > 200
