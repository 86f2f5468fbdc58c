"""The choice of the engine that writes a pipeline's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcpstream.arrow import ValueFormat
from dcpstream.errors import ConfigError
from dcpstream_spark.tables.engine import TableEngine
from dcpstream_spark.tables.location import child, local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = ("auto", "delta", "iceberg", "delta-rs")

_EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The tables to write.

    Attributes:
        path: the pipeline's directory: absolute, or a URL.
        value_format: "binary" or "string", the type of `value`.
        changes, current, live, rejects: names in a catalog; None for `changes` and `current` in the directory, and for
            no view.
    """

    path: str
    value_format: ValueFormat
    changes: str | None = None
    current: str | None = None
    live: str | None = None
    rejects: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether a table or view has a name in a catalog."""
        return any(name is not None for name in (self.changes, self.current, self.live, self.rejects))


def choose_engine(engine: str, spark: SparkSession, target: TableTarget) -> TableEngine:
    """The engine by its name.

    Args:
        engine: "delta" and "iceberg" write with Spark, "delta-rs" without it; "auto" for what suits the session and the
            target: Iceberg for names in a catalog of Iceberg's, Delta in a session with Delta's extension, else
            delta-rs.
        spark: the session.
        target: the tables.

    Raises:
        ConfigError: an unknown engine, or one that cannot write the target.
    """
    if engine not in ENGINES:
        raise ConfigError("engine", engine, f"one of {', '.join(ENGINES)}")
    chosen = _suitable(spark, target) if engine == "auto" else engine
    if chosen == "delta-rs":
        return _delta_rs(target, is_asked_for=engine != "auto")
    return _spark_sql(chosen, spark, target)


def _suitable(spark: SparkSession, target: TableTarget) -> str:
    names = [name for name in (target.changes, target.current) if name is not None]
    if names and all(_is_iceberg(spark, name) for name in names):
        return "iceberg"
    if _EXTENSIONS["delta"] in (spark.conf.get("spark.sql.extensions", "") or ""):
        return "delta"
    return "delta-rs"


def _is_iceberg(spark: SparkSession, name: str) -> bool:
    """Whether a name is in a catalog of Iceberg's."""
    parts = name.split(".")
    catalog = parts[0].strip("`") if len(parts) > 2 else spark.catalog.currentCatalog()
    return "iceberg" in (spark.conf.get(f"spark.sql.catalog.{catalog}", "") or "")


def _delta_rs(target: TableTarget, *, is_asked_for: bool) -> TableEngine:
    from dcpstream_spark.tables.delta_rs import DeltaRsEngine

    why = "" if is_asked_for else ". Other targets need a session with Delta's extension, see `build_session`"
    directory = local_directory(target.path)
    if directory is None:
        message = f"path cannot be {target.path!r}: the engine delta-rs writes local directories only, no URLs{why}"
        raise ConfigError("path", target.path, "a local directory", message=message)
    if target.is_named:
        message = f"tables have names, and the engine delta-rs does not know Spark's catalogs{why}"
        raise ConfigError("changes, current, live, rejects", "names", "left out", message=message)
    return DeltaRsEngine(directory, target.value_format)


def _spark_sql(engine: str, spark: SparkSession, target: TableTarget) -> TableEngine:
    from dcpstream_spark.tables.spark_sql import SparkSqlEngine
    from dcpstream_spark.tables.table_formats import FORMATS, Table

    if _EXTENSIONS[engine] not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise ConfigError("engine", engine, f"a session with {_EXTENSIONS[engine]} in spark.sql.extensions")
    if engine == "iceberg" and (target.changes is None or target.current is None):
        message = "the engine iceberg needs the names of the tables `changes` and `current` in a catalog of Iceberg's"
        raise ConfigError("engine", engine, "delta, without names of tables", message=message)
    changes, current = (
        Table.of(name, child(target.path, directory), engine)
        for name, directory in ((target.changes, "changes"), (target.current, "current"))
    )
    return SparkSqlEngine(spark, FORMATS[engine](), changes, current, target.value_format, target.live, target.rejects)
