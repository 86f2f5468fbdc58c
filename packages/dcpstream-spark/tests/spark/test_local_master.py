"""Spark's master `local[N]`, which runs no failed task again: a stream and a pipeline go back within a batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.chaos.tables import read_delta
from tests.kit.proxy import Proxy
from tests.kit.spark import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROLLBACKS = 6
"""Rollbacks of each reader. Without rows that are held back, one in six ended the query."""

DOCUMENTS = 12_000
VALUE = "x" * 200
CRASH_AFTER_BYTES = 2_000_000
"""Bytes after which the node crashes, of about 3.5 MB: more than the windows of both tasks, so they have read void
rows."""

_CHILD = """
import sys
from pyspark.sql import SparkSession
from dcpstream_spark import Pipeline
from dcpstream_spark.session import session_settings

connection_string, path, kind = sys.argv[1:]
settings = {**session_settings(tables=None), "spark.driver.memory": "1g"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
access = {"connectionString": connection_string, "username": "Administrator", "password": "password"}
options = {**access, "bucket": "default"}

if kind == "pipeline":
    run = Pipeline(spark, path, options, engine="delta-rs").run
else:
    options |= {"startingOffsets": "earliest", "onRollback": "rewindAndMark"}
    stream = spark.readStream.format("dcp").options(**options).load()
    rows = stream.select("vbucket", "seqno", "op", "key", "value")
    query = rows.writeStream.format("parquet").option("checkpointLocation", path + "-checkpoint").start(path)
    run = query.processAllAvailable
run()
for _ in sys.stdin:
    run()
    print("done", flush=True)
spark.stop()
"""


def crash_in_each_batch(bucket: Bucket, path: Path, kind: str) -> None:
    bucket.set_many("kept", 500, "1")
    bucket.stop_flushing()
    crashes = []

    def crash() -> None:
        crashes.append(True)
        bucket.crash()
        bucket.stop_flushing()

    errors = path.with_name("errors")
    with Proxy(bucket.node.port) as proxy, errors.open("wb") as file:
        command = [sys.executable, "-c", _CHILD, proxy.connection_string, str(path), kind]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for turn in range(ROLLBACKS):
                bucket.set_many(f"lost{turn}", DOCUMENTS, VALUE)
                proxy.call_after(CRASH_AFTER_BYTES, crash)
                child.stdin.write("run\n")
                child.stdin.flush()
                assert child.stdout.readline() == "done\n", errors.read_text("utf-8", "replace")[-5000:]
                assert len(crashes) == turn + 1, "the node was killed while the batch was read"
            child.stdin.close()
            assert child.wait() == 0


@pytest.mark.timeout(900)
def test_a_pipeline(bucket: Bucket, tmp_path: Path) -> None:
    crash_in_each_batch(bucket, tmp_path / "tables", "pipeline")
    rows = read_delta(tmp_path / "tables" / "current").select(["key", "value"]).to_pylist()
    expected = bucket.documents(f"kept{n}" for n in range(500))
    assert len(rows) == len(expected) == 500, "what was not on disk is lost"
    assert {row["key"]: row["value"].decode() for row in rows} == expected


@pytest.mark.timeout(900)
def test_a_query(bucket: Bucket, tmp_path: Path) -> None:
    """A query of its own ends with no error, and takes back what it gave of a vbucket that lost changes."""
    import pyarrow.parquet as pq

    crash_in_each_batch(bucket, tmp_path / "rows", "query")
    rows = pq.read_table(tmp_path / "rows").to_pylist()
    kept = {row["key"] for row in rows if (row["key"] or "").startswith("kept")}
    assert len(kept) == 500
    lost = {row["vbucket"] for row in rows if (row["key"] or "").startswith("lost")}
    assert lost <= {row["vbucket"] for row in rows if row["op"] == "rollback"}, "void rows are taken back"
