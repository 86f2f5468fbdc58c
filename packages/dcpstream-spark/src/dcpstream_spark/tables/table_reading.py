"""A table by its name, path or URL, as a DataFrame of any session.

A Delta table must be read through its log: its directory also holds files of older versions, and a plain Parquet read
would take them for rows. Without Delta's connector, the log is read with delta-rs and its files with Spark.

A session remembers tables of its catalogs: Iceberg's catalog keeps a version for 30 seconds after its last use, and
Spark a list of files for as long as it likes. So a table by its name is read again. What is behind a view is read again
only by a session that has not seen it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from dcpstream.errors import ConfigError
from dcpstream_spark.tables.location import child, condition_of, exists, located
from dcpstream_spark.tables.sessions import is_connect
from dcpstream_spark.tables.table_formats import knows_delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TableKind: TypeAlias = Literal["auto", "delta", "parquet", "catalog"]

_READABLE_FEATURES = frozenset(("appendOnly", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"))
"""Features of a Delta table that change nothing about how its files are read."""


def is_there(spark: SparkSession, name: str) -> bool:
    """Whether a text is the name of a view or a table, in any catalog; not if it cannot be a name."""
    from pyspark.errors import AnalysisException

    try:
        _ = spark.table(name).schema  # over Spark Connect the name is looked up only now
    except AnalysisException:
        return False
    return True


def open_table(spark: SparkSession, table: str, kind: TableKind = "auto") -> DataFrame:
    """The rows of a table.

    Args:
        spark: the session.
        table: a name in a catalog of the session, a path, or a URL.
        kind: what it is. "auto" takes a text with a slash for a path, and a directory with `_delta_log` for Delta. A
            text without a slash is a path only where this process sees the directory, so never over Spark Connect.

    Raises:
        ConfigError: there is no such table, this session cannot read it, or a relative path over Spark Connect.
    """
    if kind == "auto" and "/" not in table and (is_connect(spark) or not exists(spark, table)):
        kind = "catalog"
    if kind == "catalog":
        if not is_there(spark, table):
            raise ConfigError("table", table, "a table of the session's catalogs, or a path with a slash")
        spark.catalog.refreshTable(table)
        return spark.table(table)
    path = located(spark, "table", table)
    if not exists(spark, path):
        raise ConfigError("table", table, "a table; there is nothing at this path")
    is_delta = exists(spark, child(path, "_delta_log"))
    if kind == "parquet" and is_delta:
        raise ConfigError("table", table, "read as Delta: a plain read of its files takes old versions for rows")
    if not is_delta:
        from pyspark.errors import AnalysisException

        try:
            return spark.read.parquet(path)
        except AnalysisException as error:
            if condition_of(error) != "UNABLE_TO_INFER_SCHEMA":
                raise
            raise ConfigError("table", table, "a directory of Delta or Parquet; this one has no Parquet file") from None
    if knows_delta(spark, path):
        return spark.read.format("delta").load(path)
    if is_connect(spark):
        message = (
            f"table cannot be {table!r}: it is a Delta table, and the server of Spark Connect has no connector of "
            "Delta. Start the server with one, or use a session without Spark Connect"
        )
        raise ConfigError("table", table, "no Delta table", message=message)
    return _through_delta_rs(spark, path)


def _through_delta_rs(spark: SparkSession, path: str) -> DataFrame:
    from deltalake import DeltaTable

    table = DeltaTable(path)
    features = set(table.protocol().reader_features or ())
    if not features <= _READABLE_FEATURES:
        allowed = f"read with Delta's connector: it uses {', '.join(sorted(features - _READABLE_FEATURES))}"
        raise ConfigError("table", path, allowed)
    files = table.file_uris()
    if not files:
        return spark.createDataFrame(table.schema().to_arrow().empty_table())
    return spark.read.option("basePath", path).parquet(*files)
