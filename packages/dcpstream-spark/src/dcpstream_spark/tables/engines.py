"""The choice of the engine that writes a pipeline's tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dcpstream.arrow import ValueFormat
from dcpstream.errors import ConfigError
from dcpstream_spark.tables.engine import LogEngine, Part, Parts, TableEngine
from dcpstream_spark.tables.location import child, within_reach
from dcpstream_spark.tables.rows import Place
from dcpstream_spark.tables.sessions import is_connect
from dcpstream_spark.tables.table_formats import Table, knows_delta
from dcpstream_spark.tables.table_names import TableNames, directory_of, in_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dcpstream_spark.tables.spark_sql import Sessions, SparkSqlEngine

ENGINES = ("auto", "delta", "iceberg", "delta-rs")

SESSIONS_KEPT = 8
"""Pairs of Spark's sessions that wait for the next table: as many as there are threads that fold."""


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The tables to write.

    Attributes:
        path: the pipeline's directory: absolute, or a URL.
        value_format: "binary" or "string", the type of `value`.
        changes, current, live, rejects: names in a catalog; None for `changes` and `current` in the directory, and for
            no view.
        keeps_dropped: whether documents of a dropped collection stay.
    """

    path: str
    value_format: ValueFormat
    changes: str | None = None
    current: str | None = None
    live: str | None = None
    rejects: str | None = None
    keeps_dropped: bool = False

    @property
    def is_named(self) -> bool:
        """Whether a table or view has a name in a catalog."""
        return any(name is not None for name in (self.changes, self.current, self.live, self.rejects))


def choose_engine(engine: str, spark: SparkSession, target: TableTarget) -> TableEngine:
    """The engine by its name.

    Args:
        engine: "delta" and "iceberg" write with Spark, "delta-rs" without it; "auto" for what suits the session and the
            target: Iceberg for names in a catalog of Iceberg's, Delta in a session that knows Delta's statements, else
            delta-rs.
        spark: the session.
        target: the tables.

    Raises:
        ConfigError: an unknown engine, or one that cannot write the target.
    """
    chosen = _chosen(engine, spark, target)
    if chosen == "delta-rs":
        from dcpstream_spark.tables.delta_rs import DeltaRsEngine

        directory = _directory(spark, target, is_asked_for=engine != "auto")
        return DeltaRsEngine(directory, target.value_format, keeps_dropped=target.keeps_dropped)
    from dcpstream_spark.tables.spark_sql import KeptTables, SparkSqlEngine
    from dcpstream_spark.tables.table_formats import FORMATS

    _require_format(chosen, spark, target, is_asked_for=engine != "auto")
    changes = Table.of(target.changes, child(target.path, "changes"), chosen)
    current = Table.of(target.current, child(target.path, "current"), chosen)
    tables = KeptTables(
        changes, current, target.value_format, target.live, target.rejects, keeps_dropped=target.keeps_dropped
    )
    return SparkSqlEngine(spark, FORMATS[chosen](), tables)


def choose_parts(engine: str, spark: SparkSession, target: TableTarget, names: TableNames) -> Parts:
    """The same for several tables; the names of `target` but for `changes` have `table_names.TABLE` in them.

    Args:
        engine, spark, target: as for `choose_engine`.
        names: the rule for the names of tables, which must fit those of `target`.

    Raises:
        ConfigError: as for `choose_engine`.
    """
    chosen = _chosen(engine, spark, target)
    if chosen == "delta-rs":
        return DeltaRsParts(_directory(spark, target, is_asked_for=engine != "auto"), target)
    _require_format(chosen, spark, target, is_asked_for=engine != "auto")
    for option in ("current", "live", "rejects"):
        for template in names.templates:
            in_catalog(getattr(target, option), template, option)
    return SparkParts(chosen, spark, target)


class DeltaRsParts:
    """Tables of delta-rs; see `dcpstream_spark.tables.engine.Parts`."""

    name = "delta-rs"

    def __init__(self, directory: Path, target: TableTarget) -> None:
        self._directory = directory
        self._target = target

    def log(self) -> LogEngine:
        """The engine of `changes`."""
        from dcpstream_spark.tables.delta_rs import DeltaRsEngine

        target = self._target
        return DeltaRsEngine(self._directory, target.value_format, part="log", keeps_dropped=target.keeps_dropped)

    @contextmanager
    def table(self, name: str, places: Collection[Place]) -> Iterator[TableEngine]:
        """The engine of one table."""
        from dcpstream_spark.tables.delta_rs import DeltaRsEngine

        yield DeltaRsEngine(
            self._directory,
            self._target.value_format,
            table=directory_of(name),
            part="current",
            places=places,
            keeps_dropped=self._target.keeps_dropped,
        )

    def has_views(self) -> bool:
        """No."""
        return False


class SparkParts:
    """Tables that Spark writes; see `dcpstream_spark.tables.engine.Parts`."""

    def __init__(self, name: str, spark: SparkSession, target: TableTarget) -> None:
        from dcpstream_spark.tables.table_formats import FORMATS

        self.name = name
        self._spark = spark
        self._target = target
        self._format = FORMATS[name]()
        self._sessions: deque[Sessions] = deque(maxlen=SESSIONS_KEPT)

    def log(self) -> LogEngine:
        """The engine of `changes`."""
        return self._engine("", (), "log", None)

    @contextmanager
    def table(self, name: str, places: Collection[Place]) -> Iterator[TableEngine]:
        """The engine of one table. Its sessions are used again: making them takes longer than a small commit."""
        try:
            sessions = self._sessions.pop()
        except IndexError:
            sessions = None
        made = self._engine(name, places, "current", sessions)
        try:
            yield made
        finally:
            self._sessions.append(made.sessions)

    def has_views(self) -> bool:
        """Whether tables have views."""
        return self._target.live is not None or self._target.rejects is not None

    def _engine(self, name: str, places: Collection[Place], part: Part, sessions: Sessions | None) -> SparkSqlEngine:
        from dcpstream_spark.tables.spark_sql import KeptTables, SparkSqlEngine

        target = self._target
        named = {
            option: in_catalog(getattr(target, option), name, option) if part == "current" else None
            for option in ("current", "live", "rejects")
        }
        current = Table.of(named["current"], child(child(target.path, directory_of(name)), "current"), self.name)
        tables = KeptTables(
            Table.of(target.changes, child(target.path, "changes"), self.name),
            current,
            target.value_format,
            named["live"],
            named["rejects"],
            part,
            None if part == "log" else places,
            target.keeps_dropped,
        )
        return SparkSqlEngine(self._spark, self._format, tables, sessions)


def _chosen(engine: str, spark: SparkSession, target: TableTarget) -> str:
    if engine not in ENGINES:
        raise ConfigError("engine", engine, f"one of {', '.join(ENGINES)}")
    return _suitable(spark, target) if engine == "auto" else engine


def _suitable(spark: SparkSession, target: TableTarget) -> str:
    names = [name for name in (target.changes, target.current) if name is not None]
    if names and all(_is_iceberg(spark, name) for name in names):
        return "iceberg"
    return "delta" if knows_delta(spark, child(target.path, "changes")) else "delta-rs"


def _is_iceberg(spark: SparkSession, name: str) -> bool:
    """Whether a name is in a catalog of Iceberg's."""
    parts = name.split(".")
    catalog = parts[0].strip("`") if len(parts) > 2 else spark.catalog.currentCatalog()
    return "iceberg" in (spark.conf.get(f"spark.sql.catalog.{catalog}", "") or "")


