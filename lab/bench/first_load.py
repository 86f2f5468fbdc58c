"""First load: a bucket into tables on a standalone Spark cluster of two workers on this machine.

`python -m lab.bench.first_load --documents 1000000` starts a node, a Spark master, two workers with one core each, and
a pipeline with the engine that writes with Spark. It prints a line per batch with the rows so far, the rate, and the
memory of the processes: the driver's JVM and Python, the executors' JVMs, and Spark's Python workers of all. The last
line says whether `current` holds every document. The rate should not fall, and memory should not grow.

`--output` keeps the numbers as JSON, and `--plot` draws them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.bench.common import resident_bytes
from lab.bench.run import machine, versions
from lab.bench.tables import cpu_s

if TYPE_CHECKING:
    from dcpstream_spark.tables import BatchReport

DOCUMENTS = 10_000_000
VALUE_BYTES = 250
BATCH_ROWS = 500_000
WRITES_PER_CALL = 20_000
START_TIMEOUT_S = 120.0

_NODE = """
import sys, dcpstream_node
with dcpstream_node.Node(vbuckets=1024, system_scope=False, path=sys.argv[1]) as node:
    print(node.connection_string, flush=True)
    sys.stdin.read()
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.first_load")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, help="maxOffsetsPerTrigger")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--directory", type=Path, default=None, help="where everything is kept; temporary by default")
    parser.add_argument("--output", type=Path, default=None, help="a file for the numbers, as JSON")
    parser.add_argument("--plot", type=Path, default=None, help="a file for a picture of rate and memory")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.directory) as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        connection_string = stack.enter_context(node(directory / "node"))
        begin = time.perf_counter()
        load(connection_string, given.documents)
        print(f"{given.documents:,} documents written in {time.perf_counter() - begin:.0f} s", flush=True)
        master = stack.enter_context(cluster(directory / "cluster", given.workers))
        found = follow(master, connection_string, directory, given.documents, given.batch_rows)
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.plot is not None:
        plot(found, given.plot)


