"""`dcpstream bucket` against a real node."""

from __future__ import annotations

import dcpstream_node
from dcpstream.client import KvClient
from tests.kit.commands import Commands


def test_a_bucket_is_made_emptied_and_dropped(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", f"http://127.0.0.1:{one_node.mgmt_port}")
    assert commands("bucket", "create", "travel", "--flush", "--max-ttl", "60", *at) == "bucket travel made\n"
    with KvClient(one_node.connection_string, "Administrator", "password", "travel") as kv:
        kv.set("a", "{}")
        found = {each["name"]: each for each in commands.json("bucket", "list", *at)}
        assert found["travel"]["flush"]
        assert not found["default"]["flush"]
        assert "travel   couchbase" in commands("bucket", "list", *at)
        assert commands.json("bucket", "flush", "travel", "--yes", *at) == {"result": "bucket travel emptied"}
        assert kv.get("a") is None
    assert commands("bucket", "drop", "travel", "--yes", *at) == "bucket travel dropped\n"
    assert "travel" not in commands("bucket", "list", *at)


def test_a_refusal_has_the_words_of_the_node(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", f"http://127.0.0.1:{one_node.mgmt_port}")
    assert "Flush is disabled for the bucket" in commands.refused("bucket", "flush", "default", "--yes", *at)
    assert "Bucket with given name already exists" in commands.refused("bucket", "create", "default", *at)
    assert "check --user and --password" in commands.refused("bucket", "list", *at, "--password", "x", expect=4)
