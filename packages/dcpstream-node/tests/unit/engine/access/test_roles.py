"""Roles: how they are written, and what they allow where."""

from __future__ import annotations

from dcpstream_node.engine.access.roles import (
    ALL_PRIVILEGES,
    COLLECTION_PRIVILEGES,
    KINDS,
    PERMISSIONS,
    Rights,
    Role,
)
from dcpstream_node.engine.access.users import User
from tests.kit.cases import each_case


def user_of(*roles: str) -> User:
    return User("ann", None, frozenset(), tuple(map(Role.parse, roles)))


@each_case("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_role_gives_only_what_there_is_and_says_what_it_is(kind) -> None:
    given = kind.on_node | kind.on_all | kind.on_bucket | kind.on_place
    assert given <= ALL_PRIVILEGES | set(PERMISSIONS)
    assert "pools.read" in given
    assert kind.title
    assert kind.description.endswith(".")
    if kind.depth > 1:
        privileges = {name for name in kind.on_place if "." not in name}
        assert privileges <= COLLECTION_PRIVILEGES, "what is given within a bucket must be looked for there"


def test_only_an_administrator_has_everything() -> None:
    assert [name for name, kind in KINDS.items() if kind.on_node >= ALL_PRIVILEGES] == ["admin"]
    assert user_of("admin").is_admin
    assert not user_of("cluster_admin", "bucket_full_access[*]", "security_admin").is_admin


def test_a_place_holds_for_what_is_within_it_and_for_nothing_else() -> None:
    ann = user_of("data_reader[travel:inventory]", "data_writer[travel:inventory:airline]", "data_reader[beer]")
    assert ann.may("Read", "travel", "inventory", "airline")
    assert ann.may("Read", "travel", "inventory", "other")
    assert not ann.may("Read", "travel", "other", "airline")
    assert not ann.may("Read", "travel")
    assert ann.may("Upsert", "travel", "inventory", "airline")
    assert not ann.may("Upsert", "travel", "inventory", "other")
    assert ann.may("Read", "beer", "any", "where")
    assert not ann.may("Read")
    assert ann.may_within("Upsert", "travel")
    assert not ann.may_within("Upsert", "beer")
    assert ann.may_use("travel")
    assert not ann.may_use("other")


def test_privileges_given_one_by_one_hold_in_every_bucket() -> None:
    rights = Rights((), ("Read", "DcpStream:inventory", "Upsert:inventory.airline"))
    assert rights.at() == {"Read"}
    assert rights.at("any", "inventory") == {"Read", "DcpStream"}
    assert rights.at("any", "inventory", "airline") == {"Read", "DcpStream", "Upsert"}
    assert rights.at("any", "other", "airline") == {"Read"}
