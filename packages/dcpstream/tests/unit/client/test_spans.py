"""The spans of the clients, by the names of the semantic conventions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import AsyncClient, Client, KvClient, StreamOptions
from dcpstream.errors import RollbackRequired
from dcpstream.wire.release import DEFAULT_RELEASE
from tests.kit.spans import Spans, captured_spans

LOGIN: dict[str, Any] = {"username": "Administrator", "password": "password", "bucket": "default"}


@pytest.fixture(scope="module")
def node() -> Iterator[dcpstream_node.Node]:
    """A node whose vbuckets begin empty: spans count what a batch has."""
    with dcpstream_node.Node(vbuckets=1, system_scope=False) as node:
        yield node


@pytest.fixture
def spans() -> Iterator[Spans]:
    with captured_spans() as found:
        yield found


def test_requests_for_documents(node: dcpstream_node.Node, spans: Spans) -> None:
    with KvClient(node.connection_string, **LOGIN) as kv:
        kv.set("key::secret", "{}")
        kv.get_many(["key::secret", "other"])
        kv.delete("other")
    written, read, deleted = spans.take()
    assert [one.name for one in (written, read, deleted)] == [
        "set _default._default",
        "get _default._default",
        "delete _default._default",
    ]
    assert dict(written.attributes) == {
        "db.system.name": "couchbase",
        "db.namespace": "default",
        "db.operation.name": "set",
        "db.collection.name": "_default._default",
        "server.address": "127.0.0.1",
        "server.port": node.port,
        "dcpstream.server.release": DEFAULT_RELEASE.version,
    }
    assert read.attributes["db.operation.batch.size"] == 2
    assert "secret" not in f"{written.attributes}{read.attributes}"


def test_a_stream_with_a_rollback(node: dcpstream_node.Node, spans: Spans) -> None:
    node.create_bucket("stream")
    login = LOGIN | {"bucket": "stream"}
    with KvClient(node.connection_string, **login) as kv:
        kv.set_many((f"key::{n}", "{}") for n in range(5))
        with Client(node.connection_string, **login) as client:
            last = list(client.changes(StreamOptions(end="latest")))[-1]
            connect, receive, stream = spans.take()[1:]
            node.inject("stale_failover", bucket="stream", vbid=0, seqno=2)
            list(client.changes(StreamOptions(start={0: last.offset}, end="latest", on_rollback="rewind")))
            again = spans.take()
            with pytest.raises(RollbackRequired):
                list(client.changes(StreamOptions(start={0: last.offset}, end="latest")))
            failed = spans.take()[-1]
    assert [one.name for one in (connect, receive, stream)] == ["connect stream", "receive stream", "stream stream"]
    assert receive.parent.span_id == stream.context.span_id
    for one in (connect, stream):
        assert one.attributes["dcpstream.server.release"] == DEFAULT_RELEASE.version
    assert receive.attributes["messaging.batch.message_count"] == 5
    assert receive.attributes["messaging.destination.name"] == "stream"
    assert receive.start_time <= receive.end_time
    rollback = again[0]
    assert rollback.name == "rollback stream"
    assert rollback.attributes["dcpstream.rollback.from_seqno"] == "5"
    assert (failed.name, failed.status.status_code.name) == ("stream stream", "ERROR")


def test_streams_of_asyncio_and_of_batches(node: dcpstream_node.Node, spans: Spans) -> None:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    node.create_bucket("more")
    login = LOGIN | {"bucket": "more"}
    with KvClient(node.connection_string, **login) as kv:
        kv.set_many((f"key::{n}", "{}") for n in range(5))

    async def read() -> int:
        return sum([1 async for _ in AsyncClient(node.connection_string, **login).changes(StreamOptions(end="latest"))])

    spans.take()
    assert asyncio.run(read()) == 5
    assert [one.name for one in spans.take()] == ["receive more", "stream more"]
    with Client(node.connection_string, **login) as client:
        assert sum(batch.record_batch.num_rows for batch in client.stream(StreamOptions(end="latest"))) == 5
    receive, stream = spans.take()[1:]
    assert receive.attributes["messaging.batch.message_count"] == 5
    assert stream.name == "stream more"
