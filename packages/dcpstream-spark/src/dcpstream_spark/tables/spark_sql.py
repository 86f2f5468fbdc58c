"""The engine that writes with Spark: the executors write, and no row of a batch passes through the driver.

A batch is one append to `changes`. While its rows are written, Spark counts them and collects the control rows about
rollbacks; that is all that the driver learns of a batch. A fold is one MERGE into `current`. Its rows are a query over
both tables, see `fold_sql`.

All statements run in sessions of the engine's own, which begin with the settings of the user's. Their own settings, and
the identifiers of their transactions, do not reach what else the user runs. Folds and maintenance have one for
themselves, because they may run at the same time as the batches: their settings, temporary views and transactions are
not those of an append. Their jobs are in a scheduler pool of their own, so that in a session with
`spark.scheduler.mode=FAIR` the tasks of a batch get the next free core.
"""

# ruff: noqa: S608 - tables are named as their owner wrote them
from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from dcpstream.arrow import CHANGE_SCHEMA, ValueFormat
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream_spark.tables.document_sql import IS_UNFIT
from dcpstream_spark.tables.document_types import DocumentTypes
from dcpstream_spark.tables.engine import (
    BatchSummary,
    CollectionTail,
    FoldReport,
    Part,
    TableState,
    Tail,
    TailFacts,
    later,
    rollback_reports,
    void_bounds,
)
from dcpstream_spark.tables.fold_sql import NO_BATCH, FoldQuery, rows_of_collections, void_rows
from dcpstream_spark.tables.rows import BATCH_ID, CURRENT_COLUMNS, IS_REMOVED, IS_RESTORED, Place
from dcpstream_spark.tables.sessions import OwnSession, in_fold_pool, is_connect
from dcpstream_spark.tables.table_formats import MergeCounts, Table, TableFormat
from dcpstream_spark.tables.table_reading import is_there
from dcpstream_spark.tables.versions_sql import versions
from dcpstream_spark.typed_columns.fitting import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from dcpstream_spark.tables.progress import RollbackReport

FOLD_ROWS_MIN = 100_000
"""A fold takes a few seconds for two commits and their jobs, however few rows it has."""

ROWS_PER_PARTITION = 250_000
"""Rows of a fold that one task sorts: about 100 MB with documents of 250 bytes."""

OBSERVED_TIMEOUT_S = 10.0
"""Time to wait for the counts of a batch; after it they are read from `changes`."""

APPEND_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.openCostInBytes": "0",
}
"""Settings of the session of a batch, which reads no files and has no shuffle to adapt. Before each append Delta reads
its log in it: a few small files, in one job instead of three, and with few tasks."""

SMALL_FOLD_ROWS = 50_000
"""Rows of a fold that one task sorts without more ado. Plans that adapt to the sizes of their parts need a job for each
part, and a broadcast needs one, too, which here cost more than they save."""

_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"

STATISTICS_OF_CURRENT = ("vbucket", "seqno", "_commit_timestamp")
"""The columns of `current` that readers skip files by."""

Sessions: TypeAlias = tuple[OwnSession, OwnSession]

_log = logging.getLogger(__name__)

_SOURCE = "dcpstream_fold_source"
_DOCUMENT_OPS = [op.value for op in Op if not op.is_control]


@dataclass(frozen=True, slots=True)
class KeptTables:
    """The tables of an engine, and their views.

    Attributes:
        changes, current: the tables.
        value_format: "binary" or "string", the type of `value`.
        live: the name of a view in a catalog that shows every batch at once; None for no view.
        rejects: the name of a view in a catalog with the documents that do not fit the types; None for no view.
        part: the tables that the engine keeps. `current` is not used by one that keeps the log.
        places: the collections whose rows `current` has; None for all.
        keeps_dropped: see `FoldQuery`.
    """

    changes: Table
    current: Table
    value_format: ValueFormat = "binary"
    live: str | None = None
    rejects: str | None = None
    part: Part = "both"
    places: Collection[Place] | None = None
    keeps_dropped: bool = False

    @property
    def own(self) -> list[Table]:
        """The tables that the engine keeps itself."""
        return [one for one, other in ((self.changes, "current"), (self.current, "log")) if self.part != other]


