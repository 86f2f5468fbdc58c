"""The readers against a real node, without Spark: what a task yields, and exactly in which types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

import dcpstream_node
from dcpstream.client.machine.values import RowsRead, VbucketRange
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import AuthenticationFailed, ConfigError, ConnectionLost, RollbackRequired, StatusError
from dcpstream.model import StreamOffset
from dcpstream.runtime import SystemClock
from dcpstream_spark import pool
from dcpstream_spark.data_source import DcpBatchReader, DcpDataSource, PlainStreamReader
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source.coordinator import Coordinator
from dcpstream_spark.source.offsets import positions_of
from dcpstream_spark.source.planner import PlannedRange
from dcpstream_spark.source.reading import DcpPartition, read_partition, window_bytes
from tests.kit.cases import each_case
from tests.kit.spark import Stream, access, kv_of, rows_of
from tests.kit.spark_model import FakeCluster

pytestmark = pytest.mark.usefixtures("closes_connections")

VBUCKETS = 8


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    """A node whose vbuckets begin empty: the tests count rows and seqnos."""
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as node:
        yield node


@pytest.mark.parametrize("value_format", ["binary", "string"])
def test_batches_have_exactly_the_types_that_spark_demands(node: dcpstream_node.Node, value_format: str) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"k{n}", b'{"n":%d}' % n) for n in range(500))
    source = DcpDataSource(access(node, valueFormat=value_format, maxBatchRows="50"))
    demanded = to_arrow_schema(source.schema(), timezone="UTC")
    reader = source.reader(source.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert len(batches) > 5
    assert all(batch.schema == demanded and batch.num_rows <= 50 for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 500


def test_columns_come_in_the_order_asked_for(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set("k", b"v", flags=7)
    source = DcpDataSource(access(node, columns="flags,key,value"))
    assert source.schema().names == ["flags", "key", "value"]
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for row in rows_of(reader.read(part))]
    assert rows == [{"flags": 7, "key": "k", "value": b"v"}]


def test_a_batch_between_positions(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        tokens = [kv.set(f"k{n}", b"v") for n in range(40)]
    vbid = tokens[0].vbid
    mine = sorted(token.seqno for token in tokens if token.vbid == vbid)
    assert len(mine) >= 3
    bounds = {"startingOffsets": mine[0], "endingOffsets": mine[-2]}
    options = access(node, **{name: json.dumps({str(vbid): str(seqno)}) for name, seqno in bounds.items()})
    reader = DcpBatchReader(SourceOptions.parse(options))
    rows = [row for part in reader.partitions() for row in rows_of(reader.read(part))]
    assert sorted(row["seqno"] for row in rows if row["vbucket"] == vbid) == mine[1:-1]
    assert len(rows) == 40 - 2, "the other vbuckets are read whole"


def test_an_empty_bucket_has_no_partitions(node: dcpstream_node.Node) -> None:
    reader = DcpBatchReader(SourceOptions.parse(access(node)))
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]


def test_a_stream_delivers_each_row_once_in_limited_batches(node: dcpstream_node.Node) -> None:
    stream = Stream(node, maxOffsetsPerTrigger="70")
    seen: list[tuple[int, int]] = []
    with kv_of(node) as kv:
        for turn in range(4):
            kv.set_many((f"k{n}", b"%d" % turn) for n in range(100))
            rows = stream.step()
            assert len(rows) <= 70
            seen += [(row["vbucket"], row["seqno"]) for row in rows]
        while rows := stream.step():
            seen += [(row["vbucket"], row["seqno"]) for row in rows]
        assert len(seen) == len(set(seen))
        assert stream.plan() == stream.at
        newest = {key: kv.get(key) for key in ("k0", "k99")}
        assert all(document is not None and document.value == b"3" for document in newest.values())
    # Every vbucket was followed up to its last seqno.
    report = stream.reader.reportLatestOffset()
    assert report is not None
    assert (report["lag"], report["worst"], report["inside"], report["vbuckets"]) == (0, {}, 0, VBUCKETS)
    for vbid, position in positions_of(stream.at).items():
        assert max(seqno for at, seqno in seen if at == vbid) == position.seqno


def test_a_replayed_batch_gives_the_same_rows(node: dcpstream_node.Node) -> None:
    stream = Stream(node)
    with kv_of(node) as kv:
        kv.set_many((f"k{n}", b"v") for n in range(50))
        end = stream.plan()
        first = stream.read(end)
        kv.set_many((f"new{n}", b"v") for n in range(50))
    another = Stream(node)
    assert sorted(row["key"] for row in another.read(end)) == sorted(row["key"] for row in first)
    assert len(first) == 50


def test_deletions_are_rows(node: dcpstream_node.Node) -> None:
    stream = Stream(node)
    with kv_of(node) as kv:
        kv.set("a", b"1")
        assert [row["_change_type"] for row in stream.step()] == ["insert"]
        kv.delete("a")
    (row,) = stream.step()
    assert (row["op"], row["_change_type"], row["key"], row["value"]) == ("deletion", "delete", "a", None)


class Disk:
    """A node on disk whose last writes can be lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = self._node(0.02, 0).start()
        self.port = self.node.port

    def _node(self, flush_interval_s: float, port: int) -> dcpstream_node.Node:
        return dcpstream_node.Node(
            path=self.path, vbuckets=VBUCKETS, port=port, flush_interval_s=flush_interval_s, system_scope=False
        )

    def stop_flushing(self) -> None:
        """From now on nothing is made durable."""
        self.node.stop()
        self.node = self._node(3600, self.port).start()

    def crash(self) -> None:
        self.node.crash()
        self.node = self._node(0.02, self.port).start()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "node")
    yield disk
    disk.node.stop()


