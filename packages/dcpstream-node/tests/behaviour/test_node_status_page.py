"""The status page: complete, safe to look at, and only for those who may."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from dcpstream.client import Client
from dcpstream.client.kv.client import KvClient
from dcpstream.model import Op
from dcpstream.wire import FrameReader, Opcode, encode_request
from dcpstream_node import Node
from tests.kit.rest import ask
from tests.kit.waiting import TIMEOUT_S, wait_until

VOID = {"meta", "link", "rect", "input", "wbr"}


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(("default", "shop"), vbuckets=4) as made:
        yield made


class Page(HTMLParser):
    """Checks that elements are closed; collects words, and what the page loads or runs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), "a script in an attribute"
            assert name != "style", "the page's policy forbids it"
            if name in ("src", "href"):
                self.loads.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(node: Node, path: str = "/ui", *, status: int = 200, **who: Any) -> tuple[Page, dict[str, str]]:
    found = ask(node, "GET", path, **who)
    assert found.status == status
    assert found.headers["content-type"].startswith("text/html")
    page = Page()
    page.feed(found.body.decode())
    page.close()
    assert page.open == []
    return page, found.headers


def test_the_page_shows_buckets_and_loads_only_its_own(node: Node) -> None:
    with KvClient(node.connection_string, node.username, node.password, "shop") as kv:
        kv.set("k", b"{}")
    page, headers = read(node)
    assert all(words in page.text for words in ("default", "shop", "Nobody streams from this node."))
    assert {path for path in page.loads if path.startswith("/ui/static/")} == {
        "/ui/static/icon.svg",
        "/ui/static/main.js",
        "/ui/static/style.css",
    }
    for path in page.loads:
        assert path.startswith(("/", "#")), "nothing from elsewhere"
        if path.startswith("/"):
            assert ask(node, "GET", path).status == 200, path
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert ask(node, "GET", "/ui/static/..%2Fpages.py").status == 404
    assert ask(node, "GET", "/ui/static/pages.py").status == 404


def test_the_root_leads_to_the_page(node: Node) -> None:
    answer = ask(node, "GET", "/")
    assert (answer.status, answer.headers["location"]) == (302, "/ui")


def test_items_sent_counts_items_and_no_events_of_collections(node: Node) -> None:
    ask(node, "POST", "/pools/default/buckets/shop/scopes", {"name": "s"})
    ask(node, "POST", "/pools/default/buckets/shop/scopes/s/collections", {"name": "c"})
    login: dict[str, Any] = {"username": node.username, "password": node.password, "bucket": "shop"}
    with KvClient(node.connection_string, **login) as kv:
        for number in range(3):
            kv.set(f"k{number}", b"{}")
    with Client(node.connection_string, **login) as client:
        changes = client.changes()
        while next(changes).op != Op.MUTATION:
            pass
        wait_until(lambda: _sent(node) == 3, f"the page says that {_sent(node)} items were sent, not 3")


def _sent(node: Node) -> int:
    """Items that the page says were sent, of all clients."""
    html = ask(node, "GET", "/ui").body.decode()
    return sum(map(int, re.findall(r'data-value="(\d+)" data-label="Items sent"', html)))


def test_a_bucket_shows_its_vbuckets_and_their_history(node: Node) -> None:
    page, _ = read(node, "/ui/buckets/shop?vbucket=2")
    assert "4 active here" in page.text
    assert "Failover log of vBucket 2" in page.text
    assert node.engine is not None
    vbucket = node.engine.buckets["shop"].vbuckets[2]
    assert vbucket is not None
    assert f"{vbucket.failover_log.newest.vbuuid:016x}" in page.text
    for path in ("/ui/buckets/shop?vbucket=4", "/ui/buckets/shop?vbucket=x&first=-1"):
        assert "Branches of" not in read(node, path)[0].text


