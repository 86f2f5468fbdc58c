"""The official Python SDK's key-value calls against a node: locks, range scans, replica reads, many at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream_node import Node
from tests.kit.sdk import check_program, needs_sdk

CHILD = Path(__file__).with_name("sdk_kv_child.py")

pytestmark = needs_sdk


@pytest.mark.parametrize(
    ("vbuckets", "release"),
    [
        pytest.param(16, "7.2", marks=pytest.mark.slow),
        (16, "7.6"),
        pytest.param(1024, "7.6", marks=pytest.mark.slow),
    ],
)
def test_key_value_calls_of_the_sdk(vbuckets: int, release: str, tmp_path: Path) -> None:
    options = {"vbuckets": vbuckets, "password": "secret1", "release": release}
    with Node(path=tmp_path / "node", **options) as node:  # type: ignore[arg-type]
        check_program(CHILD, node.connection_string, "secret1", release)


@pytest.mark.slow
def test_a_scan_in_the_program_that_started_the_node() -> None:
    check_program(CHILD.with_name("sdk_own_node_child.py"))
