"""The pipeline that keeps the tables `changes` and `current` of a bucket.

With `tables` it keeps a `current` for each collection, see `dcpstream_spark.tables.many`.

Theory of operation. Spark delivers a micro-batch at least once, and a replayed batch may hold other rows: the feed
deduplicates, and a failover may have happened in between. The tables are a log and its fold:

- A batch is appended to `changes`, in one commit that carries its number. That is all that most batches cost, however
  large the tables are. A batch that `changes` holds is never read again: its first attempt counts.
- From time to time the batches since the last fold, the tail, are folded into `current`, in one commit that carries the
  number of the newest of them. A fold happens when the tail exceeds a share of `current`, after a batch with a
  rollback, and at the end of a run. `live` shows every batch at once: `current` and the tail together. Batches go on
  while a fold runs; `dcpstream_spark.tables.folding` says when they wait for it.

Both numbers are read from the tables. A process may therefore be killed between any two commits: the next one finds
out which batches `changes` and `current` hold, and derives everything else from `changes`.

A rollback of a vbucket to seqno P makes older rows of `changes` above P void. The source goes back to the recorded
position P (`rewindTo=recorded`), and the server continues from there. `changes` still holds every row up to P, so the
fold restores the documents that void rows had touched from it. Only then are the void rows deleted. All three steps
can be repeated, and Spark replays the batch until all are done.

One process at a time keeps the tables of a path: a pipeline that runs, folds or maintains holds its `lease`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from dcpstream.errors import ConfigError, LeaseRefused, LocalProtocolError, OffsetError
from dcpstream.runtime import Clock, SystemClock
from dcpstream.runtime.tracing import Value, span
from dcpstream_spark.files import can_open, local_directory
from dcpstream_spark.including import NEEDED_BY_TABLES
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.session import cluster_partitions
from dcpstream_spark.tables.engine import FoldReport, Parts, TableEngine
from dcpstream_spark.tables.engines import TableTarget, choose_engine, choose_parts
from dcpstream_spark.tables.evolution import Schema, Typing, columns_of, fields_of
from dcpstream_spark.tables.failures import full_disk_explained
from dcpstream_spark.tables.folding import FOLD_SHARE, Folder, Held
from dcpstream_spark.tables.kept_rows import DIRECTORY as ROWS_DIRECTORY
from dcpstream_spark.tables.kept_rows import keep_rows
from dcpstream_spark.tables.lease import DIRECTORY, Lease, Terms
from dcpstream_spark.tables.ledger import DIRECTORY as TABLES_DIRECTORY
from dcpstream_spark.tables.ledger import Ledger
from dcpstream_spark.tables.location import child, exists, located, within_reach
from dcpstream_spark.tables.many import TABLES_AT_ONCE, ManyTables, TablesTyping
from dcpstream_spark.tables.progress import BatchReport, Pace, PipelineProgress, VbucketProgress, lag_of, vbuckets_of
from dcpstream_spark.tables.remote import Mailbox, RemoteBatches
from dcpstream_spark.tables.rows import CURRENT_COLUMNS, Place
from dcpstream_spark.tables.sessions import OwnSession, is_connect
from dcpstream_spark.tables.small_files import SmallFiles, small_files
from dcpstream_spark.tables.table_names import Rule, TableNames, directory_of
from dcpstream_spark.tables.table_reading import open_table
from dcpstream_spark.tables.whole_run import is_whole, wanted_seqnos
from dcpstream_spark.typed_columns.fitting import Mode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DEFAULT_TRIGGER = "1 second"
"""Pause between the starts of two micro-batches: each leaves files and a version of `changes`."""

MAINTENANCE_BATCHES = 50
"""Batches between two runs of maintenance: each batch leaves a file in `changes`."""

RETAIN_HOURS = 24.0
"""Time that files of older versions are kept, for readers that still use them."""

STOP_TIMEOUT_S = 60.0
"""Time that `stop` waits for a batch that is being written."""

STOP_LOOK_S = 0.05
"""Seconds between two looks of `stop`, over Spark Connect, whether the batch has ended."""

Until: TypeAlias = Literal["stopped", "available", "now"]

_OPTIONS = {"startingOffsets": "earliest", "onRollback": "rewindAndMark", "valueFormat": "binary"}
_FIXED = {"rewindto": "recorded", "columns": "all columns", "checkpointlocation": "checkpoint in its path"}

_FILTERED = frozenset(("key", "vbucket", "scope", "collection"))
"""Columns that a pipeline's `where` may compare: they are the same in all changes of a document."""

_log = logging.getLogger(__name__)


