"""The place of a pipeline's files: a local directory, or a URL of a file system that Spark can write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dcpstream.errors import ConfigError
from dcpstream_spark.files import is_url, local_directory
from dcpstream_spark.tables.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def within_reach(spark: SparkSession | None, path: str | Path) -> Path | None:
    """The local directory of a path, if this process has the disk that the session means.

    Over Spark Connect a path is one of the server's.
    """
    return None if is_connect(spark) else local_directory(path)


def located(spark: SparkSession | None, option: str, path: str | Path) -> str:
    """The path as everyone understands it, wherever they work: a URL, or absolute.

    Raises:
        ConfigError: a relative path over Spark Connect.
    """
    local = within_reach(spark, path)
    text = str(path) if local is None else str(local)
    if not text.startswith("/") and not is_url(text):
        message = (
            f"{option} cannot be {text!r}: over Spark Connect a path is one of the server's, whose working directory "
            "this process does not know. Give an absolute path or a URL"
        )
        raise ConfigError(option, text, "an absolute path or a URL, over Spark Connect", message=message)
    return text


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
