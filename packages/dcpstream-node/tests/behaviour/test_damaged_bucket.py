"""A node with a bucket whose files are damaged: what is still served, what the user is told, and how it is mended."""

from __future__ import annotations

import base64
import http.client
import json

import pytest

from dcpstream.errors import ConfigError, CorruptLog
from dcpstream.wire import Opcode, Status
from dcpstream_node import Node
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.waiting import TIMEOUT_S


def start(path) -> Node:
    return Node(buckets=("default", "other"), vbuckets=1, path=path, flush_interval_s=0.001, system_scope=False).start()


def fill(node: Node, bucket: bytes) -> None:
    with SocketPeer(node.port).open() as peer:
        assert peer.call(Opcode.SELECT_BUCKET, key=bucket).status == 0
        for number in range(20):
            assert peer.set(f"k{number}", b"v" * 1000).status == 0
            peer.persisted(number + 1)


def damage(path) -> None:
    """Flip a bit in the middle of the bucket's first file."""
    file = path / "other" / "segment-0000000001.log"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def health(node: Node):
    connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    token = base64.b64encode(b"Administrator:password").decode()
    connection.request("GET", "/health", headers={"Authorization": f"Basic {token}"})
    try:
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.fixture
def damaged(tmp_path):
    node = start(tmp_path)
    fill(node, b"default")
    fill(node, b"other")
    uuid = node.engine.buckets["other"].uuid
    node.stop()
    damage(tmp_path)
    return tmp_path, uuid


def test_other_buckets_are_served_and_the_damaged_one_says_so(damaged, caplog):
    path, _ = damaged
    node = start(path)
    assert "segment-0000000001.log" in caplog.text
    with SocketPeer(node.port).open() as peer:
        assert peer.get("k3").value == b"v" * 1000
        refused = peer.call(Opcode.SELECT_BUCKET, key=b"other")
        assert refused.status == Status.TMPFAIL
        assert b"damaged" in refused.value
    status, content = health(node)
    assert (status, content["status"]) == (503, "degraded")
    assert content["buckets"]["default"]["status"] == "healthy"
    assert "segment-0000000001.log" in content["buckets"]["other"]["damage"][0]
    page = ask(node, "GET", "/ui").body.decode()
    assert "not well: other" in page
    assert "not served: files are damaged" in page
    own = ask(node, "GET", "/ui/buckets/other")
    assert own.status == 503
    assert '<p class="problem">The bucket is not served: ' in own.body.decode()
    with pytest.raises(ConfigError, match="damaged"):
        node.create_bucket("other")
    node.stop()


def test_a_node_that_has_nothing_else_to_serve_does_not_start(tmp_path):
    node = Node(buckets=("other",), vbuckets=1, path=tmp_path, flush_interval_s=0.001, system_scope=False).start()
    with SocketPeer(node.port) as peer:
        peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0password")
        peer.call(Opcode.SELECT_BUCKET, key=b"other")
        peer.call(Opcode.SET, key=b"k", value=b"v" * 1000, extras=bytes(8))
        peer.persisted(1)
    node.stop()
    damage(tmp_path)
    with pytest.raises(CorruptLog, match="store check"):
        Node(buckets=("other",), vbuckets=1, path=tmp_path, system_scope=False).start()
