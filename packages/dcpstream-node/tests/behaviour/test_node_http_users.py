"""Users over HTTP, and what each of them may do there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream_node import Node
from tests.kit.rest import Answer, ask

USERS = "/settings/rbac/users"
BUCKETS = "/pools/default/buckets"
SCOPES = f"{BUCKETS}/default/scopes"
ROLES = {
    "root": "admin",
    "watcher": "ro_admin",
    "guard": "security_admin",
    "owner": "bucket_admin[default]",
    "keeper": "scope_admin[default:shop]",
    "app": "bucket_full_access[default]",
    "reader": "data_reader[default:shop:orders]",
    "stranger": "bucket_admin[other]",
}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(("default", "other"), vbuckets=2, system_scope=False) as made:
        made.set_collections("default", {"shop": ["orders", "carts"], "logs": []})
        for name, roles in ROLES.items():
            made.add_user(name, "secret1", roles.split())
        yield made


def by(node: Node, user: str, method: str, path: str, form: dict[str, str] | None = None) -> Answer:
    return ask(node, method, path, form, user=user, password="secret1")


def test_users_of_two_domains() -> None:
    users = {"ldap": {"password": "secret1", "roles": ["ro_admin"], "domain": "external", "name": "From LDAP"}}
    with Node(vbuckets=1, users=users, system_scope=False) as node:
        (found,) = ask(node, "GET", f"{USERS}/external").json
        assert (found["id"], found["domain"], found["name"]) == ("ldap", "external", "From LDAP")
        assert ask(node, "GET", f"{USERS}/external/ldap").json == found
        assert ask(node, "GET", f"{USERS}/local/ldap").status == 404
        assert [user["id"] for user in ask(node, "GET", f"{USERS}/local").json] == ["Administrator"]
        assert [user["id"] for user in ask(node, "GET", USERS).json] == ["Administrator", "ldap"]
        assert by(node, "ldap", "GET", "/whoami").json["domain"] == "external"
    with pytest.raises(ConfigError, match="domain of user ldap"):
        Node(users={"ldap": {"password": "secret1", "domain": "elsewhere"}}, system_scope=False)


def test_a_user_is_made_changed_and_removed(node: Node) -> None:
    form = {"password": "secret1", "roles": "data_reader[default],data_writer[default:shop]", "name": "Ann"}
    assert ask(node, "PUT", f"{USERS}/local/ann", form).status == 200
    found = ask(node, "GET", f"{USERS}/local/ann").json
    assert (found["id"], found["domain"], found["name"]) == ("ann", "local", "Ann")
    assert [(role["role"], role["scope_name"]) for role in found["roles"]] == [
        ("data_reader", "*"),
        ("data_writer", "shop"),
    ]
    assert by(node, "ann", "GET", "/whoami").json["roles"][0] == {
        "role": "data_reader",
        "bucket_name": "default",
        "scope_name": "*",
        "collection_name": "*",
    }
    assert ask(node, "PUT", f"{USERS}/local/ann", {"roles": "admin"}).status == 200, "the password stays"
    assert by(node, "ann", "GET", "/whoami").json["roles"] == [{"role": "admin"}]
    assert by(node, "ann", "POST", "/controller/changePassword", {"password": "secret2"}).status == 200
    assert by(node, "ann", "GET", "/whoami").status == 401, "also a login that was remembered"
    assert "ann" in [user["id"] for user in ask(node, "GET", USERS).json]
    assert all(isinstance(user["name"], str) for user in ask(node, "GET", USERS).json), "also without a name"
    assert ask(node, "GET", f"{USERS}/local").json == ask(node, "GET", USERS).json
    assert ask(node, "GET", f"{USERS}/external").json == []
    assert ask(node, "DELETE", f"{USERS}/local/ann").status == 200
    assert ask(node, "DELETE", f"{USERS}/local/ann").status == 404
    assert ask(node, "GET", f"{USERS}/local/ann").status == 404
    assert ask(node, "GET", "/whoami", user="ann", password="secret2").status == 401


@pytest.mark.parametrize(
    ("name", "form", "field", "why"),
    [
        ("new", {"roles": "admin"}, "password", "required for new user"),
        ("new", {"password": "short", "roles": "admin"}, "password", "at least 6"),
        ("new", {"password": "secret1", "roles": "king"}, "roles", "king"),
        ("new", {"password": "secret1", "roles": "data_reader"}, "roles", "data_reader"),
        ("new", {"password": "secret1", "groups": "g"}, "groups", "do not exist"),
        ("a;b", {"password": "secret1"}, "_", "a;b"),
        ("Administrator", {"roles": ""}, "_", "Administrator"),
    ],
)
def test_users_that_cannot_be(node: Node, name: str, form: dict[str, str], field: str, why: str) -> None:
    found = ask(node, "PUT", f"{USERS}/local/{name}", form)
    assert found.status == 400
    assert why in found.json["errors"][field]
    assert "secret1" not in found.body.decode()
    assert ask(node, "GET", f"{USERS}/local/new").status == 404
    assert ask(node, "DELETE", f"{USERS}/local/Administrator").status == 400


def test_changes_are_logged_with_who_made_them_and_without_secrets(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    by(node, "root", "PUT", f"{USERS}/local/zoe", {"password": "whisper!", "roles": "ro_admin"})
    by(node, "root", "DELETE", f"{USERS}/local/zoe")
    by(node, "owner", "POST", f"{SCOPES}/logs/collections", {"name": "day"})
    by(node, "owner", "DELETE", f"{SCOPES}/logs/collections/day")
    assert "put user 'zoe', by root" in caplog.text
    assert "removed user 'zoe', by root" in caplog.text
    assert caplog.text.count("changed scopes and collections of bucket 'default', by owner") == 2
    assert "whisper!" not in caplog.text
    assert "secret1" not in caplog.text


def test_roles_that_can_be_given(node: Node) -> None:
    found = {role["role"]: role for role in ask(node, "GET", "/settings/rbac/roles").json}
    assert found["data_reader"]["collection_name"] == "*"
    assert "bucket_name" not in found["admin"]
    assert ask(node, "GET", "/settings/rbac/groups").json == []


@pytest.mark.parametrize(
    ("method", "path", "form", "allowed"),
    [
        ("GET", "/pools", None, set(ROLES)),
        ("GET", "/pools/default", None, set(ROLES)),
        ("GET", BUCKETS, None, set(ROLES)),
        ("POST", BUCKETS, {"name": "default", "ramQuotaMB": "100"}, {"root"}),
        ("GET", f"{BUCKETS}/default", None, set(ROLES)),
        ("POST", f"{BUCKETS}/default?just_validate=1", {}, {"root", "owner"}),
        ("POST", f"{BUCKETS}/default/controller/compactBucket", None, {"root", "owner"}),
        ("POST", f"{BUCKETS}/default/controller/doFlush", None, {"root", "owner", "app"}),
        ("DELETE", f"{BUCKETS}/default/x", None, set()),
        ("GET", "/pools/default/b/default", None, set(ROLES)),
        ("GET", SCOPES, None, set(ROLES)),
        ("POST", SCOPES, {"name": "_"}, {"root", "owner"}),
        ("POST", f"{SCOPES}/shop/collections", {"name": "_"}, {"root", "owner", "keeper"}),
        ("POST", f"{SCOPES}/logs/collections", {"name": "_"}, {"root", "owner"}),
        ("PATCH", f"{SCOPES}/shop/collections/none", {"maxTTL": "1"}, {"root", "owner", "keeper"}),
        ("GET", USERS, None, {"root", "watcher", "guard"}),
        ("PUT", f"{USERS}/local/new", {"roles": "king"}, {"root", "guard"}),
        ("DELETE", f"{USERS}/local/none", None, {"root", "guard"}),
        ("DELETE", f"{USERS}/local/root", None, set()),
        ("GET", "/settings/rbac/roles", None, {"root", "watcher", "guard"}),
    ],
)
def test_who_may(node: Node, method: str, path: str, form: dict[str, str] | None, allowed: set[str]) -> None:
    """403 for others; those who may get an answer about the matter, which here never changes anything."""
    seen = {}
    for user in ROLES:
        if (method, path, user) == ("DELETE", f"{USERS}/local/root", "root"):
            continue
        seen[user] = by(node, user, method, path, form)
    if path.startswith(BUCKETS + "/default") and "stranger" not in allowed:
        assert {user for user, found in seen.items() if found.status not in (403, 404, 405)} <= allowed
    expected = {user for user, found in seen.items() if found.status != 403}
    if path.endswith("/x"):
        assert {found.status for found in seen.values()} == {404}
    else:
        assert expected == allowed - ({"root"} if "root" not in seen else set())
    for found in seen.values():
        if found.status == 403:
            assert found.json["message"] == "Forbidden. User needs the following permissions"
            assert found.json["permissions"][0].startswith("cluster.")


def test_only_administrators_make_administrators(node: Node) -> None:
    form = {"password": "secret1", "roles": "admin"}
    assert by(node, "guard", "PUT", f"{USERS}/local/new", form).status == 403
    assert by(node, "guard", "PUT", f"{USERS}/local/new", form | {"roles": "ro_admin"}).status == 200
    assert by(node, "guard", "DELETE", f"{USERS}/local/new").status == 200


def test_permissions_are_reported_as_the_server_names_them(node: Node) -> None:
    asked = [
        "cluster.bucket[default].data.docs!read",
        "cluster.collection[default:shop:orders].data.docs!read",
        "cluster.collection[default:shop:carts].data.docs!read",
        "cluster.collection[default:shop:orders].data.docs!upsert",
        "cluster.bucket[default].settings!write",
        "cluster.bucket[other].stats!read",
        "cluster.bucket[.].settings!write",
        "cluster.buckets!create",
        "cluster.admin.security!write",
        "cluster.pools!read",
        "cluster.n1ql.meta!read",
        "no permission",
    ]

    def those_of(user: str) -> set[str]:
        found = ask(
            node, "POST", "/pools/default/checkPermissions", body=",".join(asked), user=user, password="secret1"
        )
        assert list(found.json) == asked
        return {permission for permission, has in found.json.items() if has}

    assert those_of("root") == set(asked)
    assert those_of("reader") == {asked[1], asked[9]}
    assert those_of("owner") == {asked[4], asked[6], asked[9]}
    assert those_of("app") == {*asked[:4], asked[9]}
    assert those_of("guard") == {asked[5], asked[8], asked[9]}


def test_one_sees_what_one_may_use(node: Node) -> None:
    assert [bucket["name"] for bucket in by(node, "reader", "GET", BUCKETS).json] == ["default"]
    manifest = by(node, "reader", "GET", SCOPES).json
    names = {scope["name"]: [item["name"] for item in scope["collections"]] for scope in manifest["scopes"]}
    assert "logs" not in names
    assert names["shop"] == ["orders"]
    assert by(node, "reader", "GET", f"{BUCKETS}/other").status == 403
    assert by(node, "reader", "GET", f"{BUCKETS}/none").status == 403, "not told whether it is there"
    assert by(node, "root", "GET", f"{BUCKETS}/none").status == 404
    assert [scope["name"] for scope in by(node, "keeper", "GET", SCOPES).json["scopes"]] == ["shop"]
    assert len(by(node, "watcher", "GET", SCOPES).json["scopes"]) == 3


def test_users_from_code() -> None:
    with Node(vbuckets=1, system_scope=False) as node:
        node.add_user("app", "secret1", ["bucket_full_access[default]"])
        with KvClient(node.connection_string, "app", "secret1", "default") as kv:
            kv.set("k", b"{}")
        with pytest.raises(ConfigError, match="king"):
            node.add_user("other", "secret1", ["king"])
        with pytest.raises(ConfigError, match="nobody"):
            node.remove_user("nobody")
        node.remove_user("app")
        with pytest.raises(DcpstreamError), KvClient(node.connection_string, "app", "secret1", "default") as kv:
            kv.get("k")


# ------------------------------------------------------------------------------------------------------------- groups

GROUPS = "/settings/rbac/groups"


def test_a_group_gives_its_roles_to_those_who_are_in_it() -> None:
    with Node(("default", "other"), vbuckets=2, system_scope=False) as node:
        form = {"roles": "data_reader[default],bucket_admin[other]", "description": "They read."}
        assert ask(node, "PUT", f"{GROUPS}/readers", form).status == 200
        assert ask(node, "PUT", f"{GROUPS}/empty", {"roles": "", "ldap_group_ref": "cn=a,dc=b"}).status == 200
        reader = {"role": "data_reader", "bucket_name": "default", "scope_name": "*", "collection_name": "*"}
        group = {
            "id": "readers",
            "roles": [reader, {"role": "bucket_admin", "bucket_name": "other"}],
            "description": "They read.",
        }
        assert ask(node, "GET", f"{GROUPS}/readers").json == group
        assert ask(node, "GET", GROUPS).json == [{"id": "empty", "roles": [], "ldap_group_ref": "cn=a,dc=b"}, group]
        form = {"password": "secret1", "groups": "readers, empty", "roles": "data_reader[default]"}
        assert ask(node, "PUT", f"{USERS}/local/ann", form).status == 200
        found = ask(node, "GET", f"{USERS}/local/ann").json
        assert found["groups"] == ["readers", "empty"]
        origins = {role["role"]: role["origins"] for role in found["roles"]}
        assert origins == {
            "data_reader": [{"type": "user"}, {"type": "group", "name": "readers"}],
            "bucket_admin": [{"type": "group", "name": "readers"}],
        }
        assert by(node, "ann", "POST", f"{BUCKETS}/other?just_validate=1", {}).status == 200
        assert ask(node, "PUT", f"{GROUPS}/readers", {"roles": "data_reader[default]"}).status == 200
        assert by(node, "ann", "POST", f"{BUCKETS}/other?just_validate=1", {}).status == 403, "at once"
        assert ask(node, "GET", f"{GROUPS}/readers").json == {"id": "readers", "roles": [reader]}
        assert ask(node, "DELETE", f"{GROUPS}/readers").status == 200
        assert ask(node, "DELETE", f"{GROUPS}/readers").status == 404
        assert ask(node, "GET", f"{GROUPS}/readers").status == 404
        found = ask(node, "GET", f"{USERS}/local/ann").json
        assert (found["groups"], len(found["roles"])) == (["empty"], 1)


@pytest.mark.parametrize(
    ("name", "form", "field", "why"),
    [
        ("g", {}, "roles", "must be supplied"),
        ("g", {"roles": "king"}, "roles", "king"),
        ("g", {"roles": "admin", "fly": "1"}, "fly", "Unsupported"),
        ("a%20b", {"roles": ""}, "_", "group cannot be"),
        ("%40g", {"roles": ""}, "_", "group cannot be"),
        ("a%7Fb", {"roles": ""}, "_", "group cannot be"),
        ("a,b", {"roles": ""}, "_", "group cannot be"),
        ("a" * 129, {"roles": ""}, "_", "group cannot be"),
        ("g", {"roles": "", "description": "x" * 5000}, "_", "5000"),
    ],
)
def test_groups_that_cannot_be(node: Node, name: str, form: dict[str, str], field: str, why: str) -> None:
    found = ask(node, "PUT", f"{GROUPS}/{name}", form)
    assert found.status == 400
    assert why in found.json["errors"][field]
    assert ask(node, "GET", GROUPS).json == []


@pytest.mark.parametrize("name", ["%40service", "a%20b"])
def test_users_cannot_have_the_names_of_services(node: Node, name: str) -> None:
    assert ask(node, "PUT", f"{USERS}/local/{name}", {"password": "secret1", "roles": ""}).status == 400


def test_only_administrators_make_groups_of_administrators(node: Node) -> None:
    assert by(node, "guard", "PUT", f"{GROUPS}/plain", {"roles": "ro_admin"}).status == 200
    assert by(node, "guard", "PUT", f"{GROUPS}/plain", {"roles": "ro_admin,admin"}).status == 403
    assert by(node, "root", "PUT", f"{GROUPS}/bosses", {"roles": "admin"}).status == 200
    assert by(node, "guard", "PUT", f"{GROUPS}/bosses", {"roles": ""}).status == 403
    assert by(node, "guard", "DELETE", f"{GROUPS}/bosses").status == 403
    form = {"password": "secret1", "roles": "", "groups": "bosses"}
    assert by(node, "guard", "PUT", f"{USERS}/local/eve", form).status == 403
    assert by(node, "root", "PUT", f"{USERS}/local/eve", form).status == 200
    assert by(node, "guard", "PUT", f"{USERS}/local/eve", {"roles": ""}).status == 403
    assert by(node, "guard", "DELETE", f"{USERS}/local/eve").status == 403
    for user in ("owner", "reader"):
        assert by(node, user, "GET", GROUPS).status == 403
        assert by(node, user, "PUT", f"{GROUPS}/plain", {"roles": ""}).status == 403
        assert by(node, user, "DELETE", f"{GROUPS}/plain").status == 403
    assert by(node, "watcher", "GET", f"{GROUPS}/bosses").status == 200
    for path in (f"{USERS}/local/eve", f"{GROUPS}/bosses", f"{GROUPS}/plain"):
        assert by(node, "root", "DELETE", path).status == 200
