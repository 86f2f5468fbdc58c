"""First snapshots without order: asked for where a user can be told, and told again after a cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import Change, Client, ClientOptions, FileOffsetStore, KvClient
from dcpstream.client.machine.values import VbucketRange
from dcpstream.client.settings.options import DcpSettings
from dcpstream.client.stream_options import StreamOptions
from dcpstream.model import Op, StreamOffset
from tests.kit.access import LOGIN
from tests.kit.proxy import Proxy

VBUCKETS = 2
DOCUMENTS = 400


def options(**changed: Any) -> StreamOptions:
    return StreamOptions(**{"collections": ["shop.orders"], "on_rollback": "rewind", **changed})


FIRST = [VbucketRange(0, StreamOffset.ZERO, 9)]
LATER = [VbucketRange(0, StreamOffset(5, 3, 3, 3), 9)]


def test_it_is_asked_for_where_a_single_collection_is_read_first_and_rows_can_be_taken_back() -> None:
    assert options().may_come_out_of_order(FIRST)
    assert options(on_rollback=lambda _: None).may_come_out_of_order(FIRST)
    assert not options(on_rollback="fail").may_come_out_of_order(FIRST)
    assert not options(collections=None).may_come_out_of_order(FIRST)
    assert not options(collections=("shop.orders", "shop.returns")).may_come_out_of_order(FIRST)
    assert not options(read_stable=True).may_come_out_of_order(FIRST)
    assert not options().may_come_out_of_order(LATER)


def test_the_control_is_a_wish() -> None:
    control = ("enable_out_of_order_snapshots", "true_with_seqno_advanced", False)
    asks = DcpSettings(name="x", out_of_order=True)
    assert control in asks.controls()
    assert control not in dataclasses.replace(asks, out_of_order=False).controls()


@pytest.fixture
def node(tmp_path: Any) -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, path=tmp_path / "data", release="8.0") as running:
        running.set_collections("default", {"shop": ["orders"]})
        with KvClient(running.connection_string, **LOGIN, collection="shop.orders") as kv:
            kv.set_many((f"doc {number}", b"x" * 200) for number in range(DOCUMENTS))
        with KvClient(running.connection_string, **LOGIN) as kv:
            kv.set_many((f"other {number}", b"x") for number in range(DOCUMENTS))
    # All of it comes from disk now.
    with dcpstream_node.Node(vbuckets=VBUCKETS, path=tmp_path / "data", release="8.0") as running:
        assert running.engine is not None
        for bucket in running.engine.buckets.values():
            bucket.parameters.oso_backfill = "enabled"
        yield running


def follow(changes: Iterator[Change]) -> tuple[dict[bytes, int], list[str]]:
    """Documents by the rules of the reference, and the control rows."""
    documents: dict[tuple[int, bytes], int] = {}
    controls: list[str] = []
    for change in changes:
        if change.op == Op.ROLLBACK:
            controls.append(change.op)
            documents = {
                key: seqno for key, seqno in documents.items() if key[0] != change.vbid or seqno <= change.seqno
            }
        elif change.op == Op.MUTATION:
            assert (change.vbid, change.key) not in documents, "a row came twice, and nobody said so"
            documents[change.vbid, change.key] = change.seqno
    return {key: seqno for (_, key), seqno in documents.items()}, controls


def test_a_first_read_has_every_document_once(node: dcpstream_node.Node, tmp_path: Any) -> None:
    store = FileOffsetStore(tmp_path / "positions")
    with Client(node.connection_string, **LOGIN) as client:
        read = client.changes(
            StreamOptions(end="latest", collections=["shop.orders"], on_rollback="rewind", store=store)
        )
        documents, controls = follow(read)
        again = client.changes(
            StreamOptions(end="latest", collections=["shop.orders"], on_rollback="rewind", store=store)
        )
        assert (list(again), len(documents), controls) == ([], DOCUMENTS, [])


def test_what_a_cut_repeats_is_reported(node: dcpstream_node.Node) -> None:
    with (
        Proxy(node.port) as proxy,
        Client(proxy.connection_string, **LOGIN, options=ClientOptions(buffer_bytes=65536)) as client,
    ):
        assert client.cluster.map.nodes
        proxy.cut_after(30_000, 60_000)
        documents, controls = follow(
            client.changes(StreamOptions(end="latest", collections=["shop.orders"], on_rollback="rewind"))
        )
        assert len(documents) == DOCUMENTS
        assert controls.count("rollback") >= 1


def test_a_node_that_refuses_sends_in_order(node: dcpstream_node.Node) -> None:
    assert node.engine is not None
    for bucket in node.engine.buckets.values():
        bucket.parameters.oso_backfill = "disabled"
    with Client(node.connection_string, **LOGIN) as client:
        changes = list(client.changes(StreamOptions(end="latest", collections=["shop.orders"], on_rollback="rewind")))
    for vbid in range(VBUCKETS):
        seqnos = [change.seqno for change in changes if change.vbid == vbid]
        assert seqnos == sorted(seqnos)
        assert all(change.offset.seqno == change.seqno for change in changes if change.vbid == vbid)
