"""The official Python SDK in a process of its own, as a judge of a node."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from lab.tools.patience import patient

TIMEOUT_S = patient(120.0)

needs_sdk = [
    pytest.mark.interop,
    pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed"),
]
"""The marks of tests that use the SDK, for `pytestmark`."""


def run_program(program: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a file, or Python as text, with the SDK."""
    command = ["-c", program] if isinstance(program, str) else [str(program)]
    return subprocess.run(
        [sys.executable, *command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def check_program(program: Path | str, *arguments: str) -> None:
    """Run a program with the SDK, which must end with success and with OK in its last line."""
    done = run_program(program, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK", done.stdout + done.stderr
