"""Tables of transitions: legal pairs, refused pairs, final states, and every table of the package."""

import ast
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dcpstream.dcp.transitions import Transitions
from dcpstream.errors import LocalProtocolError, RemoteProtocolError
from lab.tools.state_diagrams import diagram, drawn, tables
from tests.kit.cases import each_case

STATES = ("state", "takeover")
"""Attributes in which machines keep their states."""


class Door(Enum):
    OPEN = "open"
    SHUT = "shut"
    GONE = "gone"


class Push(Enum):
    PUSH = "push"
    LOCK = "lock"
    BREAK = "break"


DOORS = Transitions(
    "door {}",
    Door.SHUT,
    {
        Door.OPEN: {Push.PUSH: Door.SHUT, Push.BREAK: Door.GONE},
        Door.SHUT: {Push.PUSH: Door.OPEN, Push.LOCK: Door.SHUT},
        Door.GONE: {Push.BREAK: Door.GONE},
    },
    peer_events={Push.LOCK},
)


@each_case(("event", "kind"), [(Push.PUSH, LocalProtocolError), (Push.LOCK, RemoteProtocolError)])
def test_an_illegal_pair_is_the_fault_of_whoever_causes_the_event(event, kind):
    assert not DOORS.is_legal(Door.GONE, event)
    with pytest.raises(kind, match=f"^door 7: not legal in this state .state gone, event {event.value}.$") as caught:
        DOORS.after(Door.GONE, event, 7)
    assert (caught.value.state, caught.value.event) == ("gone", event.value)


def test_each_state_needs_a_row():
    with pytest.raises(AssertionError, match="no row for GONE"):
        Transitions("door", Door.SHUT, {Door.OPEN: {}, Door.SHUT: {Push.PUSH: Door.OPEN}})


def test_a_page_keeps_everything_but_what_is_between_the_comments():
    begin, end = f"<!-- states: {__name__}:DOORS -->\n", "<!-- end of states -->\n"
    assert drawn(f"# Doors\n\n{begin}old\n{end}\nMore.\n") == f"# Doors\n\n{begin}{diagram(DOORS)}{end}\nMore.\n"


@each_case("name", list(tables()))
def test_every_table_of_the_package_can_be_drawn_and_all_its_states_be_reached(name):
    module, _, attribute = name.partition(":")
    table: Any = getattr(import_module(module), attribute)
    reached: set[Any] = {table.start}
    todo: list[Any] = [table.start]
    while todo:
        for after in table.rows[todo.pop()].values():
            if after not in reached:
                reached.add(after)
                todo.append(after)
    states: Any = type(table.start)
    assert reached == set(states)
    events: set[Any] = {event for _, event, _ in table}
    of_events: Any = type(next(iter(events)))
    assert events == set(of_events), "an event that is legal nowhere"
    assert not any(":" in event.value or "\n" in event.value for event in events), "Mermaid ends a label there"


@each_case("path", sorted({name.partition(":")[0] for name in tables()}))
def test_a_machine_changes_its_state_through_its_table_only(path):
    """In the package of a table, a state is set to the table's start, or to what the table says."""
    package = Path(str(import_module(path).__file__)).parent
    for module in package.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Attribute) and target.attr in STATES for target in node.targets
            ):
                text = ast.unparse(node.value)
                assert ".start" in text or ".after(" in text, f"{module.name}:{node.lineno}: {ast.unparse(node)}"
