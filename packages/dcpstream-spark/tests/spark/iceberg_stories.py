"""Play the stories of the table engines on Iceberg, alone: `python -m tests.spark.iceberg_stories DIRECTORY`.

A process has one Spark session, and that of the other tests has Delta's extension.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpstream_spark import SHORT_RUN, Pipeline, build_session
from dcpstream_spark.tables import FoldReport, compare
from tests.kit.spark import Bucket
from tests.kit.tables import assert_exact
from tests.spark.test_engines import STORIES, Play, played_together
from tests.spark.test_spark_engine import SparkBench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(path: Path) -> None:
    spark = build_session(
        "iceberg",
        master="local[2]",
        driver_memory="1g",
        tables="iceberg",
        warehouse=str(path / "w"),
        settings=SHORT_RUN,
    )
    for fold_rows_min, writes in ((0, 1), (1000, None)):
        directory = path / f"tables{fold_rows_min}"
        directory.mkdir()
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS iceberg.lake{fold_rows_min}")
        names = {table: f"iceberg.lake{fold_rows_min}.{table}" for table in ("changes", "current")}
        bench = SparkBench(spark, directory, **names)
        assert bench.engine().name == "iceberg"
        play = Play(bench, fold_rows_min=fold_rows_min, writes=writes)
        for batch_id, rows in enumerate(played_together(list(STORIES))):
            play.apply(batch_id, rows)
            assert_exact(bench, play.pipeline, play.expected)
        play.fold()
        assert_exact(bench, play.pipeline, play.expected, is_folded=True)
        bench.engine().maintain(0)
        assert_exact(bench, play.pipeline, play.expected, is_folded=True)
        print("exact", fold_rows_min, play.deaths, flush=True)
    assert_now(spark, path)
    print("exact now", flush=True)
    spark.stop()


def assert_now(spark: SparkSession, path: Path) -> None:
    """Folds tell what they did, and a comparison sees it, although the session remembers older versions."""
    bucket = Bucket(path / "node")
    (path / "now").mkdir()
    spark.sql("CREATE NAMESPACE iceberg.now")
    names: dict[str, Any] = {table: f"iceberg.now.{table}" for table in ("changes", "current")}
    folds: list[FoldReport] = []
    pipeline = Pipeline(spark, path / "now", bucket.options, **names, on_fold=folds.append, folds_in_background=False)
    bucket.set_many("a", 100, "1")
    pipeline.run()
    spark.sql(f"CREATE VIEW over_current AS SELECT * FROM {names['current']}")
    for turn in "23":
        for name in (names["current"], "over_current"):
            assert compare(spark, name, bucket.options).is_equal
        before = spark.table(names["current"]).count()
        bucket.set_many("a", 30, turn)
        bucket.set_many(f"n{turn}", 50, "1")
        bucket.delete(*(f"a{n}" for n in range(20 * int(turn), 20 * int(turn) + 7)))
        pipeline.run()
        assert (folds[-1].documents, folds[-1].removed) == (80, 7)
        assert folds[-1].current_rows == before + 43
        for name in ("over_current", names["current"]):
            report = compare(spark, name, bucket.options, also=("seqno",))
            assert (report.is_equal, report.equal) == (True, before + 43), report
    bucket.node.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