class SparkSqlEngine:
    """The tables `changes` and `current`, written by Spark; see `dcpstream_spark.tables.engine.TableEngine`.

    Args:
        spark: the user's session.
        table_format: how the tables are stored.
        tables: those that it keeps.
        sessions: for batches and for folds; None for copies of the user's.
    """

    def __init__(
        self, spark: SparkSession, table_format: TableFormat, tables: KeptTables, sessions: Sessions | None = None
    ) -> None:
        self.name = table_format.name
        self.fold_rows_min = FOLD_ROWS_MIN
        self.changes = tables.changes
        self.current = tables.current
        self._format = table_format
        self._user_session = spark
        self._part = tables.part
        self._places = tables.places
        self._keeps_dropped = tables.keeps_dropped
        self._kept = tables.own
        self.sessions = sessions or own_sessions(spark, table_format, {tables.changes, *tables.own})
        has_views = tables.live is not None or tables.rejects is not None
        # A table without views is created by the fold that has its first rows: one commit instead of two.
        self._is_made_later = tables.part == "current" and table_format.creates_with_rows and not has_views
        self._tail_name = f"dcpstream_tail_{id(self)}"
        # Held while the view is made: the later text must win.
        self._publishing = threading.Lock()
        self._value_format = tables.value_format
        self._live = tables.live
        self._rejects = tables.rejects
        self._types: DocumentTypes | None = None

    @property
    def _session(self) -> SparkSession:
        return self.sessions[0].get()

    @property
    def _fold_session(self) -> SparkSession:
        return self.sessions[1].get()

    def state(self) -> TableState:
        """The tables that exist."""
        found = [table for table in self._kept if self._format.exists(self._session, table)]
        return TableState(
            has_changes=self.changes in found,
            has_current=self.current in found,
            is_written=any(self._session.table(table.sql).limit(1).count() > 0 for table in found),
        )

    @property
    def _is_not_made(self) -> bool:
        """Whether `current` is created by the next fold."""
        return self._is_made_later and not self._format.exists(self._session, self.current)

    def typed_columns(self) -> pa.Schema | None:
        """The columns of `current` other than CURRENT_COLUMNS, from the table; None without a table."""
        from dcpstream_spark.typed_columns.kinds import arrow_type

        if not self._format.exists(self._session, self.current):
            return None
        fields = self._session.table(self.current.sql).schema.fields[len(CURRENT_COLUMNS) :]
        return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in fields])

    def use(self, types: DocumentTypes | None) -> None:
        """From now on fill these typed columns of `current`."""
        self._types = types

    def retype(self, app: str | None, *, from_changes: bool) -> None:
        """Write `current` again with the columns of `use`, in one commit."""
        upto = None if app is None else self.folded(app)
        query = self._query(None, upto, {})
        if from_changes and upto is not None:
            query = replace(query, bounds=void_bounds(self.summary(upto).rollbacks))
            rows = self._session.sql(query.newest())
        else:
            rows = self._session.sql(query.retyped())
        if self._types is not None and self._types.mode == "FAILFAST":
            self._rejected(rows)
        self._format.replace(self._session, self.current, rows.where(f"NOT {IS_REMOVED}").select(*query.columns))
        if app is not None:
            self._publish(app)
        self._publish_rejects()

    def create(self) -> None:
        """Create the tables that do not exist."""
        from pyspark.sql import types as t

        from dcpstream_spark.source.schema import spark_schema
        from dcpstream_spark.typed_columns.kinds import spark_fields

        changes = spark_schema(CHANGE_SCHEMA.names, self._value_format).add(BATCH_ID, t.LongType())
        current = spark_schema(CURRENT_COLUMNS, self._value_format)
        if self._types is not None:
            current = t.StructType([*current, *spark_fields(self._types.columns)])
        for table, schema, statistics in (
            (self.changes, changes, (BATCH_ID, "vbucket", "seqno", "_commit_timestamp")),
            (self.current, current, STATISTICS_OF_CURRENT),
        ):
            if table in self._kept and not self._is_made_later:
                self._format.create(self._session, table, schema, statistics, is_merged=table is self.current)
        if self.current in self._kept and not self._is_made_later:
            self._create_views()

    def last_batch(self, app: str) -> int | None:
        """The newest batch of this writer in `changes`, or None."""
        return self._format.batch(self._session, self.changes, app)

    def folded(self, app: str) -> int | None:
        """The newest batch of this writer in `current`, or None."""
        if self._is_not_made:
            return None
        return self._format.batch(self._session, self.current, app)

    def append(self, app: str, batch_id: int, frame: DataFrame) -> BatchSummary:
        """Append a batch to `changes` in one commit, also one without rows."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        # The frame belongs to a session that Spark has made for the query; over Spark Connect it is the user's.
        if not is_connect(frame.sparkSession):
            for name, value in {**self._format.settings, **APPEND_SETTINGS}.items():
                frame.sparkSession.conf.set(name, value)
        observation = Observation()
        numbered = frame.select(*CHANGE_SCHEMA.names, f.lit(batch_id).cast("long").alias(BATCH_ID))
        rows = numbered.observe(observation, *_facts_of_batch(has_collections=self._part == "log"))
        self._format.append(self._session, self.changes, rows, app, batch_id)
        # Spark plans and reads the next batch meanwhile.
        threading.Thread(target=self._look_ahead, args=[frame.sparkSession], name="dcp-look-ahead", daemon=True).start()
        found = _observed(observation)
        summary = self.summary(batch_id) if found is None else _summary(batch_id, found)
        if summary.rollbacks:
            # Until the fold, readers of the view would see void rows.
            self._publish(app)
            self._publish_rejects()
        return summary

    def _look_ahead(self, session: SparkSession) -> None:
        try:
            self._format.look_ahead(session, self.changes)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            # The next append does the same, and reports what is wrong. Spark may just have been stopped.
            _log.debug("%s: no look at the log before the next batch: %s", self.changes.sql, error)

    def summary(self, batch_id: int) -> BatchSummary:
        """The content of a batch of `changes`."""
        from pyspark.sql import functions as f

        rows = self._session.table(self.changes.sql).where(f.col(BATCH_ID) == batch_id)
        found = rows.agg(*_facts_of_batch(has_collections=self._part == "log"))
        return _summary(batch_id, found.collect()[0].asDict())

    def tail_rows(self, after: int | None) -> int:
        """Rows of `changes` in batches above `after`; all of them for None."""
        return _count(self._session, f"{self.changes.sql} WHERE {BATCH_ID} > {_or_none(after)}")

    def current_rows(self) -> int:
        """Documents in `current`."""
        return 0 if self._is_not_made else _count(self._session, self.current.sql)

    def fold(
        self,
        app: str,
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
        facts: TailFacts | None = None,
    ) -> FoldReport:
        """Bring the batches above `after` up to `upto` into `current`, in one commit."""
        query = self._query(after, upto, void_bounds(rollbacks))
        session = self._fold_session
        with in_fold_pool(session):
            if facts is None:
                found = session.sql(query.facts()).collect()[0]
                facts = TailFacts(found["total"], found["emptying"], self.current_rows())
            elif facts.relation is not None and not rollbacks:
                query = replace(query, changes=self._own_rows(facts.relation))
            rows = facts.rows + facts.current_rows
            is_small = rows <= SMALL_FOLD_ROWS
            partitions = 1 if is_small else max(2, math.ceil(rows / ROWS_PER_PARTITION))
            session.conf.set("spark.sql.shuffle.partitions", partitions)
            session.conf.set("spark.sql.adaptive.enabled", str(not is_small).lower())
            session.conf.set(_BROADCAST, "-1" if is_small else str(self._user_session.conf.get(_BROADCAST)))
            if facts.current_rows == 0:
                current_rows, rejected = self._fill(query, app)
                counts, restored = MergeCounts(current_rows, 0), 0
            else:
                counts, restored, rejected = self._merge(query, app, has_emptying=facts.emptying > 0)
                if counts.added is None:
                    current_rows = _count(session, self.current.sql)
                else:
                    current_rows = facts.current_rows + counts.added
            self._publish(app)
        return FoldReport(upto, counts.written, counts.removed, restored, current_rows, rejected)

    def _fill(self, query: FoldQuery, app: str) -> tuple[int, int]:
        """Fold into a table without rows. Returns the numbers of documents, and of those that do not fit the types."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        assert query.upto is not None
        session = self._fold_session
        newest = session.sql(query.newest())
        is_corrupt = f.lit(False) if query.types is None else f.col(CORRUPT).isNotNull()
        observation = Observation()
        rows = (
            newest.where(f"NOT {IS_REMOVED}")
            .select(*query.columns)
            .observe(observation, f.count(f.lit(1)).alias("rows"), f.count_if(is_corrupt).alias("corrupt"))
        )
        statistics = STATISTICS_OF_CURRENT if self._is_not_made else None

        def append() -> None:
            assert query.upto is not None
            self._format.append(session, self.current, rows, app, query.upto, creates=statistics)

        if query.types is None or query.types.mode == "PERMISSIVE":
            append()
            found = _observed(observation) or self._counted(has_types=query.types is not None)
            return found["rows"], found["corrupt"]
        newest.persist()
        try:
            rejected = self._rejected(newest)
            append()
        finally:
            newest.unpersist()
        return (_observed(observation) or self._counted(has_types=True))["rows"], rejected

    def _counted(self, *, has_types: bool) -> dict[str, int]:
        """The counts of `_fill`, from the table."""
        rows = _count(self._fold_session, self.current.sql)
        corrupt = f"{self.current.sql} WHERE {CORRUPT} IS NOT NULL"
        return {"rows": rows, "corrupt": _count(self._fold_session, corrupt) if has_types else 0}

    @contextmanager
    def tail(self, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> Iterator[Tail]:
        """The batches that a fold looks at, kept in Spark's memory and on its disks while the block runs."""
        query = self._query(after, upto, void_bounds(rollbacks))
        session = self._fold_session
        with in_fold_pool(session), contextlib.ExitStack() as stack:
            # One partition: the facts are a few rows.
            session.conf.set("spark.sql.shuffle.partitions", 1)
            session.conf.set("spark.sql.adaptive.enabled", "false")
            relation = None
            if not rollbacks:
                rows = session.sql(query.tail()).persist()
                stack.callback(rows.unpersist)
                rows.createOrReplaceGlobalTempView(self._tail_name)
                stack.callback(session.catalog.dropGlobalTempView, self._tail_name)
                relation = f"global_temp.{self._tail_name}"
                query = replace(query, changes=relation)
            found = session.sql(query.collections()).collect()
            yield Tail(tuple(CollectionTail(**row.asDict()) for row in found), relation)

    def changes_of(self, places: Iterable[Place]) -> DataFrame:
        """The rows of `changes` of some collections, and the control rows about rollbacks, in the user's session."""
        self._format.refresh(self._user_session, self.changes)
        rollbacks = f"(SELECT * FROM {self.changes.sql} WHERE op = '{Op.ROLLBACK.value}')"
        own = rows_of_collections(self.changes.sql, places)
        return self._user_session.sql(f"SELECT * FROM {own} UNION ALL SELECT * FROM {rollbacks}")

    def versions(self, places: Iterable[Place] | None = None) -> DataFrame:
        """Every version of the documents in `changes`, see `versions_sql`; of these collections, or of all."""
        self._format.refresh(self._user_session, self.changes)
        return self._user_session.sql(versions(self.changes.sql, places))

    def publish(self, app: str, least: int | None = None) -> None:
        """Make the views again, if they have names."""
        self._publish(app, least)
        self._publish_rejects()

    def _rejected(self, newest: DataFrame) -> int:
        """The number of documents that do not fit the types.

        Raises:
            FieldError: mode is FAILFAST, and there is one.
        """
        if self._types is None:
            return 0
        unfit = newest.where(IS_UNFIT)
        if self._types.mode == "FAILFAST":
            for row in unfit.orderBy("vbucket", "seqno").limit(1).collect():
                raise self._types.documents.error(row.asDict())
            return 0
        return unfit.count()

    def _merge(self, query: FoldQuery, app: str, *, has_emptying: bool) -> tuple[MergeCounts, int, int]:
        """Fold into a table that has rows.

        Returns: (the counts, number of documents with void rows, number of documents that do not fit the types)
        """
        assert query.upto is not None
        session = self._fold_session
        source = session.sql(query.newest(has_ended=has_emptying))
        is_used_again = bool(query.bounds) or query.types is not None
        try:
            if is_used_again:
                source.persist()
            rejected = self._rejected(source)
            restored = source.where(IS_RESTORED).count() if query.bounds else 0
            source.createOrReplaceTempView(_SOURCE)
            counts = self._format.merge(session, query.merge(_SOURCE), self.current, app, query.upto)
        finally:
            if is_used_again:
                source.unpersist()
        return counts, restored, rejected

    def take_back(self, rollbacks: Sequence[RollbackReport], before_batch: int) -> None:
        """Delete void rows from `changes`. A second call changes nothing."""
        bounds = void_bounds(rollbacks)
        if bounds:
            self._session.sql(f"DELETE FROM {self.changes.sql} WHERE {void_rows(bounds, before_batch)}")

    def live(self, app: str | None, least: int | None = None) -> DataFrame:
        """The documents as of the newest batch, in the user's session."""
        self._format.refresh(self._user_session, self.changes)
        # In this order. A version of `current` that is newer than this one of `changes` holds all of its batches. An
        # older one does not hold the rollbacks in it, so the rows that they made void are still in `changes`.
        changes, held = self._format.version(self._session, self.changes, app)
        if self._is_not_made:
            query = self._unfolded(least, changes, self.current)
            newest = self._user_session.sql(query.newest()).where(f"NOT {IS_REMOVED}")
            return newest.select(*query.columns)
        self._format.refresh(self._user_session, self.current)
        current, after = self._format.version(self._session, self.current, app)
        folded = later(after, least)
        query = self._unfolded(folded, changes, current)
        is_pending = held is None or folded is None or held > folded or self._has_tail(query)
        return self._user_session.sql(query.live() if is_pending else query.all_of_current())

    def _has_tail(self, query: FoldQuery) -> bool:
        """Whether a batch waits for its fold: two small jobs, which save twenty to a query of what has none."""
        return bool(self._session.sql(f"SELECT 1 FROM ({query.tail()}) LIMIT 1").collect())

    def _publish(self, app: str, least: int | None = None) -> None:
        """Make the view `live`, if it has a name, for what `current` holds now.

        A view of an earlier fold shows the same documents, and reads a longer tail for them.
        """
        if self._live is None:
            return
        with self._publishing:
            query = self._unfolded(later(self.folded(app), least), self.changes, self.current)
            self._session.sql(f"CREATE OR REPLACE VIEW {self._live} AS {query.live()}")

    def _create_views(self) -> None:
        """Make the views that do not exist, so that a catalog without views is refused before any batch.

        Raises:
            ConfigError: a view cannot be made.
        """
        from pyspark.errors import AnalysisException, UnsupportedOperationException

        option, name = "live", self._live
        try:
            query = self._whole_query()
            # `retype` makes the view of a table that gets other columns first.
            has_columns = self._session.table(self.current.sql).columns == list(query.columns)
            if name is not None and has_columns and not is_there(self._session, name):
                # It reads all of `changes` until the next fold.
                with self._publishing:
                    self._session.sql(f"CREATE OR REPLACE VIEW {name} AS {query.live()}")
            option, name = "rejects", self._rejects
            self._publish_rejects()
        except (AnalysisException, UnsupportedOperationException) as error:
            reason = str(error).strip().partition("\n")[0]
            message = (
                f"{option} cannot be {name!r}: the view cannot be made ({reason}). Name a view in a catalog that has "
                f"views, such as spark_catalog.default.{option}, or leave {option} out and call Pipeline.{option}()"
            )
            raise ConfigError(option, name, "a view in a catalog that has views", message=message) from None

    def rejects(self) -> DataFrame:
        """The documents as of the newest batch that do not fit the types, in the user's session."""
        self._format.refresh(self._user_session, self.changes)
        return self._user_session.sql(self._whole_query().rejects())

    def _publish_rejects(self) -> None:
        """Make the view of rejects, if it has a name. It is right until the next rollback."""
        if self._rejects is None or self._types is None:
            return
        with self._publishing:
            self._session.sql(f"CREATE OR REPLACE VIEW {self._rejects} AS {self._whole_query().rejects()}")

    def _whole_query(self) -> FoldQuery:
        """The query for all batches. Void rows of the newest rollback are left out, be they deleted yet or not."""
        query = self._unfolded(None, self.changes, self.current)
        return query if query.upto is None else replace(query, is_open=True)

    def maintain(self, retain_hours: float) -> None:
        """Join small files, and remove files that only versions older than `retain_hours` use."""
        with in_fold_pool(self._fold_session):
            for table in self._kept:
                self._format.maintain(self._fold_session, table, retain_hours)

    def _unfolded(self, after: int | None, changes: Table, current: Table) -> FoldQuery:
        """The query for all batches above `after`, also while a batch with rollbacks waits for its fold."""
        found = self._session.sql(
            f"SELECT {BATCH_ID}, vbucket, value FROM {changes.sql} "
            f"WHERE {BATCH_ID} > {_or_none(after)} AND op = '{Op.ROLLBACK.value}'"
        ).collect()
        query = FoldQuery(
            self._own_rows(changes.sql), current.sql, self._types, _or_none(after), keeps_dropped=self._keeps_dropped
        )
        if not found:
            return query
        newest = max(row[BATCH_ID] for row in found)
        rollbacks = rollback_reports([row.asDict() for row in found if row[BATCH_ID] == newest])
        return replace(query, upto=newest, bounds=void_bounds(rollbacks))

    def _query(self, after: int | None, upto: int | None, bounds: Mapping[int, int]) -> FoldQuery:
        changes, current = self._own_rows(self.changes.sql), self.current.sql
        start = _or_none(after)
        return FoldQuery(changes, current, self._types, start, upto, bounds, keeps_dropped=self._keeps_dropped)

    def _own_rows(self, changes: str) -> str:
        return changes if self._places is None else rows_of_collections(changes, self._places)


def _count(session: SparkSession, source: str) -> int:
    return int(session.sql(f"SELECT count(*) AS n FROM {source}").collect()[0]["n"])


def own_sessions(spark: SparkSession, table_format: TableFormat, tables: Iterable[Table]) -> Sessions:
    """Sessions of an engine's own, for batches and for folds.

    Args:
        spark: the user's session.
        table_format: of the tables.
        tables: those that they write.
    """
    settings = dict(table_format.settings)
    for table in tables:
        settings.update(table_format.catalog_settings(table))
    return OwnSession(spark, settings), OwnSession(spark, settings)


def _facts_of_batch(*, has_collections: bool) -> list[Column]:
    """Aggregates over the rows of a batch, for `_summary`; lists are JSON, as Spark 4.0 does not hand arrays to Python.

    Args:
        has_collections: whether the names of collections are collected, which costs time for each row.
    """
    from pyspark.sql import functions as f

    is_data = f.col("op").isin(_DOCUMENT_OPS)
    is_rollback = f.col("op") == Op.ROLLBACK.value
    has_table = (is_data | (f.col("op") == Op.COLLECTION_CREATED.value)) & f.col("scope").isNotNull()
    collections = f.collect_set(f.when(has_table, f.struct("scope", "collection")))
    rollbacks = f.collect_list(f.when(is_rollback, f.struct("vbucket", f.col("value").cast("string").alias("value"))))
    return [
        *([f.to_json(collections).alias("collections")] if has_collections else []),
        f.count_if(is_data).alias("rows"),
        f.count_if(~is_data & ~is_rollback).alias("events"),
        f.to_json(rollbacks).alias("rollbacks"),
    ]


def _observed(observation: Observation) -> dict[str, Any] | None:
    """The metrics of a write that has ended; None if Spark does not report them.

    They come through Spark's queue of events, which drops events when it is full.
    """
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
    thread.start()
    thread.join(OBSERVED_TIMEOUT_S)
    return found[0] if found else None


def _summary(batch_id: int, found: dict[str, Any]) -> BatchSummary:
    rollbacks = rollback_reports(json.loads(found["rollbacks"]))
    collections = frozenset((row["scope"], row["collection"]) for row in json.loads(found.get("collections", "[]")))
    return BatchSummary(batch_id, found["rows"], found["events"], rollbacks, collections)


def _or_none(after: int | None) -> int:
    return NO_BATCH if after is None else after
