"""The two table formats that Spark writes through connectors: Delta and Iceberg.

A format knows how a table is created and kept, and how a commit carries a transaction identifier: the name of a writer
and the number of a batch. It knows nothing of what the rows mean.

- Delta has transaction identifiers of its own. A commit whose number is not above the recorded one is left out by Delta
  itself. No statement shows them. So a commit carries the identifier as its user metadata, too, which the table's
  history shows.
- Iceberg has none. The identifier is a property of the snapshot that the commit makes, and is read back from the
  newest snapshot that has it. Maintenance copies it to a property of the table before it removes old snapshots.
"""

# ruff: noqa: S608 - tables are named as their owner wrote them; all other parts are ours
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dcpstream.errors import LeaseRefused, OffsetError
from dcpstream_spark.tables.location import child, condition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType, StructType

TARGET_FILE_BYTES = 128 << 20
"""Size of the files that maintenance makes. Files of half that size and above are left alone, so that maintenance does
not write the whole table again."""

CHECKPOINT_COMMITS = 50
"""Commits between two checkpoints of a Delta log. A checkpoint lists all files; Delta's own choice of 10 writes it for
every tenth small batch. A reader reads at most this many small files instead."""

DELETED_SHARE_MAX = 0.25
"""Share of deleted rows in a file of `current` above which maintenance writes the file again."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table by its name in a catalog, or by its directory.

    Attributes:
        sql: how a statement names it.
        path: its directory; None for a name.
    """

    sql: str
    path: str | None = None

    @classmethod
    def of(cls, name: str | None, path: str, format_name: str) -> Table:
        """The table of that name, or, without one, of that path."""
        if name is not None:
            return cls(name)
        quoted = path.replace("`", "``")
        return cls(f"{format_name}.`{quoted}`", path)


def knows_delta(spark: SparkSession, path: str) -> bool:
    """Try one of Delta's statements on a table that need not exist, to learn whether the session knows them.

    Platforms with Delta of their own have no setting that says so.
    """
    from pyspark.errors import AnalysisException

    try:
        # Spark alone cannot parse it.
        spark.sql(f"DESCRIBE HISTORY {Table.of(None, path, 'delta').sql} LIMIT 1").collect()
    except AnalysisException as error:  # ParseException, too
        condition = condition_of(error)
        return condition.startswith("DELTA_") and "CONFIGURE" not in condition
    return True


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """The result of a MERGE.

    Attributes:
        written: rows that were inserted or replaced.
        removed: rows that were deleted.
        added: rows that the table has more; None if it is not known.
    """

    written: int
    removed: int
    added: int | None = None


