"""`dcpstream kv` against a real node."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

import dcpstream_node
from tests.kit.commands import Commands


def test_a_document_is_written_read_and_deleted(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", one_node.connection_string)
    assert commands("kv", "set", "a", '{"n": 1}', *at).startswith("a: vbucket ")
    written = commands.json("kv", "set", "b", "no json", "--flags", "7", "--expiry", "3600", *at)
    assert (written["key"], set(written)) == ("b", {"key", "vbucket", "seqno", "cas"})
    lines = commands("kv", "get", "a", "b", "--json", *at).splitlines()
    first, second = map(json.loads, lines)
    assert (first["value"], second["text"], second["flags"]) == ({"n": 1}, "no json", 7)
    assert second["cas"] == written["cas"]
    assert commands("kv", "delete", "b", *at) == "b: deleted\n"
    assert commands("kv", "delete", "a", "b", "--json", *at, expect=1).count("\n") == 1
    assert commands.error == "there is no document b\n"
    assert commands("kv", "get", "a", *at, expect=1) == ""
    assert commands.error == "there is no document a\n"


def test_a_document_comes_from_standard_input_and_goes_out_as_it_is(
    one_node: dcpstream_node.Node, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--cluster", one_node.connection_string)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff\x00 bytes")))
    commands("kv", "set", "raw", "-", *at)
    assert "/wAgYnl0ZXM=" in commands("kv", "get", "raw", "--json", *at)
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out))
    commands("kv", "get", "raw", *at)
    assert out.getvalue() == b"\xff\x00 bytes\n"


def test_keys_are_listed_by_collection_prefix_and_pattern(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", one_node.connection_string, "--collection", "shop.orders")
    commands("collection", "create", "shop.orders", "-c", f"http://127.0.0.1:{one_node.mgmt_port}")
    for key in ("order::2", "order::1", "item::1", "gone"):
        commands("kv", "set", key, "{}", *at)
    commands("kv", "delete", "gone", *at)
    assert commands("kv", "ls", *at) == "item::1\norder::1\norder::2\n"
    assert commands("kv", "ls", "--prefix", "order", "--limit", "1", *at) == "order::1\n"
    assert commands.json("kv", "ls", "--regex", "^i", *at) == {"key": "item::1"}
    assert "is not a regular expression" in commands.refused("kv", "ls", "--regex", "(", *at, expect=2)
