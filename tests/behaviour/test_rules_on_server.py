"""`dcpstream judge --rules` behind sockets: here on our own node, which holds the rules until a fault is planted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree as ET

import pytest

from dcpstream import KvClient
from dcpstream.errors import AuthenticationFailed
from dcpstream_node import Node
from dcpstream_node.judge import Endpoint, Target
from dcpstream_node.rulebook import runner
from dcpstream_node.rulebook.runner import ENDS_SERVER
from lab.layout import ROOT, python_path
from lab.tools.patience import patient

HELD = ("REQ-18", "REQ-24")
UNDECIDED = ("REQ-35",)
RUN_TIMEOUT_S = patient(60)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=4, username="@admin", password="secret", system_scope=False) as node:
        yield node


def command(node: Node, *words: str, user: str = "@admin") -> list[str]:
    """The command that runs the tests of some rules against the node."""
    place = f"couchbase://127.0.0.1:{node.port}"
    access = "--user", user, "--password", "secret", "--bucket", "default"
    return [sys.executable, "-m", "dcpstream", "judge", place, "--rules", *words, *access]


def judge(node: Node, *words: str, user: str = "@admin") -> subprocess.CompletedProcess[str]:
    """Run the tests of some rules against the node."""
    return subprocess.run(
        command(node, *words, user=user),
        cwd="/", env={"PYTHONPATH": python_path(ROOT)}, capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
        check=False,
    )  # fmt: skip


def results(node: Node, *words: str) -> dict[str, Any]:
    """The JSON that the command prints."""
    done = judge(node, *words, "--json")
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    assert found, done.stderr
    return found


def test_our_node_holds_rules_and_what_cannot_be_seen_is_not_held(node: Node) -> None:
    done = judge(node, *HELD, *UNDECIDED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 rules: 2 held (0 of them in a part of their tests), 0 differ, 1 not decidable from outside" in done.stdout
    assert (
        "not decidable from outside: REQ-35\n       1 test needs a request: it is about this project's own code"
        in done.stdout
    )
    assert "1 of 3: test_stream_req.py::test_a_rollback_carries_the_seqno" in done.stderr


def test_a_planted_fault_is_reported_with_its_frames(node: Node, tmp_path: Path) -> None:
    node.inject("lose", opcode="DCP_SNAPSHOT_MARKER")
    done = judge(node, *HELD, "--frames", "--junit", str(tmp_path / "rules.xml"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "REQ-24       differs  " in done.stdout
    assert "    test_stream_req.py::test_without_an_end_the_stream_stays_open\n        line " in done.stdout
    assert "DCP_MUTATION request vb=1" in done.stdout
    assert "SASL_AUTH request" in done.stdout
    assert "secret" not in done.stdout
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "rules.xml").iter("testcase")}
    assert sorted(map(str, cases)) == list(HELD)
    failed = [case.find("failure") for name, case in cases.items() if name == "REQ-24"]
    assert failed[0] is not None
    assert "DCP_MUTATION request vb=1" in str(failed[0].text)
    assert cases["REQ-18"].find("failure") is None


@pytest.mark.slow
def test_what_ends_a_server_is_left_out(node: Node) -> None:
    found = results(node, "DEL-10", "REQ-24")
    (deletion,) = (each for each in found["verdicts"] if each["rule"] == "DEL-10")
    details = {test["test"]: test["detail"] for test in deletion["tests"]}
    assert details["test_deletion.py::test_nmeta_must_be_zero"] == "another server: it ends the server"
    assert found["held"] >= 1
    assert found["differ"] == 0


@pytest.mark.slow
def test_a_server_that_ends_stops_the_run(node: Node) -> None:
    with subprocess.Popen(
        command(node, "KV-REQ", "KV-SUBDOC"), cwd="/", env={"PYTHONPATH": python_path(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert any(line.startswith("2 of ") for line in running.stderr)
        node.stop()
        output, errors = running.communicate(timeout=RUN_TIMEOUT_S)
    assert running.returncode == 3, output + errors
    assert "takes no connections since test_" in errors
    assert " 0 differ," in output
    assert "; the run was interrupted after " in output


def test_sigterm_stops_the_run_and_prints_what_was_found(node: Node) -> None:
    with subprocess.Popen(
        command(node, "KV-REQ", "KV-SUBDOC", "--json"), cwd="/", env={"PYTHONPATH": python_path(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert any(line.startswith("3 of ") for line in running.stderr)
        running.terminate()
        output, errors = running.communicate(timeout=RUN_TIMEOUT_S)
    assert running.returncode == 130, output + errors
    found = json.loads(output)
    assert not found["is_whole"]
    assert found["tests"] >= 2


def test_what_ends_a_server_is_a_test() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/conformance").glob("test_*.py"))
    assert all(f"def {name}(" in source for name in ENDS_SERVER)


def test_a_bucket_with_documents_is_left_alone(node: Node) -> None:
    with KvClient(node.connection_string, node.username, node.password, "default") as documents:
        documents.set("k", "{}")
        done = judge(node, HELD[0])
        assert done.returncode == 2
        assert "has 1 documents" in done.stderr
        assert documents.get("k").value == b"{}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("XYZ",), "RULE cannot be 'XYZ'. Allowed: a rule's id, or its beginning: one of HDR, "),
        (("--read-only",), "--read-only does not go with --rules"),
    ],
)
def test_what_cannot_be_run_is_refused(node: Node, words: tuple[str, ...], message: str) -> None:
    done = judge(node, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr


def test_a_bucket_that_the_user_may_not_select_is_left_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AuthenticationFailed("EACCESS")

    monkeypatch.setattr(runner, "look", refuse)
    place = Endpoint(host="127.0.0.1", port=node.port)
    target = Target(endpoint=place, user="@admin", password="secret", bucket="default")
    with KvClient(node.connection_string, node.username, node.password, "default") as documents:
        documents.set("k", "{}")
        with pytest.raises(AuthenticationFailed, match="EACCESS"):
            runner.prepare(target, destroy_documents=False)
        assert documents.get("k").value == b"{}"


def test_a_server_that_lets_nobody_make_buckets_is_refused_at_once() -> None:
    reader = {"reader": {"password": "secret", "roles": ["data_reader[default]"]}}
    with Node(vbuckets=4, system_scope=False, users=reader) as node:
        done = judge(node, HELD[0], "--destroy-documents", user="reader")
        assert done.returncode == 2, done.stdout + done.stderr
        assert "does not let the user reader make the bucket default" in done.stderr