class TableFormat(Protocol):
    """The interface of a format for the engine; see `dcpstream_spark.tables.spark_sql`.

    Attributes:
        name: of the engine: "delta" or "iceberg".
        settings: of the session that writes, for commits that cost little.
        creates_with_rows: whether `append` can create a table.
    """

    name: str
    settings: Mapping[str, str]
    creates_with_rows: bool

    def exists(self, session: SparkSession, table: Table) -> bool:
        """Whether the table exists."""
        ...

    def create(
        self, session: SparkSession, table: Table, schema: StructType, statistics: Sequence[str], *, is_merged: bool
    ) -> None:
        """Create the table if there is none.

        Args:
            session: runs the statement.
            table: the table.
            schema: its columns.
            statistics: the columns that readers skip files by.
            is_merged: whether rows are replaced often, so that a row is better marked as deleted than its file written
                again. Some readers do not know such marks.
        """
        ...

    def batch(self, session: SparkSession, table: Table, app: str) -> int | None:
        """The newest batch of this writer that the table holds, or None."""
        ...

    def version(self, session: SparkSession, table: Table, app: str | None) -> tuple[Table, int | None]:
        """The newest version of a table, by a name that later commits do not change.

        Returns: (the table in that version, the newest batch of the writer that the version holds or None)
        """
        ...

    def append(
        self,
        session: SparkSession,
        table: Table,
        rows: DataFrame,
        app: str,
        batch_id: int,
        *,
        creates: Sequence[str] | None = None,
    ) -> None:
        """Append rows in one commit that carries the identifier.

        If another process appends at the same time, at most one commit of a batch succeeds.

        Args:
            session: sees what others have written; `rows` may be of another one.
            table: the table.
            rows: of the batch.
            app, batch_id: the identifier.
            creates: the columns that readers skip files by, of a table that does not exist, whose rows are replaced
                often; it is created by the same commit. None for a table that exists. `session` is that of `rows` then.
        """
        ...

    def look_ahead(self, session: SparkSession, table: Table) -> None:
        """Do now what the next append to the table would do first. It may fail, and changes nothing."""
        ...

    def merge(self, session: SparkSession, statement: str, table: Table, app: str, batch_id: int) -> MergeCounts:
        """Run a MERGE statement whose commit carries the identifier."""
        ...

    def replace(self, session: SparkSession, table: Table, rows: DataFrame) -> None:
        """Replace columns and rows in one commit. Properties and identifiers stay.

        Args:
            session: of the rows.
            table: the table.
            rows: may be a query over the table.
        """
        ...

    def maintain(self, session: SparkSession, table: Table, retain_hours: float) -> None:
        """Join small files, and remove files that only versions older than `retain_hours` use."""
        ...

    def refresh(self, session: SparkSession, table: Table) -> None:
        """Let a session see what another session has written."""
        ...

    def catalog_settings(self, table: Table) -> Mapping[str, str]:
        """Settings for a session that must always see what other sessions have written to the table."""
        ...


LOOK_BACK = 20
"""Newest commits of a Delta table in which a writer's number is looked for first. Between two batches of one writer
there are usually none, or the few of a maintenance."""

