"""The official Python SDK manages a node: buckets, scopes and collections, users."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from dcpstream.node import Node
from tools.patience import patient

CHILD = Path(__file__).with_name("sdk_manage_child.py")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed"),
]


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_the_sdk_manages_a_node(tmp_path: Path, is_on_disk: bool) -> None:
    with Node(vbuckets=64, path=tmp_path if is_on_disk else None) as node:
        done = subprocess.run(
            [sys.executable, str(CHILD), node.connection_string, node.password],
            capture_output=True,
            text=True,
            timeout=patient(120),
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK"
