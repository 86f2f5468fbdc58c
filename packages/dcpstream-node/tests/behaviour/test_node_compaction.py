"""Compaction as a client of a running node sees it: on request, by itself, and beside streams that read the past."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.errors import StoreError
from dcpstream.wire import Opcode, Status
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream_node import Node
from dcpstream_node.store import BucketStore, CompactionOrder, CompactionReport, base
from dcpstream_node.tasks import compactor
from dcpstream_node.testing.simulation import FrameFields
from tests.kit.peer import SocketPeer
from tests.kit.waiting import TIMEOUT_S, wait_until

DOCUMENTS = 150
VALUE_BYTES = 40_000
"""6 MB in all: more than a socket holds, so that a client that does not read leaves most of its stream unsent."""
_COMPACT = struct.Struct(">QQBBHI")


def connect(node: Node) -> SocketPeer:
    return SocketPeer(node.port).open()


def order(*, drop_deletes: bool) -> FrameFields:
    """The fields of a COMPACT_DB."""
    return {"extras": _COMPACT.pack(0, 0, drop_deletes, 0, 0, 0)}


def store_of(node: Node) -> BucketStore:
    assert node.engine is not None
    return node.engine.buckets["default"].store


def value_of(seqno: int) -> bytes:
    return seqno.to_bytes(4, "big") * (VALUE_BYTES // 4)


def write_all(node: Node) -> None:
    """A new version of every document."""
    assert node.engine is not None
    vbucket = node.engine.buckets["default"].vbucket(0)
    assert vbucket is not None
    first = vbucket.high_seqno + 1
    keys = [b"\0key-%d" % number for number in range(DOCUMENTS)]
    frames = [
        encode_stored_mutation(Version(key, value_of(seqno), 1, flags=1), vbid=0, by_seqno=seqno, cas=seqno)
        for seqno, key in enumerate(keys, first)
    ]
    vbucket.log.append_many(frames, keys, range(first, first + DOCUMENTS))


@pytest.fixture(params=["disk", "memory"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with Node(vbuckets=1, path=tmp_path if request.param == "disk" else None, system_scope=False) as node:
        write_all(node)
        yield node


@pytest.mark.slow
def test_compact_db_is_answered_when_space_was_given_back(node: Node) -> None:
    store, client = store_of(node), connect(node)
    with client:
        for _ in range(4):
            write_all(node)
        client.succeed(Opcode.DELETE, key=b"\0key-7")
        client.succeed(Opcode.SET, key=b"\0last", extras=bytes(8))
        store.commit()
        used = store.bytes_used
        client.succeed(Opcode.COMPACT_DB, **order(drop_deletes=True))
        assert store.bytes_used < used / 2
        assert store.vbuckets[0].purge_seqno == 5 * DOCUMENTS + 1
        assert store.vbuckets[0].item_count == DOCUMENTS
        assert client.succeed(Opcode.GET, key=b"\0key-8").value == value_of(4 * DOCUMENTS + 9)


def test_others_are_served_while_it_runs_and_its_failure_is_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, client, other = store_of(node), connect(node), connect(node)
    begun, may_end = threading.Event(), threading.Event()

    def compact(order: CompactionOrder) -> CompactionReport:
        begun.set()
        assert may_end.wait(TIMEOUT_S)
        raise StoreError("the disk is full")

    monkeypatch.setattr(store, "compact", compact)
    with client, other:
        client.send(Opcode.COMPACT_DB, **order(drop_deletes=False))
        assert begun.wait(TIMEOUT_S)
        assert other.succeed(Opcode.GET, key=b"\0key-8").value == value_of(9)
        may_end.set()
        assert client.next().status == Status.EINTERNAL
        monkeypatch.undo()
        client.succeed(Opcode.COMPACT_DB, **order(drop_deletes=False))


def test_it_begins_by_itself_when_much_was_superseded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MIN_GARBAGE_BYTES", 1_000_000)
    store = store_of(node)
    for _ in range(4):
        write_all(node)
    wait_until(lambda: store.fragmentation < 0.2)
    assert store.vbuckets[0].item_count == DOCUMENTS


def test_a_stream_gets_its_whole_snapshot_although_everything_in_it_was_superseded_and_compacted(node: Node) -> None:
    store, client, other = store_of(node), connect(node), connect(node)
    with client, other:
        client.succeed(Opcode.DCP_OPEN, key=b"slow", extras=struct.pack(">II", 0, 1))
        client.succeed(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
        extras = struct.pack(">IIQQQQQ", 0, 0, 0, DOCUMENTS, 0, 0, 0)
        client.succeed(Opcode.DCP_STREAM_REQ, opaque=9, extras=extras)
        assert client.next().opcode == Opcode.DCP_SNAPSHOT_MARKER
        for _ in range(3):
            write_all(node)
        store.commit()
        other.succeed(Opcode.COMPACT_DB, **order(drop_deletes=False))
        assert store.vbuckets[0].horizon_seqno > DOCUMENTS
        for expected in range(1, DOCUMENTS + 1):
            frame = client.next()
            assert frame.opcode == Opcode.DCP_MUTATION
            assert int.from_bytes(frame.extras[:8], "big") == expected
            assert frame.value == value_of(expected)
        assert client.next().opcode == Opcode.DCP_STREAM_END
        rows = len(store.vbuckets[0].rows.seqnos)
        other.succeed(Opcode.COMPACT_DB, **order(drop_deletes=False))
        assert len(store.vbuckets[0].rows.seqnos) < rows, "what only the stream needed goes when it has ended"


def test_a_node_that_stops_breaks_a_compaction_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "REST_IF_AWAITED", 1e6)
    monkeypatch.setattr(compactor, "MAX_REST_S", 0.5)
    with Node(vbuckets=8, path=tmp_path, system_scope=False) as node:
        for _ in range(3):
            write_all(node)
        store_of(node).commit()
        client = connect(node)
        client.send(Opcode.COMPACT_DB, **order(drop_deletes=False))
        hosts = node.engine.bucket_host if node.engine is not None else None
        assert hosts is not None
        running = hosts.compactors["default"].status  # type: ignore[attr-defined]
        wait_until(lambda: bool(running.is_running))
    client.close()
    with Node(vbuckets=8, path=tmp_path, system_scope=False) as node:
        assert store_of(node).vbuckets[0].item_count == DOCUMENTS
