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
from tests.kit import recorded
from tools.patience import patient

SCENARIOS = Path(__file__).parents[1] / "scenarios"
USERS = {
    "readonly": {"password": "password", "privileges": ["DcpProducer", "Read"]},
    "nodcp": {"password": "password", "privileges": ["Read", "Upsert", "Insert", "Delete"]},
}
SLOW = ["s02", "s09", "s11", "s13", "s18", "s19", "s20", "s23", "s25", "s31"]
QUICK = [name[:3] for name in recorded.scenario_names() if name[:3] not in SLOW]
# Steps in which our node answers otherwise; docs/reference/differences.md names each of these scenarios and says why.
KNOWN_DIFFERENCES = {"s34": 1}
DIFFERENCES_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"
TIMEOUT_S = patient(120)


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
    assert len(different) <= KNOWN_DIFFERENCES.get(prefix, 0), json.dumps(different, indent=1)[:4000]


@pytest.mark.parametrize("prefix", sorted(KNOWN_DIFFERENCES))
def test_every_known_difference_is_explained(prefix: str) -> None:
    assert f"`{prefix}`" in DIFFERENCES_PAGE.read_text(encoding="utf-8")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCENARIOS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 30,
        check=False,
    )
