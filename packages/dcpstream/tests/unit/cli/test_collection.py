"""`dcpstream collection` against a real node."""

from __future__ import annotations

import dcpstream_node
from tests.kit.commands import Commands


def test_scopes_and_collections_come_and_go(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", f"http://127.0.0.1:{one_node.mgmt_port}")
    assert commands("collection", "create", "shop.orders", "--max-ttl", "60", *at) == "collection shop.orders made\n"
    assert commands("collection", "create", "shop.items", *at) == "collection shop.items made\n"
    assert commands("collection", "create", "empty.*", *at) == "scope empty made\n"
    listed = commands("collection", "list", *at).splitlines()
    own = [line for line in listed if not line.startswith("_system.")]
    assert sorted(own) == ["_default._default", "empty.*", "shop.items", "shop.orders  expires after 60 s"]
    assert {scope["name"] for scope in commands.json("collection", "list", *at)["scopes"]} >= {"empty", "shop"}
    assert commands("collection", "drop", "shop.orders", "--yes", *at) == "collection shop.orders dropped\n"
    assert commands("collection", "drop", "shop.*", "--yes", *at) == "scope shop dropped\n"
    own = [line for line in commands("collection", "list", *at).splitlines() if not line.startswith("_system.")]
    assert sorted(own) == ["_default._default", "empty.*"]


def test_names_that_are_not_there(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", f"http://127.0.0.1:{one_node.mgmt_port}")
    assert "write SCOPE.COLLECTION" in commands.refused("collection", "create", "orders", *at, expect=2)
    assert "is not found" in commands.refused("collection", "drop", "_default.no", "--yes", *at)
