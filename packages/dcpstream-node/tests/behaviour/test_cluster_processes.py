"""A cluster whose nodes are processes: killed, hung, restarted with their data, and added back."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.client import KvClient
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import AutoFailover, BucketSettings, VbucketState, vbucket_of_key
from dcpstream.wire import Opcode, Status, decode_message
from dcpstream.wire.messages.dcp import Mutation
from dcpstream_node import Cluster
from dcpstream_node.cluster import ClusterNode
from dcpstream_node.cluster.machine.replicator import Replicator
from dcpstream_node.commands.decode import frame_bytes, frames
from lab.tools.patience import patient
from tests.behaviour.test_cluster import active_of, admin, check_copies, read, write
from tests.kit.waiting import wait_until

VBUCKETS = 16
MAJORITY = b"\x11\x01"
"""The framing extra of a durable write."""
NEVER_S = 100_000.0
AT_ONCE = BucketSettings.from_texts({"persist": "every"})


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(vbuckets=VBUCKETS, processes=True, system_scope=False) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that hangs is given up soon."""
    for name in ("orchestrator", "moves", "failover", "rebalance", "recovery"):
        module = importlib.import_module(f"dcpstream_node.cluster.machine.{name}")
        for constant in ("REPLY_TIMEOUT_S", "ORDER_TIMEOUT_S", "ADD_STREAM_TIMEOUT_S"):
            if hasattr(module, constant):
                monkeypatch.setattr(module, constant, patient(1.0))


def write_durably(node: ClusterNode, vbid: int, key: bytes, value: bytes = b"v") -> None:
    with admin(node) as connection:
        answer = connection.peer.call(
            Opcode.SET, vbid=vbid, key=b"\0" + key, value=value, extras=bytes(8), framing=MAJORITY
        )
        assert answer.status == Status.SUCCESS


def state_of(node: ClusterNode, vbid: int) -> int | None:
    with admin(node) as connection:
        answer = connection.peer.call(Opcode.GET_VBUCKET, vbid=vbid)
    return int.from_bytes(answer.value, "big") if answer.status == Status.SUCCESS else None


def served_by(cluster: Cluster, node: ClusterNode) -> list[int]:
    return [vbid for vbid, chain in enumerate(cluster.chains()) if chain[0] == node.name]


def test_a_killed_node_is_failed_over_and_replaced(cluster: Cluster):
    assert len({os.getpid(), *(node.node.pid for node in cluster.nodes)}) == 4
    documents = write(cluster, 100)
    for node in cluster.nodes:
        write_durably(node, served_by(cluster, node)[0], b"durable at " + node.name.encode())
    victim = cluster.nodes[1]
    durable = {b"durable at " + node.name.encode(): b"v" for node in cluster.nodes}
    cluster.wait_until_drained()
    victim.crash()
    assert not victim.is_running
    report = cluster.fail_over(victim)
    assert report.lost == {"default": []}
    cluster.add_node()
    cluster.rebalance()
    assert victim not in cluster.nodes
    assert len(Counter(chain[0] for chain in cluster.chains())) == 3
    check_copies(cluster)
    assert read(cluster) == documents | durable


@pytest.mark.slow
def test_buckets_and_users_reach_every_process(cluster: Cluster):
    cluster.create_bucket("other", vbuckets=4)
    cluster.add_user("reader", "secret", ["data_reader[other]"])
    cluster.add_node()
    cluster.rebalance()
    assert all(node.node.buckets == ["default", "other"] for node in cluster.nodes)
    for node in cluster.nodes:
        with KvClient(node.connection_string, "reader", "secret", "other") as client:
            assert client.get("k") is None
    cluster.drop_bucket("other")
    assert all(node.node.buckets == ["default"] for node in cluster.nodes)


@pytest.mark.parametrize(
    "processes", [pytest.param(False, id="threads"), pytest.param(True, id="processes", marks=pytest.mark.slow)]
)
def test_a_node_that_was_stopped_goes_on_with_its_data(processes: bool, tmp_path: Path):
    with Cluster(
        nodes=2, replicas=0, vbuckets=VBUCKETS, processes=processes, path=tmp_path / "data", system_scope=False
    ) as cluster:
        documents = write(cluster, 100)
        node = cluster.nodes[1]
        ports = node.port, node.mgmt_port
        mine = served_by(cluster, node)
        assert mine
        report = cluster.restart_node(node)
        assert (node.port, node.mgmt_port) == ports
        assert report.promoted == {"default": {}}
        assert report.lost == {"default": []}
        assert served_by(cluster, node) == mine
        check_copies(cluster)
        assert read(cluster) == documents