class Pipeline:
    """Two tables that follow a bucket.

    ```
    with Pipeline(spark, "/data/flights", options) as pipeline:
        pipeline.run(until="available")
    ```

    The path holds the query's checkpoint and, unless they have names in a catalog, the tables `changes` and `current`.
    Checkpoint and tables belong together.

    Args:
        spark: the session.
        path: a directory; created if it does not exist.
        options: of the data source `dcp`. By default all changes from the beginning are read, values are bytes, and a
            rollback is repaired; the pipeline itself chooses `columns` and `rewindTo`.
        engine: the name of the engine that writes the tables, see `choose_engine`, or an engine; with `tables` what
            makes the engines of its parts.
        changes, current: names of the tables in a catalog of the session, instead of directories.
        live: name of a view in a catalog that shows every batch at once.
        schema: fields of the JSON documents that become columns of `current` and `live`, as DDL text or StructType.
            With `tables` also a mapping from names of tables to schemas; tables that it lacks have no such columns.
            "infer" takes those of a sample at the first start, and those of `current` afterwards. None for no such
            columns. See `dcpstream_spark.tables.evolution` for another schema than that of the tables.
        mode: what happens to a document that does not fit the schema. PERMISSIVE: fields that do not fit are null, and
            `_corrupt_record` has the document. With DROPMALFORMED it is not in `current` and `live`. FAILFAST: the fold
            fails, and with it the run.
        field_prefix: of the names of these columns, where documents have fields like `key` or `flags`.
        rejects: name of a view in a catalog with the documents that do not fit, see `rejects`.
        tables: for a table of each collection: its name, such as "{scope}.{collection}", or a mapping from
            `scope.collection` or `scope.*` to names. The table `current` of s.c is then in the directory `s.c`, and
            `current`, `live` and `rejects` are names with `{table}` in them. None for one table.
        tables_at_once: see `dcpstream_spark.tables.many.TABLES_AT_ONCE`.
        on_collection_dropped: "empty": documents of a dropped collection leave the table. "keep": they stay until a
            collection of that name is created again.
        fold_share: see `FOLD_SHARE`.
        fold_rows_min: rows of the tail that are not folded before the end of a run; None for the engine's own choice.
        folds_in_background: whether batches go on while a fold or maintenance runs, in a thread of the pipeline's own.
            If not, the memory and the tasks of both are never needed at once.
        on_batch: called after each written batch, in the thread that wrote it.
        on_fold: called after each fold, in the thread that folded.
        retain_hours: see `RETAIN_HOURS`.
        maintenance_batches: see `MAINTENANCE_BATCHES`; 0 = never.
        clock: for the times in reports.

    Attributes:
        path: the directory, absolute, or its URL.
        checkpoint: the directory of the query's checkpoint.
        engine: what writes the tables.

    Raises:
        ConfigError: an option that is not allowed, a path that the engine cannot write, or a relative path over Spark
            Connect.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str | Path,
        options: Mapping[str, str],
        *,
        engine: str | TableEngine | Parts = "auto",
        changes: str | None = None,
        current: str | None = None,
        live: str | None = None,
        schema: Schema | Mapping[str, Schema] = None,
        mode: Mode = "PERMISSIVE",
        field_prefix: str = "",
        rejects: str | None = None,
        tables: Rule | None = None,
        tables_at_once: int = TABLES_AT_ONCE,
        on_collection_dropped: Literal["empty", "keep"] = "empty",
        fold_share: float = FOLD_SHARE,
        fold_rows_min: int | None = None,
        folds_in_background: bool = True,
        on_batch: Callable[[BatchReport], None] | None = None,
        on_fold: Callable[[FoldReport], None] | None = None,
        retain_hours: float = RETAIN_HOURS,
        maintenance_batches: int = MAINTENANCE_BATCHES,
        clock: Clock | None = None,
    ) -> None:
        for name, value in options.items():
            if name.lower() in _FIXED:
                message = f"a pipeline chooses {name} itself ({_FIXED[name.lower()]}). Leave it out"
                raise ConfigError(name, value, "left out", message=message)
        given = {name.lower() for name in options}
        defaults = {name: value for name, value in _OPTIONS.items() if name.lower() not in given}
        names = None if tables is None else TableNames(tables)
        if names is not None and names.collections is not None:
            if "collections" in given:
                message = "tables maps collections to tables, and collections is given, too. Leave it out"
                raise ConfigError("collections", names.collections, "left out", message=message)
            defaults["collections"] = names.collections
        self._options = {**defaults, **options, "rewindTo": "recorded"}
        # For a pipeline of a process of the server, over Spark Connect.
        self._arguments: dict[str, Any] = {
            "options": dict(options),
            "engine": engine,
            "changes": changes,
            "current": current,
            "live": live,
            "schema": schema,
            "mode": mode,
            "field_prefix": field_prefix,
            "rejects": rejects,
            "tables": tables,
            "tables_at_once": tables_at_once,
            "on_collection_dropped": on_collection_dropped,
            "fold_share": fold_share,
            "fold_rows_min": fold_rows_min,
            "retain_hours": retain_hours,
            "maintenance_batches": maintenance_batches,
        }
        value_format = _value_format(SourceOptions.parse(self._options))
        self._spark = spark
        # For small files, see `sessions`.
        self._own = OwnSession(spark) if is_connect(spark) else None
        self.path = located(spark, "path", path)
        self.checkpoint = child(self.path, "checkpoint")
        if on_collection_dropped not in {"empty", "keep"}:
            raise ConfigError("on_collection_dropped", on_collection_dropped, "'empty' or 'keep'")
        schemas = schema if isinstance(schema, Mapping) else None
        if schemas is not None and names is None:
            raise ConfigError("schema", "a mapping", "one schema, without tables")
        is_typed = any(one is not None for one in schemas.values()) if schemas is not None else schema is not None
        if not is_typed:
            for option, given_value in (("mode", None if mode == "PERMISSIVE" else mode), ("rejects", rejects)):
                if given_value is not None:
                    message = f"{option} is given without a schema, and every document fits then. Give a schema, too"
                    raise ConfigError(option, given_value, "left out, without a schema", message=message)

        def typing_of(name: str, places: Collection[Place] | None) -> Typing:
            wanted = schemas.get(name) if schemas is not None else cast("Schema", schema)
            return Typing(wanted, mode, field_prefix, partial(self._sampled_fields, places))

        # Also checks the schemas before anything is made.
        typings = [typing_of(name, None) for name in schemas or ("",)]
        self._typing: Typing | TablesTyping = typings[0]
        self._ledger = Ledger(lambda: small_files(self._reader, child(self.checkpoint, TABLES_DIRECTORY)))
        target = TableTarget(
            self.path, value_format, changes, current, live, rejects, keeps_dropped=on_collection_dropped == "keep"
        )
        if names is not None:
            self._typing = TablesTyping(is_typed=is_typed)
            parts = choose_parts(engine, spark, target, names) if isinstance(engine, str) else cast("Parts", engine)
            engine = ManyTables(parts, names, self._ledger, typing_of, at_once=tables_at_once)
        elif isinstance(engine, str):
            engine = choose_engine(engine, spark, target)
        self.engine: TableEngine = cast("TableEngine", engine)
        self._on_batch = [] if on_batch is None else [on_batch]
        self._on_fold = [] if on_fold is None else [on_fold]
        self._retain_hours = retain_hours
        self._maintenance_batches = maintenance_batches
        self._clock = clock or SystemClock()
        self._lease = Lease(self._lease_files, self.path, self._clock)
        self._folder = Folder(
            self.engine,
            share=fold_share,
            rows_min=self.engine.fold_rows_min if fold_rows_min is None else fold_rows_min,
            is_parallel=folds_in_background,
            on_fold=self._report_fold,
            verify=self._require_lease,
            clock=self._clock,
        )
        # One entry for each call that needs the lease while no query runs.
        self._calls: list[None] = []
        self._query: StreamingQuery | None = None
        # Of the present run: what `start`, the last fold or the end of the query raised.
        self._failure: Exception | None = None
        self._writer: DataStreamWriter | None = None
        self._wanted: dict[int, int] | None = None
        # Held while a batch is written, because a stopped query leaves its Python callback running.
        self._writing = threading.Lock()
        self._mailbox = Mailbox(spark, self.path, self._deliver) if is_connect(spark) else None
        # Of the process that works for another one: verifies the lease of that.
        self._borrowed: Callable[[], None] | None = None
        # The writer of the present run.
        self._writer_id: str | None = None
        self._rejects, self._is_warned = rejects, False
        self._rows = self._rollbacks = self._batches_since_maintenance = 0
        self._pace = Pace()

    def __enter__(self) -> Pipeline:
        """The pipeline itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop."""
        self.stop()

    @property
    def name(self) -> str:
        """The query's name in Spark. It holds the whole path, because Spark refuses two queries of one name."""
        return name_of(self.path)

    @property
    def _reader(self) -> SparkSession:
        """The session that reads small files."""
        return self._spark if self._own is None else self._own.get()

    @property
    def is_running(self) -> bool:
        """Whether a query is active."""
        return self._query is not None and self._query.isActive

    @property
    def is_busy(self) -> bool:
        """Whether Spark is working at a micro-batch, or asks the cluster for one, at this moment."""
        return self._query is not None and self._query.isActive and bool(self._query.status["isTriggerActive"])

    def add_listener(
        self,
        on_batch: Callable[[BatchReport], None] | None = None,
        on_fold: Callable[[FoldReport], None] | None = None,
    ) -> None:
        """Call these, too, after each written batch and after each fold."""
        if on_batch is not None:
            self._on_batch.append(on_batch)
        if on_fold is not None:
            self._on_fold.append(on_fold)

    def start(self, *, until: Until = "stopped", trigger: str | None = DEFAULT_TRIGGER) -> None:
        """Start the query in the background.

        Args:
            until: "stopped" follows the bucket; "available", or "now", ends when the state at the start has been read.
            trigger: pause between micro-batches of a query that follows, in Spark's notation; None for no pause.

        Raises:
            ConfigError: an unknown `until`.
            LeaseRefused: another pipeline keeps the tables of this path.
            LocalProtocolError: it is running already.
            OffsetError: tables and checkpoint do not belong together.
        """
        if until not in {"stopped", "available", "now"}:
            raise ConfigError("until", until, "'stopped', 'available' or 'now'")
        if self.is_running:
            raise LocalProtocolError("the pipeline is running already", state="running", event="start")
        self._keep_totals()
        self._query = self._failure = None
        with self._kept_failure(), full_disk_explained(), self._at_work():
            # Before the lease, whose file would stand where a checkpoint is to be restored.
            self._require_whole()
            self._hold()
            try:
                self._start(until, trigger)
            except BaseException:
                self._lease.release()
                raise

    def _start(self, until: Until, trigger: str | None) -> None:
        self._folder.reset()
        if isinstance(self.engine, ManyTables):
            self.engine.reset()
        rows = small_files(self._reader, child(self.checkpoint, ROWS_DIRECTORY))
        keep_rows(rows, self._options, self.path, is_new=self._app() is None)
        self._typing.prepare(self.engine, self._app)
        tasks = cluster_partitions(self._spark)
        partitions = {} if tasks is None else {"numPartitions": str(tasks)}
        if any(name.lower() == "numpartitions" for name in self._options):
            partitions = {}
        hint = self._checkpoint_hint()
        if self._app() is None and not any(name.lower() == "skipdeletes" for name in self._options):
            # The tables are empty: there is no document that a deletion of the time before would take back.
            hint["skipDeletes"] = "true"
        stream = self._spark.readStream.format("dcp").options(**hint, **partitions, **self._options).load()
        self._writer_id = None
        batches: Callable[[DataFrame, int], None] = self.apply
        if self._mailbox is not None:
            if not isinstance(self._arguments["engine"], str):
                raise ConfigError("engine", "an object", "a name, over Spark Connect: it is sent to the server")
            batches = RemoteBatches(Pipeline, self.path, self._arguments, self._lease.terms)
        writer = stream.writeStream.foreachBatch(batches).option("checkpointLocation", self.checkpoint)
        if until != "stopped":
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        # Loaded when used: readers of tables need no source.
        from dcpstream_spark.data_source import HAS_ADMISSION_CONTROL

        # Before Spark 4.2 such a run is one batch, so it is repeated until the state of its start is read.
        is_repeated = until != "stopped" and not HAS_ADMISSION_CONTROL
        self._wanted = wanted_seqnos(SourceOptions.parse(self._options)) if is_repeated else None
        self._writer = writer.queryName(self.name)
        self._query = self._writer.start()
        if self._mailbox is not None and (self._on_batch or self._on_fold):
            self._mailbox.watch(lambda: self.is_running)

    def _checkpoint_hint(self) -> dict[str, str]:
        """The option that names the checkpoint to the source, if its tasks can write there."""
        if can_open(self.checkpoint):
            return {"checkpointLocation": self.checkpoint}
        if not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s: tasks leave no notes in this checkpoint, because Arrow cannot open its file system (it opens "
                "local directories, and URLs such as s3:// and gs:// where its own libraries and logins are set up). "
                "If a node purges deletions between the plan of a batch and its read, and a failover follows before "
                "the next batches, documents that were deleted may stay in the table. Keep the metadata purge interval "
                "of the bucket longer than any stop of this pipeline, and run dcpstream compare after a failover.",
                self.checkpoint,
            )
        return {}

    def run(
        self,
        *,
        until: Until = "available",
        trigger: str | None = DEFAULT_TRIGGER,
        timeout_s: float | None = None,
    ) -> PipelineProgress:
        """Start and wait for the end; see `start` and `await_end`."""
        self.start(until=until, trigger=trigger)
        self.await_end(timeout_s)
        return self.progress()

    def await_end(self, timeout_s: float | None = None) -> bool:
        """Wait until the query ends, and fold the rest of `changes` into `current`.

        Returns: False if it is still running after `timeout_s`.

        Raises:
            StreamingQueryException: the query failed; the message says why.
            FoldFailed: a fold or maintenance failed after the last batch.
            StoreError: a disk is full.
        """
        if self._query is None:
            return True
        try:
            while True:
                with full_disk_explained():
                    if timeout_s is None:
                        self._query.awaitTermination()
                    elif not self._query.awaitTermination(timeout_s):  # type: ignore[arg-type]  # takes fractions, too
                        return False
                if isinstance(self._failure, LeaseRefused):
                    raise self._failure
                if self._mailbox is not None:
                    self._mailbox.look()
                if self._is_whole(self._query):
                    break
                assert self._writer is not None
                self._keep_totals()
                self._hold()
                self._writer_id = None
                self._query = self._writer.start()
            with self._kept_failure():
                self.fold()
        finally:
            if not self.is_running:
                self._folder.wait()
                self._lease.release()
        return True

    def _is_whole(self, query: StreamingQuery) -> bool:
        if self._wanted is None:
            return True
        last = query.lastProgress
        progress = None if last is None else json.loads(last.json)
        return is_whole(progress, SourceOptions.parse(self._options).bucket, self._wanted)

    def stop(self) -> None:
        """Stop the query after the batch that is being written, and fold. A second call does nothing.

        Waits for a fold that runs. After a failure of the query nothing else is folded: the next run completes the
        work.

        Raises:
            FoldFailed: a fold or maintenance failed after the last batch.
        """
        query = self._query
        if query is not None and query.isActive and self._mailbox is not None:
            until = self._clock.monotonic() + STOP_TIMEOUT_S
            while self.is_busy and self._clock.monotonic() < until:
                threading.Event().wait(STOP_LOOK_S)
            query.stop()
            self._mailbox.look()
        elif query is not None and query.isActive:
            # The lock is released before `stop`: Spark waits in `stop` for a batch that began meanwhile, and that batch
            # waits for the lock. Spark cancels such a batch while its rows are collected; otherwise it is written.
            if self._writing.acquire(timeout=STOP_TIMEOUT_S):
                self._writing.release()
            query.stop()
        try:
            has_failed = query is None or query.exception() is not None or isinstance(self._failure, LeaseRefused)
            # The process of the server may still be writing a batch that was cut off, which the next run completes.
            is_cut = self._mailbox is not None and self._mailbox.is_cut
            if not has_failed and not is_cut:
                with self._kept_failure():
                    self.fold()
        finally:
            with self._writing:
                self._folder.close()
            self._lease.release()

    @property
    def failure(self) -> Exception | None:
        """The error that the run failed with; None if it did not. A stop is no failure.

        The error that ended the query, that kept it from starting, or of a fold that will end it or was its last.
        """
        failure = None if self._query is None else self._query.exception()
        return failure or self._folder.failure or self._failure

    def progress(self) -> PipelineProgress:
        """The current progress; cheap."""
        last = self._query.lastProgress if self._query is not None else None
        totals = self.totals()
        if last is None:
            return PipelineProgress(**totals)
        # Spark 4 returns nested objects; their JSON has been the same since Spark 2.
        details = json.loads(last.json)
        lag = lag_of(details)
        if lag is not None:
            self._pace.add(details["timestamp"], lag)
        return PipelineProgress(
            **totals,
            batch_id=details["batchId"],
            rows_per_second=float(details.get("processedRowsPerSecond") or 0.0),
            total_lag=None if lag is None else lag.total,
            lag={} if lag is None else lag.worst,
            share_read=self._pace.share_read,
            seconds_left=self._pace.seconds_left,
            lag_s=self._pace.lag_s,
            vbuckets_inside_snapshot=0 if lag is None else lag.inside_snapshot,
        )

    def totals(self) -> dict[str, Any]:
        """The fields of the progress that the process which writes the batches knows."""
        totals: dict[str, Any] = {"rows": self._rows, "rollbacks": self._rollbacks, "tail_rows": self._folder.tail_rows}
        if self._mailbox is not None and self._query is not None:
            found = self._mailbox.totals()
            totals["rows"] += found.get("rows", 0)
            totals["rollbacks"] += found.get("rollbacks", 0)
            if totals["tail_rows"] is None:
                totals["tail_rows"] = found.get("tail_rows")
        return totals

    def _keep_totals(self) -> None:
        """Before a query: those of the last one stay, and its mail goes."""
        totals = self.totals()
        self._rows, self._rollbacks = totals["rows"], totals["rollbacks"]
        if self._mailbox is not None:
            self._mailbox.empty()

    def vbuckets(self) -> list[VbucketProgress]:
        """The progress of each vbucket that the pipeline reads, by number; empty before the first micro-batch."""
        last = self._query.lastProgress if self._query is not None else None
        if last is None:
            return []
        return vbuckets_of(json.loads(last.json), SourceOptions.parse(self._options).wanted_vbuckets)

    @property
    def rejects_place(self) -> str | None:
        """The place of the documents that do not fit the schema: a view, or a method. None without a schema."""
        if not self._typing.is_typed:
            return None
        return self._rejects or "Pipeline.rejects()"

    def fold(self) -> FoldReport | None:
        """Fold what `current` does not hold yet. Batches go on meanwhile.

        Returns: None if there is nothing to fold.

        Raises:
            FoldFailed: this fold, or one that ran before, has failed.
            LeaseRefused: another pipeline keeps the tables of this path.
        """
        app = self._app()
        if app is None:
            return None
        self._require_no_server("fold")
        with self._leased():
            return self._fold(app)

    def _fold(self, app: str) -> FoldReport | None:
        with self._writing, self._exact():
            self._typing.prepare(self.engine, self._app)
            held = self._folder.held(app)
            if held.last is None or held.last == held.folded:
                return None
            rollbacks = self.engine.summary(held.last).rollbacks
            if rollbacks:
                # Only a batch that was interrupted leaves them.
                return self._folder.fold_rollbacks(held, rollbacks)
            job = self._folder.fold(held)
        return self._folder.result(job)

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The tables of a pipeline with `tables` that there are: name → the collections in it, as scope.collection."""
        return self._many("tables").tables

    def live(self, table: str | None = None) -> DataFrame | pa.Table:
        """The documents as of the newest batch, with the columns of `current`. A call for each query sees new batches.

        Args:
            table: one of `tables`; None for all, without the columns of a schema.

        Returns: a DataFrame from an engine that writes with Spark, an Arrow table from delta-rs.
        """
        if table is not None:
            return self._many("table").live_of(self._app(), table)
        self._typing.look(self.engine)
        return self.engine.live(self._app())

    def versions(self, table: str | None = None) -> DataFrame | pa.Table:
        """Every version of the documents that `changes` has, with the time in which it was valid (SCD type 2).

        The columns are those of `current` without _commit_timestamp, and

        - valid_from: when it was written; its place is `seqno`.
        - valid_to: when it was replaced or deleted, or the end of its collection was read; null if it is valid now.
        - valid_to_seqno: the seqno of what ended it, or null. It is valid from `seqno` on and before this one.
        - is_current: whether it is valid now.

        With the option `history` and a bucket that keeps a change history, these are all versions from where the
        history begins; without, those that were the newest when a batch was read. Rollbacks, dropped collections and
        batches that wait for a fold are taken into account; a drop ends versions also if `on_collection_dropped` keeps
        the documents in `current`. Every call looks at all of `changes`.

        Args:
            table: one of `tables`; None for all.

        Returns: a DataFrame from an engine that writes with Spark, an Arrow table from delta-rs.
        """
        if table is not None:
            return self._many("table").versions_of(table)
        return self.engine.versions()

    def changes(self, table: str) -> DataFrame | pa.Table:
        """The rows of `changes` that are of the collections of one table, and the control rows about rollbacks.

        Args:
            table: one of `tables`.
        """
        return self._many("table").changes_of(table)

    def rejects(self, table: str | None = None) -> DataFrame | pa.Table:
        """The documents as of the newest batch that do not fit the schema, whatever the mode.

        The columns are key, scope, collection, vbucket, seqno, _batch_id, _commit_timestamp, reason and value. Every
        call looks at all of `changes`.

        Args:
            table: one of `tables`; None for all.

        Returns: a DataFrame from an engine that writes with Spark, an Arrow table from delta-rs.

        Raises:
            ConfigError: the tables have no typed columns.
        """
        if not self._typing.is_typed:
            message = "the pipeline has no rejects, because without a schema every document fits. Give a schema"
            raise ConfigError("schema", None, "a schema", message=message)
        if table is not None:
            return self._many("table").rejects_of(table)
        self._typing.look(self.engine)
        return self.engine.rejects()

    def _many(self, option: str) -> ManyTables:
        if not isinstance(self.engine, ManyTables):
            message = f"{option} is for a pipeline with several tables, and this one has one. Give tables"
            raise ConfigError(option, None, "tables", message=message)
        return self.engine

    def rebuild(self) -> FoldReport | None:
        """Write `current` again from `changes`, with exactly the columns of the schema, in one commit; then fold.

        For a schema that `start` refuses, and for a mode that should apply to all documents. It takes a pass over all
        of `changes`. Readers see the old table until the commit.

        Raises:
            LocalProtocolError: the pipeline is running.
            FoldFailed: the fold has failed.
        """
        if self.is_running:
            raise LocalProtocolError("the pipeline is running", state="running", event="rebuild")
        with self._leased():
            with self._writing, self._exact():
                self._folder.settle()
                self._typing.rebuild(self.engine, self._app)
                self._folder.forget()
            return self.fold()

    def maintain(self) -> None:
        """Join small files of `changes`, and remove files that only versions older than `retain_hours` use.

        Waits for the fold that runs. Batches go on meanwhile, unless `retain_hours` is below an hour.

        Raises:
            FoldFailed: it has failed, or a fold that ran before.
        """
        self._require_no_server("maintain")
        with self._leased():
            with self._writing:
                job = self._folder.maintain(self._retain_hours)
            self._folder.result(job)

    def apply(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; called by Spark."""
        if self._writer_id is None:
            # It distinguishes batch 0 of a new checkpoint from batch 0 of an old one.
            self._writer_id = self._app()
        if self._writer_id is None:
            raise OffsetError(f"{self.checkpoint}: the file metadata is missing, which Spark makes before any batch")
        report = self.apply_batch(self._writer_id, batch_id, frame)
        if report is not None:
            for listener in self._on_batch:
                listener(report)

    def borrow(self, terms: Terms) -> None:
        """Work for a process that holds the lease.

        Args:
            terms: of the lease, which is looked at before each batch and each fold.
        """
        self._borrowed = terms.verifier(self._lease_files, self.path)

    def _lease_files(self) -> SmallFiles:
        return small_files(self._reader, child(self.checkpoint, DIRECTORY))

    def _require_lease(self) -> None:
        (self._borrowed or self._lease.verify)()

    def _deliver(self, report: BatchReport | FoldReport) -> None:
        """Hand on a report of the process of the server."""
        if isinstance(report, FoldReport):
            self._report_fold(report)
        else:
            for listener in self._on_batch:
                listener(report)

    def _report_fold(self, report: FoldReport) -> None:
        for listener in self._on_fold:
            listener(report)

    def apply_batch(self, app: str, batch_id: int, frame: DataFrame) -> BatchReport | None:
        """Bring a batch into the tables that do not have it yet.

        Args:
            app: names the writer in the tables' transactions.
            batch_id: rises by one from batch to batch.
            frame: the rows; not read if `changes` has them.

        Returns: None if nothing was left to do.

        Raises:
            OffsetError: the tables lack an earlier batch.
            FoldFailed: a fold or maintenance in the background has failed.
        """
        about: dict[str, Value] = {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "dcpstream.batch": batch_id,
        }
        with self._writing, self._exact(), span(f"process {self.name}", about, kind="consumer") as one:
            self._require_lease()
            self._typing.prepare(self.engine, lambda: app)
            report = self._applied(app, batch_id, frame)
            if report is not None:
                one.set_attribute("messaging.batch.message_count", report.rows)
                self._rows += report.rows
                self._rollbacks += len(report.rollbacks)
                self._batches_since_maintenance += 1
                if self._maintenance_batches and self._batches_since_maintenance >= self._maintenance_batches:
                    self._batches_since_maintenance = 0
                    self._folder.maintain(self._retain_hours)
        return report

    def _applied(self, app: str, batch_id: int, frame: DataFrame) -> BatchReport | None:
        begin = self._clock.monotonic()
        held = self._folder.held(app)
        is_recovered = held.last is not None and held.last >= batch_id
        if held.last is not None and held.last > batch_id:
            return None
        if is_recovered:
            _log.warning("batch %d is in changes already: its first attempt counts", batch_id)
            summary = self.engine.summary(batch_id)
        else:
            self._require_next(held, batch_id)
            summary = self.engine.append(app, batch_id, frame)
        appended = self._clock.monotonic()
        if summary.rollbacks:
            # No fold may take these rows for rows without a rollback, and void rows are deleted while nobody uses them.
            self._folder.settle()
        if not is_recovered:
            self._folder.note(held, summary)
        was_folded = held.folded is not None and held.folded >= batch_id
        if was_folded:
            self.engine.take_back(summary.rollbacks, batch_id)
        elif summary.rollbacks:
            self._folder.fold_rollbacks(held, summary.rollbacks)
        else:
            self._folder.fold_if_due(held)
        if was_folded or (not is_recovered and not (summary.rows or summary.events or summary.rollbacks)):
            return None
        return BatchReport(
            batch_id=batch_id,
            rows=summary.rows,
            rollbacks=summary.rollbacks,
            append_s=appended - begin,
            wait_s=self._clock.monotonic() - appended,
            is_recovered=is_recovered,
        )

    def _hold(self) -> None:
        """Take the lease, or keep it."""
        if not self._lease.is_held:
            self._lease.acquire(lambda: self.is_running or self._folder.is_busy or bool(self._calls))
            self._lease.keep(self._lose)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Keep the lease meanwhile, although no query runs yet."""
        self._calls.append(None)
        try:
            yield
        finally:
            self._calls.pop()

    @contextlib.contextmanager
    def _leased(self) -> Iterator[None]:
        """Hold the lease, and release it if it was not held before."""
        was_held = self._lease.is_held
        with self._at_work():
            self._hold()
            try:
                yield
            finally:
                if not was_held:
                    self._lease.release()

    def _lose(self, error: LeaseRefused) -> None:
        """Stop, because another process keeps the tables now."""
        _log.error("%s", error)
        self._failure = error
        if self._query is not None:
            self._query.stop()

    @contextlib.contextmanager
    def _kept_failure(self) -> Iterator[None]:
        """Keep an error for `failure`: whoever watches the pipeline is not who called."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    @contextlib.contextmanager
    def _exact(self) -> Iterator[None]:
        """After an error, ask the tables what they hold."""
        try:
            with full_disk_explained():
                yield
        except BaseException:
            self._folder.forget()
            raise

    def _app(self) -> str | None:
        """The writer of the tables: the id that Spark keeps in the checkpoint. None before the first start."""
        if self._query is not None:
            return _app_of(str(self._query.id))
        metadata = child(self.checkpoint, "metadata")
        if not exists(self._reader, metadata):
            return None
        local = within_reach(self._spark, metadata)
        text = local.read_text() if local is not None else self._reader.read.text(metadata).collect()[0][0]
        return _app_of(json.loads(text)["id"])

    def _sampled_fields(self, places: Collection[Place] | None) -> pa.Schema:
        """The fields of a sample of documents, of some collections or of all that are read."""
        from dcpstream_spark.source.inference import inferred_fields

        options = {name: value for name, value in self._options.items() if name.lower() != "collections" or not places}
        if places:
            options["collections"] = ",".join(map(".".join, places))
        return columns_of(fields_of(inferred_fields(SourceOptions.parse(options))))

    def _require_whole(self) -> None:
        """Refuse tables without their checkpoint and a checkpoint without its tables: both would be silent errors."""
        self._require_same_tables()
        state = self.engine.state()
        has_checkpoint = exists(self._reader, child(self.checkpoint, "metadata"))
        if has_checkpoint and not (state.has_changes and state.has_current):
            raise OffsetError(
                f"{self.path}: there is a checkpoint, but a table is missing: its rows would not come again. Remove "
                "the checkpoint and the tables to read the bucket from the beginning."
            )
        if not has_checkpoint and state.is_written:
            raise OffsetError(
                f"{self.path}: there are tables, but their checkpoint is missing: their rows would come twice. Remove "
                "the tables to read the bucket from the beginning."
            )

    def _require_same_tables(self) -> None:
        """Refuse to go on with one table where there were several, and the other way round."""
        is_many = isinstance(self.engine, ManyTables)
        if not is_many and self._ledger.read().tables:
            raise OffsetError(
                f"{self.path}: the rows of `changes` are in several tables, and no tables are given now. Give the same "
                "tables as before, or remove the checkpoint and all tables to read the bucket from the beginning."
            )
        if is_many and exists(self._reader, child(self.path, "current")):
            raise OffsetError(
                f"{self.path}: there is one table `current` for all collections, and tables are given now. Remove the "
                "directory `current`: the tables are then made from `changes`."
            )

    def _require_no_server(self, what: str) -> None:
        """Over Spark Connect, the process of the server alone writes the tables while a query runs."""
        if self._mailbox is not None and self.is_running:
            raise LocalProtocolError(
                f"over Spark Connect the server folds and maintains the tables while the query runs. Call {what} "
                "after it has ended",
                state="running",
                event=what,
            )

    def _require_next(self, held: Held, batch_id: int) -> None:
        """Refuse to go on after a batch that `changes` does not hold."""
        if batch_id != (0 if held.last is None else held.last + 1):
            holds = "no batch" if held.last is None else f"batches up to {held.last}"
            raise OffsetError(
                f"{self.path}: the table changes holds {holds} of this checkpoint, but batch {batch_id} follows. "
                "Either the table or the checkpoint was replaced by another copy. Restore the one that belongs to the "
                "other, or remove both to read the bucket from the beginning."
            )


