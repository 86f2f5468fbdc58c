"""A cluster of real nodes on sockets, and clients that follow its map."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import struct
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dcpstream
from dcpstream.client import ClientOptions, KvClient, RollbackEvent, StreamOptions, TlsOptions
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings, VbucketMap, vbucket_of_key
from dcpstream.wire import Opcode, OpenFlag, Status, decode_message
from dcpstream.wire.messages.dcp import AddStream, Mutation, StreamRequest
from dcpstream_node import Cluster
from dcpstream_node.cluster import ClusterNode
from dcpstream_node.cluster.machine.state import Unsettled
from dcpstream_node.commands.decode import frame_bytes, frames
from dcpstream_node.shell.tls import TlsSettings
from tests.kit.cases import each_case
from tests.kit.cluster import ACTIVE, REPLICA, Address, Admin
from tests.kit.waiting import TIMEOUT_S, wait_until

VBUCKETS = 16


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(vbuckets=VBUCKETS, system_scope=False) as running:
        yield running


def admin(node: ClusterNode, bucket: str = "default") -> Admin:
    return Admin(Address("127.0.0.1", node.port), bucket)


def active_of(cluster: Cluster, vbid: int) -> ClusterNode:
    name = cluster.chains()[vbid][0]
    assert name is not None
    return cluster.node(name)


def write(cluster: Cluster, count: int, prefix: str = "k") -> dict[bytes, bytes]:
    """Documents, each where its vbucket is active."""
    documents = {f"{prefix}{number}".encode(): f"value {number}".encode() for number in range(count)}
    chains = cluster.chains()
    for node in cluster.nodes:
        if node.is_running:
            with admin(node) as connection:
                for key, value in documents.items():
                    vbid = vbucket_of_key(key, VBUCKETS)
                    if chains[vbid][0] == node.name:
                        connection.set(vbid, key, value)
    return documents


def follower(cluster: Cluster) -> dcpstream.Client:
    return dcpstream.Client(
        cluster.connection_string, username=cluster.username, password=cluster.password, bucket="default"
    )


def read(cluster: Cluster) -> dict[bytes, bytes]:
    """Every document, as the change feed gives it to a client."""
    with follower(cluster) as client:
        return {change.key: change.value or b"" for change in client.changes(StreamOptions(end="latest"))}


def copy_hash(node: ClusterNode, vbid: int) -> str:
    """A hash of everything that a copy streams: rows with their seqnos, CAS values and revisions."""
    digest = hashlib.sha256()
    with admin(node) as connection:
        peer, high = connection.peer, connection.high_seqno(vbid)
        peer.succeed(Opcode.DCP_OPEN, key=b"hash", extras=struct.pack(">II", 0, OpenFlag.PRODUCER))
        peer.succeed(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
        request = StreamRequest(
            vbid=vbid, opaque=7, flags=0, start_seqno=0, end_seqno=high, vbuuid=0, snapshot_start=0, snapshot_end=0
        )  # fmt: skip
        peer.socket.sendall(request.encode())
        is_over = high == 0
        while not is_over:
            for frame in peer.read_ready():
                if frame.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_SYSTEM_EVENT):
                    digest.update(frame.extras[:16] + frame.key + frame.value + frame.cas.to_bytes(8, "big"))
                is_over |= frame.is_request and frame.opcode == Opcode.DCP_STREAM_END
    return digest.hexdigest()


def check_copies(cluster: Cluster) -> None:
    """Every vbucket has one active copy, and its replicas are equal to it."""
    cluster.wait_until_drained()
    for vbid, chain in enumerate(cluster.chains()):
        for node in cluster.nodes:
            with admin(node) as connection:
                status = connection.peer.call(Opcode.GET_VBUCKET, vbid=vbid)
            state = int.from_bytes(status.value, "big") if not status.status else None
            expected = ACTIVE if node.name == chain[0] else REPLICA if node.name in chain else None
            assert state == expected, (vbid, node.name)
        assert len({copy_hash(cluster.node(name), vbid) for name in chain if name is not None}) == 1


def test_three_nodes_share_the_vbuckets(cluster: Cluster):
    active = Counter(chain[0] for chain in cluster.chains())
    assert sorted(active.values()) == [5, 5, 6]
    assert set(active) == {node.name for node in cluster.nodes}
    assert all(len(set(chain)) == 2 for chain in cluster.chains())


def test_nodes_of_different_releases_show_what_the_oldest_one_has():
    """Rows pass from an older node to a newer one and back; the map rises with the last old node's departure."""
    with Cluster(2, vbuckets=VBUCKETS, release=["7.2", "8.0"]) as cluster:
        old, new = cluster.nodes
        assert [asked(node, Opcode.VERSION)[:3] for node in (old, new)] == [b"7.2", b"8.0"]
        assert all("rangeScan" not in capabilities_of(node) for node in (old, new))
        written = write(cluster, 20)
        cluster.wait_until_drained()
        check_copies(cluster)
        cluster.rebalance(remove=[old])
        assert read(cluster) == written
        assert "rangeScan" in capabilities_of(new)
    with pytest.raises(ConfigError):
        Cluster(2, release=["7.2", "8.0", "8.5"])


