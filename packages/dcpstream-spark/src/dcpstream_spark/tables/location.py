"""The place of a pipeline's files: a local directory, or a URL of a file system that Spark can write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""A scheme with one slash counts, too: `pathlib` makes `s3:/bucket` of `s3://bucket`."""


def local_directory(path: str | Path) -> Path | None:
    """The absolute local directory of a path or of a `file:` URL; None for every other URL."""
    text = str(path)
    if not _URL.match(text):
        return Path(text).absolute()
    parts = urlsplit(text)
    return Path(unquote(parts.path)) if parts.scheme.lower() == "file" and parts.netloc in {"", "localhost"} else None


def child(path: str, name: str) -> str:
    """The name of a member of a directory."""
    return f"{path.rstrip('/')}/{name}"


def exists(spark: SparkSession, path: str) -> bool:
    """Whether a file exists, on any file system of the session."""
    local = local_directory(path)
    if local is not None:
        return local.exists()
    assert spark._jvm is not None
    location = spark._jvm.org.apache.hadoop.fs.Path(path)
    return bool(location.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).exists(location))
