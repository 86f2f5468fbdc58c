"""The official Python SDK manages a node: buckets, scopes and collections, users."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream_node import Node
from tests.kit.sdk import check_program, needs_sdk

CHILD = Path(__file__).with_name("sdk_manage_child.py")

pytestmark = needs_sdk


@pytest.mark.parametrize("is_on_disk", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_sdk_manages_a_node(tmp_path: Path, is_on_disk: bool) -> None:
    with Node(vbuckets=64, path=tmp_path if is_on_disk else None) as node:
        check_program(CHILD, node.connection_string, node.password)
