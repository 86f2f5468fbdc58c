"""Readers of nodes that know an older list of collections than the reader does, or none that names a row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import Change, Client, ClientOptions, FileOffsetStore, KvClient, StreamOptions
from dcpstream.errors import ConnectTimeout
from dcpstream.model import StreamOffset
from dcpstream.wire import Opcode
from lab.tools.patience import patient
from tests.kit.access import LOGIN
from tests.kit.peer import SocketPeer
from tests.kit.waiting import wait_until

VBUCKETS = 2
FORGET = "forget_manifest"


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as running:
        running.set_collections("default", {"s": ["a"]})
        fill(running, "first")
        yield running


def fill(node: dcpstream_node.Node, prefix: str) -> None:
    for collection in ("_default._default", "s.a"):
        with KvClient(node.connection_string, **LOGIN, collection=collection) as kv:
            kv.set_many((f"{prefix}{number}", b"1") for number in range(8))


def read(node: dcpstream_node.Node, *, patience_s: float = patient(60), **options: Any) -> list[Change]:
    with Client(node.connection_string, **LOGIN, options=ClientOptions(patience_s=patience_s)) as client:
        return list(client.changes(StreamOptions(end="latest", on_rollback="rewind", **options)))


def while_forgetful(node: dcpstream_node.Node, act: Callable[[], list[Change]], caplog: Any) -> list[Change]:
    """A read that begins while the node has forgotten its collections, and goes on until they are pushed again."""
    peer = SocketPeer(node.port).open()
    manifest = peer.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value
    node.inject(FORGET, bucket="default")
    found: list[Change] = []
    reader = threading.Thread(target=lambda: found.extend(act()))
    reader.start()
    wait_until(lambda: "has version 0" in caplog.text)
    assert reader.is_alive()
    peer.succeed(Opcode.SET_COLLECTIONS, value=manifest)
    peer.socket.close()
    reader.join(patient(30))
    assert not reader.is_alive()
    return found


@pytest.mark.parametrize("collections", [None, ["s.a"], ["s.*"], ["s.a", "_default"]], ids=str)
def test_a_resumed_reader_waits_for_the_manifest_that_it_knows(
    node: dcpstream_node.Node, tmp_path: Path, caplog: pytest.LogCaptureFixture, collections: list[str] | None
) -> None:
    def run() -> list[Change]:
        return read(node, store=FileOffsetStore(tmp_path / "offsets"), collections=collections)

    run()
    fill(node, "second")
    found = while_forgetful(node, run, caplog)
    assert {change.op for change in found} == {"mutation"}
    names = {"s.a"} if collections in (["s.a"], ["s.*"]) else {"s.a", "_default._default"}
    expected = sorted((name, f"second{number}") for name in names for number in range(8))
    assert sorted((f"{change.scope}.{change.collection}", change.key.decode()) for change in found) == expected
    assert len([record for record in caplog.records if "has version 0" in record.message]) == 1


def test_a_reader_that_began_now_knows_the_manifest_of_that_time(
    node: dcpstream_node.Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> list[Change]:
        return read(node, start="latest", store=FileOffsetStore(tmp_path / "offsets"), collections=["s.a"])

    run()
    fill(node, "second")
    run()
    fill(node, "third")
    found = while_forgetful(node, run, caplog)
    assert sorted(change.key.decode() for change in found) == [f"third{number}" for number in range(8)]


@pytest.mark.slow
def test_a_reader_that_waits_in_vain_ends_with_an_error(node: dcpstream_node.Node, tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    read(node, store=store, collections=["s.a"])
    before = store.load()
    fill(node, "second")
    node.inject(FORGET, bucket="default")
    with pytest.raises(ConnectTimeout, match=rf"{node.port} has version 0 .* has seen version 2\. .*SET_COLLECTIONS"):
        read(node, store=store, collections=["s.a"], patience_s=0.5)
    assert store.load() == before


def test_positions_of_another_bucket_go_back_in_spite_of_an_older_manifest(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as first:
        first.set_collections("default", {"s": ["a"]})
        fill(first, "first")
        read(first, store=store)
    with (
        dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as second,
        KvClient(second.connection_string, **LOGIN) as kv,
    ):
        kv.set_many((f"new{number}", b"1") for number in range(8))
        found = read(second, store=store)
    rolled_back = {change.vbid for change in found if change.op == "rollback"}
    assert rolled_back == set(range(VBUCKETS))
    assert sum(change.op == "mutation" for change in found) == 8


def unnamed(node: dcpstream_node.Node) -> dict[int, StreamOffset]:
    """Positions that know nothing of collections, above the events of their creation."""
    last = {change.vbid: change.offset for change in read(node)}
    return {vbid: replace(at.with_collections(None), manifest_uid=0) for vbid, at in last.items()}


def test_rows_wait_for_the_name_of_their_collection(node: dcpstream_node.Node) -> None:
    start = unnamed(node)
    fill(node, "second")
    number = node.inject(FORGET, bucket="default")
    with pytest.raises(ConnectTimeout, match=r"rows of collection 0x8 had no name for 0\.5 s: version 0 .*SET_COLLEC"):
        read(node, start=start, patience_s=0.5)
    with Client(node.connection_string, **LOGIN) as client:
        changes = client.changes(StreamOptions(start=start, end="latest"))
        timer = threading.Timer(0.2, node.lift, (number,))
        timer.start()
        found = list(changes)
        timer.join()
    assert {(change.scope, change.collection) for change in found} == {("_default", "_default"), ("s", "a")}


def test_rows_of_a_dropped_collection_have_one_name_with_its_end(node: dcpstream_node.Node) -> None:
    start = unnamed(node)
    fill(node, "second")
    node.set_collections("default", {"s": []})
    found = read(node, start=start, patience_s=patient(5))
    of_dropped = {(change.scope, change.collection) for change in found if change.collection != "_default"}
    assert len(of_dropped) <= 1, of_dropped
    assert sum(change.op == "collection_dropped" for change in found) == VBUCKETS


def test_another_node_is_asked(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    with dcpstream_node.Cluster(nodes=2, replicas=0, vbuckets=4, system_scope=False) as cluster:
        cluster.set_collections("default", {"s": ["a"]})
        with KvClient(cluster.connection_string, **LOGIN, collection="s.a") as kv:
            keys = [f"k{number}" for number in range(16)]
            kv.set_many((key, b"1") for key in keys)
            with Client(cluster.connection_string, **LOGIN) as client:
                list(client.changes(StreamOptions(store=store, end="latest")))
            kv.set_many((key, b"2") for key in keys)
        cluster.nodes[0].node.inject(FORGET, bucket="default")
        with Client(cluster.connection_string, **LOGIN, options=ClientOptions(patience_s=patient(10))) as client:
            found = list(client.changes(StreamOptions(store=store, end="latest")))
    assert sorted(change.key.decode() for change in found) == sorted(keys)
    assert {change.op for change in found} == {"mutation"}
