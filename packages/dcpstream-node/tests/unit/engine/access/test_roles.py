"""Roles: how they are written, and what they allow where."""

from __future__ import annotations

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.engine.access.roles import (
    ALL_PRIVILEGES,
    COLLECTION_PRIVILEGES,
    KINDS,
    PERMISSIONS,
    Rights,
    Role,
    parse_roles,
)
from dcpstream_node.engine.access.users import User
from tests.kit.cases import each_case


def user_of(*roles: str) -> User:
    return User("ann", None, frozenset(), tuple(map(Role.parse, roles)))


@each_case(
    "text",
    [
        "admin",
        "bucket_admin[travel]",
        "bucket_full_access[*]",
        "data_reader[travel]",
        "data_reader[travel:inventory]",
        "data_reader[travel:inventory:airline]",
        "scope_admin[travel:inventory]",
    ],
)
def test_a_role_reads_as_it_is_written(text: str) -> None:
    assert str(Role.parse(text)) == text
    assert Role.parse(f" {text} ") == Role.parse(text)


@each_case(
    "text",
    [
        "",
        "fly",
        "admin[travel]",
        "data_reader",
        "data_reader[]",
        "data_reader[a:b:c:d]",
        "data_reader[a::c]",
        "data_reader[a:*:c]",
        "bucket_admin[a:b]",
        "scope_admin[a:b:c]",
        "data_reader[a]]",
        "data_reader[a",
        "Admin",
    ],
)
def test_what_is_no_role_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="role"):
        Role.parse(text)


def test_stars_at_the_end_of_a_place_mean_all_of_it() -> None:
    assert Role.parse("data_reader[travel:*:*]") == Role.parse("data_reader[travel]")
    assert Role.parse("data_reader[*:*:*]") == Role.parse("data_reader[*]")


def test_a_list_of_roles_has_each_once() -> None:
    assert [str(role) for role in parse_roles("admin, data_reader[a],admin,")] == ["admin", "data_reader[a]"]
    assert parse_roles("") == ()


def test_a_role_as_the_rest_api_shows_it() -> None:
    assert Role.parse("admin").to_json() == {"role": "admin"}
    assert Role.parse("bucket_admin[b]").to_json() == {"role": "bucket_admin", "bucket_name": "b"}
    assert Role.parse("data_reader[b:s]").to_json() == {
        "role": "data_reader",
        "bucket_name": "b",
        "scope_name": "s",
        "collection_name": "*",
    }


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


@each_case("role", ["ro_admin", "cluster_admin", "security_admin", "bucket_admin[travel]", "data_monitoring[travel]"])
def test_who_manages_or_watches_sees_no_document(role: str) -> None:
    rights = user_of(role)._rights.within("travel")
    assert not rights & {"Read", "Upsert", "Insert", "Delete", "DcpStream", "MetaRead", "MetaWrite", "SystemXattrRead"}
    assert "SimpleStats" in rights


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


def test_who_may_do_something_in_a_collection_knows_its_scope_and_no_other_collection() -> None:
    ann = user_of("data_reader[travel:inventory:airline]")
    assert ann.knows("travel", "inventory")
    assert ann.knows("travel", "inventory", "airline")
    assert not ann.knows("travel", "inventory", "hotel")
    assert not ann.knows("travel", "other")
    assert not ann.knows("travel", "")


def test_a_dcp_reader_of_a_collection_opens_connections_to_the_bucket() -> None:
    ann = user_of("data_dcp_reader[travel:inventory:airline]")
    assert ann.may("DcpProducer", "travel")
    assert not ann.may("DcpProducer", "other")
    assert not ann.may("DcpStream", "travel")
    assert ann.may("DcpStream", "travel", "inventory", "airline")


def test_a_role_for_all_buckets() -> None:
    ann = user_of("bucket_full_access[*]")
    assert ann.may("Upsert", "whatever", "a", "b")
    assert ann.may("bucket.flush", "whatever")
    assert not ann.may("bucket.create")


def test_privileges_given_one_by_one_hold_in_every_bucket() -> None:
    rights = Rights((), ("Read", "DcpStream:inventory", "Upsert:inventory.airline"))
    assert rights.at() == {"Read"}
    assert rights.at("any", "inventory") == {"Read", "DcpStream"}
    assert rights.at("any", "inventory", "airline") == {"Read", "DcpStream", "Upsert"}
    assert rights.at("any", "other", "airline") == {"Read"}


def test_permissions_of_the_management_port() -> None:
    assert user_of("security_admin").may("users.write")
    assert not user_of("security_admin").may("admins.write")
    assert user_of("admin").may("admins.write")
    assert not user_of("ro_admin").may("cluster.write")
    assert user_of("cluster_admin").may("bucket.create")
    assert user_of("cluster_admin").may("bucket.delete", "any")
    assert user_of("bucket_admin[travel]").may("bucket.delete", "travel")
    assert not user_of("bucket_admin[travel]").may("bucket.delete", "beer")
    assert user_of("scope_admin[travel:inventory]").may("collections.write", "travel", "inventory")
    assert not user_of("scope_admin[travel:inventory]").may("collections.write", "travel")
    assert user_of("data_reader[travel:a:b]").may("bucket.read", "travel")
    assert not user_of("data_reader[travel:a:b]").may("bucket.read", "beer")