def follow(master: str, connection_string: str, directory: Path, documents: int, batch_rows: int) -> dict[str, Any]:
    """Read the bucket into tables, and print what happens.

    Returns: the conditions, the totals, and for each batch when it was done, its rows, its times and the memory in MB.
    """
    from dcpstream_spark import Pipeline, build_session

    spark = build_session(
        "bench first load",
        master=master,
        driver_memory="1g",
        tables="delta",
        settings={
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "spark.local.dir": str(directory / "local"),
        },
    )
    begin, rows, last = time.perf_counter(), 0, time.perf_counter()
    load = os.getloadavg()[0]
    batches: list[dict[str, Any]] = []

    def show(report: BatchReport) -> None:
        nonlocal rows, last
        rows += report.rows
        now = time.perf_counter()
        memory_mb = {group: size >> 20 for group, size in memory_of().items()}
        batches.append(
            {
                "at_s": round(now - begin, 2),
                "rows": rows,
                "append_s": round(report.append_s, 2),
                "wait_s": round(report.wait_s, 2),
                "memory_mb": memory_mb,
                "load": round(os.getloadavg()[0], 1),
            }
        )
        memory = " ".join(f"{group} {size}" for group, size in memory_mb.items())
        folded = f", waited {report.wait_s:.1f} s for a fold" if report.wait_s > 1 else ""
        rate = report.rows / (now - last)
        print(
            f"{now - begin:7.1f} s batch {report.batch_id:3} {rows:>12,} rows {rate:>9,.0f} rows/s "
            f"append {report.append_s:.1f} s{folded}; MB: {memory}",
            flush=True,
        )
        last = now

    try:
        access = {
            "connectionString": connection_string,
            "username": "Administrator",
            "password": "password",
            "bucket": "default",
            "maxOffsetsPerTrigger": str(batch_rows),
        }
        cpu = cpu_s()
        pipeline = Pipeline(spark, directory / "tables", access, engine="delta", on_batch=show, fold_share=1.0)
        pipeline.run(until="available")
        took = time.perf_counter() - begin
        found = spark.read.format("delta").load(str(directory / "tables" / "current")).count()
        spent = cpu_s() - cpu
        print(
            f"{rows:,} rows in {took:.0f} s with the last fold: {rows / took:,.0f} rows/s, "
            f"driver and its Python {spent:.0f} CPU s; current holds {found:,} of {documents:,} documents",
            flush=True,
        )
        return {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine() | {"load_at_start": round(load, 2)},
            "versions": versions(),
            "documents": documents,
            "value_bytes": VALUE_BYTES,
            "batch_rows": batch_rows,
            "seconds": round(took, 1),
            "driver_cpu_s": round(spent, 1),
            "current_rows": found,
            "batches": batches,
        }
    finally:
        spark.stop()


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw the rows so far and the memory of the processes over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    batches = found["batches"]
    minutes = [one["at_s"] / 60 for one in batches]
    figure, (rows, memory) = plt.subplots(2, 1, sharex=True, figsize=(8, 6))
    rows.plot(minutes, [one["rows"] / 1e6 for one in batches], marker=".")
    rows.set_ylabel("million rows in `changes`")
    for group in batches[0]["memory_mb"]:
        memory.plot(minutes, [one["memory_mb"][group] for one in batches], marker=".", label=group)
    memory.set_ylabel("resident memory, MB")
    memory.set_xlabel("minutes")
    memory.set_ylim(bottom=0)
    rows.set_ylim(bottom=0)
    memory.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, frameon=False)
    for axes in (rows, memory):
        axes.grid(alpha=0.3)
    figure.suptitle(f"First load of {found['documents']:,} documents on two workers with one core each")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def memory_of() -> dict[str, int]:
    """Resident bytes by group of processes, of this process's descendants and itself."""
    groups = {"driver JVM": 0, "driver Python": resident_bytes(), "executor JVMs": 0, "Python workers": 0}
    for pid, command in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if "CoarseGrainedExecutorBackend" in command:
                groups["executor JVMs"] += resident_bytes(pid)
            elif "pyspark.daemon" in command or "python_streaming_source_runner" in command:
                groups["Python workers"] += resident_bytes(pid)
            elif "SparkSubmit" in command:
                groups["driver JVM"] += resident_bytes(pid)
    return groups


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """(pid, command line) of a process and those below it, parents first."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                text = (entry / "stat").read_text(errors="replace")
                parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    ours = {root}
    while ours:
        for pid in sorted(ours):
            with contextlib.suppress(OSError):
                yield pid, Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        ours = {pid for pid, parent in parents.items() if parent in ours}


@contextlib.contextmanager
def node(path: Path) -> Iterator[str]:
    """A node in a process of its own; yields its connection string."""
    process = subprocess.Popen(
        [sys.executable, "-c", _NODE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(START_TIMEOUT_S)
        process.stdout.close()


@contextlib.contextmanager
def cluster(directory: Path, workers: int) -> Iterator[str]:
    """A standalone Spark cluster with one core per worker; yields the master's URL."""
    import pyspark

    directory.mkdir(parents=True)
    start = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_WORKER_DIR": str(directory / "work"), "PYSPARK_PYTHON": sys.executable}
    processes = []

    def run(name: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        with log.open("w") as file:
            processes.append(subprocess.Popen([str(start), *arguments], stdout=file, stderr=file, env=environment))
        return log

    try:
        package, local = "org.apache.spark.deploy", ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = _wait_for(run("master", f"{package}.master.Master", *local), r"spark://[\d.]+:\d+")
        for number in range(workers):
            log = run(
                f"worker{number}", f"{package}.worker.Worker", "--cores", "1", "--memory", "1400m", *local, master
            )
            _wait_for(log, "Successfully registered with master")
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(START_TIMEOUT_S)


def _wait_for(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text())
        if found:
            return found.group()
        time.sleep(0.1)
    raise TimeoutError(f"{pattern} is not in {log}:\n{log.read_text()}")


def load(connection_string: str, documents: int) -> None:
    """Write documents of `VALUE_BYTES`."""
    from dcpstream.client.kv.client import KvClient

    filler = os.urandom(VALUE_BYTES // 2).hex()
    with KvClient(connection_string, username="Administrator", password="password", bucket="default") as kv:
        for begin in range(0, documents, WRITES_PER_CALL):
            numbers = range(begin, min(begin + WRITES_PER_CALL, documents))
            kv.set_many((f"document-{n:010d}", f"{n:010d}{filler}"[:VALUE_BYTES]) for n in numbers)


if __name__ == "__main__":
    main()
