"""The generated pages of the reference say what the code says now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.mark.parametrize("script", ["message_reference.py", "user_reference.py"])
def test_pages_are_up_to_date(script: str) -> None:
    if script == "user_reference.py":
        pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, str(TOOLS / script), "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun: make reference"
