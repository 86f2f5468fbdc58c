"""Limits of tests and tools scale with PATIENCE."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.tools.patience import patient

ROOT = Path(__file__).parents[3]


def limit(seconds: float, patience: str) -> subprocess.CompletedProcess[str]:
    code = f"from lab.tools.patience import patient; print(patient({seconds}))"
    environment = {**os.environ, "PATIENCE": patience, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=patient(60), check=False
    )


@pytest.mark.parametrize(("patience", "scaled"), [("1", 3.0), ("10", 30.0), ("0.5", 1.5), ("", 12.0)])
def test_a_limit_is_scaled(patience: str, scaled: float) -> None:
    assert float(limit(3, patience).stdout) == scaled


@pytest.mark.parametrize("patience", ["0", "-1", "much", "inf", "nan"])
def test_what_is_no_positive_number_is_refused(patience: str) -> None:
    done = limit(3, patience)
    assert done.returncode != 0
    assert "give a positive number" in done.stderr


def test_the_time_limit_of_a_test_is_scaled(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("timeout")
    assert marker is not None
    assert marker.args[0] >= patient(float(request.config.getini("timeout")))
