"""The management port and those who should not get in: guesses, pages of other sites, users with few rights."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

import pytest

from dcpstream_node import Node
from dcpstream_node.engine.access.login_throttle import FREE_FAILURES
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.waiting import TIMEOUT_S

USERS = {"ann": {"password": "hunter22", "roles": ["data_reader[default:_default:_default]"]}}
TOKEN = "Basic " + base64.b64encode(b"Administrator:password").decode()


@pytest.fixture
def node():
    with Node(("default", "hidden"), vbuckets=4, users=USERS) as running:
        yield running


def send(node: Node, method: str, path: str, **headers: Any) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": TOKEN}
    connection.request(method, path, "name=made", form | headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@pytest.mark.parametrize("origin", ["http://evil.example", "https://127.0.0.1:1", "null", ""])
def test_a_page_of_another_site_changes_nothing(node: Node, origin: str) -> None:
    path = "/pools/default/buckets/default/scopes"
    assert send(node, "POST", path, Origin=origin) == 403
    assert "made" not in ask(node, "GET", path).body.decode()


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "new-kind", ""])
@pytest.mark.parametrize("origin", [False, True])
def test_a_page_that_a_browser_calls_another_sites_changes_nothing(node: Node, site: str, origin: bool) -> None:
    path = "/pools/default/buckets/default/scopes"
    headers = {"Sec-Fetch-Site": site} | ({"Origin": f"http://127.0.0.1:{node.mgmt_port}"} if origin else {})
    assert send(node, "POST", path, **headers) == 403
    assert "made" not in ask(node, "GET", path).body.decode()
    assert send(node, "GET", path, **headers) == 200, "it may look, as a link does"


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_what_a_browser_calls_the_nodes_own_may(node: Node, site: str) -> None:
    path = "/pools/default/buckets/default/scopes"
    assert send(node, "POST", path, **{"Sec-Fetch-Site": site}) == 200
    assert "made" in ask(node, "GET", path).body.decode()


def test_the_nodes_own_page_may(node: Node) -> None:
    path = "/pools/default/buckets/default/scopes"
    assert send(node, "POST", path, Origin=f"http://127.0.0.1:{node.mgmt_port}") == 200
    assert "made" in ask(node, "GET", path).body.decode()


@pytest.mark.parametrize("site", [{}, {"Sec-Fetch-Site": "same-origin"}])
def test_a_page_whose_name_points_to_the_node_changes_nothing(node: Node, site: dict[str, str]) -> None:
    """DNS rebinding: the browser takes the node for the page's own site. Other clients may use any name."""
    path = "/pools/default/buckets/default/scopes"
    host = f"evil.example:{node.mgmt_port}"
    assert send(node, "POST", path, Host=host, Origin=f"http://{host}", **site) == 403
    assert "made" not in ask(node, "GET", path).body.decode()
    assert send(node, "POST", path, Host=host) == 200


def test_a_node_is_reached_by_the_names_that_it_was_given() -> None:
    path = "/pools/default/buckets/default/scopes"
    with Node(vbuckets=1, alternate_addresses={"external": {"hostname": "db.example"}}) as node:
        host = f"db.example:{node.mgmt_port}"
        assert send(node, "POST", path, Host=host, Origin=f"http://{host}") == 200
        assert send(node, "POST", path, Host=f"localhost:{node.mgmt_port}", Origin=f"http://{host}") == 403


def test_guessing_is_slow_on_pages_that_are_open_to_all(node: Node) -> None:
    assert ask(node, "GET", "/health", user="").status == 200
    for _ in range(FREE_FAILURES):
        ask(node, "GET", "/health", password="wrong")
    assert node.engine is not None
    assert node.engine.logins.failed("127.0.0.1", node.engine.now)


def test_a_user_of_one_bucket_sees_that_bucket(node: Node) -> None:
    status, body, _ = ask(node, "GET", "/pools/default/buckets", user="ann", password="hunter22")
    assert status == 200
    assert [bucket["name"] for bucket in json.loads(body)] == ["default"]
    assert ask(node, "GET", "/pools/default/buckets/hidden", user="ann", password="hunter22").status in (403, 404)
    with SocketPeer(node.port) as wire:
        wire.hello()
        assert wire.plain("ann", "hunter22") == 0
        assert wire.call(0x87).value == b"default"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/settings/rbac/users/local/eve"),
        ("DELETE", "/settings/rbac/users/local/ann"),
        ("GET", "/settings/rbac/users"),
        ("POST", "/pools/default/buckets"),
        ("DELETE", "/pools/default/buckets/default"),
        ("POST", "/pools/default/buckets/default/controller/doFlush"),
        ("POST", "/pools/default/buckets/default/scopes"),
    ],
)
def test_a_reader_changes_nothing(node: Node, method: str, path: str) -> None:
    assert (
        ask(node, method, path, "password=secret-word&roles=admin&name=x", user="ann", password="hunter22").status
        == 403
    )


def test_who_manages_users_makes_no_administrators(node: Node) -> None:
    path = "/settings/rbac/users/local/"
    assert ask(node, "PUT", path + "sec", "password=secret-word&roles=security_admin").status == 200
    who: dict[str, Any] = {"user": "sec", "password": "secret-word"}
    assert ask(node, "PUT", path + "eve", "password=secret-word&roles=data_reader[default]", **who).status == 200
    assert ask(node, "PUT", path + "eve", "roles=admin", **who).status == 403
    assert ask(node, "PUT", path + "sec", "roles=admin", **who).status == 403
