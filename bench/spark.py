"""Spark: a batch read of a node against the same rows as ready Arrow batches from a Python source.

The node runs in a process of its own on the same machine; its work is part of the wall time, not of Spark's CPU time.
The ratios use wall time, because users wait for it. The figures also have the CPU seconds of the JVM and of Spark's
Python workers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.common import Figure, cpu_seconds_of, median, median_of_ratios, repeats_for, report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = {256: 1_000_000, 1024: 400_000}
"""Value size in bytes → rows; about 0.3 to 0.4 GB in Spark's types."""

QUICK_ROWS = {256: 200_000, 1024: 100_000}
TASKS = 2
NODE_START_TIMEOUT_S = 30.0
KEYS_PER_CALL = 20_000
NARROW = "key,value,vbucket,seqno,cas"

_NODE = """
import sys, dcpstream
with dcpstream.Node(vbuckets=1024) as node:
    print(node.connection_string, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One timed action: wall seconds, and CPU seconds of Spark's processes."""

    wall_s: float
    cpu_s: float


def run(quick: bool) -> dict[str, Any]:
    """Read to noop and to Parquet, with values of 256 B and 1 KiB."""
    root = Path(__file__).parent.parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    from bench.ready_source import ReadySource
    from dcpstream.spark.session import build_session

    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    spark = build_session("bench", master=f"local[{TASKS}]", driver_memory="3g")
    spark.dataSource.register(ReadySource)
    try:
        for size, rows in (QUICK_ROWS if quick else ROWS).items():
            with tempfile.TemporaryDirectory() as directory, _node() as connection_string:
                _load(connection_string, rows, size)
                found = _measure(spark, connection_string, size, rows, Path(directory), repeats_for(quick))
                figures += found[0]
                ratios |= found[1]
    finally:
        spark.stop()
    return report(figures, ratios)


def _measure(
    spark: SparkSession, connection_string: str, size: int, rows: int, directory: Path, repeats: int
) -> tuple[list[Figure], dict[str, float | None]]:
    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    for label, columns in (("", ""), (".narrow", NARROW)):
        options = {"columns": columns} if columns else {}
        read = _reader(spark, connection_string, options)
        ready = _ready(spark, connection_string, options, directory / f"ready{label}")
        counted = read().count()
        assert counted == rows, f"{counted} rows, loaded were {rows}"
        dcp, base = _in_turns(lambda read=read: _noop(read()), lambda ready=ready: _noop(ready()), repeats=repeats)
        name = f"spark_read.{size}{label}"
        figures.append(_figure(f"{name}.noop", rows, dcp, base, "ready batches to noop"))
        figures.append(_cpu_figure(f"{name}.noop.cpu", rows, dcp, base))
        ratios[f"{name}.of_ready"] = median_of_ratios([r.wall_s for r in base], [r.wall_s for r in dcp])
        if not label:
            dcp, base = _in_turns(
                lambda read=read: _parquet(read(), directory),
                lambda ready=ready: _parquet(ready(), directory),
                repeats=3,
            )
            figures.append(_figure(f"{name}.parquet", rows, dcp, base, "ready batches to Parquet"))
            ratios[f"{name}.parquet.of_ready"] = median_of_ratios([r.wall_s for r in base], [r.wall_s for r in dcp])
    return figures, ratios


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


def _cpu_figure(name: str, rows: int, subject: list[Round], base: list[Round]) -> Figure:
    samples = tuple(one.cpu_s / rows * 1e6 for one in subject)
    return Figure(
        name=name,
        value=median(samples),
        unit="CPU us/row",
        baseline="ready batches",
        baseline_value=median([one.cpu_s / rows * 1e6 for one in base]),
        repeats=len(subject),
        samples=samples,
        note="JVM and Python workers, without the node",
    )


def _in_turns(
    subject: Callable[[], None], base: Callable[[], None], *, repeats: int
) -> tuple[list[Round], list[Round]]:
    for call in (subject, base):
        call()
    rounds: tuple[list[Round], list[Round]] = ([], [])
    for _ in range(repeats):
        for call, into in zip((subject, base), rounds, strict=True):
            cpu, wall = _tree_cpu_s(), time.perf_counter()
            call()
            into.append(Round(time.perf_counter() - wall, _tree_cpu_s() - cpu))
    return rounds


def _reader(spark: SparkSession, connection_string: str, options: dict[str, str]) -> Callable[[], DataFrame]:
    def read() -> DataFrame:
        reader = spark.read.format("dcp").options(**_access(connection_string), **options)
        return reader.option("numPartitions", str(TASKS)).load()

    return read


def _ready(
    spark: SparkSession, connection_string: str, options: dict[str, str], directory: Path
) -> Callable[[], DataFrame]:
    """The rows of the source, as files of batches."""
    import pyarrow as pa

    from dcpstream.spark.options import SourceOptions
    from dcpstream.spark.source import DcpBatchReader

    directory.mkdir()
    reader = DcpBatchReader(SourceOptions.parse({**_access(connection_string), **options, "numPartitions": str(TASKS)}))
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


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _parquet(frame: DataFrame, directory: Path) -> None:
    target = directory / "parquet"
    shutil.rmtree(target, ignore_errors=True)
    frame.write.mode("overwrite").parquet(str(target))


def _access(connection_string: str) -> dict[str, str]:
    return {
        "connectionString": connection_string,
        "username": "Administrator",
        "password": "password",
        "bucket": "default",
    }


def _load(connection_string: str, rows: int, size: int) -> None:
    from dcpstream.client.kv.client import KvClient

    value = os.urandom(size // 2).hex().encode()
    with KvClient(connection_string, username="Administrator", password="password", bucket="default") as kv:
        for begin in range(0, rows, KEYS_PER_CALL):
            kv.set_many((f"document-{n:09d}", value) for n in range(begin, min(begin + KEYS_PER_CALL, rows)))


@contextlib.contextmanager
def _node() -> Iterator[str]:
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


def _tree_cpu_s() -> float:
    """CPU seconds of this process's descendants that belong to Spark: the JVM and its Python workers."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                text = (entry / "stat").read_text(encoding="ascii", errors="replace")
                parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
                names[int(entry.name)] = text.partition("(")[2].rpartition(")")[0]
    ours = {pid for pid, parent in parents.items() if parent == os.getpid() and names[pid] == "java"}
    total = 0.0
    while ours:
        for pid in ours:
            with contextlib.suppress(OSError):
                total += cpu_seconds_of(pid)
        ours = {pid for pid, parent in parents.items() if parent in ours}
    return total
