"""Vbuckets that are read from a replica while their active node is away, and what a reader must not believe of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import Change, Client, ClientOptions, FileOffsetStore, KvClient
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import ConfigError, ConnectTimeout
from dcpstream.model import Op
from lab.tools.patience import patient
from tests.kit.access import LOGIN

VBUCKETS = 4


@pytest.fixture
def cluster() -> Iterator[dcpstream_node.Cluster]:
    with dcpstream_node.Cluster(nodes=2, replicas=1, vbuckets=VBUCKETS, system_scope=False) as running:
        yield running


def write(cluster: dcpstream_node.Cluster, prefix: str, count: int) -> set[str]:
    with KvClient(cluster.connection_string, **LOGIN) as kv:
        kv.set_many((f"{prefix} {number}", b"{}") for number in range(count))
    return {f"{prefix} {number}" for number in range(count)}


def read(
    cluster: dcpstream_node.Cluster, wanted: set[str], *, patience_s: float = patient(20), **options: Any
) -> list[Change]:
    """Changes until these documents are there; the last change is not acknowledged."""
    given = ClientOptions(patience_s=patience_s, connect_timeout_s=patient(20))
    found: list[Change] = []
    with Client(cluster.connection_string, **LOGIN, options=given) as client:
        changes = client.changes(StreamOptions(**options))
        try:
            for change in changes:
                found.append(change)
                if wanted <= keys(found):
                    break
        finally:
            changes.close()
    return found


def keys(changes: list[Change]) -> set[str]:
    return {change.key.decode() for change in changes if change.op == Op.MUTATION}


@pytest.mark.parametrize("collections", [None, ["_default"]], ids=str)
def test_a_replica_is_read_while_the_active_node_is_away(
    cluster: dcpstream_node.Cluster, tmp_path: Any, collections: list[str] | None
) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    written = write(cluster, "first", 200)
    cluster.wait_until_drained()
    cluster.nodes[1].crash()
    with pytest.raises(ConnectTimeout):
        read(cluster, written, idle_timeout_s=1, collections=collections)
    assert keys(first := read(cluster, written, replicas_after_s=0.1, store=store, collections=collections)) == written
    # Its positions are good at the next active copies, too: nothing comes twice, and nothing that was saved is void.
    saved = {vbid: record.offset.seqno for vbid, record in store.load().items()}
    cluster.fail_over(cluster.nodes[1])
    more = write(cluster, "second", 50)
    found = read(cluster, more, store=store, collections=collections, on_rollback="rewind")
    assert keys(found) - more <= {first[-1].key.decode()}
    assert all(change.seqno == saved[change.vbid] for change in found if change.op == Op.ROLLBACK)


def test_the_active_node_is_read_again_once_it_is_back(cluster: dcpstream_node.Cluster) -> None:
    written = write(cluster, "first", 100)
    cluster.wait_until_drained()
    cluster.nodes[1].crash()
    more: set[str] = set()
    found: list[Change] = []

    def come_back() -> None:
        cluster.restart_node(cluster.nodes[1])
        cluster.pause_replication()  # what is written now is at the active nodes alone
        more.update(write(cluster, "second", 50))

    with Client(cluster.connection_string, **LOGIN) as client:
        for change in client.changes(StreamOptions(replicas_after_s=0.1, on_rollback="rewind")):
            found.append(change)
            if len(found) == 100:
                other = threading.Thread(target=come_back)
                other.start()
            if keys(found) >= written | more and len(keys(found)) == 150:
                break
    other.join(patient(30))
    assert keys(found) == written | more


@pytest.mark.slow
def test_a_replica_that_lags_rolls_nobody_back(cluster: dcpstream_node.Cluster, tmp_path: Any) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    written = write(cluster, "first", 50)
    cluster.wait_until_drained()
    cluster.pause_replication()
    written |= write(cluster, "second", 50)
    read(cluster, written, store=store)
    before = store.load()
    cluster.nodes[1].crash()
    with pytest.raises(ConnectTimeout, match=r"cannot connect|a replica answers ROLLBACK"):
        read(cluster, {"none"}, patience_s=patient(1), store=store, replicas_after_s=0.1)
    for vbid, saved in store.load().items():
        assert saved.offset.vbuuid == before[vbid].offset.vbuuid
        assert saved.offset.seqno >= before[vbid].offset.seqno  # the last marker of a living node may come now


def test_the_active_node_is_tried_although_every_replica_refuses(
    cluster: dcpstream_node.Cluster, tmp_path: Any
) -> None:
    """The reader is ahead of the replicas, so none of its vbuckets there is ever open."""
    store = FileOffsetStore(tmp_path / "offsets")
    written = write(cluster, "first", 50)
    cluster.wait_until_drained()
    cluster.pause_replication()
    written |= write(cluster, "second", 50)
    read(cluster, written, store=store)
    cluster.nodes[1].crash()
    third = {f"third {number}" for number in range(50)}

    def come_back() -> None:
        cluster.restart_node(cluster.nodes[1])
        write(cluster, "third", 50)

    again = threading.Timer(1.0, come_back)
    again.start()
    found = read(cluster, third, store=store, on_rollback="rewind", replicas_after_s=0.1)
    again.join(patient(30))
    assert keys(found) >= third


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="waits for it"):
        StreamOptions(replicas_after_s=1, read_stable=True)
    with pytest.raises(ConfigError, match="0 or more"):
        StreamOptions(replicas_after_s=-1)
    with pytest.raises(ConfigError, match="no option replicas_after_s"):
        StreamOptions(replicas_after_s=1).check_for("read_ranges")
