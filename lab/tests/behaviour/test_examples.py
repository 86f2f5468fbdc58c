"""The examples run: here with this environment, and (slow) in a fresh one with the wheel built from here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.layout import python_path
from lab.tools.patience import patient

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
RUN_TIMEOUT_S = patient(100)
FRESH_TIMEOUT_S = patient(600)

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed"),
]


@pytest.mark.parametrize("name", ["five-lines", "sdk-tests"])
def test_example(name: str, tmp_path: Path) -> None:
    ini = EXAMPLES / name / "pytest.ini"
    if not ini.exists():
        ini = tmp_path / "pytest.ini"
        ini.write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "dcpstream_node.pytest_plugin", "-p", "no:cacheprovider"]
    # The conftest.py of the repository is not for the examples.
    folder = EXAMPLES / name
    done = subprocess.run(
        [*command, "-c", str(ini), str(folder), "--rootdir", str(folder), "--confcutdir", str(folder)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(FRESH_TIMEOUT_S + 10)
def test_examples_in_a_fresh_environment() -> None:
    done = subprocess.run(
        ["sh", "lab/tools/example.sh", sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=FRESH_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    if last.startswith("examples skipped"):
        pytest.skip(last)
    assert last == "examples: ok"