def test_a_page_that_cannot_be_shown_is_a_page_that_says_why(node: Node) -> None:
    for path in ("/ui/buckets/missing", "/ui/nothing", "/ui/buckets/shop/documents/s/missing"):
        page, headers = read(node, path, status=404)
        assert "It may have been removed." in page.text
        assert "/ui" in page.loads, "a way back"
        assert "default-src 'none'" in headers["content-security-policy"]
    node.add_user("app", "secret1", ["data_reader[shop]"])
    who = {"user": "app", "password": "secret1"}
    assert "You lack the permission cluster!write." in read(node, "/ui/faults", status=403, **who)[0].text
    assert "default" not in read(node, "/ui/buckets/default", status=403, **who)[0].text.replace("bucket[default]", "")
    page, _ = read(node, "/ui/buckets/shop/documents/_default/_default/" + 251 * "k", status=400)
    assert "key" in page.text.partition("cannot be shown")[2]
    for path in ("/ui/static/nothing", "/pools/default/buckets/missing"):
        assert ask(node, "GET", path).headers["content-type"].startswith("text/plain"), "no page for people"


def test_the_form_for_faults_has_every_field_that_a_kind_takes(node: Node) -> None:
    page = ask(node, "GET", "/ui/faults").body.decode()
    taken = {name for fields in re.findall(r'data-fields="([^"]*)"', page) for name in fields.split()}
    assert taken
    assert taken == set(re.findall(r'data-field="([^"]*)"', page))


def test_a_reader_shows_its_streams_and_its_buffer(node: Node) -> None:
    login: dict[str, Any] = {"username": node.username, "password": node.password, "bucket": "default"}
    with KvClient(node.connection_string, **login) as kv, Client(node.connection_string, **login) as client:
        kv.set("k", b"{}")
        changes = client.changes()
        next(changes)
        page, _ = read(node)
        assert "dcpstream client" in page.text
        (data,) = [path for path in page.loads if "/readers/" in path and "control" not in path]
        reader, _ = read(node, data)
        assert "Flow control" in reader.text
        assert "of 4.0 MiB" in reader.text
        assert len(re.findall(r"\dfollows", reader.text)) == 4
        changes.close()
    wait_until(lambda: ask(node, "GET", data).status == 404, "the connection was never closed")


def test_what_a_client_calls_itself_is_escaped(node: Node) -> None:
    name = b"<script>alert(1)</script>&\"'"
    with socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S) as connection:
        reader = FrameReader()
        for opcode, key, value, extras in (
            (Opcode.SASL_AUTH, b"PLAIN", b"\0Administrator\0password", b""),
            (Opcode.SELECT_BUCKET, b"default", b"", b""),
            (Opcode.DCP_OPEN, name, b"", struct.pack(">II", 0, 1)),
        ):
            connection.sendall(encode_request(opcode, key=key, value=value, extras=extras))
            while (frame := reader.next_frame()) is None:
                reader.receive_data(connection.recv(1 << 16))
            assert frame.status == 0
        page, _ = read(node)
        assert name.decode() in page.text
        assert "<script>alert" not in ask(node, "GET", "/ui").body.decode()


def test_one_sees_the_buckets_that_one_may_use(node: Node) -> None:
    node.add_user("app", "secret1", ["data_reader[shop]"])
    page, _ = read(node, user="app", password="secret1")
    assert "shop" in page.text
    assert not re.search(r"\bdefault\b", page.text)
    assert ask(node, "GET", "/ui", user="").status == 401


def test_a_bucket_that_cannot_be_made_durable_is_seen(tmp_path) -> None:
    with Node(vbuckets=1, path=tmp_path) as node:
        assert node.engine is not None
        node.engine.buckets["default"].is_persisting = False
        page, _ = read(node)
        assert "not well: default" in page.text
        assert "persistence is stopped" in page.text
        assert ask(node, "GET", "/health", user="").status == 503
        node.engine.buckets["default"].is_persisting = True
        assert ask(node, "GET", "/health", user="").json == {"status": "healthy"}