LISTING_TASKS = 8
"""Tasks that list the files of a Delta table, which are in one directory."""

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""Setting of the session: the user metadata of commits of its statements."""

_LOGGED = "txn STRUCT<appId: STRING, version: BIGINT>"
"""Columns that are read of the files of a Delta log, whose names begin with a version of so many digits."""
_VERSION_DIGITS = 20

_NO_TABLE = frozenset(
    ("PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE")
)
"""Delta's and Spark's errors about a path without a table."""

_NEW_TABLES = "spark.databricks.delta.properties.defaults"
"""Settings that begin so are properties of tables that the session creates."""


class DeltaFormat:
    """Delta through its connector, `delta-spark`."""

    name = "delta"
    creates_with_rows = True
    settings: Mapping[str, str] = {
        # Tasks of the job that computes the state of a log. Delta's own choice is 50, for millions of files.
        "spark.databricks.delta.snapshotPartitions": "1",
        # A checksum costs each commit another file, and speeds up only the first reader of a large log.
        "spark.databricks.delta.writeChecksumFile.enabled": "false",
        "spark.databricks.delta.optimize.maxFileSize": str(TARGET_FILE_BYTES),
        "spark.databricks.delta.optimize.minFileSize": str(TARGET_FILE_BYTES // 2),
        "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(DELETED_SHARE_MAX),
        # Tasks in which VACUUM lists the files of a table. Spark's own 10,000 take minutes, however small the table is.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(LISTING_TASKS),
        # The user chooses the hours that readers need; Delta would refuse less than a week.
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }

    def exists(self, session: SparkSession, table: Table) -> bool:
        """Whether the table exists."""
        from pyspark.errors import AnalysisException

        if table.path is None:
            return bool(session.catalog.tableExists(table.sql))
        try:
            _ = session.read.format("delta").load(table.path).schema
        except AnalysisException as error:
            if condition_of(error) in _NO_TABLE:
                return False
            raise
        return True

    def create(
        self, session: SparkSession, table: Table, schema: StructType, statistics: Sequence[str], *, is_merged: bool
    ) -> None:
        """Create the table if there is none."""
        properties = {f"delta.{name}": value for name, value in self._properties(statistics, is_merged).items()}
        with _confs(session, {_METADATA: _marked(None, None)}):
            session.sql(
                f"CREATE TABLE IF NOT EXISTS {table.sql} ({_columns(schema)}) USING delta "
                f"TBLPROPERTIES ({_pairs(properties)})"
            )

    @staticmethod
    def _properties(statistics: Sequence[str], is_merged: bool) -> dict[str, str]:
        return {
            "enableDeletionVectors": str(is_merged).lower(),
            "dataSkippingStatsColumns": ",".join(statistics),
            "checkpointInterval": str(CHECKPOINT_COMMITS),
            # On file systems without sorted listing each commit lists the whole log. With a commit a second it would
            # have 2.6 million files in the 30 days that Delta keeps them.
            "logRetentionDuration": "interval 1 days",
            "deletedFileRetentionDuration": "interval 1 days",
        }

    def batch(self, session: SparkSession, table: Table, app: str) -> int | None:
        """The newest batch of this writer that the table holds, or None."""
        return self.version(session, table, app)[1]

    def version(self, session: SparkSession, table: Table, app: str | None) -> tuple[Table, int | None]:
        """The newest version of a table, and the newest batch of the writer in it."""
        rows = self._history(session, table, f"LIMIT {LOOK_BACK}")
        newest = rows[0]["version"]
        batch = None if app is None else self._batch(session, table, app, newest, rows)
        return Table(f"{table.sql} VERSION AS OF {newest}"), batch

    def _batch(self, session: SparkSession, table: Table, app: str, upto: int, rows: list[Row]) -> int | None:
        """The newest batch of the writer in a version.

        Args:
            session, table, app: as for `version`.
            upto: the version.
            rows: the newest commits, the newest first.
        """
        if len(rows) == LOOK_BACK and not any(_marks(row)[0] == app for row in rows):
            rows = self._history(session, table, "")
        for row in rows:
            writer, batch = _marks(row)
            if writer == app and row["version"] <= upto:
                return batch
        if rows[-1]["version"] == 0 and _marks(rows[-1])[0] is not None:
            return None  # all commits are in the history, and ours have marks
        return self._logged(session, table, app, upto)

    @staticmethod
    def _history(session: SparkSession, table: Table, limit: str) -> list[Row]:
        return session.sql(f"DESCRIBE HISTORY {table.sql} {limit}").select("version", "userMetadata").collect()

    def _logged(self, session: SparkSession, table: Table, app: str, upto: int) -> int | None:
        """The same from the files of the log, for commits that the history does not show.

        They are those of earlier releases, which have no user metadata, and those that Delta has removed because so
        much has happened to the table since: checkpoints keep identifiers for ever.
        """
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as f

        location = table.path or str(session.sql(f"DESCRIBE DETAIL {table.sql}").collect()[0]["location"])
        directory = child(re.sub(r"([\\\[\]{}*?])", r"\\\1", location), "_delta_log")
        found: list[int | None] = []
        for kind, files in (("json", "*.json"), ("parquet", "*.checkpoint*.parquet")):
            try:
                log = session.read.format(kind).schema(_LOGGED).load(child(directory, files))
                version = f.substring("_metadata.file_name", 1, _VERSION_DIGITS).cast("bigint")
                own = log.where((f.col("txn.appId") == app) & (version <= upto))
                found += [row["newest"] for row in own.select(f.max("txn.version").alias("newest")).collect()]
            except AnalysisException as error:
                if condition_of(error) != "PATH_NOT_FOUND":
                    raise
        return max((batch for batch in found if batch is not None), default=None)

    def append(
        self,
        session: SparkSession,
        table: Table,
        rows: DataFrame,
        app: str,
        batch_id: int,
        *,
        creates: Sequence[str] | None = None,
    ) -> None:
        """Append rows in one commit that carries the identifier. Delta leaves out a batch that the table holds."""
        writer = rows.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", batch_id)
        writer = writer.option("userMetadata", _marked(app, batch_id))
        properties = {} if creates is None else self._properties(creates, is_merged=True)
        with _confs(session, {f"{_NEW_TABLES}.{name}": value for name, value in properties.items()}):
            if table.path is None:
                writer.saveAsTable(table.sql)
            else:
                writer.save(table.path)

    def look_ahead(self, session: SparkSession, table: Table) -> None:
        """Compute the state of the log, where the next append looks for its identifier; Delta keeps it."""
        session.sql(f"DESCRIBE DETAIL {table.sql}").collect()

    def merge(self, session: SparkSession, statement: str, table: Table, app: str, batch_id: int) -> MergeCounts:
        """Run a MERGE statement whose commit carries the identifier."""
        with _confs(
            session,
            {
                "spark.databricks.delta.write.txnAppId": app,
                "spark.databricks.delta.write.txnVersion": str(batch_id),
                _METADATA: _marked(app, batch_id),
            },
        ):
            rows = session.sql(statement).collect()
        # A batch that the table holds already is left out, without a result.
        return MergeCounts(
            sum(row["num_inserted_rows"] + row["num_updated_rows"] for row in rows),
            sum(row["num_deleted_rows"] for row in rows),
            sum(row["num_inserted_rows"] - row["num_deleted_rows"] for row in rows),
        )

    def replace(self, session: SparkSession, table: Table, rows: DataFrame) -> None:
        """Replace columns and rows in one commit."""
        from pyspark.sql.functions import lit

        if _has_local_times(rows.schema):
            session.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
        if table.path is None:
            rows.writeTo(table.sql).option("overwriteSchema", "true").overwrite(lit(True))
        else:
            rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table.path)

    def maintain(self, session: SparkSession, table: Table, retain_hours: float) -> None:
        """Join small files, and remove files that only versions older than `retain_hours` use."""
        session.sql(f"OPTIMIZE {table.sql}")
        session.sql(f"VACUUM {table.sql} RETAIN {int(retain_hours)} HOURS")

    def refresh(self, session: SparkSession, table: Table) -> None:
        """Nothing to do: each query looks at the log."""

    def catalog_settings(self, table: Table) -> Mapping[str, str]:
        """None: each query looks at the log."""
        return {}


def _marked(app: str | None, batch_id: int | None) -> str:
    """The user metadata of a commit. The first commit of a table says by it that those of all batches have it."""
    return json.dumps({_APP: app or "", _BATCH: batch_id})


def _marks(row: Row) -> tuple[str | None, int | None]:
    """The writer and the batch in the user metadata of a commit; None for those of others."""
    try:
        found = json.loads(row["userMetadata"] or "")
        return found[_APP], found[_BATCH]
    except (ValueError, TypeError, KeyError):
        return None, None


class IcebergFormat:
    """Iceberg through its runtime, with tables in a catalog of Iceberg's."""

    name = "iceberg"
    creates_with_rows = False
    settings: Mapping[str, str] = {}

    def exists(self, session: SparkSession, table: Table) -> bool:
        """Whether the table exists."""
        return bool(session.catalog.tableExists(table.sql))

    def create(
        self, session: SparkSession, table: Table, schema: StructType, statistics: Sequence[str], *, is_merged: bool
    ) -> None:
        """Create the table if there is none."""
        properties = {
            "format-version": "2",
            "write.merge.mode": "merge-on-read" if is_merged else "copy-on-write",
            "write.delete.mode": "merge-on-read" if is_merged else "copy-on-write",
            "write.metadata.metrics.default": "none",
            **{f"write.metadata.metrics.column.{name}": "full" for name in statistics},
            # Each commit writes the table's metadata again; old copies are of no use.
            "write.metadata.delete-after-commit.enabled": "true",
            "write.distribution-mode": "none",
        }
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {table.sql} ({_columns(schema)}) USING iceberg "
            f"TBLPROPERTIES ({_pairs(properties)})"
        )

    def batch(self, session: SparkSession, table: Table, app: str) -> int | None:
        """The newest batch of this writer that the table holds, or None."""
        return self.version(session, table, app)[1]

    def version(self, session: SparkSession, table: Table, app: str | None) -> tuple[Table, int | None]:
        """The newest version of a table, and the newest batch of the writer in it."""
        kept = session.sql(f"SHOW TBLPROPERTIES {table.sql}").collect()
        found = [int(row["value"]) for row in kept if app is not None and row["key"] == _kept(app)]
        snapshots = session.sql(
            f"SELECT snapshot_id, summary['{_APP}'] AS app, summary['{_BATCH}'] AS batch FROM {table.sql}.snapshots "
            "ORDER BY committed_at"
        ).collect()
        found += [int(row["batch"]) for row in snapshots if app is not None and row["app"] == app]
        name = f"{table.sql} VERSION AS OF {snapshots[-1]['snapshot_id']}" if snapshots else table.sql
        return Table(name), max(found, default=None)

    def append(
        self,
        session: SparkSession,
        table: Table,
        rows: DataFrame,
        app: str,
        batch_id: int,
        *,
        creates: Sequence[str] | None = None,
    ) -> None:
        """Append rows in one commit that carries the identifier.

        Iceberg itself never refuses to append. So the commit is an overwrite of no rows, which is checked: it fails if
        files were added after the snapshot in which the batch was not there. Iceberg records it as an append.
        """
        from pyspark.sql.functions import lit

        found = session.sql(
            f"SELECT snapshot_id, summary FROM {table.sql}.snapshots "
            f"WHERE snapshot_id = (SELECT snapshot_id FROM {table.sql}.refs WHERE name = 'main')"
        ).collect()
        newest = found[0] if found else None
        summary = {} if newest is None else newest["summary"]
        is_previous = summary.get(_APP) == app and summary.get(_BATCH) == str(batch_id - 1)
        held = None if is_previous else self.batch(session, table, app)
        if held is not None and held >= batch_id:
            raise _refused(table, batch_id)
        writer = rows.writeTo(table.sql).option("isolation-level", "serializable")
        if newest is not None:
            writer = writer.option("validate-from-snapshot-id", str(newest["snapshot_id"]))
        for name, value in {_APP: app, _BATCH: str(batch_id)}.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        try:
            writer.overwrite(lit(False))
        except Exception as error:
            if "org.apache.iceberg.exceptions.ValidationException" in str(error):
                raise _refused(table, batch_id) from error
            raise

    def look_ahead(self, session: SparkSession, table: Table) -> None:
        """Nothing to do: the metadata is one file."""

    def merge(self, session: SparkSession, statement: str, table: Table, app: str, batch_id: int) -> MergeCounts:
        """Run a MERGE statement whose commit carries the identifier."""
        prefix = "spark.sql.iceberg.snapshot-property."
        with _confs(session, {prefix + _APP: app, prefix + _BATCH: str(batch_id)}):
            session.sql(statement)
        made = session.sql(
            f"SELECT summary FROM {table.sql}.snapshots WHERE summary['{_APP}'] = '{app}' "
            f"AND summary['{_BATCH}'] = '{batch_id}'"
        ).collect()
        if not made:
            raise OffsetError(f"{table.sql}: the commit of batch {batch_id} does not carry its number")
        return merge_counts_of(made[-1]["summary"])

    def replace(self, session: SparkSession, table: Table, rows: DataFrame) -> None:
        """Replace columns and rows in one commit; the table keeps its history and properties."""
        self._keep_batches(session, table)
        rows.writeTo(table.sql).using("iceberg").replace()

    def maintain(self, session: SparkSession, table: Table, retain_hours: float) -> None:
        """Join small files, and remove files that only versions older than `retain_hours` use."""
        catalog, _, name = table.sql.partition(".")
        self._keep_batches(session, table)
        session.sql(
            f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => "
            f"map('target-file-size-bytes', '{TARGET_FILE_BYTES}'))"
        )
        # A procedure takes a literal only.
        oldest = f"CAST(timestampadd(SECOND, -{int(retain_hours * 3600)}, current_timestamp()) AS STRING)"
        (row,) = session.sql(f"SELECT {oldest} AS oldest").collect()
        session.sql(
            f"CALL {catalog}.system.expire_snapshots(table => '{name}', retain_last => 1, "
            f"older_than => TIMESTAMP '{row['oldest']}')"
        )

    def _keep_batches(self, session: SparkSession, table: Table) -> None:
        """Copy the writers' newest batches from the snapshots to properties of the table."""
        newest: dict[str, int] = {}
        for row in session.sql(
            f"SELECT summary['{_APP}'] AS app, summary['{_BATCH}'] AS batch FROM {table.sql}.snapshots "
            f"WHERE summary['{_APP}'] IS NOT NULL"
        ).collect():
            newest[row["app"]] = max(int(row["batch"]), newest.get(row["app"], -1))
        if newest:
            kept = _pairs({_kept(app): str(batch) for app, batch in newest.items()})
            session.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ({kept})")

    def refresh(self, session: SparkSession, table: Table) -> None:
        """Forget the table's cached state: the catalog of each session keeps it for 30 seconds."""
        session.sql(f"REFRESH TABLE {table.sql}")

    def catalog_settings(self, table: Table) -> Mapping[str, str]:
        """No cache of tables in the session's catalog."""
        return {f"spark.sql.catalog.{table.sql.partition('.')[0]}.cache-enabled": "false"}


