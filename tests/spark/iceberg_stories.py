"""Play the stories of the table engines on Iceberg, alone: `python -m tests.spark.iceberg_stories DIRECTORY`.

A process has one Spark session, and that of the other tests has Delta's extension.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dcpstream.spark import build_session
from tests.kit.tables import assert_exact
from tests.spark.test_engines import STORIES, Play, told_together
from tests.spark.test_spark_engine import SparkBench


def main(path: Path) -> None:
    spark = build_session("iceberg", master="local[2]", driver_memory="1g", tables="iceberg", warehouse=str(path / "w"))
    for fold_rows_min, writes in ((0, 1), (1000, None)):
        directory = path / f"tables{fold_rows_min}"
        directory.mkdir()
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS iceberg.lake{fold_rows_min}")
        names = {table: f"iceberg.lake{fold_rows_min}.{table}" for table in ("changes", "current")}
        bench = SparkBench(spark, directory, **names)
        assert bench.engine().name == "iceberg"
        play = Play(bench, fold_rows_min=fold_rows_min, writes=writes)
        for batch_id, rows in enumerate(told_together(list(STORIES))):
            play.apply(batch_id, rows)
            assert_exact(bench, play.pipeline, play.expected)
        play.fold()
        assert_exact(bench, play.pipeline, play.expected, is_folded=True)
        bench.engine().maintain(0)
        assert_exact(bench, play.pipeline, play.expected, is_folded=True)
        print("exact", fold_rows_min, play.deaths, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
