"""The official Python SDK against a node: parts of documents, attributes, tombstones, transactions."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from dcpstream.node import Node
from tools.patience import patient

CHILD = Path(__file__).with_name("sdk_subdoc_child.py")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed"),
]


def test_sub_documents_and_transactions() -> None:
    # Several xattr keys in one call came with 7.6.
    with Node(vbuckets=64, password="secret", compat_version="7.6") as node:
        done = subprocess.run(
            [sys.executable, str(CHILD), node.connection_string, "secret"],
            capture_output=True,
            text=True,
            timeout=patient(120),
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK"
