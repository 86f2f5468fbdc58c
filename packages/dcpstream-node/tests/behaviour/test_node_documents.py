"""Documents over the management port: who may read and write them, and what the pages show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream.model import BucketSettings, Persist
from dcpstream_node import Cluster, Node
from tests.kit.rest import Answer, ask

DOCS = "/pools/default/buckets/default/scopes/_default/collections/_default/docs"
PAGES = "/ui/buckets/default/documents/_default/_default"


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=4, development=True, system_scope=False) as made:
        yield made


def write(node: Node, key: str, value: str, **more: str) -> Answer:
    return ask(node, "POST", f"{DOCS}/{quote(key, safe='')}", {"value": value, **more})


def page(node: Node, path: str = "", **who: Any) -> str:
    answer = ask(node, "GET", f"{PAGES}{path}", **who)
    assert answer.status in (200, 404), answer
    return answer.body.decode()


def test_a_document_is_written_read_listed_and_deleted(node: Node) -> None:
    key = "a/b <&> ü"
    written = write(node, key, '{"n": 1}', flags="7", expiry="1000")
    assert written.status == 200
    with KvClient(node.connection_string, node.username, node.password) as kv:
        assert kv.get(key).value == b'{"n": 1}'
    read = ask(node, "GET", f"{DOCS}/{quote(key, safe='')}").json
    assert read["json"] == '{"n": 1}'
    assert (read["meta"]["id"], read["meta"]["flags"], read["meta"]["cas"]) == (key, 7, written.json["cas"])
    assert read["meta"]["expiration"] > 1000, "seconds since 1970"
    assert [row["id"] for row in ask(node, "GET", f"{DOCS}?prefix=a/").json["rows"]] == [key]
    assert ask(node, "DELETE", f"{DOCS}/{quote(key, safe='')}").status == 200
    assert ask(node, "GET", f"{DOCS}/{quote(key, safe='')}").status == 404
    assert ask(node, "GET", DOCS).json == {"rows": [], "isCut": False}


def test_the_longest_key_of_the_default_collection(node: Node) -> None:
    longest = "k" * 250
    assert write(node, longest, "{}").status == 200
    assert [row["id"] for row in ask(node, "GET", f"{DOCS}?prefix={longest}").json["rows"]] == [longest]
    assert f"{longest}</" in page(node, f"/{longest}")
    assert write(node, longest + "k", "{}").status == 400


def test_a_document_that_changed_meanwhile_is_not_overwritten(node: Node) -> None:
    first = write(node, "k", "{}").json["cas"]
    assert write(node, "k", "{}").status == 200
    answer = write(node, "k", '{"late": true}', cas=first)
    assert answer.status == 409
    assert "changed meanwhile" in answer.json["errors"]["_"]
    assert ask(node, "DELETE", f"{DOCS}/k?cas={first}").status == 409
    assert ask(node, "GET", f"{DOCS}/k").json["json"] == "{}"


def test_keys_come_in_order_from_all_vbuckets(node: Node) -> None:
    with KvClient(node.connection_string, node.username, node.password) as kv:
        for number in range(30):
            kv.set(f"k{number:02}", b"{}")
        kv.set("other", b"{}")
    found = ask(node, "GET", f"{DOCS}?prefix=k&limit=12").json
    assert [row["id"] for row in found["rows"]] == [f"k{number:02}" for number in range(12)]
    assert found["isCut"] is True
    assert ask(node, "GET", f"{DOCS}?limit=0").status == 400


def test_rights_are_those_of_the_key_value_port(node: Node) -> None:
    write(node, "k", '{"secret": 1}')
    node.add_user("reader", "secret1", ["data_reader[default]"])
    node.add_user("other", "secret1", ["data_monitoring[default]"])
    reader: dict[str, Any] = {"user": "reader", "password": "secret1"}
    assert ask(node, "GET", f"{DOCS}/k", **reader).status == 200
    assert ask(node, "POST", f"{DOCS}/k", {"value": "{}"}, **reader).status == 403
    assert ask(node, "DELETE", f"{DOCS}/k", **reader).status == 403
    shown = page(node, "/k", **reader)
    assert "secret" in shown
    assert "<textarea" not in shown
    assert "Save" not in shown
    for path in (f"{DOCS}/k", DOCS, PAGES, f"{PAGES}/k"):
        assert ask(node, "GET", path, user="other", password="secret1").status == 403


def test_only_a_node_for_development_lets_documents_be_changed() -> None:
    with Node(vbuckets=4, system_scope=False) as node:
        with KvClient(node.connection_string, node.username, node.password) as kv:
            kv.set("k", b"{}")
        for method, form in (("POST", {"value": "{}"}), ("DELETE", None)):
            answer = ask(node, method, f"{DOCS}/k", form)
            assert answer.status == 403
            assert "--development" in answer.json["errors"]["_"]
        shown = page(node, "/k")
        assert "<pre" in shown
        assert "<form" not in shown


def test_a_durable_write_is_answered_when_it_is_on_disk(tmp_path) -> None:
    settings = BucketSettings(persist=Persist.EVERY)
    with Node(vbuckets=1, path=tmp_path, settings=settings, development=True, system_scope=False) as node:
        assert write(node, "k", "{}").status == 200
        assert node.engine is not None
        vbucket = node.engine.buckets["default"].vbuckets[0]
        assert vbucket is not None
        assert vbucket.persisted_seqno == vbucket.high_seqno == 1
        assert node.engine.sessions == set(), "no session is left over"


def test_what_documents_hold_is_shown_as_text(node: Node) -> None:
    with KvClient(node.connection_string, node.username, node.password) as kv:
        kv.set("<b>k</b>", b'{"x": "</textarea><script>alert(1)</script>"}')
        kv.set("binary", bytes(range(256)))
        kv.set("number", b'{"n": 1.50}')
    assert "<script>alert" not in page(node) + page(node, f"/{quote('<b>k</b>', safe='')}")
    assert "<b>k</b>" not in page(node)
    assert "00 01 02" in page(node, "/binary")
    assert "1.50" in page(node, "/number"), "numbers stay as they were written"
    assert "There is no document with this key." in page(node, "/missing")
    assert ask(node, "GET", f"{PAGES}?key=a%2Fb").headers["location"] == f"{PAGES}/a%2Fb"


def test_a_member_names_the_node_that_has_a_document() -> None:
    with Cluster(nodes=2, replicas=0, vbuckets=8, system_scope=False) as cluster:
        with KvClient(cluster.connection_string, "Administrator", "password") as kv:
            for number in range(8):
                kv.set(f"k{number}", b"{}")
        one, other = (each.node for each in cluster.nodes)
        keys = [f"k{number}" for number in range(8)]
        away = [key for key in keys if ask(one, "GET", f"{DOCS}/{key}").status == 421]
        assert 0 < len(away) < len(keys)
        shown = page(one, f"/{away[0]}")
        assert f"http://127.0.0.1:{other.mgmt_port}{PAGES}/{away[0]}" in shown
