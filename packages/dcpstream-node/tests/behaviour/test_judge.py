"""`dcpstream judge` against nodes: what it compares, what it refuses, and what it leaves alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from dcpstream.client import KvClient
from dcpstream_node import Node
from tests.kit.commands import Commands

USERS = {
    "readonly": {"password": "password", "privileges": ["DcpProducer", "Read"]},
    "nodcp": {"password": "password", "privileges": ["Read", "Upsert", "Insert", "Delete"]},
}
QUICK = ("s06", "s34", "s45")
"""Scenarios that are over in a second."""


@contextmanager
def server(release: str, **options: Any) -> Iterator[Node]:
    """A node as the recorded servers were: an engine without a manager."""
    with Node(vbuckets=1024, users=USERS, release=release, system_scope=False, **options) as node:
        yield node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with server("7.2") as running:
        yield running


def results(found: dict[str, Any]) -> dict[str, str]:
    """Scenario → its result."""
    return {each["scenario"][:3]: each["result"] for each in found["verdicts"]}


def test_a_node_equals_the_recordings(node: Node, commands: Commands, tmp_path: Path) -> None:
    junit, kept = tmp_path / "junit.xml", tmp_path / "kept"
    files = ("--junit", str(junit), "--transcripts", str(kept))
    found = commands.json("judge", node.connection_string, *QUICK, "--destroy-documents", *files)
    assert results(found) == dict.fromkeys(QUICK, "equal"), found
    assert (found["by"], found["different"], found["scenarios"]) == ("the recordings of 7.2", 0, 3)
    assert found["version"].startswith("7.2")
    assert found["steps"] == found["equal"] > 100
    assert ET.parse(junit).getroot().get("tests") == "3"
    lines = (kept / "s34_hello_variants.jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[0])["note"] == "scenario s34_hello_variants"
    assert b"\0password".hex() not in "".join(lines), "passwords are not written down"


def test_vbuckets_begin_empty_although_the_bucket_has_the_system_scope(commands: Commands) -> None:
    with Node(vbuckets=1024, release="8.0") as newer:
        newer.set_collections("default", {"shop": ["orders"]})
        at = ("judge", newer.connection_string, "s34", "s06")
        assert "has the collections shop.orders, which would be dropped" in commands.refused(*at, expect=2)
        found = commands.json(*at, "--destroy-documents")
    assert results(found) == {"s34": "equal", "s06": "equal"}
    reasons = {each["varies"] for verdict in found["verdicts"] for each in verdict["differences"]}
    assert reasons == {"the bucket's manifest had another uid before"}


def test_another_release_differs(node: Node, commands: Commands) -> None:
    at = ("judge", node.connection_string, "s34", "--destroy-documents", "--release", "8.0")
    text = commands(*at, "--bytes", expect=1)
    assert "    vtwice#" in text or "request:" in text
    assert "expected: HELLO response SUCCESS" in text
    assert "got:      HELLO response SUCCESS" in text
    assert text.splitlines()[-1].startswith("1 scenarios: 36 steps, ")


def test_a_scenario_that_differs_is_played_again(node: Node, commands: Commands) -> None:
    """The first time the node is late; what it does otherwise comes every time."""
    at = ("judge", node.connection_string, "--destroy-documents", "--attempts", "3")
    node.inject("refuse", status="TMPFAIL", opcode="HELLO", count=3)  # the first two are the judge's own
    line = commands(*at, "s34").splitlines()[0]
    assert line == "s34_hello_variants           equal        36 steps, 36 equal, at attempt 2"
    node.lift()
    assert "at attempt" not in commands(*at, "s34", "--release", "8.0", expect=1)


def test_it_says_what_is_wrong_with_the_server(node: Node, commands: Commands) -> None:
    with KvClient(node.connection_string, "Administrator", "password", "default") as kv:
        kv.set("mine", "{}")
    refusal = commands.refused("judge", node.connection_string, "s34", expect=2)
    assert re.search(r"has \d+ documents, and scenarios delete vbuckets", refusal)
    at = ("judge", node.connection_string, "s34")
    assert "refuses the user Administrator" in commands.refused(*at, "--password", "no", expect=4)
    assert "refuses the bucket none" in commands.refused(*at, "--bucket", "none", expect=4)
    assert "no scenario of this release begins with 's99'" in commands.refused(*at, "s99", "--read-only", expect=2)
    assert "--release cannot be '9'" in commands.refused(*at, "--read-only", "--release", "9", expect=2)
    assert "cannot connect to 127.0.0.1:1" in commands.refused("judge", "couchbase://127.0.0.1:1", expect=3)
    with Node(vbuckets=4, release="8.0") as small:
        assert "has 4 vbuckets; scenarios need 1024" in commands.refused("judge", small.connection_string, expect=2)
    with Node(("a", "b"), vbuckets=4, release="7.6") as other:
        at = ("judge", other.connection_string, "--read-only")
        assert "The user sees a, b" in commands.refused(*at, expect=2)
        assert "says that it is release 7.6; there are recordings of 7.2 and 8.0" in commands.refused(
            *at, "--bucket", "a", expect=2
        )


def test_reading_only_changes_nothing(node: Node, commands: Commands) -> None:
    """`s34` and `s45` make a vbucket: the judge stops before. What came before is compared."""
    with KvClient(node.connection_string, "Administrator", "password", "default") as kv:
        kv.set("stays", "{}")
    found = commands.json("judge", node.connection_string, "s34", "s45", "--read-only", "--release", "7.2")
    assert results(found) == {"s34": "equal so far", "s45": "left out"}
    hello, subdoc = found["verdicts"]
    assert hello["stopped"] == "SET_VBUCKET may change the server"
    assert 0 < hello["steps"] == hello["equal"] < hello["steps_whole"]
    assert subdoc["setup"] == subdoc["steps"]
    with KvClient(node.connection_string, "Administrator", "password", "default") as kv:
        assert kv.get("stays") is not None
    assert commands("judge", node.connection_string, "s45", "--read-only", "--release", "7.2", expect=2)


def test_a_missing_right_is_no_difference(node: Node, commands: Commands) -> None:
    login = ("--user", "nodcp", "--password", "password", "--destroy-documents")
    found = commands.json("judge", node.connection_string, "s34", *login)
    assert results(found) == {"s34": "equal so far"}
    assert found["verdicts"][0]["stopped"] == "SET_VBUCKET 903 is refused: EACCESS"


def test_a_missing_user_is_no_difference(commands: Commands) -> None:
    with Node(vbuckets=1024, release="7.2", username="@admin") as bare:
        found = commands.json("judge", bare.connection_string, "s01", "--user", "@admin")
    assert results(found) == {"s01": "equal so far"}
    assert found["verdicts"][0]["stopped"] == "there is no user readonly with the password 'password'"


def test_two_servers(node: Node, commands: Commands) -> None:
    with server("8.0") as newer:
        at = ("judge", newer.connection_string, "--against", node.connection_string, "--destroy-documents")
        found = json.loads(commands(*at, "s06", "s34", "--json", expect=1))
    assert results(found) == {"s06": "equal", "s34": "differs"}
    assert found["by"] == node.connection_string
    (difference,) = found["verdicts"][1]["differences"][:1]
    assert difference["expected_hex"] != difference["got_hex"]
    assert all("HELLO" in each["request"] for each in found["verdicts"][1]["differences"])


def test_over_tls(commands: Commands) -> None:
    with server("7.2", tls=True) as secure:
        found = commands.json("judge", f"couchbases://127.0.0.1:{secure.tls_port}", "s34", "--tls-verify", "none")
    assert results(found) == {"s34": "equal"}


def test_lists_and_recordings_need_no_server(commands: Commands) -> None:
    listed = commands("judge", "--list", "s0", "--release", "7.2").splitlines()
    assert len(listed) == 9
    assert listed[0].startswith("s01_hello_sasl_select        Requests that are allowed")
    assert [each["scenario"] for each in commands.json("judge", "--list", "s79")] == ["s79_collection_flush"]
    lines = commands("judge", "--recording", "s15", "--release", "7.2").splitlines()
    assert json.loads(lines[0])["note"] == "scenario s15_close_stream"
    assert "which server?" in commands("judge", expect=2) + commands.error