def names(prefix: str) -> list[str]:
    return [f"{prefix}{n}" for n in range(20)]


def lose_some(disk: Disk, stream: Stream) -> list[dict[str, Any]]:
    """20 documents stay, 20 were read and are lost; the rows that were read."""
    with kv_of(disk.node) as kv:
        kv.set_many((f"kept{n}", b"1") for n in range(20))
    rows = stream.step()
    assert stream.plan() == stream.at, "learns where the snapshots ended"
    disk.stop_flushing()
    with kv_of(disk.node) as kv:
        kv.set_many((f"lost{n}", b"1") for n in range(20))
    rows += stream.step()
    assert len(rows) == 40
    stream.plan()
    disk.crash()
    with kv_of(disk.node) as kv:
        kv.set_many((f"other{n}", b"1") for n in range(20))
    return rows


def drain(stream: Stream, held: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Follow the stream until nothing comes; what a user holds then, and the details of all control rows."""
    details = []
    # So long a coordinator may rely on what it saw of branches.
    stream.reader._coordinator._observed_all = None
    while rows := stream.step():
        for row in rows:
            if row["op"] != "rollback":
                held.append(row)
                continue
            detail = json.loads(row["value"])
            assert (row["key"], row["_change_type"]) == (None, None)
            assert int(detail["from_seqno"]) > int(detail["to_seqno"]) == row["seqno"]
            assert detail["new_vbuuid"] == row["vbuuid"] != detail["old_vbuuid"]
            details.append(detail)
            held[:] = [one for one in held if one["vbucket"] != row["vbucket"] or one["seqno"] <= row["seqno"]]
    return details


@pytest.mark.parametrize("rewind_to", ["zero", "recorded"])
def test_a_lost_tail_is_taken_back(disk: Disk, rewind_to: str) -> None:
    stream = Stream(disk.node, onRollback="rewindAndMark", rewindTo=rewind_to)
    held = lose_some(disk, stream)
    details = drain(stream, held)
    assert sorted(row["key"] for row in held) == sorted([*names("kept"), *names("other")])
    went_to = {int(detail["to_seqno"]) for detail in details}
    assert went_to == {0} if rewind_to == "zero" else max(went_to) > 0


def test_with_policy_fail_a_lost_tail_ends_the_query(disk: Disk) -> None:
    stream = Stream(disk.node)
    lose_some(disk, stream)
    with pytest.raises(RollbackRequired, match="onRollback=rewindAndMark"):
        stream.step()


def test_a_failover_between_planning_and_reading(disk: Disk) -> None:
    """The task meets the new branch: it reports the rollback by itself and reads up to the planned end."""
    stream = Stream(disk.node, onRollback="rewindAndMark", rewindTo="zero")
    failing = Stream(disk.node)
    with kv_of(disk.node) as kv:
        kv.set_many((f"kept{n}", b"1") for n in range(20))
    stream.step()
    disk.stop_flushing()
    with kv_of(disk.node) as kv:
        kv.set_many((f"read{n}", b"1") for n in range(20))
    stream.step()
    failing.at = stream.at
    with kv_of(disk.node) as kv:
        kv.set_many((f"planned{n}", b"1") for n in range(20))
    end = stream.plan()
    disk.crash()
    with pytest.raises(RollbackRequired, match="onRollback=rewindAndMark"):
        failing.read(end)
    rows = stream.read(end)
    assert any(row["op"] == "rollback" for row in rows)
    keys = {row["key"] for row in rows if row["key"]}
    assert not any(key.startswith(("read", "planned")) for key in keys), "those were lost"
    # The next planning cannot know where the task stood, and reads these vbuckets from the beginning.
    stream.at = end
    held = [row for row in rows if row["key"]]
    drain(stream, held)
    assert sorted(row["key"] for row in held) == sorted(names("kept"))


@pytest.mark.parametrize("rewind_to", ["zero", "recorded"])
def test_a_sink_that_has_rows_of_an_attempt_that_failed(disk: Disk, rewind_to: str) -> None:
    """The replay finds its start accepted, on another branch: the rows of the attempt are void all the same."""
    stream = Stream(disk.node, onRollback="rewindAndMark", rewindTo=rewind_to)
    failing = Stream(disk.node)
    with kv_of(disk.node) as kv:
        kv.set_many((f"kept{n}", b"1") for n in range(20))
    held = stream.step()
    assert stream.plan() == stream.at, "learns where the snapshots ended"
    disk.stop_flushing()
    with kv_of(disk.node) as kv:
        kv.set_many((f"lost{n}", b"1") for n in range(20))
    end = stream.plan()
    failing.at = stream.at
    held += stream.read(end)
    assert len(held) == 40, "a sink that is not transactional keeps what the attempt gave it"
    disk.crash()
    with pytest.raises(RollbackRequired, match="after this batch was planned"):
        failing.read(end)
    rows = stream.read(end)
    told = [row for row in rows if row["op"] == "rollback"]
    assert {row["vbucket"] for row in told} == {row["vbucket"] for row in held if row["key"].startswith("lost")}
    for row in told:
        detail = json.loads(row["value"])
        assert detail["new_vbuuid"] == row["vbuuid"] != detail["old_vbuuid"]
        assert rewind_to == "zero" or detail["from_seqno"] == detail["to_seqno"]
        assert rewind_to == "recorded" or detail["to_seqno"] == "0"
        held = [one for one in held if one["vbucket"] != row["vbucket"] or one["seqno"] <= row["seqno"]]
    held += [row for row in rows if row["op"] != "rollback"]
    assert sorted(row["key"] for row in held) == sorted(names("kept"))


def test_a_batch_read_from_a_position_on_another_branch(disk: Disk) -> None:
    """A reader that was at a position may have read beyond it; a read from the beginning has nothing to take back."""
    options = {"onRollback": "rewindAndMark"}
    with kv_of(disk.node) as kv:
        token = kv.set("kept", b"1")
    stream = Stream(disk.node)
    stream.step()
    at = positions_of(stream.plan())[token.vbid]
    disk.stop_flushing()
    with kv_of(disk.node) as kv:
        kv.set("lost", b"1")
    disk.crash()
    bounds = json.dumps({str(token.vbid): at.with_snapshot_end(at.seqno).to_json()})
    source = DcpDataSource(access(disk.node, startingOffsets=bounds, **options))
    reader = source.reader(source.schema())
    with kv_of(disk.node) as kv:
        kv.set("kept", b"2")
    rows = [row for part in reader.partitions() for row in rows_of(reader.read(part))]
    assert [(row["op"], row["vbucket"]) for row in rows if row["vbucket"] == token.vbid] == [
        ("rollback", token.vbid),
        ("mutation", token.vbid),
    ]
    source = DcpDataSource(access(disk.node, startingOffsets="earliest"))
    reader = source.reader(source.schema())
    parts = reader.partitions()
    disk.crash()
    assert "rollback" not in {row["op"] for part in parts for row in rows_of(reader.read(part))}


def test_a_wrong_password_a_wrong_bucket_and_nobody(node: dcpstream_node.Node) -> None:
    with pytest.raises(AuthenticationFailed):
        DcpBatchReader(SourceOptions.parse(access(node, password="wrong"))).partitions()
    with pytest.raises(StatusError, match="no such bucket"):
        DcpBatchReader(SourceOptions.parse(access(node, bucket="nothing", idleTimeout="0.1"))).partitions()
    options = access(node, connectionString="couchbase://127.0.0.1:1", idleTimeout="0.1", connectTimeout="0.5")
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        DcpBatchReader(SourceOptions.parse(options)).partitions()


def test_a_schema_of_the_users_is_checked_before_a_connection_is_opened(node: dcpstream_node.Node) -> None:
    source = DcpDataSource(access(node, connectionString="couchbase://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="key STRING, a column of the source"):
        source.reader(StructType([StructField("key", LongType())]))


def test_only_the_columns_of_the_users_schema_are_built(
    node: dcpstream_node.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that nobody asked for costs nothing: not even nulls are made."""
    from dcpstream.arrow import changes

    built: set[str] = set()
    original = changes._choose

    def choose(*given: Any) -> Any:
        choice = original(*given)
        built.update(choice.schema.names)
        return choice

    monkeypatch.setattr(changes, "_choose", choose)
    with kv_of(node) as kv:
        kv.set_many((f"k{n}", b'{"n":%d}' % n) for n in range(50))
    schema = StructType([StructField("seqno", LongType()), StructField("key", StringType())])
    reader = DcpDataSource(access(node)).reader(schema)
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert {tuple(batch.schema.names) for batch in batches} == {("seqno", "key")}
    assert {row["key"] for row in rows_of(iter(batches))} == {f"k{n}" for n in range(50)}
    assert built == {"key", "seqno"}


def test_connections_are_kept_between_tasks_and_closed_after_a_failure(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set("k", b"v")
    options = SourceOptions.parse(access(node))
    made = []

    def connect(options: SourceOptions) -> Any:
        from dcpstream_spark.source.coordinator import open_cluster

        made.append(open_cluster(options))
        return made[-1]

    parts = DcpBatchReader(options).partitions()
    pool.close_all()  # the plan runs in a worker of its own
    for _ in range(2):
        for part in parts:
            assert isinstance(part, DcpPartition)
            assert len(rows_of(read_partition(options, part, connect=connect))) == 1
    assert len(made) == 1
    with pytest.raises(KeyError), pool.borrowed(options, connect):
        raise KeyError
    with pool.borrowed(options, connect):
        pass
    assert len(made) == 2


def test_older_sparks_have_no_start(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"k{n}", b"v") for n in range(10))
        reader = PlainStreamReader(SourceOptions.parse(access(node, startingOffsets="earliest")))
        start = reader.initialOffset()
        end = reader.latestOffset()
        rows = [row for part in reader.partitions(start, end) for row in rows_of(reader.read(part))]
        assert len(rows) == 10
        assert reader.latestOffset() == end
        kv.set("k0", b"new")
        then = reader.latestOffset()
        rows = [row for part in reader.partitions(end, then) for row in rows_of(reader.read(part))]
        assert [row["value"] for row in rows] == [b"new"]
        # After a restart the start is not known again.
        kv.set("k1", b"new")
        fresh = PlainStreamReader(SourceOptions.parse(access(node)))
        last = fresh.latestOffset()
        rows = [row for part in fresh.partitions(then, last) for row in rows_of(fresh.read(part))]
        assert [row["key"] for row in rows] == ["k1"]
        fresh.stop()
        reader.stop()


def test_before_4_2_the_first_batch_of_a_query_and_of_a_restart_keep_the_limit(node: dcpstream_node.Node) -> None:
    options = SourceOptions.parse(access(node, startingOffsets="earliest", maxOffsetsPerTrigger="12"))

    def rows_between(start: dict[str, Any], end: dict[str, Any]) -> int:
        return sum(len(rows_of(reader.read(part))) for part in reader.partitions(start, end))

    with kv_of(node) as kv:
        kv.set_many((f"k{n}", b"v") for n in range(40))
    reader = PlainStreamReader(options)
    start, end = reader.initialOffset(), reader.latestOffset()
    counts = [rows_between(start, end)]
    reader.stop()
    # A restart after the commit asks for the last batch between its end and itself.
    reader = PlainStreamReader(options)
    assert rows_between(end, end) == 0
    while (then := reader.latestOffset()) != end:
        counts.append(rows_between(end, then))
        end = then
    assert sum(counts) == 40
    assert max(counts) <= 12
    reader.stop()


def test_before_4_2_the_checkpoint_has_the_start_of_a_run_over_what_is_there(
    node: dcpstream_node.Node, tmp_path: Path
) -> None:
    """Such a run asks for the end before anything else, in a new query and after a restart."""
    given = access(node, startingOffsets="earliest", maxOffsetsPerTrigger="12", checkpointLocation=str(tmp_path))
    (tmp_path / "offsets").mkdir()
    with kv_of(node) as kv:
        kv.set_many((f"k{n}", b"v") for n in range(40))
    counts = []
    start: dict[str, Any] | None = None
    for batch in range(10):
        reader = PlainStreamReader(SourceOptions.parse(given))
        end = reader.latestOffset()
        start = start or reader.initialOffset()
        if end == start:
            reader.stop()
            break
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
        counts.append(sum(len(rows_of(reader.read(part))) for part in reader.partitions(start, end)))
        reader.stop()
        start = json.loads(json.dumps(end))
    assert counts == [12, 12, 12, 4]


def test_before_4_2_a_new_query_waits_for_a_vbucket_without_a_node() -> None:
    class Away(FakeCluster):
        """A cluster one of whose vbuckets has no active node for a while."""

        left = 3

        def high_seqnos(self) -> dict[int, int]:
            self.left -= 1
            return {vbid: high for vbid, high in super().high_seqnos().items() if vbid != 1 or self.left < 0}

    options = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}

    def reader_of(cluster: Away, **more: str) -> PlainStreamReader:
        reader = PlainStreamReader(SourceOptions.parse({**options, "startingOffsets": "earliest", **more}))
        reader._coordinator = Coordinator(
            reader._options, default_start=OffsetSpec("latest"), connect=lambda _: cluster, clock=SystemClock()
        )
        reader.initialOffset()
        return reader

    cluster = Away(2)
    cluster.write(0, "a", 1)
    cluster.write(1, "b", 1)
    end = reader_of(cluster).latestOffset()
    assert [at.seqno for at in positions_of(end).values()] == [1, 1]
    cluster.left = 10**6
    with pytest.raises(ConnectionLost, match="no active node"):
        reader_of(cluster, idleTimeout="0.1").latestOffset()


