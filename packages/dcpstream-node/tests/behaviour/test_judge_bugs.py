"""The judge finds each known bug of servers in a node that has it, beside a node without."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dcpstream.wire.server_bugs import ServerBug
from dcpstream_node import Node
from tests.kit.commands import Commands

SCENARIO = {
    "MB-23898-keys-only": "s81",
    "MB-73354": "s81",
    "oso-first-marker": "s81",
    "close-queued-stream": "s81",
    "MB-67551": "s81",
    "MB-65581": "s82",
    "MB-66612": "s82",
    "MB-62984": "s82",
    "empty-compressed-value": "s51",
}
CONNECTION = {
    "MB-23898-keys-only": "bug-keys",
    "MB-73354": "bug-adv",
    "oso-first-marker": "bug-oso",
    "close-queued-stream": "bug-close",
    "MB-67551": "bug-oso",
    "MB-65581": "bug-early",
    "MB-66612": "bug-future",
    "MB-62984": "bug-above",
    "empty-compressed-value": "dvs",
}
"""Bug → the label of the connection that shows it."""
WAITS = pytest.mark.slow
"""Each waits for seconds until nothing more comes."""


@pytest.fixture
def sound() -> Iterator[Node]:
    with Node(vbuckets=1024, release="7.2", server_bugs=[]) as node:
        yield node


def test_every_bug_has_a_scenario() -> None:
    assert set(SCENARIO) == set(CONNECTION) == {bug.id for bug in ServerBug}


@WAITS
@pytest.mark.parametrize("bug", sorted(SCENARIO))
def test_it_is_found(bug: str, sound: Node, commands: Commands) -> None:
    with Node(vbuckets=1024, release="7.2", server_bugs=[bug]) as node:
        at = ("judge", node.connection_string, SCENARIO[bug], "--against", sound.connection_string)
        found = json.loads(commands(*at, "--json", "--destroy-documents", expect=1))
    (verdict,) = found["verdicts"]
    assert {each["connection"].partition("#")[0] for each in verdict["differences"]} == {CONNECTION[bug]}


@WAITS
@pytest.mark.parametrize("scenario", sorted(set(SCENARIO.values())))
def test_nothing_is_found_without(scenario: str, sound: Node, commands: Commands) -> None:
    with Node(vbuckets=1024, release="7.2", server_bugs=[]) as node:
        at = ("judge", node.connection_string, scenario, "--against", sound.connection_string)
        assert json.loads(commands(*at, "--json", "--destroy-documents"))["different"] == 0


@WAITS
def test_a_recording_has_the_bug_of_its_server(commands: Commands) -> None:
    """The recorded 8.0.1 sends keys alone without deletions; a node that does not differs from it."""
    with Node(vbuckets=1024, release="8.0", server_bugs=[], system_scope=False) as node:
        found = json.loads(commands("judge", node.connection_string, "s12", "--json", expect=1))
    counted = [each for each in found["verdicts"][0]["differences"] if not each["varies"]]
    assert {each["connection"].partition("#")[0] for each in counted} == {"dtd"}