def asked(node: ClusterNode, opcode: int) -> bytes:
    """The value of a node's answer."""
    with admin(node) as connection:
        return bytes(connection.peer.succeed(opcode).value)


def capabilities_of(node: ClusterNode) -> list[str]:
    """The capabilities in the cluster map of a node."""
    found: list[str] = json.loads(asked(node, Opcode.GET_CLUSTER_CONFIG))["bucketCapabilities"]
    return found


def test_every_node_gives_the_same_map(cluster: Cluster):
    maps = []
    for node in cluster.nodes:
        request = urllib.request.Request(f"http://127.0.0.1:{node.mgmt_port}/pools/default/b/default")
        request.add_header("Authorization", "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            over_http = json.load(answer)
        with admin(node) as connection:
            over_kv = json.loads(connection.peer.succeed(Opcode.GET_CLUSTER_CONFIG).value)
            theirs = [vbid for vbid, chain in enumerate(cluster.chains()) if chain[0] != node.name]
            refused = connection.peer.call(Opcode.GET, vbid=theirs[0], key=b"\0k")
        assert refused.status == Status.NOT_MY_VBUCKET
        maps += [over_http, over_kv, json.loads(refused.value)]
    found = {VbucketMap.from_json(content, "127.0.0.1") for content in maps}
    assert len(found) == 1
    (given,) = found
    names = {node.port: node.name for node in cluster.nodes}
    assert [tuple(names[address.kv_port] for address in given.copies(vbid)) for vbid in range(VBUCKETS)] == [
        tuple(chain) for chain in cluster.chains()
    ]


@pytest.mark.slow
def test_replicas_equal_their_active_copies(cluster: Cluster):
    documents = write(cluster, 200)
    check_copies(cluster)
    assert read(cluster) == documents


def test_nodes_come_and_go_under_a_client_that_reads(cluster: Cluster):
    """The client gets every change once, and no rollback: takeovers begin no branch."""
    found: dict[bytes, bytes] = {}
    expected = write(cluster, 100)
    with follower(cluster) as client:

        def follow() -> None:
            for change in client.changes():
                found[change.key] = change.value or b""
                if change.key == b"end":
                    return

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        added = cluster.add_node()
        cluster.rebalance()
        assert Counter(chain[0] for chain in cluster.chains())[added.name] == VBUCKETS // 4
        expected |= write(cluster, 100, "while there are four ")
        gone = cluster.nodes[0]
        cluster.rebalance(remove=[gone])
        assert not gone.is_running
        assert gone not in cluster.nodes
        expected |= write(cluster, 100, "after one left ")
        check_copies(cluster)
        wait_until(lambda: found == expected, "the client lost something")
        vbid = vbucket_of_key(b"end", VBUCKETS)
        with admin(active_of(cluster, vbid)) as connection:
            connection.set(vbid, b"end", b"")
        reader.join(TIMEOUT_S)
        assert not reader.is_alive()
    assert read(cluster) == expected | {b"end": b""}


def test_a_crashed_node_is_failed_over_under_a_client_that_reads(cluster: Cluster):
    found: dict[bytes, bytes] = {}
    expected = write(cluster, 100)
    cluster.wait_until_drained()
    victim = cluster.nodes[1]
    mine = [vbid for vbid, chain in enumerate(cluster.chains()) if chain[0] == victim.name]
    with follower(cluster) as client:

        def follow() -> None:
            for change in client.changes(StreamOptions(on_rollback="rewind")):
                if change.op in ("mutation", "deletion", "expiration"):
                    found[change.key] = change.value or b""
                if change.key == b"end":
                    return

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        wait_until(lambda: found == expected)
        victim.crash()
        report = cluster.fail_over(victim)
        assert set(report.promoted["default"]) == set(mine)
        assert report.lost == {"default": []}
        expected |= write(cluster, 100, "after the failover ")
        wait_until(lambda: found == expected, "the client lost something")
        vbid = vbucket_of_key(b"end", VBUCKETS)
        with admin(active_of(cluster, vbid)) as connection:
            connection.set(vbid, b"end", b"")
        reader.join(TIMEOUT_S)
        assert not reader.is_alive()
    cluster.rebalance()
    assert {node.name for node in cluster.nodes} == {name for chain in cluster.chains() for name in chain}
    check_copies(cluster)


@pytest.mark.slow
def test_a_stale_replica_rolls_clients_back(cluster: Cluster):
    """Writes that only the failed node had are gone, and a client that has them gets a rollback."""
    kept = write(cluster, 50)
    cluster.wait_until_drained()
    cluster.pause_replication()
    victim = cluster.nodes[2]
    vbid = next(vbid for vbid, chain in enumerate(cluster.chains()) if chain[0] == victim.name)
    with admin(victim) as connection:
        connection.set(vbid, b"lost", b"soon")
    rollbacks: list[RollbackEvent] = []
    with follower(cluster) as client:
        seen: set[bytes] = set()

        def follow() -> None:
            for change in client.changes(StreamOptions(on_rollback=rollbacks.append)):
                seen.add(change.key)
                if change.key == b"end":
                    return

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        wait_until(lambda: b"lost" in seen)
        victim.crash()
        cluster.fail_over(victim)
        cluster.resume_replication()
        with admin(active_of(cluster, vbid)) as connection:
            assert connection.get(vbid, b"lost")[0] == Status.KEY_ENOENT
            connection.set(vbid, b"end", b"")
        reader.join(TIMEOUT_S)
        assert not reader.is_alive()
    assert [event.vbid for event in rollbacks] == [vbid]
    assert read(cluster).keys() == kept.keys() | {b"end"}


def test_a_graceful_failover_loses_nothing(cluster: Cluster):
    documents = write(cluster, 100)
    cluster.pause_replication()
    cluster.resume_replication()
    leaving = cluster.nodes[0]
    report = cluster.fail_over_gracefully(leaving)
    assert report.promoted == {"default": {}}
    assert read(cluster) == documents
    cluster.rebalance()
    assert not leaving.is_running
    check_copies(cluster)


def test_a_cancelled_rebalance_can_be_resumed(cluster: Cluster):
    documents = write(cluster, 100)
    cluster.add_node()
    cluster.pause_replication()  # no move gets further than its backfill
    running = cluster.begin_rebalance()
    with pytest.raises(DcpstreamError, match="under way"):
        cluster.begin_rebalance()
    assert running.progress < 1.0
    running.cancel()
    cluster.resume_replication()
    is_whole = running.wait()
    check_copies(cluster)
    cluster.rebalance()
    assert not is_whole
    assert sorted(Counter(chain[0] for chain in cluster.chains()).values()) == [4, 4, 4, 4]
    check_copies(cluster)
    assert read(cluster) == documents


def test_replicas_that_are_not_drained_are_reported_with_the_reason(cluster: Cluster):
    unsettled = cluster._state("default").unsettled
    unsettled[0] = Unsettled(("silent",), ("silent",), is_begun=True)  # no node of this name ever answers
    with pytest.raises(TimeoutError, match=r"not drained .* the moves of 1 vbuckets failed .* fail them over"):
        cluster.wait_until_drained(timeout_s=0.1)
    del unsettled[0]
    cluster.wait_until_drained()


def test_durable_writes_reach_a_majority(cluster: Cluster):
    key = b"durable"
    vbid = vbucket_of_key(key, VBUCKETS)
    active, replica = (cluster.node(str(name)) for name in cluster.chains()[vbid])
    with admin(active) as connection:
        answer = connection.peer.call(
            Opcode.SET, vbid=vbid, key=b"\0" + key, value=b"v", extras=bytes(8), framing=b"\x11\x01"
        )
        assert answer.status == Status.SUCCESS
        cluster.pause_replication()
        answer = connection.peer.call(
            Opcode.SET, vbid=vbid, key=b"\0" + key, value=b"w", extras=bytes(8), framing=b"\x13\x01\x05\xdc"
        )
        assert answer.status == Status.SYNC_WRITE_AMBIGUOUS
        cluster.resume_replication()
    cluster.wait_until_drained()
    active.crash()
    cluster.fail_over(active)
    with admin(replica) as connection:
        assert connection.get(vbid, key)[1] == b"v"
        answer = connection.peer.call(
            Opcode.SET, vbid=vbid, key=b"\0" + key, value=b"x", extras=bytes(8), framing=b"\x11\x01"
        )
        assert answer.status == Status.DURABILITY_IMPOSSIBLE


def test_buckets_collections_and_users_are_the_cluster_s(cluster: Cluster):
    cluster.create_bucket("other", BucketSettings(replicas=2), vbuckets=8)
    cluster.set_collections("other", {"shop": ["orders", "returns"]})
    cluster.add_user("reader", "secret", ["data_reader[other]"])
    added = cluster.add_node()
    cluster.rebalance()
    assert all(len({*chain} - {None}) == 3 for chain in cluster.chains("other"))
    for node in (*cluster.nodes, added):
        with Admin(Address("127.0.0.1", node.port, "reader", "secret"), "other") as connection:
            found = connection.peer.succeed(Opcode.GET_COLLECTION_ID, value=b"shop.returns")
            assert len(found.extras) == 12
    cluster.drop_bucket("other")
    with pytest.raises(ConfigError, match="other"):
        cluster.chains("other")
    for node in cluster.nodes:
        assert node.node.buckets == ["default"]


def test_a_cluster_starts_again_and_stops_twice():
    cluster = Cluster(nodes=1, replicas=1, vbuckets=4, system_scope=False)
    for _ in range(2):
        with cluster:
            assert [chain[1] for chain in cluster.chains()] == [None] * 4
            assert cluster.is_running
        cluster.stop()
        assert not cluster.is_running
        with pytest.raises(DcpstreamError, match="start it first"):
            cluster.chains()


def test_a_capture_has_every_frame(tmp_path: Path):
    path = tmp_path / "frames.hex"
    with Cluster(nodes=2, replicas=1, vbuckets=2, capture=path, system_scope=False) as cluster:
        with admin(active_of(cluster, 0)) as connection:
            connection.set(0, b"k", b"captured")
        cluster.wait_until_drained()
        names = [node.name for node in cluster.nodes]
    messages = [decode_message(frame) for _, frame in frames(frame_bytes(path.read_bytes()))]
    assert sum(isinstance(message, AddStream) for message in messages) == 2
    assert sum(isinstance(message, StreamRequest) for message in messages) == 2
    assert [message.value for message in messages if isinstance(message, Mutation)] == [b"captured"]
    comments = {line for line in path.read_text().splitlines() if line.startswith("#")}
    assert f"# orchestrator to destination: {names[0]} -> {names[1]}" in comments
    assert f"# source: {names[1]} -> {names[0]}" in comments


@each_case(
    "options",
    [{"nodes": 0}, {"nodes": 17}, {"replicas": 4}, {"vbuckets": 0}, {"tls": 7}, {"process": True}, {"port": -1}],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]):
    with pytest.raises(ConfigError):
        Cluster(**options, system_scope=False)


