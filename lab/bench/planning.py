"""Planning a micro-batch at 1,024 vbuckets that all moved: the CPU time of Spark's driver side.

The node is a process of its own, so the figure is the source's process time alone: observing the vbuckets, planning the
end, making the tasks and pickling them, and reporting the lag.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import pickle
import time
from multiprocessing.connection import Connection
from typing import Any

import dcpstream_node
from dcpstream.client import KvClient
from dcpstream_spark.data_source import DcpDataSource, DcpStreamReader
from lab.bench.common import Figure, median, report

VBUCKETS = 1_024
BATCHES = 20
DOCUMENTS = 8_000
"""Changes of each batch, so that nearly every vbucket moves."""
LOGIN = {"username": "Administrator", "password": "password"}


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs,), daemon=True)
    child.start()
    try:
        connection_string = ours.recv()
        samples, offset_bytes, task_bytes = _batches(connection_string, 5 if quick else BATCHES)
        ours.send(None)
    finally:
        child.join(10)
        child.terminate()
    cost_ms = median(samples)
    figures = [
        Figure(name="planning.cpu", value=cost_ms, unit="CPU ms", repeats=len(samples), samples=tuple(samples)),
        Figure(name="planning.offset", value=offset_bytes, unit="B", note="the last offset, as JSON"),
        Figure(name="planning.tasks", value=task_bytes, unit="B", note="the pickled tasks of the last batch"),
    ]
    return report(figures, {"planning_cpu_ms": cost_ms})


def _batches(connection_string: str, batches: int) -> tuple[list[float], int, int]:
    """(CPU milliseconds of each batch, bytes of the last offset, bytes of the last tasks)."""
    options = {"connectionString": connection_string, **LOGIN, "bucket": "default", "startingOffsets": "earliest"}
    source = DcpDataSource(options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, DcpStreamReader)
    gc.collect()
    gc.freeze()  # as the source does in a worker of Spark
    samples: list[float] = []
    at: Any = reader.initialOffset()
    text, tasks = "", [b""]
    with KvClient(connection_string, **LOGIN, bucket="default") as kv:
        for batch in range(batches + 2):
            kv.set_many((f"document {number}", b"%d" % batch) for number in range(DOCUMENTS))
            started = time.process_time()
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            text = json.dumps(end)
            tasks = [pickle.dumps(part) for part in reader.partitions(at, end)]
            json.dumps(reader.reportLatestOffset())
            samples.append((time.process_time() - started) * 1e3)
            at = json.loads(text)
    reader.stop()
    return samples[2:], len(text), sum(map(len, tasks))


def _serve(pipe: Connection) -> None:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as node:
        pipe.send(node.connection_string)
        pipe.recv()
