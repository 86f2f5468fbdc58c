"""Reads beside what sound servers do and our own node does not by itself, and beside the fault of one stream.

The node's faults send what a server was seen to send. Every read is whole, with one connection for the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.client import BucketReader, Change, Client, KvClient, RowsRead, StreamOptions, VbucketRange
from dcpstream.errors import OutOfRange
from dcpstream.model import Op, StreamOffset
from dcpstream_node import Node
from tests.kit.access import LOGIN
from tests.kit.waiting import wait_until

WINDOW_BYTES = 64 * 1024
VALUE = "x" * 1000
ROWS = 200
FROM_0 = "0" * 16
"""A seqno in hexadecimal."""


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=2, system_scope=False) as running:
        yield running


def fill(node: Node, collection: str | None = None, count: int = 2 * ROWS, value: str = VALUE) -> None:
    with KvClient(node.connection_string, **LOGIN, collection=collection) as kv:
        kv.set_many((f"{collection} {number}", value) for number in range(count))


def high_seqnos(node: Node) -> dict[int, int]:
    with BucketReader(node.connection_string, **LOGIN) as cluster:
        return cluster.high_seqnos()


def changes(node: Node, **options: object) -> list[tuple[int, int]]:
    """The vbuckets and seqnos of a bounded read."""
    with Client(node.connection_string, **LOGIN) as client:
        rows = client.changes(StreamOptions(end="latest", **options))  # type: ignore[arg-type]
        return [(change.vbid, change.seqno) for change in rows if isinstance(change, Change)]


def connections(node: Node) -> int:
    """The number of DCP connections that were made so far."""
    return sum(int(fault["hits"]) for fault in node.faults() if fault.get("opcode") == "DCP_OPEN")


def count_connections(node: Node) -> None:
    node.inject("delay", opcode="DCP_OPEN", delay_s=0.001)


def test_an_end_inside_a_snapshot_whose_rest_is_queued(node: Node) -> None:
    """The server has ended the stream when CLOSE_STREAM comes, and sends what is queued as the window opens."""
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    fill(node)
    high = high_seqnos(node)
    count_connections(node)
    ranges = [VbucketRange(0, StreamOffset.ZERO, 20), VbucketRange(1, StreamOffset.ZERO, high[1])]
    with BucketReader(node.connection_string, **LOGIN) as cluster:
        for _ in range(2):
            found = [
                seqno
                for batch in cluster.read_ranges(ranges, buffer_bytes=WINDOW_BYTES)
                if isinstance(batch, RowsRead)
                for seqno in batch.rows["seqno"].to_pylist()
            ]
            assert sorted(found) == sorted([*range(1, 21), *range(1, high[1] + 1)])
    assert connections(node) == 1


@pytest.fixture
def from_disk(tmp_path: Path) -> Iterator[Node]:
    """A node with documents of two collections, all of which come from disk: those of `shop.orders` first."""
    with Node(vbuckets=2, path=tmp_path / "data", release="8.0", server_bugs=["oso-first-marker"]) as running:
        running.set_collections("default", {"shop": ["orders", "returns"]})
        fill(running, "shop.orders", value="x")
        fill(running, "shop.returns", value="x")
    with Node(vbuckets=2, path=tmp_path / "data", release="8.0", server_bugs=["oso-first-marker"]) as running:
        assert running.engine is not None
        running.engine.buckets["default"].parameters.oso_backfill = "enabled"
        yield running


def test_a_filtered_stream_that_ends_inside_a_snapshot(from_disk: Node) -> None:
    """MB-73354: the end of the snapshot, which is for nobody, is not sent. The next stream brings it."""
    wanted = changes(from_disk, collections=["shop.orders"])
    assert len(wanted) == 2 * ROWS + 2, "documents, and the creation of the collection"
    count_connections(from_disk)
    for vbid in range(2):
        from_disk.inject("lose", opcode="DCP_SEQNO_ADVANCED", vbid=vbid, count=1)
    assert sorted(changes(from_disk, collections=["shop.orders"])) == sorted(wanted)
    assert [fault["hits"] for fault in from_disk.faults()] == [2, 1, 1], "two: one for the questions"


def test_a_marker_from_0_after_a_snapshot_out_of_order(from_disk: Node) -> None:
    count_connections(from_disk)
    from_disk.inject("delay", opcode="DCP_OSO_SNAPSHOT", delay_s=0.001)
    rows: list[Change] = []
    with (
        Client(from_disk.connection_string, **LOGIN) as client,
        KvClient(from_disk.connection_string, **LOGIN, collection="shop.orders") as kv,
    ):
        following = client.changes(StreamOptions(collections=["shop.orders"], on_rollback="rewind"))
        rows += itertools.islice(following, 2 * ROWS + 2)
        kv.set_many((f"new {number}", "x") for number in range(50))
        rows += itertools.islice(following, 50)
        following.close()
    assert [row.op for row in rows if row.op == Op.ROLLBACK] == []
    assert len({row.key for row in rows if row.op == Op.MUTATION}) == 2 * ROWS + 50
    assert [fault["hits"] for fault in from_disk.faults()] == [2, 4], "two connections, one of them for the questions"


def test_changes_at_the_end_that_the_user_may_not_see(node: Node) -> None:
    """As of a user without SystemCollectionLookup, if a document of `_system` is the last one of a vbucket."""
    fill(node)
    high = high_seqnos(node)
    hidden = high[0]
    last_seen = (hidden - 1).to_bytes(8, "big").hex()
    node.inject("corrupt", opcode="DCP_SNAPSHOT_MARKER", vbid=0, at_byte=32, data=last_seen, count=1)
    node.inject("lose", opcode="DCP_SNAPSHOT_MARKER", vbid=0)
    node.inject("lose", opcode="DCP_MUTATION", vbid=0, skip=hidden - 1)
    assert sorted(changes(node)) == sorted(
        [*((0, seqno) for seqno in range(1, hidden)), *((1, seqno) for seqno in range(1, high[1] + 1))]
    )
    assert [fault["hits"] for fault in node.faults()] == [1, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opcode", "at_byte", "data"),
    [
        ("DCP_MUTATION", 24, FROM_0),
        ("DCP_MUTATION", 6, "0309"),
        ("DCP_SNAPSHOT_MARKER", 32, FROM_0),
    ],
    ids=["a seqno", "a vbucket", "the end of a snapshot"],
)
def test_the_fault_of_one_stream_costs_no_other(node: Node, opcode: str, at_byte: int, data: str) -> None:
    fill(node)
    whole = changes(node)
    count_connections(node)
    faulty = {"vbid": 0, "skip": 30 if opcode == "DCP_MUTATION" else 0, "count": 2}
    node.inject("corrupt", opcode=opcode, at_byte=at_byte, data=data, **faulty)
    assert sorted(changes(node)) == sorted(whole)
    assert connections(node) == 2, "one of them for the questions"


@pytest.mark.slow
@pytest.mark.parametrize(
    "status",
    ["CONFIG_ONLY", "AUTH_STALE", "NOT_INITIALIZED", "ENCRYPTION_KEY_NOT_AVAILABLE", "BUCKET_PAUSED", "CANCELLED"],
)
def test_requests_that_are_refused_for_a_while(node: Node, status: str) -> None:
    fill(node, count=10)
    node.inject("refuse", status=status, opcode="DCP_STREAM_REQ", count=3)
    assert len(changes(node)) == 10
    assert node.faults()[0]["hits"] == 3


def test_a_position_that_no_node_takes_is_explained(node: Node) -> None:
    node.inject("refuse", status="ERANGE", opcode="DCP_STREAM_REQ")
    fill(node, count=10)
    with pytest.raises(OutOfRange, match=r"ERANGE .* of the snapshot 0\.\.0 up to \d+: .* remove it and read"):
        changes(node)


@pytest.mark.slow
def test_a_message_that_never_ends(node: Node) -> None:
    fill(node)
    whole = changes(node)
    node.inject("split", opcode="DCP_MUTATION", at_byte=40, delay_s=3600, skip=100, count=1)
    assert sorted(changes(node)) == sorted(whole)
    wait_until(lambda: node.faults()[0]["hits"] == 1)
