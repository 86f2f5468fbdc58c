"""Freshness: the time from an acknowledged write until a reader of the tables sees it, at a steady rate of changes.

`python -m lab.bench.freshness --rate 5000 --seconds 120 --rows 1000000` starts a node and a pipeline with the engine
that writes with Spark, puts documents into `current`, and then changes documents at the given rate. A change is visible
when the commit of its batch is in the log of `changes`: every query of `live` that begins later sees it. So the time is
that of the commit's file minus that of the acknowledgement, and no query of a reader disturbs the measurement.

The last lines: p50 and p99 of the time, how long the pipeline needed for the rest after the last write, and CPU seconds
per 1,000 changes. Changes of one document that come together are delivered as one; the documents are many enough.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.bench.common import median
from lab.bench.first_load import node
from lab.bench.tables import APP, cpu_s, documents

if TYPE_CHECKING:
    from dcpstream_spark.tables import BatchReport

BURST_S = 0.1
"""Time between two calls of the writer."""

KEYS = 1_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.freshness")
    parser.add_argument("--rate", type=int, default=5_000, help="changes a second")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rows", type=int, default=1_000_000, help="documents in `current` before")
    parser.add_argument("--trigger", default="", help="pause between batches in Spark's notation; none by default")
    parser.add_argument("--engine", default="delta", choices=("delta", "delta-rs"), help="what writes the tables")
    parser.add_argument("--memory", default="2g", help="of the JVM")
    parser.add_argument("--directory", type=Path, default=None)
    given = parser.parse_args(arguments)
    from dcpstream.client.kv.client import KvClient
    from dcpstream_spark import Pipeline, build_session

    spark = build_session("bench freshness", master="local[2,4]", driver_memory=given.memory, tables="delta")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(dir=given.directory) as name, contextlib.ExitStack() as stack:
        stack.callback(spark.stop)
        directory = Path(name)
        access = {"connectionString": stack.enter_context(node(directory / "node")), "bucket": "default"}
        access |= {"username": "Administrator", "password": "password"}
        kv = stack.enter_context(
            KvClient(access["connectionString"], username="Administrator", password="password", bucket="default")
        )
        folds: list[float] = []
        batches: list[BatchReport] = []
        pipeline = Pipeline(
            spark,
            directory / "tables",
            access,
            engine=given.engine,
            on_batch=batches.append,
            on_fold=lambda report: folds.append(report.fold_s),
        )
        kv.set_many((f"warm-up-{n}", b"0") for n in range(2_000))
        pipeline.run(until="available")
        documents(spark, 0, given.rows).select(
            *spark.read.format("delta").load(str(directory / "tables" / "current")).columns
        ).write.format("delta").mode("append").option("txnAppId", APP).option("txnVersion", 0).save(
            str(directory / "tables" / "current")
        )
        pipeline.start(trigger=given.trigger or None)
        for turn in range(20):
            kv.set_many((f"warm-up-{n}", str(turn).encode()) for n in range(2_000))
            time.sleep(0.5)
        cpu, begin = cpu_s(), time.time()
        acknowledged = write(kv, given.rate, given.seconds)
        written = time.time()
        _drain(pipeline)
        assert pipeline._query is not None
        took, used = time.time() - written, cpu_s() - cpu
        progress = [one.durationMs for one in pipeline._query.recentProgress if one.numInputRows]
        pipeline.stop()
        if pipeline.failure is not None:
            raise pipeline.failure
        times = sorted(_ages(spark, directory / "tables" / "changes", acknowledged))
        count = sum(acknowledged[burst][1] for burst in acknowledged)
        print(f"{count:,} changes in {written - begin:.0f} s, {len(times):,} rows in `changes`")
        print(f"seconds of the {len(folds)} folds: {', '.join(f'{fold_s:.1f}' for fold_s in folds)}")
        appends, waits = ([getattr(one, name) for one in batches[20:]] for name in ("append_s", "wait_s"))
        print(
            f"{len(appends)} batches; {median(appends):.2f} s to append, the longest {max(appends):.2f} s; "
            f"{sum(waits):.1f} s of waiting for folds"
        )
        parts = {name: median([one.get(name, 0) for one in progress]) for name in (progress[-1] if progress else ())}
        print("ms of a batch: " + ", ".join(f"{name} {ms:.0f}" for name, ms in sorted(parts.items())))
        for share in (0.5, 0.9, 0.99):
            print(f"p{share * 100:.0f} {times[int(share * (len(times) - 1))]:.2f} s from acknowledgement to visible")
        print(f"{took:.1f} s for the rest after the last write; {used / count * 1000:.2f} CPU s for 1,000 changes")


def write(kv: Any, rate: int, seconds: float) -> dict[int, tuple[float, int]]:
    """Change documents; returns burst → (time of its acknowledgement, changes)."""
    dice = random.Random(1)
    acknowledged: dict[int, tuple[float, int]] = {}
    begin = time.perf_counter()
    pause = threading.Event()
    burst = 0
    while (now := time.perf_counter() - begin) < seconds:
        due = int(now * rate) - sum(count for _, count in acknowledged.values())
        if due > 0:
            value = f"{burst:08d}" + "x" * 242
            kv.set_many((f"live-{dice.randrange(KEYS):07d}", value) for _ in range(due))
            acknowledged[burst] = (time.time(), due)
            burst += 1
        pause.wait(BURST_S)
    return acknowledged


def _drain(pipeline: Any) -> None:
    """Wait until the tables hold everything."""
    assert pipeline._query is not None
    pipeline._query.processAllAvailable()


def _ages(spark: Any, changes: Path, acknowledged: dict[int, tuple[float, int]]) -> list[float]:
    """Seconds from acknowledgement to commit, of every row."""
    import json

    committed: dict[int, float] = {}
    for file in (changes / "_delta_log").glob("*.json"):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if "txn" in entry:
                committed[entry["txn"]["version"]] = file.stat().st_mtime
    rows = (
        spark.read.format("delta")
        .load(str(changes))
        .where("key LIKE 'live-%'")
        .selectExpr("CAST(substr(CAST(value AS STRING), 1, 8) AS INT) AS burst", "_batch_id AS batch")
        .groupBy("burst", "batch")
        .count()
        .collect()
    )
    return [committed[row["batch"]] - acknowledged[row["burst"]][0] for row in rows for _ in range(row["count"])]


if __name__ == "__main__":
    main()
