"""A query whose node is killed in the middle of a batch, or restarted with its port open before its bucket is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dcpstream_node
from dcpstream_spark import Pipeline
from tests.kit.proxy import Proxy
from tests.kit.spark import VBUCKETS, Bucket, current_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DOCUMENTS = 20_000
VALUE = "x" * 200
CRASH_AFTER_BYTES = 3_000_000
"""Bytes after which the node crashes, of about 6 MB: far more than the windows of both tasks, so rows of them were
given to Spark before."""


@pytest.mark.slow
def test_a_node_that_is_killed_in_the_middle_of_a_batch(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """The tasks have given out rows that are void: they are run again, go back, and the tables are exact."""
    bucket.set_many("kept", 500, "1")
    bucket.stop_flushing()
    bucket.set_many("k", DOCUMENTS, VALUE)
    crashes = []

    def crash() -> None:
        crashes.append(True)
        bucket.crash()

    with Proxy(bucket.node.port) as proxy:
        options = {**bucket.options, "connectionString": proxy.connection_string}
        pipeline = Pipeline(spark, tmp_path / "tables", options, engine="delta-rs")
        proxy.call_after(CRASH_AFTER_BYTES, crash)
        pipeline.run()
        assert crashes, "the node was killed while the batch was read"
        bucket.set_many("new", 300, "2")
        pipeline.run()
    keys = [f"{kind}{n}" for kind, count in (("kept", 500), ("k", DOCUMENTS), ("new", 300)) for n in range(count)]
    expected = bucket.documents(keys)
    assert len(expected) == 800, "what was not on disk is lost"
    assert current_of(pipeline) == expected


@pytest.mark.slow
def test_a_server_that_listens_before_it_has_its_bucket(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.set_many("k", 100, "1")
    port = bucket.node.port
    with Proxy(port) as proxy:
        options = {**bucket.options, "connectionString": proxy.connection_string}
        pipeline = Pipeline(spark, tmp_path / "tables", options, engine="delta-rs")
        pipeline.start(trigger=None)
        query = pipeline._query
        assert query is not None
        query.processAllAvailable()
        bucket.node.stop()
        with dcpstream_node.Node(buckets=["other"], vbuckets=VBUCKETS, port=port, system_scope=False):
            # Each of these connections is told that there is no such bucket, or none that the user may use.
            before = proxy.connections
            while proxy.connections < before + 4:
                assert not query.awaitTermination(0.1), query.exception()  # type: ignore[arg-type]
        bucket.node = bucket._started(bucket.flush_interval_s)
        bucket.set_many("k", 50, "2")
        query.processAllAvailable()
        pipeline.stop()
    assert current_of(pipeline) == {f"k{n}": "2" if n < 50 else "1" for n in range(100)}
