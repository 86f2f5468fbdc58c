"""Tasks that Spark runs only once: their rows are held back until all of them are read.

A task fails if a node loses changes that the task has given to Spark already: only Spark can take them back. When the
task runs again, it goes back by itself. Spark runs a failed task again, except with the master `local[N]`, which
`pyspark` and many notebooks use. There a task holds its rows until it has read the last one, and reads them again if a
node loses some of them. Every task has the settings of its session among its local properties, so it knows the master.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO

import pyarrow as pa

from dcpstream.errors import RollbackRequired
from dcpstream_spark.masters import TASK_FAILURES, runs_tasks_once

ATTEMPTS_MAX = TASK_FAILURES
"""Times that a task is read: as often as Spark runs a failed task by default (spark.task.maxFailures)."""

MEMORY_BYTES_MAX = 32 * 1024 * 1024
"""Rows that a task holds in memory; more are held in a temporary file."""

HELD_BYTES_MAX = 1024 * 1024 * 1024
"""Rows that a task holds in all, so that the first batch of a large bucket does not fill the disk. A task with more
gives its rows to Spark from there on, and a rollback within it ends the query."""

_log = logging.getLogger(__name__)


def runs_once() -> bool:
    """Whether Spark runs the task of this process only once."""
    from pyspark import TaskContext

    context = TaskContext.get()
    master = None if context is None else context.getLocalProperty("spark.master")
    return runs_tasks_once(master or "")


def held(
    read: Callable[[], Iterable[pa.RecordBatch]], most: int = HELD_BYTES_MAX
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a task, given after the last one is read.

    Args:
        read: reads the task from its start.
        most: bytes that are held; with 0 the first batch alone.

    Raises:
        RollbackRequired: a node lost changes in each of `ATTEMPTS_MAX` attempts, or after `most` bytes.
        OSError: the disk of the temporary file is full.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # Unnamed and deleted with the process, also if Spark kills it.
        with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX) as file:
            rows = iter(read())
            try:
                _hold(rows, file, most)
            except RollbackRequired as error:
                if attempt == ATTEMPTS_MAX:
                    raise
                _log.warning("this task is read again: %s", error)
                continue
            yield from _given(file)
        yield from rows
        return


def _hold(rows: Iterable[pa.RecordBatch], file: IO[bytes], most: int) -> None:
    """Write rows to a file until there are no more, or it has the most bytes."""
    writer: pa.RecordBatchStreamWriter | None = None
    for batch in rows:
        writer = writer or pa.ipc.new_stream(file, batch.schema)
        writer.write_batch(batch)
        if file.tell() >= most:
            break
    if writer is not None:
        writer.close()


def _given(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    if file.tell():
        file.seek(0)
        yield from pa.ipc.open_stream(file)
