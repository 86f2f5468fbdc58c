"""The pipeline that keeps the tables `changes` and `current` of a bucket.

Theory of operation. Spark delivers a micro-batch at least once, and a replayed batch may hold other rows: the feed
deduplicates, and a failover may have happened in between. Each table applies a batch in one commit that carries the
batch's number, `changes` first. A batch is therefore in one of three states:

- In neither table: its rows are applied to both.
- Only in `changes`, because the process ended in between: the rows are taken from `changes`, not from Spark, so that
  `current` agrees with `changes` even if the replay holds other rows. The next batch begins where this one was planned
  to end. If that history has been rolled back by then, a rollback corrects both tables.
- In both tables: nothing is left to do.

A rollback removes all rows of its vbucket, and the source reads the vbucket again from zero (`rewindTo=zero`). The
removal and the new rows are one commit in each table.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dcpstream.errors import ConfigError, LocalProtocolError, OffsetError
from dcpstream.pipelines.progress import BatchReport, PipelineProgress, lag_of
from dcpstream.pipelines.rows import batch_rows, with_batch_id
from dcpstream.pipelines.tables import ChangesTable, CurrentTable
from dcpstream.runtime import Clock, SystemClock
from dcpstream.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_TRIGGER = "1 second"
"""Pause between the starts of two micro-batches: a shorter one rewrites `current` more often than it is read."""

MAINTENANCE_BATCHES = 50
"""Batches between two runs of maintenance: each batch leaves a file in `changes` and a version of `current`."""

RETAIN_HOURS = 24.0
"""Time that files of older versions are kept, for readers that still use them."""

STOP_TIMEOUT_S = 60.0
"""Time that `stop` waits for a batch that is being written."""

_OPTIONS = {"startingOffsets": "earliest", "onRollback": "rewindAndMark", "valueFormat": "string"}
_FIXED = {"rewindto": "zero", "columns": "all columns"}

_log = logging.getLogger(__name__)


class Pipeline:
    """Two Delta tables that follow a bucket.

    ```
    with Pipeline(spark, "/data/flights", options) as pipeline:
        pipeline.run(until="available")
    ```

    The path holds the tables `changes` and `current` and the query's checkpoint, which belong together.

    Args:
        spark: the session.
        path: a local directory; created if it does not exist.
        options: of the data source `dcp`. By default all changes from the beginning are read, values are strings, and a
            rollback is repaired; the pipeline itself chooses `columns` and `rewindTo`.
        on_batch: called after each written batch.
        retain_hours: see `RETAIN_HOURS`.
        maintenance_batches: see `MAINTENANCE_BATCHES`; 0 = never.
        clock: for the times in reports.

    Raises:
        ConfigError: an option that is not allowed.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str | Path,
        options: Mapping[str, str],
        *,
        on_batch: Callable[[BatchReport], None] | None = None,
        retain_hours: float = RETAIN_HOURS,
        maintenance_batches: int = MAINTENANCE_BATCHES,
        clock: Clock | None = None,
    ) -> None:
        for name, value in options.items():
            if name.lower() in _FIXED:
                raise ConfigError(name, value, f"a pipeline chooses it itself ({_FIXED[name.lower()]})")
        given = {name.lower() for name in options}
        defaults = {name: value for name, value in _OPTIONS.items() if name.lower() not in given}
        self._options = {**defaults, **options, "rewindTo": "zero"}
        value_format = SourceOptions.parse(self._options).value_format
        self._spark = spark
        self.path = Path(path).absolute()
        self.changes = ChangesTable(self.path / "changes", value_format)
        self.current = CurrentTable(self.path / "current", value_format)
        self.checkpoint = self.path / "checkpoint"
        self._on_batch = on_batch
        self._retain_hours = retain_hours
        self._maintenance_batches = maintenance_batches
        self._clock = clock or SystemClock()
        self._query: StreamingQuery | None = None
        # Held while a batch is written, because a stopped query leaves its Python callback running.
        self._writing = threading.Lock()
        self._rows = 0
        self._rollbacks = 0
        self._batches_since_maintenance = 0

    def __enter__(self) -> Pipeline:
        """The pipeline itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop."""
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether a query is active."""
        return self._query is not None and self._query.isActive

    def start(
        self, *, until: Literal["stopped", "available"] = "stopped", trigger: str | None = DEFAULT_TRIGGER
    ) -> None:
        """Start the query in the background.

        Args:
            until: "stopped" follows the bucket; "available" ends when the state at the start has been read.
            trigger: pause between micro-batches of a query that follows, in Spark's notation; None for no pause.

        Raises:
            LocalProtocolError: it is running already.
            OffsetError: tables and checkpoint do not belong together.
        """
        if self.is_running:
            raise LocalProtocolError("the pipeline is running already", state="running", event="start")
        self._require_whole()
        self.path.mkdir(parents=True, exist_ok=True)
        self.changes.create()
        self.current.create()
        stream = self._spark.readStream.format("dcp").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(self._apply).option("checkpointLocation", str(self.checkpoint))
        if until == "available":
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        self._query = writer.queryName(f"dcpstream {self.path.name}").start()

    def run(
        self,
        *,
        until: Literal["stopped", "available"] = "available",
        trigger: str | None = DEFAULT_TRIGGER,
        timeout_s: float | None = None,
    ) -> PipelineProgress:
        """Start and wait for the end; see `start` and `await_end`."""
        self.start(until=until, trigger=trigger)
        self.await_end(timeout_s)
        return self.progress()

    def await_end(self, timeout_s: float | None = None) -> bool:
        """Wait until the query ends.

        Returns: False if it is still running after `timeout_s`.

        Raises:
            StreamingQueryException: the query failed; the message says why.
        """
        if self._query is None:
            return True
        if timeout_s is None:
            self._query.awaitTermination()
            return True
        return bool(self._query.awaitTermination(timeout_s))  # type: ignore[arg-type]  # takes fractions, too

    def stop(self) -> None:
        """Stop the query after the batch that is being written. A second call does nothing."""
        query = self._query
        if query is None or not query.isActive:
            return
        # The lock is released before `stop`: Spark waits in `stop` for a batch that began meanwhile, and that batch
        # waits for the lock. Spark cancels such a batch while its rows are collected; otherwise it is written.
        if self._writing.acquire(timeout=STOP_TIMEOUT_S):
            self._writing.release()
        query.stop()

    @property
    def failure(self) -> Exception | None:
        """The error that ended the query, or None."""
        return None if self._query is None else self._query.exception()

    def progress(self) -> PipelineProgress:
        """The current progress; cheap."""
        last = self._query.lastProgress if self._query is not None else None
        if last is None:
            return PipelineProgress(rows=self._rows, rollbacks=self._rollbacks)
        # Spark 4 returns nested objects; their JSON has been the same since Spark 2.
        details = json.loads(last.json)
        lag = lag_of(details)
        return PipelineProgress(
            batch_id=details["batchId"],
            rows=self._rows,
            rollbacks=self._rollbacks,
            rows_per_second=float(details.get("processedRowsPerSecond") or 0.0),
            total_lag=None if lag is None else lag.total,
            lag={} if lag is None else lag.worst,
            vbuckets_inside_snapshot=0 if lag is None else lag.inside_snapshot,
        )

    def maintain(self) -> None:
        """Join small files of `changes`, and remove files that only versions older than `retain_hours` use."""
        self.changes.compact()
        self.changes.vacuum(self._retain_hours)
        self.current.vacuum(self._retain_hours)

    def _apply(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; called by Spark."""
        with self._writing:
            # The query's id distinguishes batch 0 of a new checkpoint from batch 0 of an old one.
            app = f"dcpstream:{frame.sparkSession.sparkContext.getLocalProperty('sql.streaming.queryId')}"
            report = self.apply_batch(app, batch_id, frame.toArrow)
            if report is None:
                return
            self._rows += report.rows
            self._rollbacks += len(report.rollbacks)
            self._batches_since_maintenance += 1
            if self._maintenance_batches and self._batches_since_maintenance >= self._maintenance_batches:
                self._batches_since_maintenance = 0
                self.maintain()
        if self._on_batch is not None:
            self._on_batch(report)

    def apply_batch(self, app: str, batch_id: int, collect: Callable[[], pa.Table]) -> BatchReport | None:
        """Apply a batch to the tables that do not have it yet.

        Args:
            app: names the writer in the tables' transactions.
            batch_id: rises by one from batch to batch.
            collect: returns the rows; not called if they are not needed.

        Returns: None if nothing was left to do.
        """
        begin = self._clock.monotonic()
        is_recovered = _holds(self.changes.last_batch(app), batch_id)
        if is_recovered and _holds(self.current.last_batch(app), batch_id):
            return None
        if is_recovered:
            _log.warning("batch %d is in changes but not in current: finishing it", batch_id)
            rows = batch_rows(self.changes.read_batch(batch_id))
        else:
            rows = batch_rows(with_batch_id(collect(), batch_id, self.changes.schema))
        if rows.changes.num_rows == 0:
            return None
        collected = self._clock.monotonic()
        if not is_recovered:
            self.changes.apply(app, batch_id, rows)
        changes_written = self._clock.monotonic()
        self.current.apply(app, batch_id, rows)
        return BatchReport(
            batch_id=batch_id,
            rows=rows.changes.num_rows - len(rows.rollbacks) - rows.events,
            documents=rows.newest.num_rows,
            removed=rows.is_removed.true_count,
            rollbacks=rows.rollbacks,
            collect_s=collected - begin,
            changes_s=changes_written - collected,
            current_s=self._clock.monotonic() - changes_written,
            is_recovered=is_recovered,
        )

    def _require_whole(self) -> None:
        """Refuse tables without their checkpoint and a checkpoint without its tables: both would be silent errors."""
        has_checkpoint = (self.checkpoint / "metadata").exists()
        if has_checkpoint and not (self.changes.exists and self.current.exists):
            raise OffsetError(
                f"{self.path}: there is a checkpoint, but a table is missing: its rows would not come again. Remove "
                "the whole directory to read the bucket from the beginning."
            )
        if not has_checkpoint and any(
            table.exists and table.open().version() > 0 for table in (self.changes, self.current)
        ):
            raise OffsetError(
                f"{self.path}: there are tables, but their checkpoint is missing: their rows would come twice. Remove "
                "the whole directory to read the bucket from the beginning."
            )


def _holds(last_batch: int | None, batch_id: int) -> bool:
    return last_batch is not None and last_batch >= batch_id
