"""The rules' tests on a server behind sockets: here on our own node, which holds them until a fault is planted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dcpstream import KvClient
from dcpstream_node import Node
from lab.layout import ROOT
from lab.tools.patience import patient
from tests.fixtures.rules_on_server import ENDS_SERVER

STREAMS = "tests/conformance/test_stream_req.py::"
HELD = ("test_without_an_end_the_stream_stays_open", "test_a_rollback_carries_the_seqno")
UNDECIDED = ("test_no_stream_begins_while_memory_is_short", "test_unknown_flags_are_refused")
RUN_TIMEOUT_S = patient(60)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=4, username="@admin", password="secret", system_scope=False) as node:
        yield node


def judge(node: Node, *names: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run some rules' tests against the node."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.fixtures.rules_on_server"]
    command += ["-m", "rule", "--server", f"couchbase://127.0.0.1:{node.port}", *options]
    return subprocess.run(
        [*command, *(name if "::" in name else STREAMS + name for name in names)],
        cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip


def test_our_node_holds_rules_and_what_cannot_be_seen_is_not_held(node: Node) -> None:
    done = judge(node, *HELD, *UNDECIDED)
    assert done.returncode == 0, done.stdout
    assert "rules: 2 held (0 of them in a part of their tests), 0 differ, 2 not decidable from outside" in done.stdout
    assert "not decidable: REQ-05 REQ-35" in done.stdout
    assert "1 tests need peer.session" in done.stdout


def test_a_planted_fault_is_reported_with_its_frames(node: Node, tmp_path: Path) -> None:
    node.inject("lose", opcode="DCP_SNAPSHOT_MARKER")
    done = judge(node, *HELD, options=("--junitxml", str(tmp_path / "rules.xml")))
    assert done.returncode == 1, done.stdout
    assert "differs: REQ-24\n" in done.stdout
    assert "DCP_MUTATION request vb=1" in done.stdout
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "rules.xml").iter("testcase")}
    assert [name for name, case in cases.items() if case.find("failure") is not None] == [HELD[0]]
    assert [each.get("value") for each in cases[HELD[0]].iter("property")] == ["REQ-24"]


def test_what_ends_a_server_is_left_out(node: Node) -> None:
    done = judge(node, "tests/conformance/test_deletion.py::test_nmeta_must_be_zero", HELD[0])
    assert done.returncode == 0, done.stdout
    assert "1 tests need another server: it ends the server" in done.stdout
    assert "rules: 1 held (0 of them in a part of their tests), 0 differ, 1 not decidable from outside" in done.stdout


def test_what_ends_a_server_is_a_test() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/conformance").glob("test_*.py"))
    assert all(f"def {name}(" in source for name in ENDS_SERVER)


def test_a_bucket_with_documents_is_left_alone(node: Node) -> None:
    with KvClient(node.connection_string, node.username, node.password, "default") as documents:
        documents.set("k", "{}")
        done = judge(node, HELD[0])
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert "has 1 documents" in done.stderr
        assert documents.get("k").value == b"{}"