def _refused(table: Table, batch_id: int) -> LeaseRefused:
    return LeaseRefused(
        f"{table.sql}: batch {batch_id} was not appended, because another process has written to the table since. Two "
        "pipelines must not keep the same tables. Stop one of them; no row is lost, and none is there twice."
    )


def merge_counts_of(summary: Mapping[str, str]) -> MergeCounts:
    """The result of a MERGE, from the summary of its snapshot.

    Iceberg for Spark 4.1 reports how many rows were deleted. Without that number, `removed` is what is certain: a new
    file of deletes also lists the rows of the file that it replaces, and inserted rows are among the added ones.
    """
    written = int(summary.get("added-records", 0))
    deleted = int(summary.get("spark.merge-into.num-target-rows-deleted", -1))
    if deleted >= 0:
        return MergeCounts(written, deleted)
    marked = int(summary.get("added-position-deletes", 0)) - int(summary.get("removed-position-deletes", 0))
    return MergeCounts(written, max(0, marked - written))


FORMATS: Mapping[str, Callable[[], TableFormat]] = {"delta": DeltaFormat, "iceberg": IcebergFormat}

_APP, _BATCH = "dcpstream.writer", "dcpstream.batch"
"""Properties of an Iceberg snapshot, and of the user metadata of a Delta commit: its transaction identifier."""


def _kept(app: str) -> str:
    """The property of an Iceberg table that keeps a writer's newest batch when its snapshot expires."""
    return f"{_BATCH}.{app}"


def _columns(schema: StructType) -> str:
    return ", ".join(f"`{field.name}` {_sql_type(field.dataType)}" for field in schema.fields)


def _sql_type(kind: DataType) -> str:
    """The type as SQL, with nested names in quotes."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return "STRUCT<" + ", ".join(f"`{one.name}`: {_sql_type(one.dataType)}" for one in kind.fields) + ">"
    if isinstance(kind, t.ArrayType):
        return f"ARRAY<{_sql_type(kind.elementType)}>"
    if isinstance(kind, t.MapType):
        return f"MAP<{_sql_type(kind.keyType)}, {_sql_type(kind.valueType)}>"
    return kind.simpleString()


def _has_local_times(kind: DataType) -> bool:
    """Whether a TIMESTAMP_NTZ is in it."""
    return "timestamp_ntz" in kind.json()


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())


@contextmanager
def _confs(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    for name, value in values.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            session.conf.unset(name)
