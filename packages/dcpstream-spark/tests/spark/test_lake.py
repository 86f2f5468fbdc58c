"""Pipelines of a lake in a real session, and a comparison of what a reader of their tables sees."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcpstream_spark import Pipeline
from dcpstream_spark.tables import Monitor, compare
from dcpstream_spark.tables.lake import Lake, LakeEvent
from dcpstream_spark.tables.lake_config import PipelineConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.spark import Bucket

pytestmark = pytest.mark.spark

COUNT = 60


@pytest.mark.slow
def test_a_mistake_ends_one_pipeline_and_the_other_goes_on(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """The mistake appears only in the running query, as an exception of Spark."""
    bucket.set_many("k", COUNT, '{"n": 1}')
    configs = [
        PipelineConfig(name="good", path=str(tmp_path / "good"), options=bucket.options),
        PipelineConfig(
            name="wrong", path=str(tmp_path / "wrong"), options={**bucket.options, "collections": "shop.nothing"}
        ),
    ]
    events: list[LakeEvent] = []
    with Monitor() as monitor:
        lake = Lake.of_session(spark, configs, events.append, watch=monitor.add)
        assert not lake.run(threading.Event(), once=True)
        states = {report["name"]: report["state"] for report in monitor.report()}
        assert states == {f"dcpstream {tmp_path}/good": "stopped", f"dcpstream {tmp_path}/wrong": "failed"}
    told = [event for event in events if event.kind != "progress"]  # as often as the machine is slow
    kinds = {name: [event.kind for event in told if event.name == name] for name in ("good", "wrong")}
    # On a very busy machine Spark gives a worker up after ten seconds, and the lake starts the query again.
    assert all("failed to connect back" in event.message for event in told if event.kind == "failed"), told
    assert {name: (found[0], found[-1]) for name, found in kinds.items()} == {
        "good": ("started", "finished"),
        "wrong": ("started", "given up"),
    }
    (message,) = (event.message for event in events if event.kind == "given up")
    assert message.startswith("the bucket has no collection shop.nothing"), message

    # What `dcpstream compare --table-kind live` does: batches that are not folded yet count.
    def compared() -> tuple[bool, int, int]:
        pipeline = Pipeline(spark, tmp_path / "good", bucket.options)
        report = compare(spark, pipeline.live(), bucket.options)
        return report.is_equal, report.equal, report.missing

    assert compared() == (True, COUNT, 0)
    bucket.set(new="1")
    assert compared() == (False, COUNT, 1)
