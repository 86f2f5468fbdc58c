"""Scopes and collections over HTTP, and what clients then see."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dcpstream_node import Node
from dcpstream_node.engine.bucket import manifest_editor
from lab.tools.patience import patient

TIMEOUT_S = patient(20.0)
SCOPES = "/pools/default/buckets/default/scopes"


@pytest.fixture
def node() -> Iterator[Node]:
    users = {"reader": {"password": "secret", "privileges": ["Read"]}}
    with Node(vbuckets=4, users=users, system_scope=False) as made:
        yield made


def ask(
    node: Node, method: str, path: str, *, user: str = "Administrator", password: str = "password", **form: str
) -> tuple[int, dict]:
    """(status, JSON) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    headers = {
        "Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
    }
    try:
        connection.request(method, path, urlencode(form) or None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_scopes_and_collections_are_made_and_dropped(node: Node) -> None:
    assert ask(node, "POST", SCOPES, name="s1") == (200, {"uid": "1"})
    assert ask(node, "POST", f"{SCOPES}/s1/collections", name="c1", maxTTL="60") == (200, {"uid": "2"})
    assert ask(node, "POST", f"{SCOPES}/_default/collections/", name="c1") == (200, {"uid": "3"})
    _, manifest = ask(node, "GET", SCOPES)
    found = {scope["name"]: {item["name"]: item for item in scope["collections"]} for scope in manifest["scopes"]}
    assert list(found) == ["_default", "s1"]
    assert found["s1"]["c1"]["maxTTL"] == 60
    ids = [found["s1"]["c1"]["uid"], found["_default"]["c1"]["uid"]]
    assert ask(node, "DELETE", f"{SCOPES}/s1/collections/c1") == (200, {"uid": "4"})
    assert ask(node, "POST", f"{SCOPES}/s1/collections", name="c1") == (200, {"uid": "5"})
    _, manifest = ask(node, "GET", SCOPES)
    again = next(scope for scope in manifest["scopes"] if scope["name"] == "s1")["collections"][0]
    assert again["uid"] not in ids, "an id is never given twice"
    assert ask(node, "DELETE", f"{SCOPES}/s1") == (200, {"uid": "6"})
    assert ask(node, "DELETE", f"{SCOPES}/_default/collections/_default") == (200, {"uid": "7"})


def test_limits_and_history(node: Node) -> None:
    for name, form in (("a", {}), ("b", {"maxTTL": "0"}), ("c", {"maxTTL": "-1"}), ("d", {"history": "true"})):
        assert ask(node, "POST", f"{SCOPES}/_default/collections", name=name, **form)[0] == 200
    _, manifest = ask(node, "GET", SCOPES)
    told = {item["name"]: item for item in manifest["scopes"][0]["collections"]}
    assert [told[name].get("maxTTL", 0) for name in "abc"] == [0, 0, -1]
    assert told["d"]["history"] is True
    assert ask(node, "PATCH", f"{SCOPES}/_default/collections/c", maxTTL="30")[0] == 200
    assert ask(node, "POST", f"{SCOPES}/_default/collections", name="e", maxTTL="-2")[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "form", "status", "why"),
    [
        ("POST", "", {"name": "_default"}, 400, "First character"),
        ("POST", "", {"name": "_mine"}, 400, "First character"),
        ("POST", "", {"name": "a b"}, 400, "Can only contain characters"),
        ("POST", "", {"name": "a" * 252}, 400, "The length"),
        ("POST", "", {}, 400, "supplied"),
        ("POST", "/none/collections", {"name": "c"}, 404, "not found"),
        ("POST", "/_default/collections", {"name": "_default"}, 400, "First character"),
        ("POST", "/_default/collections", {"name": "c", "maxTTL": "soon"}, 400, "integer"),
        ("POST", "/_default/collections", {"name": "c", "maxTTL": str(2**31)}, 400, "integer"),
        ("DELETE", "/none", {}, 404, "not found"),
        ("DELETE", "/_default", {}, 400, "not allowed"),
        ("DELETE", "/_default/collections/none", {}, 404, "not found"),
    ],
)
def test_what_cannot_be(node: Node, method: str, path: str, form: dict[str, str], status: int, why: str) -> None:
    found, content = ask(node, method, SCOPES + path, **form)
    assert found == status
    assert why in " ".join(content["errors"].values())
    assert ask(node, "GET", SCOPES)[1]["uid"] == "0"


def test_how_many_there_can_be(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_editor, "MAX_COLLECTIONS", 2)
    assert ask(node, "POST", f"{SCOPES}/_default/collections", name="c")[0] == 200
    status, content = ask(node, "POST", f"{SCOPES}/_default/collections", name="d")
    assert (status, content["errors"]) == (400, {"_": "Maximum number of collections has been reached"})
    assert ask(node, "POST", SCOPES, name="s")[0] == 200
    status, content = ask(node, "POST", SCOPES, name="t")
    assert (status, content["errors"]) == (400, {"_": "Maximum number of scopes has been reached"})


def test_only_administrators_change_anything(node: Node) -> None:
    assert ask(node, "POST", SCOPES, user="reader", password="secret", name="s1")[0] == 403
    assert ask(node, "GET", SCOPES, user="reader", password="secret")[1]["uid"] == "0"


def test_what_was_made_survives(tmp_path: Path) -> None:
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        ask(node, "POST", SCOPES, name="s1")
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        assert ask(node, "GET", SCOPES)[1]["uid"] == "1"