@pytest.mark.slow
def test_a_restarted_node_gives_way_to_a_replica_that_has_more(tmp_path: Path):
    """A durable write is acknowledged when a majority has it in memory; the kill takes it from the node's disk."""
    settings = BucketSettings.from_texts({"persist": "none"})
    with Cluster(
        nodes=2,
        vbuckets=1,
        processes=True,
        path=tmp_path / "data",
        settings=settings,
        flush_interval_s=NEVER_S,
        auto_failover=None,
        system_scope=False,
    ) as cluster:
        victim = active_of(cluster, 0)
        write_durably(victim, 0, b"durable")
        victim.crash()
        report = cluster.restart_node(victim)
        other = next(node for node in cluster.nodes if node is not victim)
        assert report.promoted == {"default": {0: other.name}}
        assert cluster.chains() == [(other.name, victim.name)]
        check_copies(cluster)
        assert read(cluster) == {b"durable": b"v"}


@pytest.mark.slow
def test_a_restarted_node_serves_nothing_before_its_cluster_says_so(tmp_path: Path):
    with Cluster(nodes=2, vbuckets=VBUCKETS, path=tmp_path / "data", settings=AT_ONCE, system_scope=False) as cluster:
        node = cluster.nodes[0]
        mine = served_by(cluster, node)
        write(cluster, 20)
        node.crash()
        node.node.start()
        assert [state_of(node, vbid) for vbid in mine] == [VbucketState.DEAD] * len(mine)


@pytest.mark.slow
def test_a_failed_node_comes_back_by_delta_recovery(tmp_path: Path):
    """It is sent what changed, and rolled back from what nobody else has."""
    capture = tmp_path / "frames.hex"
    with Cluster(
        nodes=3,
        vbuckets=VBUCKETS,
        processes=True,
        path=tmp_path / "data",
        settings=AT_ONCE,
        capture=capture,
        system_scope=False,
    ) as cluster:
        documents = write(cluster, 400)
        cluster.wait_until_drained()
        cluster.pause_replication()
        victim = cluster.nodes[0]
        mine = served_by(cluster, victim)
        with admin(victim) as connection:
            connection.set(mine[0], b"lost", b"soon")
        victim.node.stop()  # a kill might take documents from the disk that it had as replica only
        cluster.fail_over(victim)
        cluster.resume_replication()
        with pytest.raises(DcpstreamError, match="run"):
            cluster.add_back(victim)  # it is down
        assert cluster.restart_node(victim).promoted == {}
        changed = write(cluster, 20, "while it was away ")
        cluster.wait_until_drained()
        before = capture.stat().st_size
        cluster.add_back(victim)
        node = next(node for node in cluster.state().nodes if node.name == victim.name)
        assert (node.membership, node.recovery) == ("inactiveAdded", "delta")
        cluster.rebalance()
        assert cluster.state().nodes[0].recovery == "none"
        assert victim in cluster.nodes
        assert 0 < len(served_by(cluster, victim)) <= VBUCKETS // 2
        check_copies(cluster)
        assert read(cluster) == documents | changed
    text = capture.read_bytes()[before:]
    pieces = text.decode().split("# ")
    to_victim = "".join(
        piece.partition("\n")[2]
        for piece in pieces
        if piece.startswith("source") and piece.partition("\n")[0].endswith(f"-> {victim.name}")
    )
    sent = [message for _, frame in frames(frame_bytes(to_victim.encode())) for message in [decode_message(frame)]]
    keys = {message.key[1:] for message in sent if isinstance(message, Mutation)}  # without the collection id
    # The last documents before the failover come again where a copy is rolled back.
    assert len(keys & documents.keys()) < len(documents) // 10


@pytest.mark.slow
def test_a_full_recovery_rebuilds_the_copies(tmp_path: Path):
    with Cluster(nodes=2, vbuckets=VBUCKETS, path=tmp_path / "data", settings=AT_ONCE, system_scope=False) as cluster:
        documents = write(cluster, 40)
        cluster.wait_until_drained()
        victim = cluster.nodes[0]
        cluster.fail_over(victim)
        cluster.add_back(victim, "full")
        assert [state_of(victim, vbid) for vbid in range(VBUCKETS)] == [None] * VBUCKETS
        cluster.rebalance()
        check_copies(cluster)
        assert read(cluster) == documents