def _directory(spark: SparkSession, target: TableTarget, *, is_asked_for: bool) -> Path:
    """The directory of the tables of delta-rs."""
    why = "" if is_asked_for else ". Other targets need a session that writes Delta, see `build_session`"
    directory = within_reach(spark, target.path)
    if is_connect(spark):
        message = (
            "the engine delta-rs writes with the disks of this process, and over Spark Connect the tables are the "
            "server's. Start the server with Delta's connector and its settings (spark.sql.extensions, "
            "spark.sql.catalog.spark_catalog), or use a session without Spark Connect"
        )
        raise ConfigError("engine", "delta-rs", "delta or iceberg, over Spark Connect", message=message)
    if directory is None:
        message = f"path cannot be {target.path!r}: the engine delta-rs writes local directories only, no URLs{why}"
        raise ConfigError("path", target.path, "a local directory", message=message)
    if target.is_named:
        message = f"tables have names, and the engine delta-rs does not know Spark's catalogs{why}"
        raise ConfigError("changes, current, live, rejects", "names", "left out", message=message)
    return directory


def _require_format(engine: str, spark: SparkSession, target: TableTarget, *, is_asked_for: bool) -> None:
    """Refuse a session, or a target, that the format cannot have."""
    if engine == "delta":
        if is_asked_for and not knows_delta(spark, child(target.path, "changes")):
            message = (
                "the engine delta needs a session that knows Delta's statements (DESCRIBE HISTORY, MERGE), and this "
                "one does not. Make it with build_session, or set spark.sql.extensions to "
                "io.delta.sql.DeltaSparkSessionExtension and spark.sql.catalog.spark_catalog to "
                "org.apache.spark.sql.delta.catalog.DeltaCatalog, with Delta's jars; or leave engine out"
            )
            raise ConfigError("engine", engine, "a session with Delta", message=message)
        return
    if target.changes is None or target.current is None:
        message = "the engine iceberg needs the names of the tables `changes` and `current` in a catalog of Iceberg's"
        raise ConfigError("engine", engine, "delta, without names of tables", message=message)
