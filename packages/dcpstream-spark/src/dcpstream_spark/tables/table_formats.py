"""The two table formats that Spark writes through connectors: Delta and Iceberg.

A format knows how a table is created and kept, and how a commit carries a transaction identifier: the name of a writer
and the number of a batch. It knows nothing of what the rows mean.

- Delta has transaction identifiers of its own. A commit whose number is not above the recorded one is refused by Delta
  itself.
- Iceberg has none. The identifier is a property of the snapshot that the commit makes, and is read back from the
  newest snapshot that has it. Maintenance copies it to a property of the table before it removes old snapshots.
"""

# ruff: noqa: S608 - tables are named as their owner wrote them; all other parts are ours
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dcpstream.errors import LeaseRefused, OffsetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
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

    def is_written(self, session: SparkSession, table: Table) -> bool:
        """Whether it holds a batch."""
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
        # The user chooses the hours that readers need; Delta would refuse less than a week.
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }

    def __init__(self) -> None:
        # Directories of tables with names, only for `look_ahead`.
        self._locations: dict[str, str] = {}

    def exists(self, session: SparkSession, table: Table) -> bool:
        """Whether the table exists."""
        if table.path is None:
            return bool(session.catalog.tableExists(table.sql))
        jvm: Any = session._jvm
        return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(session._jsparkSession, table.path))

    def create(
        self, session: SparkSession, table: Table, schema: StructType, statistics: Sequence[str], *, is_merged: bool
    ) -> None:
        """Create the table if there is none."""
        properties = {f"delta.{name}": value for name, value in self._properties(statistics, is_merged).items()}
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

    def is_written(self, session: SparkSession, table: Table) -> bool:
        """Whether it holds a batch."""
        return not self._snapshot(session, table).transactions().isEmpty()

    def batch(self, session: SparkSession, table: Table, app: str) -> int | None:
        """The newest batch of this writer that the table holds, or None."""
        return self.version(session, table, app)[1]

    def version(self, session: SparkSession, table: Table, app: str | None) -> tuple[Table, int | None]:
        """The newest version of a table, and the newest batch of the writer in it."""
        snapshot = self._snapshot(session, table)
        found = None if app is None else snapshot.transactions().get(app)
        batch = int(found.get()) if found is not None and found.isDefined() else None
        return Table(f"{table.sql} VERSION AS OF {snapshot.version()}"), batch

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
        properties = {} if creates is None else self._properties(creates, is_merged=True)
        with _confs(session, {f"{_NEW_TABLES}.{name}": value for name, value in properties.items()}):
            if table.path is None:
                writer.saveAsTable(table.sql)
            else:
                writer.save(table.path)

    def look_ahead(self, session: SparkSession, table: Table) -> None:
        """Compute the state of the log, where the next append looks for its identifier; Delta keeps it."""
        location = self._locations.get(table.sql, table.path)
        if location is None:
            location = self._locations[table.sql] = self._location(session, table)
        jvm: Any = session._jvm
        # The thread's jobs get the settings of this session.
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, location)
        log.unsafeVolatileSnapshot().transactions()

    def merge(self, session: SparkSession, statement: str, table: Table, app: str, batch_id: int) -> MergeCounts:
        """Run a MERGE statement whose commit carries the identifier."""
        with _confs(
            session,
            {
                "spark.databricks.delta.write.txnAppId": app,
                "spark.databricks.delta.write.txnVersion": str(batch_id),
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

    def _snapshot(self, session: SparkSession, table: Table) -> Any:
        """The newest version of the table's log, an object of the JVM: SQL does not show transaction identifiers."""
        path = self._location(session, table)
        jvm: Any = session._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
        # Scala's default arguments are methods of their own.
        return log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))

    @staticmethod
    def _location(session: SparkSession, table: Table) -> str:
        return table.path or str(session.sql(f"DESCRIBE DETAIL {table.sql}").collect()[0]["location"])


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

    def is_written(self, session: SparkSession, table: Table) -> bool:
        """Whether it holds a batch."""
        found = session.sql(
            f"SELECT 1 FROM {table.sql}.snapshots WHERE summary['{_APP}'] IS NOT NULL LIMIT 1"
        ).collect()
        kept = session.sql(f"SHOW TBLPROPERTIES {table.sql}").collect()
        return bool(found) or any(row["key"].startswith(_kept("")) for row in kept)

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

        jvm: Any = session._jvm
        found = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, table.sql)
        newest = found.currentSnapshot()
        summary = {} if newest is None else newest.summary()
        is_previous = summary.get(_APP) == app and summary.get(_BATCH) == str(batch_id - 1)
        held = None if is_previous else self.batch(session, table, app)
        if held is not None and held >= batch_id:
            raise _refused(table, batch_id)
        writer = rows.writeTo(table.sql).option("isolation-level", "serializable")
        if newest is not None:
            writer = writer.option("validate-from-snapshot-id", str(newest.snapshotId()))
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
"""Properties of an Iceberg snapshot: the transaction identifier of its commit."""


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
