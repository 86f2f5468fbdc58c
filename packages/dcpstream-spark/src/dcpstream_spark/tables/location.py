"""The place of a pipeline's files: a local directory, or a URL of a file system that Spark can write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dcpstream_spark.files import local_directory
from dcpstream_spark.tables.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def within_reach(spark: SparkSession | None, path: str | Path) -> Path | None:
    """The local directory of a path, if this process has the disk that the session means.

    Over Spark Connect a path is one of the server's.
    """
    return None if is_connect(spark) else local_directory(path)


def child(path: str, name: str) -> str:
    """The name of a member of a directory."""
    return f"{path.rstrip('/')}/{name}"


def exists(spark: SparkSession, path: str) -> bool:
    """Look whether a path has a file or a directory, on any file system of the session."""
    from pyspark.errors import AnalysisException

    local = within_reach(spark, path)
    if local is not None:
        return local.exists()
    try:
        # Spark looks for the path, and reads nothing.
        _ = spark.read.format("binaryFile").load(path).schema
    except AnalysisException as error:
        if condition_of(error) == "PATH_NOT_FOUND":
            return False
        raise
    return True


def condition_of(error: Exception) -> str:
    """The name of an error of Spark's, such as PATH_NOT_FOUND; empty if it has none."""
    asked = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return "" if asked is None else asked() or ""
