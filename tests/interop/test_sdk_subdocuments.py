"""The official Python SDK against a node: parts of documents, attributes, tombstones, transactions."""

from __future__ import annotations

from pathlib import Path

from dcpstream_node import Node
from tests.kit.sdk import check_program, needs_sdk

CHILD = Path(__file__).with_name("sdk_subdoc_child.py")

pytestmark = needs_sdk


def test_sub_documents_and_transactions() -> None:
    # Several xattr keys in one call came with 7.6.
    with Node(vbuckets=64, password="secret", release="7.6") as node:
        check_program(CHILD, node.connection_string, "secret")
