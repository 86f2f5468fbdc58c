"""The page of the node is its table of commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_generated_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "lab" / "tools" / "node_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