@each_case(
    ("seqnos", "most", "window"),
    [(1, 4 << 20, 128 << 10), (8_192, 4 << 20, 512 << 10), (40_000, 4 << 20, 4 << 20), (10**9, 1 << 20, 1 << 20),
     (1, 64 << 10, 64 << 10), (40_000, 64 << 20, 2 << 20)],
)  # fmt: skip
def test_a_small_task_has_a_small_window(seqnos: int, most: int, window: int) -> None:
    assert window_bytes(seqnos, most) == window


class LosesRows:
    """A cluster whose node loses rows of vbucket 3 that were given out."""

    def read_ranges(self, ranges: list[VbucketRange], options: StreamOptions, **_: object) -> Iterator[RowsRead[Any]]:
        raise RollbackRequired(3, 7)
        yield

    def close(self) -> None:
        pass


@each_case(
    ("on_rollback", "message"),
    [
        ("fail", r"vbucket 3: .* up to seqno 5 .* roll back to 7.*onRollback=rewindAndMark"),
        (
            "rewindAndMark",
            r"vbucket 3: a node lost changes above seqno 7 .* Nothing is wrong with the options.*local\[N,4\]",
        ),
    ],
)
def test_a_rollback_of_rows_that_were_given_out_says_what_to_do(on_rollback: str, message: str) -> None:
    options = SourceOptions.parse(
        {
            "connectionString": "nowhere",
            "username": "u",
            "password": "p",
            "bucket": "b",
            "onRollback": on_rollback,
        }
    )
    planned = PlannedRange(VbucketRange(3, StreamOffset(1, 5, 5, 5), 9))
    with pytest.raises(RollbackRequired, match=message):
        list(read_partition(options, DcpPartition("n", (planned,)), connect=lambda _: LosesRows()))  # type: ignore[arg-type, return-value]
