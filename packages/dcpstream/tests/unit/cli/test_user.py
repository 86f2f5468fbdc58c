"""`dcpstream user` against a real node."""

from __future__ import annotations

import dcpstream_node
from dcpstream.client import KvClient
from tests.kit.commands import Commands


def test_a_user_is_made_logs_in_and_is_dropped(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", f"http://127.0.0.1:{one_node.mgmt_port}")
    roles = ("--role", "data_reader[default]", "--role", "data_writer[default:_default]")
    assert commands("user", "create", "ann", "--new-password", "secret", *roles, *at) == "user ann made\n"
    with KvClient(one_node.connection_string, "ann", "secret", "default") as kv:
        kv.set("a", "{}")
    assert {"name": "ann", "roles": ["data_reader[default]", "data_writer[default:_default]"]} in commands.json(
        "user", "list", *at
    )
    assert "ann            data_reader[default] data_writer" in commands("user", "list", *at)
    assert commands("user", "drop", "ann", *at) == "user ann dropped\n"
    assert "Unknown user.\n" in commands.refused("user", "drop", "ann", *at)


def test_roles_are_listed_and_checked(one_node: dcpstream_node.Node, commands: Commands) -> None:
    at = ("--cluster", f"http://127.0.0.1:{one_node.mgmt_port}")
    listed = commands("user", "roles", *at).splitlines()
    assert {"admin", "data_dcp_reader[…]"} <= set(listed)
    assert {role["role"] for role in commands.json("user", "roles", *at)} >= {"admin"}
    bad = ("user", "create", "bob", "--new-password", "secret", "--role", "bogus", *at)
    assert "malformed or role parameters are undefined: [bogus]" in commands.refused(*bad)
