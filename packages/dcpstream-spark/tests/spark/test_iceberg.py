"""Iceberg tables, where a runtime exists for the installed Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.skipif(not pyspark.__version__.startswith("4.1."), reason="Iceberg's runtime exists for Spark 4.1 only")
@pytest.mark.timeout(900)
def test_the_tables_are_exact_after_every_batch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.iceberg_stories", str(tmp_path)]
    # The path of this process has the folder whose `tests` this module is in.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.count("exact") == 3, done.stderr[-4000:]
