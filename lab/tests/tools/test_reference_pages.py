"""The generated pages of the reference say what the code says now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.tools.patience import patient

TOOLS = Path(__file__).parents[3] / "lab" / "tools"


@pytest.mark.parametrize(
    "script",
    [
        "message_reference.py",
        "module_reference.py",
        "release_reference.py",
        "support_reference.py",
        "state_diagrams.py",
        pytest.param("user_reference.py", marks=pytest.mark.spark),
    ],
)
def test_pages_are_up_to_date(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOLS / script), "--check"],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun: make reference"
