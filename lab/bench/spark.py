"""Spark: reads of a node and of a sender with short turns to noop, against reads of the same rows in the same run.

The baselines are ready Arrow batches from a Python source, the rows as Parquet, and `spark.range` with the rows'
columns made by expressions. The node runs in a process of its own on the same machine; its work is part of the wall
time, not of the CPU time. CPU time is that of the JVM and of Spark's Python workers, each by itself. A JVM compiles for
a long time: without the warm-up rounds its first reads cost three times as much.

A server goes round over all streams of a connection (`server_turns`); our node sends long runs. A read of such a sender
is compared with ready batches alone.

The floor of a micro-batch is the median trigger time of batches of ten rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.bench.client import turns_process
from lab.bench.common import Figure, cpu_seconds_of, median, median_of_ratios, repeats_for, report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = {256: 1_000_000, 1024: 400_000}
"""Value size in bytes → rows; about 0.3 to 0.4 GB in Spark's types."""

QUICK_ROWS = {256: 200_000, 1024: 100_000}
TASKS = 2
NODE_START_TIMEOUT_S = 30.0
KEYS_PER_CALL = 20_000
COLUMNS = {"": "", ".narrow": "key,value,vbucket,seqno,cas", ".two": "key,seqno"}
"""Label → the option `columns`."""

WARM_UPS = 6
FLOOR_BATCHES = 40
FLOOR_ROWS = 10
FLOOR_TIMEOUT_S = 120.0

_NODE = """
import sys, dcpstream_node
with dcpstream_node.Node(vbuckets=1024, system_scope=False) as node:
    print(node.connection_string, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One timed action: wall seconds, and CPU seconds of the JVM and of Spark's Python workers."""

    wall_s: float
    jvm_s: float
    python_s: float

    @property
    def cpu_s(self) -> float:
        """CPU time of the JVM and of Python together."""
        return self.jvm_s + self.python_s


