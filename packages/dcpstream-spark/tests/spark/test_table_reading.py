"""A table opened by its path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dcpstream.errors import ConfigError
from dcpstream_spark.tables import compare
from dcpstream_spark.tables.table_reading import _through_delta_rs, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.spark import Bucket

COUNT = 300


@pytest.mark.slow
def test_a_delta_table_is_read_through_its_log(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.set_many("doc", COUNT, "1")
    bucket.delete("doc3")

    def rows() -> pa.Table:
        # A DataFrame keeps its plan, and with it the end of the read, so each read is a new one.
        changes = spark.read.format("dcp").options(**bucket.options).load()
        return changes.where("op = 'mutation'").drop("xattrs").toArrow()

    path = str(tmp_path / "table")
    write_deltalake(path, rows())
    bucket.set(doc5="2")
    assert compare(spark, path, bucket.options).different == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-table").symlink_to(path)
    assert compare(spark, "a-table", bucket.options).different == 1, "a path that cannot be a name"
    # The files of the first version stay in the directory.
    write_deltalake(path, rows(), mode="overwrite")
    for session_reads in (lambda: open_table(spark, path), lambda: _through_delta_rs(spark, path)):
        report = compare(spark, session_reads(), bucket.options, also=("seqno",))
        assert (report.is_equal, report.equal) == (True, COUNT - 1)
    with pytest.raises(ConfigError, match="read as Delta"):
        open_table(spark, path, "parquet")
    with pytest.raises(ConfigError, match="nothing at this path"):
        open_table(spark, str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="catalogs"):
        open_table(spark, "no_such_table")
    with pytest.raises(ConfigError, match="catalogs"):
        open_table(spark, "no-name at all")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no Parquet file"):
        open_table(spark, str(tmp_path / "empty"))
