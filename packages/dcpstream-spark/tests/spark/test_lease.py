"""A lease on a file system that only Spark reaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcpstream.errors import LeaseRefused
from dcpstream.runtime import SystemClock
from dcpstream_spark.tables.lease import Lease
from dcpstream_spark.tables.small_files import SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_the_second_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    files = SparkFiles(spark, f"file:{tmp_path}/dcp-lease")
    assert files.contents() == {}
    one, other = (Lease(lambda: files, "/data", SystemClock(), wait=lambda _: None) for _ in range(2))
    one.acquire(lambda: True)
    with pytest.raises(LeaseRefused, match="/data: its tables are kept by process"):
        other.acquire(lambda: True)
    one.renew()
    one.release()
    other.acquire(lambda: True)
    assert sorted(files.contents()) == ["2"]
    assert not files.create("2", b"")
    other.release()
