"""A client that asks for every version gets each one once, and learns where older ones are missing."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dcpstream import AsyncClient, Client, KvClient, StreamOptions
from dcpstream.client import Change, FileOffsetStore
from dcpstream.client.machine.connection import connection
from dcpstream.model import BucketSettings
from dcpstream_node import Node

HISTORY = BucketSettings(history_retention_s=3600)
EVERY = StreamOptions(end="latest", history=True)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=1, settings=HISTORY, system_scope=False, server_bugs=[]) as node:
        yield node


def login(node: Node) -> dict[str, Any]:
    return {"username": node.username, "password": node.password, "bucket": "default"}


def read(node: Node, options: StreamOptions) -> list[Change]:
    with Client(node.connection_string, **login(node)) as client:
        return list(client.changes(options))


def write(node: Node, *values: int | None) -> None:
    """Versions of one document; None deletes it."""
    with KvClient(node.connection_string, **login(node)) as kv:
        for value in values:
            if value is None:
                kv.delete("k")
            else:
                kv.set("k", json.dumps(value))


def versions(changes: list[Change]) -> list[tuple[int, str, bytes | None]]:
    return [(change.seqno, change.op, change.value) for change in changes]


def test_every_version_arrives_once_at_its_seqno(node: Node) -> None:
    write(node, 1, 2, None, 3)
    every = [(1, "mutation", b"1"), (2, "mutation", b"2"), (3, "deletion", None), (4, "mutation", b"3")]
    assert versions(read(node, EVERY)) == every
    assert versions(read(node, StreamOptions(end="latest"))) == every[-1:]


def test_arrow_batches_have_every_version(node: Node) -> None:
    pytest.importorskip("pyarrow")
    write(node, 1, 2, 3)
    with Client(node.connection_string, **login(node)) as client:
        seqnos = [seqno for batch in client.stream(EVERY) for seqno in batch.record_batch.column("seqno").to_pylist()]
    assert seqnos == [1, 2, 3]


def test_a_bucket_without_a_history_is_reported_and_read(caplog: pytest.LogCaptureFixture) -> None:
    connection._report_no_history.cache_clear()
    with Node(vbuckets=1, system_scope=False) as node:
        write(node, 1, 2)
        with caplog.at_level(logging.WARNING):
            assert versions(read(node, EVERY)) == [(2, "mutation", b"2")]
            read(node, EVERY)
    assert [record.getMessage() for record in caplog.records if "history" in record.getMessage()] == [
        "bucket default keeps no change history: only the newest version of each document arrives"
    ]


@pytest.mark.slow
def test_a_reader_that_stops_anywhere_lacks_no_version(node: Node, tmp_path: Path) -> None:
    chance = random.Random(20131130)
    store = FileOffsetStore(tmp_path / "positions")
    found: list[int] = []
    for _ in range(30):
        write(node, *(chance.choice((1, 2, 3)) for _ in range(5)))
        with Client(node.connection_string, **login(node)) as client:
            count = chance.randrange(1, 9)
            with contextlib.closing(client.changes(StreamOptions(end="latest", history=True, store=store))) as changes:
                found += [change.seqno for change, _ in zip(changes, range(count), strict=False)]
    found += [change.seqno for change in read(node, StreamOptions(end="latest", history=True, store=store))]
    assert sorted(set(found)) == list(range(1, 151))
    assert [seqno for seqno, after in pairwise(found) if after > seqno + 1] == []


async def test_the_asyncio_client_has_the_option(node: Node) -> None:
    write(node, 1, 2)
    async with AsyncClient(node.connection_string, **login(node)) as client:
        assert [change.seqno async for change in client.changes(EVERY)] == [1, 2]
