"""The pipeline end to end: both tables are exact after restarts, deaths and rollbacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError, LeaseRefused, LocalProtocolError, OffsetError
from dcpstream_spark import Pipeline
from dcpstream_spark.tables import BatchReport
from dcpstream_spark.tables.delta_rs import DeltaRsEngine
from dcpstream_spark.tables.sessions import own_session
from lab.tools.patience import patient
from tests.kit.spark import Bucket, access, changes_of, current_of, kv_of, table_rows
from tests.kit.tables import live_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def make(spark: SparkSession, bucket: Bucket, path: Path, **options: Any) -> Pipeline:
    reports, fold_rows_min = options.pop("on_batch", None), options.pop("fold_rows_min", None)
    folds_in_background = options.pop("folds_in_background", True)
    return Pipeline(
        spark,
        path / "tables",
        {**bucket.options, **options},
        engine="delta-rs",
        fold_rows_min=fold_rows_min,
        folds_in_background=folds_in_background,
        on_batch=reports,
    )


def test_settings_of_the_process_that_a_builder_wrote_into_a_session_are_left_out(spark: SparkSession) -> None:
    user = spark.newSession()
    # As `SparkSession.builder.config("spark.driver.memory", "2g").getOrCreate()` does where there is a session.
    user._jsparkSession.sessionState().conf().setConfString("spark.driver.memory", "2g")
    user.conf.set("spark.sql.shuffle.partitions", "7")
    assert own_session(user).conf.get("spark.sql.shuffle.partitions") == "7"


def test_both_tables_follow_a_life_of_documents(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    reports: list[BatchReport] = []
    pipeline = make(spark, bucket, tmp_path, maxOffsetsPerTrigger="150", on_batch=reports.append)
    bucket.set_many("a", 200, "1")
    bucket.set_many("b", 200, "1")
    bucket.delete(*(f"b{n}" for n in range(50)))
    progress = pipeline.run(until="available")
    assert (progress.rows, progress.total_lag, progress.rollbacks) == (400, 0, 0)
    assert progress.lag == {}
    vbuckets = pipeline.vbuckets()
    assert sum(one.seqno for one in vbuckets) == 450, "200 + 200 documents and 50 deletions"
    assert {(one.lag, one.is_inside_snapshot) for one in vbuckets} == {(0, False)}
    assert pipeline.rejects_place is None
    assert len(reports) >= 3
    assert all(report.rows <= 150 for report in reports)
    assert current_of(pipeline) == {**{f"a{n}": "1" for n in range(200)}, **{f"b{n}": "1" for n in range(50, 200)}}
    assert len(changes_of(pipeline)) == 400
    # Another process goes on where this one ended.
    bucket.set_many("a", 10, "2")
    bucket.delete("a10", "b60")
    again = make(spark, bucket, tmp_path)
    assert again.run(until="now").rows == 12
    assert again.run().rows == 12, "nothing new the second time"
    everything = [f"{kind}{n}" for kind in "ab" for n in range(200)]
    assert current_of(again) == bucket.documents(everything)
    assert len(changes_of(again)) == 412


def test_a_first_load_without_deletions(spark: SparkSession, tmp_path: Path) -> None:
    """The first run of a pipeline leaves out the deletions of the time before it, and no later one."""
    keys = [f"k{number}" for number in range(60)]

    def served() -> dcpstream_node.Node:
        return dcpstream_node.Node(vbuckets=4, path=tmp_path / "data", release="8.5")

    def change(node: dcpstream_node.Node, written: list[str], gone: list[str]) -> None:
        with kv_of(node) as kv:
            kv.set_many((key, b"1") for key in written)
            kv.delete_many(gone)

    def run(node: dcpstream_node.Node) -> Pipeline:
        pipeline = Pipeline(spark, tmp_path / "tables", access(node), engine="delta-rs")
        pipeline.run()
        return pipeline

    with served() as node:
        change(node, keys, keys[:20])
    with served() as node:  # all of that comes from disk now
        pipeline = run(node)
        assert sorted(current_of(pipeline)) == sorted(keys[20:])
        assert "deletion" not in {row["op"] for row in changes_of(pipeline)}
        change(node, [], keys[20:25])
    with served() as node:
        pipeline = run(node)
        assert sorted(current_of(pipeline)) == sorted(keys[25:])
        ops = [row["op"] for row in changes_of(pipeline)]
        assert ops.count("deletion") == 5


@pytest.mark.slow
def test_a_query_that_follows(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    is_written = threading.Event()
    with make(spark, bucket, tmp_path, on_batch=lambda report: is_written.set()) as pipeline:
        pipeline.start(trigger=None)
        with pytest.raises(LocalProtocolError, match="already"):
            pipeline.start()
        for turn in range(3):
            is_written.clear()
            bucket.set_many("k", 20, str(turn))
            assert is_written.wait(patient(60))
        assert pipeline.is_running
        assert not pipeline.await_end(0.01)
    assert not pipeline.is_running
    assert pipeline.failure is None
    pipeline.run(until="available")
    assert current_of(pipeline) == {f"k{n}": "2" for n in range(20)}
    changes_of(pipeline)


@pytest.mark.slow
def test_it_can_be_stopped_in_the_middle_of_work(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    is_written = threading.Event()
    is_over = threading.Event()
    keys: set[str] = set()

    def keep_writing() -> None:
        turn = 0
        while not is_over.wait(0.02):
            turn += 1
            # Documents that change faster than a batch is read come only once they rest; so each rests after five.
            bucket.set_many(f"k{turn // 5}-", 10, str(turn))
            keys.update(f"k{turn // 5}-{n}" for n in range(10))

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        pipeline = make(spark, bucket, tmp_path, on_batch=lambda report: is_written.set())
        for _ in range(3):
            is_written.clear()
            pipeline.start(trigger=None)
            assert is_written.wait(patient(60))
            pipeline.stop()
            assert not pipeline.is_running
            assert pipeline.failure is None
    finally:
        is_over.set()
        writer.join()
    pipeline.run()
    assert current_of(pipeline) == bucket.documents(keys)
    changes_of(pipeline)


@pytest.mark.slow
def test_a_death_between_the_two_tables(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.set_many("k", 50, "1")
    make(spark, bucket, tmp_path).run()
    bucket.set_many("k", 20, "2")
    bucket.delete("k49")

    def die(*_: object) -> None:
        raise RuntimeError("died between the two writes")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaRsEngine, "fold", die)
        with pytest.raises(Exception, match="died between the two writes"):
            make(spark, bucket, tmp_path, fold_rows_min=0, folds_in_background=False).run()
    # Before the restart the bucket goes on: the replay of the batch would hold fewer rows than its first attempt.
    bucket.set_many("k", 30, "3")
    reports: list[BatchReport] = []
    pipeline = make(spark, bucket, tmp_path, on_batch=reports.append, fold_rows_min=0)
    assert len(changes_of(pipeline)) == 71
    pipeline.run()
    assert [report.is_recovered for report in reports] == [True, False]
    assert current_of(pipeline) == {f"k{n}": "3" if n < 30 else "1" for n in range(49)}
    assert len(changes_of(pipeline)) == 101


@pytest.mark.slow
@pytest.mark.parametrize("is_running", [False, True])
def test_a_node_that_lost_its_tail(spark: SparkSession, bucket: Bucket, tmp_path: Path, is_running: bool) -> None:
    reports: list[BatchReport] = []
    pipeline = make(spark, bucket, tmp_path, on_batch=reports.append)
    bucket.set_many("k", 60, "0")
    pipeline.run()
    bucket.set_many("k", 10, "1")
    pipeline.run()
    bucket.stop_flushing()
    bucket.set_many("k", 30, "lost")
    bucket.set_many("lost", 30, "lost")
    bucket.delete(*(f"k{n}" for n in range(40, 50)))
    pipeline.run()
    assert current_of(pipeline)["k0"] == "lost"
    if is_running:
        # A query that runs on meets the restart between two plans, not between two runs.
        pipeline.start(trigger=None)
    bucket.crash()
    bucket.set_many("k", 5, "2")
    bucket.set_many("new", 40, "2")
    if is_running:
        assert pipeline._query is not None
        pipeline._query.processAllAvailable()
        pipeline.stop()
    progress = pipeline.run()
    assert progress.rollbacks > 0
    assert progress.rows - (60 + 10 + 70) <= 10 + 45, "the first batch is not read again"
    everything = [f"{kind}{n}" for kind in ("k", "lost", "new") for n in range(60)]
    expected = bucket.documents(everything)
    assert len(expected) == 100
    assert current_of(pipeline) == expected
    rows = changes_of(pipeline)
    newest = {row["key"]: row["value"] for row in sorted(rows, key=lambda row: row["seqno"])}
    assert {key: value.decode() for key, value in newest.items() if value is not None} == expected, (
        "no void row is left"
    )
    rolled_back = {rollback.vbucket for report in reports for rollback in report.rollbacks}
    assert len(rolled_back) == progress.rollbacks


@pytest.mark.slow
def test_two_pipelines_whose_directories_have_one_name(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.set_many("k", 10, "1")
    written = [threading.Event(), threading.Event()]
    pipelines = [
        make(spark, bucket, tmp_path / part, on_batch=lambda report, event=event: event.set())
        for part, event in zip("ab", written, strict=True)
    ]
    for pipeline in pipelines:
        pipeline.start(trigger=None)
    assert all(event.wait(patient(60)) for event in written)
    assert all(pipeline.is_running for pipeline in pipelines)
    for pipeline in pipelines:
        pipeline.stop()
        assert len(current_of(pipeline)) == 10


@pytest.mark.slow
def test_collections_that_end_and_documents_that_are_no_text(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.node.set_collections("default", {"s": ["old", "kept"]})
    values = {"a": b"\xff\x00\x01", "b": b"\\xff\x00\x01", "c": b"", "d": bytes(range(256))}

    def write(collection: str, documents: dict[str, bytes]) -> None:
        with KvClient(
            bucket.node.connection_string,
            username="Administrator",
            password="password",
            bucket="default",
            collection=f"s.{collection}",
        ) as kv:
            kv.set_many(documents.items())

    def documents() -> dict[tuple[str, str], bytes]:
        rows = table_rows(pipeline, "current")
        assert live_of(pipeline) == state_of(rows)
        return {(row["collection"], row["key"]): row["value"] for row in rows}

    pipeline = make(spark, bucket, tmp_path)
    write("old", values)
    write("kept", values)
    pipeline.run(until="now")
    kept = {("kept", key): value for key, value in values.items()}
    assert documents() == {**kept, **{("old", key): value for key, value in values.items()}}
    bucket.node.set_collections("default", {"s": ["kept"]})
    pipeline.run(until="now")
    assert documents() == kept
    bucket.node.set_collections("default", {"s": ["kept", "old"]})
    write("old", {"a": b"again"})
    pipeline.run(until="now")
    assert documents() == {**kept, ("old", "a"): b"again"}
    ops = {row["op"] for row in table_rows(pipeline, "changes") if row["key"] is None}
    assert {"collection_dropped", "collection_created"} <= ops


@pytest.mark.slow
def test_tables_and_checkpoint_belong_together(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    import shutil

    bucket.set_many("k", 10, "1")
    pipeline = make(spark, bucket, tmp_path)
    pipeline.run()
    pipeline.maintain()
    assert len(current_of(pipeline)) == 10
    with pytest.raises(ConfigError, match="were made with where = nothing"):
        make(spark, bucket, tmp_path, where="key = 'k1'").run()
    kept = str(tmp_path / "kept")
    shutil.move(pipeline.checkpoint, kept)
    with pytest.raises(OffsetError, match="their checkpoint is missing"):
        pipeline.run()
    shutil.move(kept, pipeline.checkpoint)
    shutil.rmtree(Path(pipeline.path) / "current")
    with pytest.raises(OffsetError, match="a table is missing"):
        pipeline.run()


@pytest.mark.parametrize("option", ["columns", "REWINDTO", "colums"])
def test_options_that_a_pipeline_does_not_take(spark: SparkSession, tmp_path: Path, option: str) -> None:
    needed = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}
    with pytest.raises(ConfigError) as raised:
        Pipeline(spark, tmp_path, {**needed, option: "key"})
    assert raised.value.option == option


ALONE = """
import json, sys
from dcpstream_spark import Pipeline
from dcpstream_spark import build_session
spark = build_session("other", master="local[1,4]", driver_memory="512m", tables=None)
pipeline = Pipeline(spark, sys.argv[1], json.loads(sys.argv[2]), engine="delta-rs")
pipeline.start(trigger=None)
print("started", flush=True)
pipeline.await_end()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_on_one_path(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While both live, the second is refused. While the first is suspended it takes over, and the first gives up."""
    bucket.set_many("k", 50, "1")
    path = tmp_path / "tables"
    command = [sys.executable, "-c", ALONE, str(path), json.dumps(bucket.options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "started\n"
            with pytest.raises(LeaseRefused, match=f"its tables are kept by process {first.pid} on "):
                make(spark, bucket, tmp_path).start()
            first.send_signal(signal.SIGSTOP)
            # The lease has ended, without the minute.
            monkeypatch.setattr("dcpstream_spark.tables.lease.LEASE_S", -1.0)
            bucket.set_many("k", 30, "2")
            pipeline = make(spark, bucket, tmp_path)
            pipeline.start(trigger=None)
            query = pipeline._query
            assert query is not None
            query.processAllAvailable()
            first.send_signal(signal.SIGCONT)
            bucket.set_many("k", 20, "3")
            _, errors = first.communicate(timeout=patient(120))
            assert first.returncode == 1
            assert "LeaseRefused" in errors or "CONCURRENT_STREAM_LOG_UPDATE" in errors, errors[-2000:]
            query.processAllAvailable()
            pipeline.stop()
        finally:
            first.kill()
    assert current_of(pipeline) == bucket.documents(f"k{n}" for n in range(50))
    changes_of(pipeline)