def holds_pipeline(spark: SparkSession, path: str) -> bool:
    """Whether a path is the directory of a pipeline."""
    return all(exists(spark, child(path, name)) for name in ("changes", "checkpoint"))


def documents_of(
    spark: SparkSession,
    path: str,
    options: Mapping[str, str],
    *,
    kind: Literal["current", "live"] = "live",
    table: str | None = None,
) -> tuple[DataFrame | pa.Table | str, tuple[str, ...] | None]:
    """The documents in a pipeline's directory, for a reader who does not know how many tables it has.

    Args:
        spark: the session.
        path: the directory.
        options: of the source.
        kind: those of the last fold, or those of the newest batch.
        table: one of several; None for all together.

    Returns: (the documents or the path of their table, the collections of the table or None for all)

    Raises:
        ConfigError: there is no such table, or none was folded yet.
    """
    known = Ledger(lambda: small_files(spark, child(child(path, "checkpoint"), TABLES_DIRECTORY))).read().tables
    if not known:
        if table is not None:
            raise ConfigError("table", table, "left out, because there is one table for all collections")
        return (Pipeline(spark, path, options).live() if kind == "live" else child(path, "current")), None
    if table is not None and table not in known:
        raise ConfigError("table", table, f"one of the pipeline's tables: {', '.join(sorted(known))}")
    collections = None if table is None else tuple(map(".".join, known[table].places))
    if kind == "current":
        # A table that was never folded may not exist yet.
        wanted = [name for name, one in sorted(known.items()) if one.folded is not None] if table is None else [table]
        if not wanted:
            message = f"no table of {path} was folded yet, so there is none to look at. Choose live, or fold first"
            raise ConfigError("kind", kind, "live", message=message)
        places = [child(child(path, directory_of(name)), "current") for name in wanted]
        return reduce(
            lambda one, other: one.unionAll(other), (_documents(spark, place) for place in places)
        ), collections
    rule = {".".join(place): name for name, one in known.items() for place in one.places}
    others = {name: text for name, text in options.items() if name.lower() != "collections"}
    return Pipeline(spark, path, others, tables=rule).live(table), collections