def test_nodes_that_cannot_be_are_refused(cluster: Cluster):
    with pytest.raises(ConfigError):
        cluster.fail_over("n9")
    with pytest.raises(ConfigError):
        cluster.fail_over(*cluster.nodes)
    with pytest.raises(ConfigError):
        cluster.begin_rebalance(remove=cluster.nodes)
    with pytest.raises(ConfigError):
        cluster.create_bucket("default")
    with pytest.raises(ConfigError):
        cluster.remove_user("nobody")
    check_copies(cluster)


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_nodes_serve_over_tls_with_certificates_of_one_authority(*, processes: bool):
    with Cluster(2, vbuckets=VBUCKETS, tls=True, processes=processes, system_scope=False) as cluster:
        trust = TlsOptions(trust=cluster.ca_certificate)
        options = ClientOptions(tls=trust)
        with KvClient(cluster.tls_connection_string, cluster.username, cluster.password, options=options) as kv:
            kv.set_many([(f"k{number}", "1") for number in range(4 * VBUCKETS)])  # it reaches every node
            cluster.add_node()
            cluster.rebalance()
            kv.set_many([(f"k{number}", "2") for number in range(4 * VBUCKETS)])
        context = ssl.create_default_context(cadata=cluster.ca_certificate)
        for node in cluster.nodes:
            request = urllib.request.Request(f"https://127.0.0.1:{node.node.mgmt_tls_port}/pools/default/b/default")
            login = f"{cluster.username}:{cluster.password}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
            with urllib.request.urlopen(request, context=context, timeout=TIMEOUT_S) as answer:
                services = [each["services"] for each in json.load(answer)["nodesExt"]]
            assert [each["kvSSL"] for each in services] == [each.node.tls_port for each in cluster.nodes]
            assert [each["mgmtSSL"] for each in services] == [each.node.mgmt_tls_port for each in cluster.nodes]


