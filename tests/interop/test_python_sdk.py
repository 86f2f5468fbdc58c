"""The official Python SDK against a node: connect, write, read, remove, CAS, expiry, errors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from dcpstream.node import Node

CHILD = Path(__file__).with_name("sdk_child.py")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed"),
]


@pytest.mark.parametrize("vbuckets", [64, 1024])
def test_sdk_works(vbuckets: int) -> None:
    with Node(vbuckets=vbuckets, password="pässword") as node:
        done = subprocess.run(
            [sys.executable, str(CHILD), node.connection_string, "pässword"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK"
