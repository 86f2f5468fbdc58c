"""Tables: what a batch of changes costs as `current` grows, by the way in which it is applied.

`python -m lab.bench.tables` prints a table with CPU seconds of the JVM, its Python workers and this process, for a
batch of 1,000 changes of random documents. The ways:

- pair: the engine of the pipelines. A batch is an append to `changes`; the fold of a tail of a tenth of `current` is
  shared out over its changes.
- vectors: MERGE of each batch into `current`, with Delta's deletion vectors.
- copy: MERGE of each batch without deletion vectors: files with a changed row are written again.
- delta-rs-pair: the same with the engine delta-rs. Spark only makes the changes.
- delta-rs: MERGE of each batch with delta-rs, without Spark.

Spark generates the documents; no node takes part. The tables of one size are hard links to the same files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.bench.common import cpu_seconds_of, median

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = (100_000, 1_000_000, 10_000_000)
BATCH_ROWS = 1_000
WARM_UPS = 8
"""Batches before the first that counts: the JVM compiles what it runs often."""

BATCHES = {"pair": 9, "delta-rs-pair": 9, "vectors": 3, "copy": 1, "delta-rs": 1}
"""Batches that count; few of those that rewrite the table."""

FOLD_SHARE = 0.1
APP = "bench"
WAYS = tuple(BATCHES)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.tables", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="rows of `current`, with commas between")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--directory", type=Path, default=None, help="where the tables are made; temporary by default")
    parser.add_argument("--memory", default="3g", help="of the JVM")
    given = parser.parse_args(arguments)
    from dcpstream_spark import build_session

    spark = build_session("bench tables", master="local[2]", driver_memory=given.memory, tables="delta")
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        try:
            for size in map(int, given.sizes.split(",")):
                place = Path(directory) / str(size)
                for line in growth(spark, place, size, given.ways.split(",")):
                    print(line, flush=True)
                shutil.rmtree(place)
        finally:
            spark.stop()


def growth(spark: SparkSession, place: Path, size: int, ways: Sequence[str]) -> Iterator[str]:
    """Lines with the cost of a batch at one size."""
    base = place / "base"
    engine = _engine(spark, base)
    engine.create()
    engine.append(APP, 0, documents(spark, 0, 0))
    cost, wall = _cost(lambda: _fill(spark, base, size))
    yield f"{size:>11,} rows: made with {cost:8.1f} CPU s in {wall:.1f} s"
    for way in ways:
        path = place / way
        subprocess.run(["cp", "-al", str(base), str(path)], check=True)
        yield from MEASURES[way](spark, path, size)


def _fill(spark: SparkSession, path: Path, size: int) -> None:
    """Put the documents into `current`, as if a fold had done it."""
    from dcpstream_spark.tables.rows import CURRENT_COLUMNS

    rows = documents(spark, 0, size).select(*CURRENT_COLUMNS).write.format("delta").mode("append")
    rows.option("txnAppId", APP).option("txnVersion", 0).save(str(path / "current"))


def _pair(spark: SparkSession, path: Path, size: int) -> list[str]:
    engine = _engine(spark, path)
    lines, rows, append, newest = _appended(spark, engine, "pair", size)
    plain = path.with_name("pair-copy")
    subprocess.run(["cp", "-al", str(path), str(plain)], check=True)
    spark.sql(f"ALTER TABLE delta.`{plain}/current` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    lines.append(_fold_line(engine, "pair", size, rows, append, newest))
    copying, copying_wall = _cost(lambda: _engine(spark, plain).fold(APP, 0, newest, ()))
    live, live_wall = _cost(lambda: engine.live(APP).count())
    return [
        *lines,
        f"{size:>11,} rows: the same fold without deletion vectors {copying:8.1f} CPU s, {copying_wall:.1f} s",
        f"{size:>11,} rows: count of live {live:8.1f} CPU s, {live_wall:.1f} s",
    ]


def _delta_rs_pair(spark: SparkSession, path: Path, size: int) -> list[str]:
    # Tables of its own: delta-rs does not write to tables with deletion vectors.
    engine = _engine(spark, path / "plain", "delta-rs")
    engine.create()
    engine.append(APP, 0, documents(spark, 0, 0))
    _fill(spark, path / "plain", size)
    lines, rows, append, newest = _appended(spark, engine, "delta-rs-pair", size)
    return [*lines, _fold_line(engine, "delta-rs-pair", size, rows, append, newest)]


def _appended(spark: SparkSession, engine: Any, way: str, size: int) -> tuple[list[str], int, float, int]:
    """Append batches, and then a tail that is due to be folded.

    Returns: (lines, rows of the tail's last batch, CPU seconds of an append, the newest batch).
    """
    costs, walls = [], []
    for batch in range(1, WARM_UPS + BATCHES[way] + 1):
        frame = changed(spark, batch, BATCH_ROWS, size)
        cost, wall = _cost(partial(engine.append, APP, batch, frame))
        if batch > WARM_UPS:
            costs.append(cost)
            walls.append(wall)
    rows = max(engine.fold_rows_min, int(size * FOLD_SHARE))
    engine.append(APP, batch + 1, changed(spark, batch + 1, rows, size))
    return [_line(size, way, "append", costs, walls)], rows, median(costs), batch + 1


def _fold_line(engine: Any, way: str, size: int, rows: int, append: float, newest: int) -> str:
    fold, wall = _cost(lambda: engine.fold(APP, 0, newest, ()))
    share = fold * BATCH_ROWS / rows
    return (
        f"{size:>11,} rows: {way} fold of {rows:,} changes {fold:8.1f} CPU s, {wall:.1f} s; "
        f"{share:.3f} CPU s of it for 1,000 changes, {append + share:.2f} with their append"
    )


def _merge(has_vectors: bool, way: str) -> Callable[[SparkSession, Path, int], list[str]]:
    def measure(spark: SparkSession, path: Path, size: int) -> list[str]:
        from dcpstream_spark.tables.fold_sql import FoldQuery
        from dcpstream_spark.tables.rows import CURRENT_COLUMNS

        table = f"delta.`{path / 'current'}`"
        if not has_vectors:
            spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
        query = FoldQuery("", table, None, 0)
        costs, walls = [], []
        for batch in range(BATCHES[way] + 1):
            rows = changed(spark, batch + 1, BATCH_ROWS, size).select(*CURRENT_COLUMNS).dropDuplicates(["key"])
            rows.selectExpr(
                "*", "false AS _is_removed", "false AS _is_forced", "CAST(NULL AS BIGINT) AS _ended_at"
            ).createOrReplaceTempView("bench_batch")
            cost, wall = _cost(lambda: spark.sql(query.merge("bench_batch")).collect())
            if batch or BATCHES[way] == 1:
                costs.append(cost)
                walls.append(wall)
            if BATCHES[way] == 1:
                break
        return [_line(size, way, "merge", costs, walls)]

    return measure


def _delta_rs(spark: SparkSession, path: Path, size: int) -> list[str]:
    import pyarrow as pa
    from deltalake import DeltaTable

    from dcpstream_spark.tables.rows import CURRENT_COLUMNS

    # delta-rs does not write to tables with deletion vectors: it gets a plain table of the same rows.
    plain = path / "plain"
    spark.read.format("delta").load(str(path / "current")).write.format("delta").option(
        "delta.enableDeletionVectors", "false"
    ).save(str(plain))
    rows: pa.Table = changed(spark, 1, BATCH_ROWS, size).select(*CURRENT_COLUMNS).dropDuplicates(["key"]).toArrow()

    def merge() -> None:
        values = {name: f"s.{name}" for name in CURRENT_COLUMNS}
        DeltaTable(str(plain)).merge(
            rows,
            "t.key = s.key and t.collection = s.collection and t.scope = s.scope",
            source_alias="s",
            target_alias="t",
        ).when_matched_update(values, predicate="s.seqno > t.seqno").when_not_matched_insert(values).execute()

    cost, wall = _cost(merge)
    return [_line(size, "delta-rs", "merge", [cost], [wall])]


MEASURES: dict[str, Callable[[Any, Path, int], list[str]]] = {
    "pair": _pair,
    "delta-rs-pair": _delta_rs_pair,
    "vectors": _merge(True, "vectors"),
    "copy": _merge(False, "copy"),
    "delta-rs": _delta_rs,
}


def documents(spark: SparkSession, begin: int, end: int, version: int = 1) -> DataFrame:
    """Changes of the documents with these numbers: values of 128 bytes that hardly compress."""
    return _changes(spark.range(begin, end), version)


def changed(spark: SparkSession, batch: int, rows: int, size: int) -> DataFrame:
    """Changes of documents at random: nine of ten exist already."""
    picked = spark.range(0, rows, 1, 2).selectExpr(
        f"CASE WHEN id % 10 = 0 THEN {size} + {batch} * 10000000 + id "
        f"ELSE pmod(xxhash64(id, {batch}), {size}) END AS id"
    )
    return _changes(picked, batch + 1)


def _changes(numbers: DataFrame, version: int) -> DataFrame:
    return numbers.selectExpr(
        "concat('document-', lpad(id, 10, '0')) AS key",
        f"CAST(sha2(concat(id, '/', {version}), 512) AS BINARY) AS value",
        "'update_postimage' AS _change_type",
        f"{version} * 1000000000000 + id AS _commit_version",
        "TIMESTAMP '2026-01-01 00:00:00' AS _commit_timestamp",
        "'mutation' AS op",
        "'_default' AS scope",
        "'_default' AS collection",
        "CAST(pmod(xxhash64(id), 1024) AS INT) AS vbucket",
        "'123456789012345' AS vbuuid",
        f"{version} * 1000000000000 + id AS seqno",
        f"CAST({version} AS BIGINT) AS rev",
        "xxhash64(id, 'cas') AS cas",
        "0 AS flags",
        "1 AS datatype",
        "CAST(NULL AS TIMESTAMP) AS expiry",
        "CAST(NULL AS MAP<STRING, STRING>) AS xattrs",
    )


def _engine(spark: SparkSession, path: Path, name: str = "delta") -> Any:
    from dcpstream_spark.tables.engines import TableTarget, choose_engine

    return choose_engine(name, spark, TableTarget(str(path), "binary"))


def _line(size: int, way: str, what: str, costs: Sequence[float], walls: Sequence[float]) -> str:
    return f"{size:>11,} rows: {way} {what} {median(costs):8.2f} CPU s, {median(walls):.2f} s, of {len(costs)} batches"


def _cost(call: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of all processes, and wall seconds."""
    cpu, wall = cpu_s(), time.perf_counter()
    call()
    return cpu_s() - cpu, time.perf_counter() - wall


def cpu_s() -> float:
    """CPU seconds of this process and its living descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                )
            except (OSError, IndexError):
                continue
    ours, total = {os.getpid()}, 0.0
    while ours:
        for pid in ours:
            try:
                total += cpu_seconds_of(pid)
            except OSError:
                continue
        ours = {pid for pid, parent in parents.items() if parent in ours}
    return total


if __name__ == "__main__":
    main()
