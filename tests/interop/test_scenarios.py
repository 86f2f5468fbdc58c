"""Our node against the recordings of a real Couchbase KV engine 7.2, frame by frame.

The driver and the comparison in tests/scenarios are programs of their own; each scenario gets a fresh node.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dcpstream
from tests.fixtures import recorded

SCENARIOS = Path(__file__).parents[1] / "scenarios"
USERS = {
    "readonly": {"password": "password", "privileges": ["DcpProducer", "Read"]},
    "nodcp": {"password": "password", "privileges": ["Read", "Upsert", "Insert", "Delete"]},
}
# Scenarios in which nothing differs. The others need what this node does not do yet: being a DCP consumer, durable
# writes, sub-documents, purging, making and removing buckets.
QUICK = ["s01", "s03", "s04", "s05", "s06", "s07", "s08", "s10", "s15", "s17", "s26", "s28"]
SLOW = ["s02", "s09", "s18", "s23"]
TIMEOUT_S = 120


@pytest.mark.interop
@pytest.mark.parametrize("prefix", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_scenario(prefix: str, tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"
    with dcpstream.Node(
        vbuckets=1024, path=tmp_path / "node", username="@admin", password="password", users=USERS
    ) as node:
        ran = run("run.py", "--port", str(node.port), "--out", str(recordings), "--timeout", str(TIMEOUT_S), prefix)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    compared = run("compare.py", str(recorded.RECORDED / "server"), str(recordings), "--scenario", prefix, "--json")
    (verdict,) = json.loads(compared.stdout)
    different = [difference for difference in verdict["differences"] if not difference["allowed"]]
    assert verdict["steps"] > 0
    assert not different, json.dumps(different[:3], indent=1)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCENARIOS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 30,
        check=False,
    )