def _documents(spark: SparkSession, place: str) -> DataFrame:
    return open_table(spark, place).select(*CURRENT_COLUMNS)


def name_of(path: str | Path) -> str:
    """The name of the pipeline of a path."""
    return f"dcpstream {local_directory(path) or path}"


def _app_of(query_id: str | None) -> str:
    return f"dcpstream:{query_id}"


def _value_format(source: SourceOptions) -> Literal["binary", "string"]:
    """The form of the tables' values.

    Raises:
        ConfigError: the source would leave out, or not name, what the tables need.
    """
    if source.value_format == "variant":
        raise ConfigError(
            "valueFormat", "variant", "binary or string; use parse_json(CAST(value AS STRING)) in queries"
        )
    if source.infer_schema:
        message = "inferSchema cannot be used in a pipeline, whose tables hold whole documents. Leave it out"
        raise ConfigError("inferSchema", "true", "false", message=message)
    if source.meta_prefix:
        message = "metaPrefix cannot be used in a pipeline, whose tables have the source's names. Leave it out"
        raise ConfigError("metaPrefix", source.meta_prefix, "left out", message=message)
    if not source.include >= NEEDED_BY_TABLES:
        raise ConfigError("include", ",".join(sorted(source.include)), "deletes, expirations and systemEvents")
    if source.starting_timestamp is not None:
        message = "startingTimestamp cannot be used in a pipeline, whose tables need all changes. Leave it out"
        raise ConfigError("startingTimestamp", source.starting_timestamp, "left out", message=message)
    compared = source.row_filter.columns if source.row_filter is not None else frozenset()
    if not compared <= _FILTERED:
        others = ", ".join(sorted(compared - _FILTERED))
        raise ConfigError(
            "where", others, f"comparisons of {', '.join(sorted(_FILTERED))}: the tables need all changes"
        )
    return source.value_format
