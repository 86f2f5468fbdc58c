"""Tables and checkpoint on a disk that becomes full at a chosen moment: nothing is lost, and the pipeline goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcpstream.errors import StoreError
from dcpstream_spark import Pipeline
from dcpstream_spark.tables.failures import failure_of
from tests.kit.small_disk import SmallDisk, on_a_full, play_full_disk, small_disk
from tests.kit.spark import Bucket, changes_of, current_of
from tests.spark.test_spark_engine import SparkBench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAMES = [f"k{number}" for number in range(100)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


MOMENTS = ("start", "append", "fold", "commit", "take_back")
"""A start, the append of a batch, a fold, the commit of a batch in the checkpoint, the deletion of void rows."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["delta-rs", "delta"])
def test_a_full_disk_ends_the_query_and_loses_nothing(
    spark: SparkSession, bucket: Bucket, disk: SmallDisk, engine: str
) -> None:
    options = {**bucket.options, "maxOffsetsPerTrigger": "60"}

    def new_pipeline() -> Pipeline:
        return Pipeline(spark, disk.path / "tables", options, engine=engine, fold_rows_min=50)

    bucket.set(**dict.fromkeys(NAMES, "first"))
    new_pipeline().run()
    for turn, moment in enumerate(MOMENTS):
        if moment == "take_back":
            bucket.stop_flushing()
            bucket.set(**dict.fromkeys(NAMES[:40], "void"))
            new_pipeline().run()
            bucket.crash()
        bucket.set(**dict.fromkeys(NAMES[10:], moment))
        bucket.delete(*NAMES[turn * 5 : turn * 5 + 3])
        pipeline = new_pipeline()
        with pytest.MonkeyPatch.context() as patch:
            if moment == "start":
                disk.fill()
            elif moment == "commit":
                pipeline.add_listener(on_batch=disk.fill)
            else:
                patch.setattr(pipeline.engine, moment, on_a_full(disk, getattr(pipeline.engine, moment)))
            with pytest.raises(StoreError, match=r"a disk is full.*Make room"):
                pipeline.run()
        assert "a disk is full" in failure_of(pipeline.failure or AssertionError(moment), {}).message
        disk.free()
        if turn % 2 or moment == "commit":
            pipeline.stop()
            pipeline = new_pipeline()
        pipeline.run()
        expected = bucket.documents(NAMES)
        assert current_of(pipeline) == expected, moment
        newest = {row["key"]: row["value"] for row in sorted(changes_of(pipeline), key=lambda row: row["seqno"])}
        assert {key: value.decode() for key, value in newest.items() if value is not None} == expected, moment


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("moment", "folds_in_background"), [("append", False), ("fold", True), ("take_back", False)])
def test_sparks_engine_on_a_full_disk(
    spark: SparkSession, disk: SmallDisk, moment: str, folds_in_background: bool
) -> None:
    bench = SparkBench(spark, disk.path)
    play_full_disk(disk, bench, moment, folds_in_background=folds_in_background, is_restarted=not folds_in_background)