@pytest.mark.slow
def test_what_only_a_failed_node_has_comes_back_with_it(tmp_path: Path):
    with Cluster(
        nodes=2, replicas=0, vbuckets=VBUCKETS, path=tmp_path / "data", settings=AT_ONCE, system_scope=False
    ) as cluster:
        documents = write(cluster, 100)
        victim = cluster.nodes[0]
        mine = served_by(cluster, victim)
        victim.crash()
        assert cluster.fail_over(victim).lost == {"default": mine}
        cluster.restart_node(victim)
        cluster.add_back(victim)
        cluster.add_node()  # it gets some of them, but not before they are served again
        cluster.rebalance()
        check_copies(cluster)
        assert read(cluster) == documents


@pytest.mark.slow
def test_what_cannot_be_recovered_is_reported(tmp_path: Path):
    with Cluster(nodes=2, vbuckets=1, path=tmp_path / "data", system_scope=False) as cluster:
        with pytest.raises(ConfigError, match="failed over"):
            cluster.add_back(cluster.nodes[0])
        with pytest.raises(ConfigError, match="delta or full"):
            cluster.add_back(cluster.nodes[0], "fast")


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_hung_node_holds_up_neither_a_rebalance_nor_its_failover(cluster: Cluster):
    documents = write(cluster, 100)
    cluster.wait_until_drained()
    victim = cluster.nodes[2]
    mine = served_by(cluster, victim)
    cluster.add_node()
    victim.pause()
    with pytest.raises((DcpstreamError, TimeoutError)):
        cluster.rebalance()
    still_mine = served_by(cluster, victim)
    report = cluster.fail_over(victim)
    assert set(report.promoted["default"]) == {*still_mine} <= {*mine}
    assert victim.is_paused
    documents |= write_all(cluster, 50, "after the failover ")
    victim.resume()
    wait_until(lambda: all(state_of(victim, vbid) != VbucketState.ACTIVE for vbid in mine), "it serves what it lost")
    cluster.rebalance()
    assert victim not in cluster.nodes
    check_copies(cluster)
    assert read(cluster) == documents


def write_all(cluster: Cluster, count: int, prefix: str) -> dict[bytes, bytes]:
    """As `write`, to the nodes of the map alone."""
    documents = {f"{prefix}{number}".encode(): b"v" for number in range(count)}
    for key, value in documents.items():
        vbid = vbucket_of_key(key, VBUCKETS)
        with admin(active_of(cluster, vbid)) as connection:
            connection.set(vbid, key, value)
    return documents


@pytest.mark.slow
def test_a_killed_node_is_failed_over_by_itself():
    assert Cluster(system_scope=False).auto_failover == AutoFailover(is_enabled=True, timeout_s=120, max_count=1)
    soon = AutoFailover(is_enabled=True, timeout_s=patient(0.5))
    with Cluster(vbuckets=VBUCKETS, processes=True, auto_failover=soon, system_scope=False) as cluster:
        documents = write(cluster, 50)
        cluster.wait_until_drained()
        first, second, third = cluster.nodes
        first.crash()
        wait_until(lambda: cluster.auto_failover.count == 1)
        assert [node.membership for node in cluster.state().nodes] == ["inactiveFailed", "active", "active"]
        assert len(served_by(cluster, second)) + len(served_by(cluster, third)) == VBUCKETS
        assert read(cluster) == documents


@pytest.mark.slow
@pytest.mark.parametrize("behind", [1, 2])
def test_the_replica_that_has_most_is_promoted(behind: int):
    """Wherever in the chain the replica is that lacks a document."""
    with Cluster(nodes=3, replicas=2, vbuckets=1, processes=True, system_scope=False) as cluster:
        active, *replicas = (cluster.node(str(name)) for name in cluster.chains()[0])
        with admin(active) as connection:
            connection.set(0, b"first", b"1")
        cluster.wait_until_drained()
        slow, quick = replicas[behind - 1], replicas[2 - behind]
        orchestrator, shell = cluster._parts()

        def hold() -> Replicator:
            replicator = orchestrator.replicator("default", active.name, slow.name)
            replicator.pause(is_on=True)
            return replicator

        shell.call(hold).result(patient(10))
        with admin(active) as connection:
            connection.set(0, b"second", b"2")
        with admin(quick) as connection:
            wait_until(lambda: connection.high_seqno(0) == 2)
        active.crash()
        report = cluster.fail_over(active)
        assert report.promoted == {"default": {0: quick.name}}
        cluster.rebalance()
        check_copies(cluster)
        assert read(cluster) == {b"first": b"1", b"second": b"2"}