def test_a_users_certificate_logs_in_on_every_node_also_after_a_restart(tmp_path: Path):
    settings = TlsSettings(client_auth="mandatory")
    with Cluster(2, vbuckets=VBUCKETS, tls=settings, path=tmp_path / "data", system_scope=False) as cluster:
        cluster.restart_node(cluster.nodes[1])
        certificate, key = cluster.client_certificate(cluster.username)
        for name, text in (("user.pem", certificate), ("user.key", key)):
            (tmp_path / name).write_text(text)
        context = ssl.create_default_context(cadata=cluster.ca_certificate)
        context.load_cert_chain(tmp_path / "user.pem", tmp_path / "user.key")
        for node in cluster.nodes:
            url = f"https://127.0.0.1:{node.node.mgmt_tls_port}/whoami"
            with urllib.request.urlopen(url, context=context, timeout=TIMEOUT_S) as answer:
                assert json.load(answer)["id"] == cluster.username
    with pytest.raises(ConfigError, match="no authority"):
        Cluster(2, system_scope=False).client_certificate("x")


@pytest.mark.slow
def test_of_several_nodes_each_has_a_name_in_the_map_and_of_one_node_none(cluster: Cluster):
    def hosts() -> list[str | None]:
        with admin(cluster.nodes[0]) as connection:
            config = json.loads(connection.peer.succeed(Opcode.GET_CLUSTER_CONFIG).value)
        return [each.get("hostname") for each in config["nodesExt"]]

    assert hosts() == ["127.0.0.1"] * 3  # the Java SDK refuses a map without
    cluster.rebalance(remove=cluster.nodes[1:])
    assert hosts() == [None]


