"""Queries without Spark: its part is played by a loop that does what Spark does with a source and a sink.

It plans, logs the end of a batch, reads the tasks one after the other, repeats a task that fails, writes, and logs that
the batch is done. A round takes a second or two, which suffices for most bugs of the source and of delta-rs. What Spark
really does is judged by `host.SparkHost`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import tempfile
import threading
import traceback
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dcpstream_spark.data_source import DcpDataSource, DcpStreamReader
from lab.chaos.host import Order, plant_death, plant_pause

if TYPE_CHECKING:
    from dcpstream_spark import Pipeline

TASK_ATTEMPTS = 4
IDLE_S = 0.01
"""Pause of a query that follows and has nothing to do."""


class _Frame:
    """A batch, as far as an engine without Spark needs a DataFrame."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """The rows."""
        return self._table


class PlainHost:
    """Queries of the sinks delta-rs and parquet in a thread of this process."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error = ""
        self._deaths: list[str] = []

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def start(self, order: Order) -> None:
        """Start a query."""
        self._stopping = threading.Event()
        self._error = ""
        self._deaths = []
        self._thread = threading.Thread(target=self._run, args=(order, self._stopping, self._deaths), daemon=True)
        self._thread.start()

    def state(self) -> tuple[bool, str]:
        """Whether the query runs, and its error."""
        is_active = self._thread is not None and self._thread.is_alive()
        return is_active, "" if is_active else self._error

    def has_died(self) -> bool:
        """Whether the round's own order ended the query."""
        return bool(self._deaths)

    def stop(self) -> None:
        """Stop the query after the batch that it is at."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def kill(self) -> None:
        """A thread cannot be killed; a query that hangs is left alone."""
        self._stopping.set()
        self._thread, self._error = None, ""

    def stacks(self) -> str:
        """The stacks of this process's threads."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def table(self, order: Order, name: str) -> pa.Table:
        """`live` or `rejects` of delta-rs."""
        found: pa.Table = getattr(_pipeline(order), name)()
        return found

    def _run(self, order: Order, stopping: threading.Event, deaths: list[str]) -> None:
        reader: DcpStreamReader | None = None
        try:
            options = dict(order.options)
            if order.sink != "parquet":
                # As a pipeline does.
                options |= {"rewindTo": "recorded", "checkpointLocation": f"{order.path}/checkpoint"}
            source = DcpDataSource(options)
            found = source.streamReader(source.schema())
            assert isinstance(found, DcpStreamReader)
            reader = found
            _Query(order, reader, stopping, deaths).run()
        except Exception as error:  # noqa: BLE001 - the round reports it
            self._error = f"{''.join(traceback.format_exception(error))}{type(error).__name__}: {error}"
        finally:
            if reader is not None:
                reader.stop()


def _pipeline(order: Order) -> Pipeline:
    session: Any = None
    return order.pipeline(session, "delta-rs")


class _Query:
    """One run on a checkpoint."""

    def __init__(self, order: Order, reader: DcpStreamReader, stopping: threading.Event, deaths: list[str]) -> None:
        self._order = order
        self._reader = reader
        self._stopping = stopping
        self._path = Path(order.path) / "checkpoint"
        for name in ("offsets", "commits"):
            (self._path / name).mkdir(parents=True, exist_ok=True)
        metadata = self._path / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
        self._app = f"dcpstream:{json.loads(metadata.read_text(encoding='utf-8'))['id']}"
        self._pipeline = None if order.sink == "parquet" else _pipeline(order)
        if self._pipeline is not None:
            self._pipeline.engine.create()
            plant_pause(self._pipeline, order.fold_pause_s)
            if order.die_at:
                plant_death(self._pipeline, order.die_at, order.die_nth, deaths)

    def run(self) -> None:
        """Until everything is read, or until the query is stopped."""
        try:
            self._follow()
            if self._pipeline is not None:
                self._pipeline.fold()
        finally:
            if self._pipeline is not None:
                # A dead process has no fold that still runs.
                self._pipeline.stop()

    def _follow(self) -> None:
        reader = self._reader
        at = self._newest("offsets")
        start = self._offset(at)
        if at > self._newest("commits"):
            self._batch(at, self._offset(at - 1), start)
        if self._order.until == "available":
            reader.prepareForTriggerAvailableNow()
        while not self._stopping.is_set():
            # Spark compares and keeps offsets as text.
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            if json.dumps(end) == json.dumps(start):
                if self._order.until == "available":
                    break
                self._stopping.wait(IDLE_S)
                continue
            at += 1
            self._log("offsets", at, json.dumps(end))
            self._batch(at, start, end)
            start = end

    def _batch(self, at: int, start: Any, end: Any) -> None:
        log = Path(self._order.path) / "files" / "_spark_metadata"
        schema = pa.schema([])
        batches: list[pa.RecordBatch] = []
        for partition in self._reader.partitions(start, end):
            found = self._task(partition)
            batches += found
            schema = found[0].schema if found else schema
        if self._pipeline is not None:
            # An empty batch has the columns, too.
            source = DcpDataSource(dict(self._order.options))
            table = pa.Table.from_batches(batches) if batches else _empty(source)
            frame: Any = _Frame(table)
            self._pipeline.apply_batch(self._app, at, frame)
        elif not (log / str(at)).exists():
            log.mkdir(parents=True, exist_ok=True)
            lines = ["v1"]
            if batches:
                file = log.parent / f"{uuid.uuid4()}.parquet"
                pq.write_table(pa.Table.from_batches(batches), file)
                lines.append(json.dumps({"path": file.as_uri()}))
            (log / str(at)).write_text("\n".join(lines), encoding="utf-8")
        self._log("commits", at, "")

    def _task(self, partition: Any) -> list[pa.RecordBatch]:
        for attempt in range(1, TASK_ATTEMPTS + 1):
            # An executor gets copies.
            reader, copy = pickle.loads(pickle.dumps((self._reader, partition)))
            try:
                return list(reader.read(copy))
            except Exception:
                if attempt == TASK_ATTEMPTS:
                    raise
        raise AssertionError

    def _log(self, kind: str, at: int, text: str) -> None:
        hidden = self._path / kind / f".{at}"
        hidden.write_text(text, encoding="utf-8")
        hidden.rename(self._path / kind / str(at))

    def _newest(self, kind: str) -> int:
        return max((int(file.name) for file in (self._path / kind).iterdir() if file.name.isdecimal()), default=-1)

    def _offset(self, at: int) -> Any:
        if at < 0:
            return json.loads(json.dumps(self._reader.initialOffset()))
        return json.loads((self._path / "offsets" / str(at)).read_text(encoding="utf-8"))


def _empty(source: DcpDataSource) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(source.schema(), timezone="UTC").empty_table()
