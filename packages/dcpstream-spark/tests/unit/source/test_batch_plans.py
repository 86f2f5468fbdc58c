"""Plans of batch reads that follow one another in one worker, and so share a kept cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.client import BucketReader, KvClient
from dcpstream.errors import AccessDenied, AuthenticationFailed
from dcpstream_node.cluster import Cluster as RunningCluster
from dcpstream_spark import data_source as source
from dcpstream_spark.data_source import DcpBatchReader
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.coordinator import open_cluster
from dcpstream_spark.source.reading import DcpPartition
from tests.kit.access import LOGIN
from tests.kit.spark import access, kv_of, rows_of

pytestmark = pytest.mark.usefixtures("closes_connections")

VBUCKETS = 4


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[BucketReader]:
    """The clusters that plans have made."""
    found: list[BucketReader] = []

    def connect(options: SourceOptions) -> BucketReader:
        found.append(open_cluster(options))
        return found[-1]

    monkeypatch.setattr(source, "open_cluster", connect)
    return found


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS) as node:
        yield node


def plan(options: dict[str, str]) -> list[DcpPartition]:
    parts = DcpBatchReader(SourceOptions.parse(options)).partitions()
    assert all(isinstance(part, DcpPartition) for part in parts)
    return parts  # type: ignore[return-value]


def branches(parts: list[DcpPartition]) -> dict[int, tuple[int, int]]:
    """Vbucket → end and branch of the plan."""
    ranges = [one.range for part in parts for one in part.ranges]
    return {one.vbid: (one.end_seqno, one.planned_vbuuid) for one in ranges}


def keys(options: dict[str, str], parts: list[DcpPartition]) -> set[str]:
    reader = DcpBatchReader(SourceOptions.parse(options))
    return {row["key"] for part in parts for row in rows_of(reader.read(part)) if row["op"] == "mutation"}


def test_the_next_plan_asks_over_the_same_connections_and_sees_what_is_new(
    node: dcpstream_node.Node, made: list[BucketReader]
) -> None:
    options = access(node)
    before = sum(end for end, _ in branches(plan(options)).values())
    for number in range(3):
        with kv_of(node) as kv:
            kv.set(f"k{number}", b"v")
        parts = plan(options)
        assert sum(end for end, _ in branches(parts).values()) == before + number + 1
    assert len(made) == 1
    assert keys(options, parts) == {"k0", "k1", "k2"}


def test_a_bucket_that_was_recreated_is_planned_by_what_it_is_now(
    node: dcpstream_node.Node, made: list[BucketReader]
) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"old {n}", b"v") for n in range(9))
    options = access(node)
    before = plan(options)
    node.drop_bucket("default")
    node.create_bucket("default", vbuckets=2 * VBUCKETS)
    with kv_of(node) as kv:
        kv.set("new", b"v")
    after = plan(options)
    assert keys(options, after) == {"new"}
    assert after[0].bucket_uuid not in ("", before[0].bucket_uuid)
    assert len(made) == 2


def test_a_bucket_that_is_gone_is_an_error_at_once(node: dcpstream_node.Node) -> None:
    options = access(node, idleTimeout="2")
    plan(options)
    node.drop_bucket("default")
    with pytest.raises(AccessDenied):
        plan(options)


def test_a_flushed_bucket_has_new_branches(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"old {n}", b"v") for n in range(50))
    before = branches(plan(access(node)))
    node.flush_bucket("default")
    with kv_of(node) as kv:
        kv.set_many((f"new {n}", b"v") for n in range(50))
    parts = plan(access(node))
    after = branches(parts)
    assert all(after[vbid][1] != branch for vbid, (_, branch) in before.items())
    assert keys(access(node), parts) == {f"new {n}" for n in range(50)}


def test_a_node_that_was_restarted_is_asked_over_a_new_connection(tmp_path: Path, made: list[BucketReader]) -> None:
    with dcpstream_node.Node(vbuckets=VBUCKETS, path=tmp_path) as node:
        with kv_of(node) as kv:
            kv.set("k", b"v")
        options = access(node)
        plan(options)
        port = node.port
        node.stop()
        with dcpstream_node.Node(vbuckets=VBUCKETS, path=tmp_path, port=port) as again:
            with kv_of(again) as kv:
                kv.set("l", b"v")
            assert keys(options, plan(options)) == {"k", "l"}
    assert len(made) == 2


def test_another_password_does_not_use_the_kept_connections(
    node: dcpstream_node.Node, made: list[BucketReader]
) -> None:
    plan(access(node))
    with pytest.raises(AuthenticationFailed):
        plan(access(node, password="wrong"))
    plan(access(node))
    assert len(made) == 2


@pytest.mark.parametrize("victim", [0, 1])
def test_after_a_failover_the_plan_follows_the_new_map(made: list[BucketReader], victim: int) -> None:
    with RunningCluster(nodes=2, vbuckets=VBUCKETS, replicas=1) as cluster:
        options = {"connectionString": cluster.connection_string, **LOGIN}
        with KvClient(cluster.connection_string, **LOGIN) as kv:
            kv.set_many((f"k{n}", b"v") for n in range(40))
        cluster.wait_until_drained()
        before = plan(options)
        assert len({part.node for part in before}) == 2
        cluster.fail_over(cluster.nodes[victim])
        after = plan(options)
        assert len({part.node for part in after}) == 1
        old, new = branches(before), branches(after)
        changed = {vbid for vbid in old if old[vbid][1] != new[vbid][1]}
        assert changed == {one.range.vbid for part in before if part.node != after[0].node for one in part.ranges}
        assert {vbid: end for vbid, (end, _) in new.items()} == {vbid: end for vbid, (end, _) in old.items()}