@each_case("options", [{"host": "0.0.0.0", "password": "of my own"}, {"plain": "tls"}])
def test_nodes_that_refuse_plain_passwords_take_their_managers(options: dict[str, Any]):
    with Cluster(2, vbuckets=1, **options, system_scope=False) as cluster:
        cluster.wait_until_drained()
        assert None not in cluster.chains()[0]


def test_no_copy_follows_another_one_while_a_bucket_is_emptied(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Else a copy that is empty already would get documents of one that is not, and give durable writes its word."""
    write(cluster, 32)

    def dcp_sessions() -> list[object]:
        engines = [each.node.engine for each in cluster.nodes]
        return [session for engine in engines if engine is not None for session in list(engine.sessions) if session.dcp]

    assert dcp_sessions()
    emptied: list[str] = []
    for each in cluster.nodes:

        def look(name: str, flush: Callable[[str], None] = each.node.flush_bucket) -> None:
            wait_until(lambda: not dcp_sessions())
            emptied.append(name)
            flush(name)

        monkeypatch.setattr(each.node, "flush_bucket", look)
    cluster.flush_bucket("default")
    assert emptied == ["default"] * 3
    assert dcp_sessions()
    check_copies(cluster)


def test_a_node_that_was_added_and_restarted_knows_the_collections(cluster: Cluster):
    cluster.set_collections("default", {"inventory": ["airline"]})
    added = cluster.add_node()
    cluster.restart_node(added)  # its memory is gone
    with admin(added) as connection:
        assert b"airline" in connection.peer.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value
