"""`dcpstream tail` against a real node, and its lines."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

import dcpstream_node
from dcpstream.cli import tail
from dcpstream.client import Change, KvClient
from tests.kit.cases import each_case
from tests.kit.commands import Commands


@pytest.fixture(scope="module")
def filled(one_node: dcpstream_node.Node) -> dcpstream_node.Node:
    with KvClient(one_node.connection_string, "Administrator", "password", "default") as kv:
        kv.set_many((f"order::{n}", json.dumps({"n": n, "city": "Bonn"})) for n in range(5))
        kv.set("item::1", "no json")
        kv.delete("order::4")
    return one_node


def keys(lines: str) -> list[str]:
    """The keys of the documents; a new bucket has events of its collections, too."""
    rows = map(json.loads, lines.splitlines())
    return sorted(row["key"] for row in rows if "key" in row)


def test_filters(filled: dcpstream_node.Node, commands: Commands) -> None:
    at = (filled.connection_string, "--no-follow", "--json")
    assert len(keys(commands("tail", *at))) == 6
    assert keys(commands("tail", *at, "--prefix", "item")) == ["item::1"]
    assert keys(commands("tail", *at, "--regex", "[01]$")) == ["item::1", "order::0", "order::1"]
    assert keys(commands("tail", *at, "--path", "city=Bonn", "--path", "n=3")) == ["order::3"]
    assert len(keys(commands("tail", *at, "--since", "1h"))) == 6
    assert keys(commands("tail", *at, "--since", "2100-01-01T00:00:00")) == []
    assert len(keys(commands("tail", *at, "--collections", "_default._default"))) == 6


def test_it_follows_from_the_beginning_on_demand(filled: dcpstream_node.Node, commands: Commands) -> None:
    lines = commands("tail", filled.connection_string, "--from", "earliest", "--limit", "3").splitlines()
    assert len(lines) == 3
    assert all("\x1b" not in line for line in lines), "no colours in a pipe"


def test_it_goes_on_from_a_saved_position(filled: dcpstream_node.Node, commands: Commands, tmp_path: Path) -> None:
    at = ("tail", filled.connection_string, "--no-follow", "--json", "--offsets", str(tmp_path / "offsets"))
    first = keys(commands(*at, "--limit", "2"))
    rest = keys(commands(*at))
    assert sorted(first + rest) == keys(commands("tail", filled.connection_string, "--no-follow", "--json"))
    assert commands(*at) == ""


def test_what_is_wrong_is_reported(filled: dcpstream_node.Node, commands: Commands) -> None:
    at = ("tail", filled.connection_string)
    assert "needs --follow" in commands.refused(*at, "--from", "latest", "--no-follow", expect=2)
    assert "is no time" in commands.refused(*at, "--since", "yesterday", expect=2)


@each_case(
    ("choice", "environ", "is_terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {}, True, False),
    ],
)
def test_colours(choice: str, environ: dict[str, str], is_terminal: bool, expected: bool) -> None:
    assert tail.is_coloured(choice, environ, is_terminal=is_terminal) is expected


def change(op: str, key: bytes, value: bytes | None, cas: int = 10**18) -> Change:
    return Change(op, key, value, "shop", "orders", 7, 1, 5, 1, cas, 0, 1, 0)


def test_a_line() -> None:
    coloured = tail.shown(change("mutation", b"a", b'{ "n": 1,\n "m": "x" }'), None)
    assert coloured != click.unstyle(coloured)
    line = click.unstyle(coloured)
    assert line.split("  ", 1)[1] == 'mutation    shop.orders  a  {"n":1,"m":"x"}  7/5'
    assert "  deletion    shop.orders  a  7/5" in click.unstyle(tail.shown(change("deletion", b"a", None), None))


def test_a_line_is_cut_to_the_terminal_and_cannot_control_it() -> None:
    line = click.unstyle(tail.shown(change("mutation", b"a\x1b[2J\xff", b"x" * 500), 100))
    assert len(line) == 100
    assert "…" in line
    assert "a\\x1b[2J\\xff" in line


def test_a_rollback_is_a_line_of_its_own() -> None:
    line = click.unstyle(tail.shown(change("rollback", b"", b'{"to": 3}'), None))
    assert line == 'rollback vbucket 7 seqno 5 shop.orders {"to": 3}'
