"""Where a path is, with a session of Python's in the place of Spark's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark import Pipeline
from dcpstream_spark.tables.location import located
from dcpstream_spark.tables.table_reading import open_table

CONNECT: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
CLASSIC: Any = type("SparkSession", (), {"__module__": "pyspark.sql.session"})()


def test_a_local_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located(CLASSIC, "path", "a/b") == str(tmp_path / "a" / "b")
    assert located(CLASSIC, "path", "file:///a/b") == "/a/b"
    assert located(CLASSIC, "path", "s3a://bucket/a") == "s3a://bucket/a"


def test_over_spark_connect_a_path_is_the_servers_and_stays_as_it_is() -> None:
    for given in ("/a/b", "file:/a/b", "s3a://bucket/a"):
        assert located(CONNECT, "path", given) == given
    assert located(CONNECT, "path", Path("/a/b")) == "/a/b"


def test_over_spark_connect_a_relative_path_is_refused() -> None:
    """This process would take it for one of its own directory, and the server for one of its."""
    with pytest.raises(ConfigError, match=r"table cannot be 'a/b': over Spark Connect.*absolute path or a URL"):
        open_table(CONNECT, "a/b")
    with pytest.raises(ConfigError, match=r"path cannot be 'a': over Spark Connect"):
        Pipeline(
            CONNECT, "a", {"connectionString": "couchbase://h", "bucket": "default", "username": "u", "password": "p"}
        )
