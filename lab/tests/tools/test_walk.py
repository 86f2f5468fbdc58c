"""The walk of one SET passes through every part of the way, from the client that writes to the rows for Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.tools.patience import patient

WALK = Path(__file__).parents[3] / "lab" / "tools" / "walk.py"
PACKAGES = [
    "dcpstream/client/kv",
    "dcpstream_node/shell",
    "dcpstream_node/engine",
    "dcpstream_node/store",
    "dcpstream/dcp/producer",
    "dcpstream/wire",
    "dcpstream/client/machine",
    "dcpstream/arrow",
]


@pytest.mark.spark
def test_the_walk_passes_through_every_package() -> None:
    done = subprocess.run(
        [sys.executable, str(WALK), "--modules"], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    first = [
        next((at for at, module in enumerate(modules) if module.startswith(f"{name}/")), None) for name in PACKAGES
    ]
    assert None not in first, dict(zip(PACKAGES, first, strict=True))
    assert first[0] == 0
    assert any(module.startswith("dcpstream_spark/") for module in modules)
