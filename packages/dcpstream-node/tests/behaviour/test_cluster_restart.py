"""A whole cluster that starts again from its directories: after a clean stop, and after a kill of all nodes."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import dcpstream
import dcpstream_node
from dcpstream.client import KvClient, StreamOptions
from dcpstream.errors import ConfigError, DcpstreamError, StoreError
from dcpstream.model import AutoFailover, BucketSettings, FailoverLog
from dcpstream.runtime import is_locked
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream.wire.values import decode_failover_log
from dcpstream_node import Cluster
from dcpstream_node.cluster.cluster import RunningRebalance
from tests.behaviour.test_cluster import active_of, admin, check_copies, follower, read, write
from tests.behaviour.test_cluster_processes import served_by, write_durably
from tests.behaviour.test_node_command import Process
from tests.kit.waiting import wait_until

VBUCKETS = 16
AT_ONCE = BucketSettings.from_texts({"persist": "every"})


def cluster_in(path: Path, **options: Any) -> Cluster:
    return Cluster(**{"vbuckets": VBUCKETS, "path": path, "settings": AT_ONCE, **options}, system_scope=False)


def failover_logs(cluster: Cluster) -> list[FailoverLog]:
    """The failover logs of the active copies."""
    logs = []
    for vbid in range(VBUCKETS):
        with admin(active_of(cluster, vbid)) as connection:
            logs.append(decode_failover_log(connection.peer.succeed(Opcode.GET_FAILOVER_LOG, vbid=vbid).value))
    return logs


def places(cluster: Cluster) -> list[tuple[int | None, ...]]:
    """The chains, with the number of each node in place of its name."""
    numbers = {node.name: number for number, node in enumerate(cluster.nodes)}
    return [tuple(None if name is None else numbers[name] for name in chain) for chain in cluster.chains()]


def crash(cluster: Cluster) -> None:
    """Every node at once; the orchestrator has nobody left to order."""
    for node in cluster.nodes:
        node.crash()
    cluster.stop()


def test_everything_is_there_after_a_clean_stop(tmp_path: Path):
    cluster = cluster_in(tmp_path).start()
    documents = write(cluster, 200)
    cluster.create_bucket("further", BucketSettings(is_ephemeral=True))
    cluster.set_collections("default", {"inventory": ["airline"]})
    cluster.add_user("reader", "a password", ["data_reader[default]"])
    cluster.set_auto_failover(AutoFailover(is_enabled=True, timeout_s=77.0))
    cluster.wait_until_drained()
    before = cluster.connection_string, places(cluster), failover_logs(cluster)
    with follower(cluster) as client:
        positions = dcpstream.FileOffsetStore(tmp_path / "positions")
        assert sum(1 for _ in client.changes(StreamOptions(end="latest", store=positions))) >= 200
    cluster.stop()

    with cluster_in(tmp_path) as other:  # as another program: it takes other ports
        assert places(other) == before[1]
        assert failover_logs(other) == before[2]
    with cluster:
        assert (cluster.connection_string, places(cluster), failover_logs(cluster)) == before
        with follower(cluster) as client:  # a change of the branch would raise
            assert [change.key for change in client.changes(StreamOptions(end="latest", store=positions))] == []
        assert {key: value for key, value in read(cluster).items() if key in documents} == documents
        assert cluster.buckets == ["default", "further"]
        assert cluster.auto_failover.timeout_s == 77.0
        for node in cluster.nodes:
            assert "reader" in node.node.users_data()["users"]
            with admin(node) as connection:
                manifest = connection.peer.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value
            assert b"airline" in manifest
        write_durably(active_of(cluster, 3), 3, b"a replica acknowledges it")
        check_copies(cluster)
        with KvClient(cluster.connection_string, cluster.username, cluster.password, "further") as further:
            further.set("k", "v")  # its vbuckets are there again, empty


@pytest.mark.slow
def test_nodes_that_were_added_failed_over_or_removed_stay_so(tmp_path: Path):
    with cluster_in(tmp_path, nodes=4) as cluster:
        write(cluster, 50)
        cluster.rebalance(remove=[cluster.nodes[1]])
        cluster.fail_over(cluster.nodes[0])
        cluster.add_node()
        states = [node.membership for node in cluster.state().nodes]
        chains = places(cluster)
    assert {path.name for path in tmp_path.glob("node-*")} == {f"node-{number}" for number in (1, 2, 3, 4, 5)}
    with cluster_in(tmp_path, nodes=4) as cluster:
        assert [node.membership for node in cluster.state().nodes] == states
        assert places(cluster) == chains
        cluster.add_back(cluster.nodes[0])
        documents = write(cluster, 50, "more")
        cluster.rebalance()
        check_copies(cluster)
        assert documents.items() <= read(cluster).items()
        assert cluster.add_node().node._path == tmp_path / "node-6", "no directory is used twice"


def test_after_a_kill_the_copy_that_has_most_is_active(tmp_path: Path):
    with cluster_in(tmp_path, settings=BucketSettings()) as cluster:
        write(cluster, 50)
        cluster.wait_until_drained()
        node = cluster.nodes[0]
        vbid = served_by(cluster, node)[0]
        replica = cluster.node(str(cluster.chains()[vbid][1]))
        node.node.inject("full_disk")  # what it has from now on is in its memory alone
        with admin(node) as connection, admin(replica) as other:
            connection.set(vbid, b"at the replica", b"v")
            high = connection.high_seqno(vbid)
            wait_until(lambda: other.high_seqno(vbid) == high, "the replica did not get it")
            other.persist(vbid)
        crash(cluster)
    with cluster_in(tmp_path, settings=BucketSettings()) as cluster:
        assert cluster.nodes.index(active_of(cluster, vbid)) == int(replica.node._path.name[-1]) - 1
        with admin(active_of(cluster, vbid)) as connection:
            status, value, _ = connection.get(vbid, b"at the replica")
        assert (status, value) == (Status.SUCCESS, b"v")
        check_copies(cluster)


def test_a_copy_that_was_handed_over_before_a_kill_is_found(tmp_path: Path, monkeypatch):
    """The map that was saved last says that vbuckets are about to be handed over; the new copies took writes."""
    cluster = cluster_in(tmp_path, nodes=1, replicas=0).start()
    cluster.add_node()
    handed: list[int] = []
    file = cluster._file
    assert file is not None
    save = file.write

    def last_words(content: dict[str, Any]) -> None:
        if not handed:
            save(content)
            handed.extend(int(vbid) for vbid in content["record"]["buckets"]["default"]["handing"])

    monkeypatch.setattr(file, "write", last_words)
    cluster.rebalance()
    assert handed
    for vbid in handed:
        assert active_of(cluster, vbid) is cluster.nodes[1]
        with admin(cluster.nodes[1]) as connection:
            connection.set(vbid, b"at the new copy", b"v")
    crash(cluster)
    with cluster_in(tmp_path, nodes=2, replicas=0) as cluster:
        for vbid in handed:
            with admin(active_of(cluster, vbid)) as connection:
                assert connection.get(vbid, b"at the new copy")[0] == Status.SUCCESS
        check_copies(cluster)


def test_a_directory_of_something_else_is_refused(tmp_path: Path):
    cluster_in(tmp_path / "three").start().stop()
    for option, value, kept in (("nodes", 2, "nodes=3"), ("replicas", 2, "replicas=1"), ("vbuckets", 8, "vbuckets=16")):
        with pytest.raises(ConfigError, match=f"{option}={value}.*has {kept}"):
            cluster_in(tmp_path / "three", **{option: value}).start()
    with Cluster(path=tmp_path / "three", system_scope=False) as found:
        assert len(found.chains()) == VBUCKETS, "its own number"
    with pytest.raises(StoreError, match="--nodes"):
        dcpstream_node.Node(path=tmp_path / "three", system_scope=False).start()
    dcpstream_node.Node(vbuckets=1, path=tmp_path / "single", system_scope=False).start().stop()
    with pytest.raises(ConfigError, match="single node"):
        cluster_in(tmp_path / "single").start()
    file = tmp_path / "three" / ".cluster.json"
    file.write_text(file.read_text().replace('"replicas": 1', '"replicas": 0'))
    with pytest.raises(StoreError, match="checksum"):
        cluster_in(tmp_path / "three").start()
    file.unlink()
    with pytest.raises(ConfigError, match=r"\.cluster\.json"):
        cluster_in(tmp_path / "three").start()


@pytest.mark.slow
def test_a_map_that_cannot_be_saved_stops_a_move_and_no_failover(tmp_path: Path, monkeypatch):
    with cluster_in(tmp_path) as cluster:

        def refuse(_: object) -> None:
            raise StoreError("the disk is full")

        documents = write(cluster, 50)
        cluster.wait_until_drained()
        chains = cluster.chains()
        monkeypatch.setattr(cluster._file, "write", refuse)
        with pytest.raises(DcpstreamError, match="full"):
            cluster.rebalance(remove=[cluster.nodes[2]])
        assert cluster.chains() == chains
        assert cluster.fail_over(cluster.nodes[2]).lost == {"default": []}
        assert read(cluster) == documents


def wait_for_more(documents: dict[bytes, bytes], count: int) -> None:
    end = len(documents) + count
    wait_until(lambda: len(documents) >= end)


def wait_for_progress(rebalance: RunningRebalance, share: float) -> None:
    wait_until(lambda: rebalance.progress >= share or rebalance.is_done)


@pytest.mark.slow
def test_no_acknowledged_write_is_lost_when_all_processes_are_killed(tmp_path: Path):
    """SIGKILL of all nodes at random moments, under writes and a rebalance; every acknowledged write was durable."""
    chance = random.Random(5)
    acknowledged: dict[bytes, bytes] = {}
    Cluster(vbuckets=VBUCKETS, path=tmp_path, settings=AT_ONCE, processes=True, system_scope=False).start().stop()
    for kill in range(12):
        cluster = cluster_in(tmp_path, nodes=3 + kill, processes=True).start()
        assert acknowledged.items() <= read(cluster).items(), kill
        check_copies(cluster)
        cluster.add_node()
        is_over = threading.Event()

        def load(cluster: Cluster = cluster, kill: int = kill, is_over: threading.Event = is_over) -> None:
            try:
                with KvClient(cluster.connection_string, cluster.username, cluster.password, "default") as client:
                    number = 0
                    while not is_over.is_set():
                        key, number = f"{kill} {number}", number + 1
                        client.set(key, "v")
                        acknowledged[key.encode()] = b"v"
            except (DcpstreamError, OSError):
                pass  # killed

        writer = threading.Thread(target=load)
        writer.start()
        wait_for_more(acknowledged, 20)
        rebalance = cluster.begin_rebalance()
        wait_for_progress(rebalance, chance.random())
        for node in cluster.nodes:
            node.crash()
        is_over.set()
        cluster.stop()
        writer.join()
    assert len(acknowledged) > 12 * 20


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_same_command_starts_the_cluster_again(tmp_path: Path, number: signal.Signals):
    options = ("--nodes", "3", "--replicas", "1", "--data", str(tmp_path / "data"), "--persist", "every")
    node = Process(tmp_path, *options)
    strings = "couchbase://" + ",".join(f"127.0.0.1:{member['kv']}" for member in node.ready["nodes"])
    with KvClient(strings, "Administrator", "password", "default") as client:
        client.set_many((f"k{count}", "v") for count in range(50))
    assert node.end(number) == (0 if number == signal.SIGTERM else -number)
    # After SIGKILL the nodes notice that their parent is gone, and let go of their directories.
    wait_until(lambda: all(not is_locked(path) for path in (tmp_path / "data").glob("node-*")))
    node = Process(tmp_path, *options)
    (answer,) = node.call(encode_request(Opcode.GET_CLUSTER_CONFIG))
    assert answer.status == 0
    strings = "couchbase://" + ",".join(f"127.0.0.1:{member['kv']}" for member in node.ready["nodes"])
    with KvClient(strings, "Administrator", "password", "default") as client:
        assert [client.get(f"k{count}").value for count in range(50)] == [b"v"] * 50
    assert node.end(signal.SIGTERM) == 0