def run(quick: bool) -> dict[str, Any]:
    """Read to noop and to Parquet, with values of 256 B and 1 KiB."""
    root = Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    from dcpstream_spark import build_session
    from lab.bench.ready_source import ReadySource

    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    spark = build_session("bench", master=f"local[{TASKS}]", driver_memory="3g")
    spark.dataSource.register(ReadySource)
    try:
        for size, rows in (QUICK_ROWS if quick else ROWS).items():
            with tempfile.TemporaryDirectory() as directory, node_process() as connection_string:
                load_documents(connection_string, rows, size)
                found = _measure(spark, connection_string, size, rows, Path(directory), repeats_for(quick))
                figures += found[0]
                ratios |= found[1]
            with tempfile.TemporaryDirectory() as directory, turns_process(rows, size) as connection_string:
                figure, of_ready = _measure_turns(
                    spark, connection_string, size, rows, Path(directory), repeats_for(quick)
                )
                figures.append(figure)
                ratios[f"spark_read.{size}.turns.of_ready"] = of_ready
        with tempfile.TemporaryDirectory() as directory, node_process() as connection_string:
            figures.append(
                _floor(spark, connection_string, Path(directory), FLOOR_BATCHES // 4 if quick else FLOOR_BATCHES)
            )
            ratios["spark_stream.floor_ms"] = figures[-1].value
    finally:
        spark.stop()
    return report(figures, ratios)


def _measure(
    spark: SparkSession, connection_string: str, size: int, rows: int, directory: Path, repeats: int
) -> tuple[list[Figure], dict[str, float | None]]:
    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    for label, columns in COLUMNS.items():
        options = {"columns": columns} if columns else {}
        read = _reader(spark, connection_string, options)
        ready = _ready(spark, connection_string, options, directory / f"ready{label}")
        counted = read().count()
        assert counted == rows, f"{counted} rows, loaded were {rows}"
        parquet = directory / f"rows{label}.parquet"
        ready().write.parquet(str(parquet))
        expressions = _expressions(ready().columns, size)
        dcp, base, file, made = _in_turns(
            partial(_noop, read),
            partial(_noop, ready),
            partial(_noop, partial(spark.read.parquet, str(parquet))),
            partial(_noop, partial(spark.range(0, rows, 1, TASKS).selectExpr, *expressions)),
            repeats=repeats,
            warm_ups=WARM_UPS if not label else 2,
        )
        name = f"spark_read.{size}{label}"
        figures.append(_figure(f"{name}.noop", rows, dcp, base, "ready batches to noop"))
        for short, other, rounds in (
            ("ready", "ready batches", base),
            ("parquet", "Parquet", file),
            ("range", "spark.range", made),
        ):
            figures.append(_cpu_figure(f"{name}.jvm.{short}", rows, dcp, rounds, other, lambda one: one.jvm_s))
        figures.append(_cpu_figure(f"{name}.python", rows, dcp, base, "ready batches", lambda one: one.python_s))
        ratios[f"{name}.of_ready"] = median_of_ratios([r.wall_s for r in base], [r.wall_s for r in dcp])
        ratios[f"{name}.jvm.of_parquet"] = median_of_ratios([r.jvm_s for r in dcp], [r.jvm_s for r in file])
        ratios[f"{name}.python_us"] = median([r.python_s / rows * 1e6 for r in dcp])
        if not label:
            dcp, base = _in_turns(
                partial(_parquet, read, directory),
                partial(_parquet, ready, directory),
                repeats=3,
            )
            figures.append(_figure(f"{name}.parquet", rows, dcp, base, "ready batches to Parquet"))
            ratios[f"{name}.parquet.of_ready"] = median_of_ratios([r.wall_s for r in base], [r.wall_s for r in dcp])
    return figures, ratios


def _measure_turns(
    spark: SparkSession, connection_string: str, size: int, rows: int, directory: Path, repeats: int
) -> tuple[Figure, float | None]:
    """(read to noop from a sender with short turns, its ratio to ready batches of the same rows)."""
    read = _reader(spark, connection_string, {})
    ready = _ready(spark, connection_string, {}, directory / "ready")
    counted = read().count()
    assert counted == rows, f"{counted} rows, sent were {rows}"
    dcp, base = _in_turns(partial(_noop, read), partial(_noop, ready), repeats=repeats, warm_ups=2)
    figure = _figure(f"spark_read.{size}.turns.noop", rows, dcp, base, "ready batches to noop")
    return figure, median_of_ratios([r.wall_s for r in base], [r.wall_s for r in dcp])


def _expressions(columns: list[str], size: int) -> list[str]:
    """The source's columns, made by the JVM from `spark.range`; rows of about the same size."""
    made = {
        "key": "concat('document-', lpad(cast(id as string), 9, '0')) as key",
        "value": f"cast(repeat('x', {size}) as binary) as value",
        "_change_type": "'insert' as _change_type",
        "_commit_version": "id as _commit_version",
        "_commit_timestamp": "timestamp_micros(id) as _commit_timestamp",
        "op": "'mutation' as op",
        "scope": "'_default' as scope",
        "collection": "'_default' as collection",
        "vbucket": "cast(id % 1024 as int) as vbucket",
        "vbuuid": "'123456789012345' as vbuuid",
        "expiry": "cast(null as timestamp) as expiry",
        "xattrs": "cast(null as map<string, string>) as xattrs",
    }
    return [
        made.get(name, f"cast(id as {'int' if name in {'flags', 'datatype'} else 'long'}) as {name}")
        for name in columns
    ]


def _floor(spark: SparkSession, connection_string: str, directory: Path, batches: int) -> Figure:
    """Milliseconds of a micro-batch of a few rows, without a pause between triggers."""
    from dcpstream.client.kv.client import KvClient

    stream = spark.readStream.format("dcp").options(**access(connection_string), startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    times: list[float] = []
    try:
        with KvClient(connection_string, username="Administrator", password="password", bucket="default") as kv:
            for number in range(batches + 5):
                seen = _rows_of(query)
                kv.set_many((f"k{number}-{n}", b"{}") for n in range(FLOOR_ROWS))
                deadline = time.perf_counter() + FLOOR_TIMEOUT_S
                while _rows_of(query) < seen + FLOOR_ROWS:
                    if time.perf_counter() > deadline:
                        raise TimeoutError(f"the query did not read batch {number} within {FLOOR_TIMEOUT_S:g} s")
                    time.sleep(0.02)
            times = [
                json.loads(one.json)["durationMs"]["triggerExecution"]
                for one in query.recentProgress
                if one.numInputRows
            ]
    finally:
        query.stop()
    samples = tuple(float(one) for one in times[5:])
    return Figure(
        name="spark_stream.floor",
        value=median(samples),
        unit="ms",
        repeats=len(samples),
        samples=samples,
        note=f"trigger time of micro-batches of {FLOOR_ROWS} rows to noop",
    )


def _rows_of(query: StreamingQuery) -> int:
    return sum(one.numInputRows for one in query.recentProgress)


def _figure(name: str, rows: int, subject: list[Round], base: list[Round], baseline: str) -> Figure:
    samples = tuple(rows / one.wall_s / 1e6 for one in subject)
    return Figure(
        name=name,
        value=median(samples),
        unit="M rows/s",
        baseline=baseline,
        baseline_value=median([rows / one.wall_s / 1e6 for one in base]),
        repeats=len(subject),
        samples=samples,
        note="wall time, the node on the same machine",
    )


def _cpu_figure(
    name: str, rows: int, subject: list[Round], base: list[Round], baseline: str, seconds: Callable[[Round], float]
) -> Figure:
    samples = tuple(seconds(one) / rows * 1e6 for one in subject)
    return Figure(
        name=name,
        value=median(samples),
        unit="CPU us/row",
        baseline=baseline,
        baseline_value=median([seconds(one) / rows * 1e6 for one in base]),
        repeats=len(subject),
        samples=samples,
        note="without the node",
    )


def _in_turns(*calls: Callable[[], None], repeats: int, warm_ups: int = 1) -> tuple[list[Round], ...]:
    for _ in range(warm_ups):
        for call in calls:
            call()
    rounds: tuple[list[Round], ...] = tuple([] for _ in calls)
    for _ in range(repeats):
        for call, into in zip(calls, rounds, strict=True):
            before, wall = _tree_cpu_s(), time.perf_counter()
            call()
            after = _tree_cpu_s()
            into.append(Round(time.perf_counter() - wall, after[0] - before[0], after[1] - before[1]))
    return rounds


def _reader(spark: SparkSession, connection_string: str, options: dict[str, str]) -> Callable[[], DataFrame]:
    def read() -> DataFrame:
        reader = spark.read.format("dcp").options(**access(connection_string), **options)
        return reader.option("numPartitions", str(TASKS)).load()

    return read


def _ready(
    spark: SparkSession, connection_string: str, options: dict[str, str], directory: Path
) -> Callable[[], DataFrame]:
    """The rows of the source, as files of batches."""
    import pyarrow as pa

    from dcpstream_spark.data_source import DcpBatchReader
    from dcpstream_spark.options import SourceOptions

    directory.mkdir()
    reader = DcpBatchReader(SourceOptions.parse({**access(connection_string), **options, "numPartitions": str(TASKS)}))
    files = []
    for index, partition in enumerate(reader.partitions()):
        path = directory / f"{index}.arrow"
        batches = reader.read(partition)
        first = next(batches)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
        files.append(str(path))
    return lambda: spark.read.format("dcpstream_ready").option("files", ":".join(files)).load()


def _noop(read: Callable[[], DataFrame]) -> None:
    read().write.format("noop").mode("overwrite").save()


def _parquet(read: Callable[[], DataFrame], directory: Path) -> None:
    target = directory / "parquet"
    shutil.rmtree(target, ignore_errors=True)
    read().write.mode("overwrite").parquet(str(target))


def access(connection_string: str) -> dict[str, str]:
    """Options of the source for a node's own bucket."""
    return {
        "connectionString": connection_string,
        "username": "Administrator",
        "password": "password",
        "bucket": "default",
    }


def load_documents(connection_string: str, rows: int, size: int) -> None:
    """Write that many documents with values of `size` bytes."""
    from dcpstream.client.kv.client import KvClient

    value = os.urandom(size // 2).hex().encode()
    with KvClient(connection_string, username="Administrator", password="password", bucket="default") as kv:
        for begin in range(0, rows, KEYS_PER_CALL):
            kv.set_many((f"document-{n:09d}", value) for n in range(begin, min(begin + KEYS_PER_CALL, rows)))


@contextlib.contextmanager
def node_process() -> Iterator[str]:
    """The connection string of a node with 1,024 vbuckets in a process of its own."""
    node = subprocess.Popen([sys.executable, "-c", _NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert node.stdin is not None
    assert node.stdout is not None
    try:
        yield node.stdout.readline().strip()
    finally:
        node.stdin.close()
        try:
            node.wait(NODE_START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            node.send_signal(signal.SIGKILL)
            node.wait()
        node.stdout.close()


def _tree_cpu_s() -> tuple[float, float]:
    """CPU seconds of this process's descendants that belong to Spark: (the JVM, its Python workers)."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                text = (entry / "stat").read_text(encoding="ascii", errors="replace")
                parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
                names[int(entry.name)] = text.partition("(")[2].rpartition(")")[0]
    ours = {pid for pid, parent in parents.items() if parent == os.getpid() and names[pid] == "java"}
    jvm = python = 0.0
    while ours:
        for pid in ours:
            with contextlib.suppress(OSError):
                if names[pid] == "java":
                    jvm += cpu_seconds_of(pid)
                else:
                    python += cpu_seconds_of(pid)
        ours = {pid for pid, parent in parents.items() if parent in ours}
    return jvm, python
