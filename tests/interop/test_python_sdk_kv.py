"""The official Python SDK's key-value calls against a node: locks, range scans, replica reads, many at once."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from dcpstream.node import Node
from tools.patience import patient

CHILD = Path(__file__).with_name("sdk_kv_child.py")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed"),
]


@pytest.mark.parametrize(("vbuckets", "compat_version"), [(16, "7.2"), (16, "7.6"), (1024, "7.6")])
def test_key_value_calls_of_the_sdk(vbuckets: int, compat_version: str, tmp_path: Path) -> None:
    options = {"vbuckets": vbuckets, "password": "secret1", "compat_version": compat_version}
    with Node(path=tmp_path / "node", **options) as node:  # type: ignore[arg-type]
        done = subprocess.run(
            [sys.executable, str(CHILD), node.connection_string, "secret1", compat_version],
            capture_output=True,
            text=True,
            timeout=patient(120),
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK"
