"""Ways to deploy a job, each run as its users run it: spark-submit to a cluster, Connect, declarative pipelines."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.kit.deployment import (
    SPARK_HOME,
    add_package,
    bare_python,
    code_archive,
    connect_port,
    environment,
    note_starts,
    run_job,
    standalone_cluster,
)
from tests.kit.spark import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DOCUMENTS = 2000

JOB = """
import os, signal, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

connection_string, out, mark = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
access = {"connectionString": connection_string, "username": "Administrator", "password": "password"}
options = {**access, "bucket": "default", "numPartitions": "4", "minPartitions": "4", "columns": "key,vbucket,seqno"}
print("batch", spark.read.format("dcp").options(**options).load().select("key").distinct().count())

def trouble(key):
    # The first attempt of one task never ends; the first of another ends its executor, in the middle of its rows.
    task = TaskContext.get()
    if mark == "slow" and task.partitionId() == 0 and task.attemptNumber() == 0:
        time.sleep(3600)
    if mark != "slow" and task.partitionId() == 1 and not os.path.exists(mark):
        Path(mark).touch()
        daemon = os.getppid()
        jvm = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(jvm, signal.SIGKILL)
    return True

stream = spark.readStream.format("dcp").options(**options, startingOffsets="earliest").load()
query = (
    stream.where(udf(trouble, "boolean", useArrow=False)("key"))
    .writeStream.format("parquet").option("path", f"{out}/rows").option("checkpointLocation", f"{out}/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""


def submit(bucket: Bucket, directory: Path, python: Path, master: str, mark: str, *arguments: str, **sent: str) -> str:
    (directory / "job.py").write_text(JOB)
    settings = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": directory.as_uri(),
        "spark.speculation": str(mark == "slow").lower(),
        "spark.speculation.quantile": "0.5",
    }
    given = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, *given, *arguments]
    command += ["job.py", bucket.node.connection_string, str(directory / "out"), mark]
    return run_job(command, environment(python, **sent), directory).stdout


def assert_exact(directory: Path) -> None:
    """The sink's log names the files that count."""
    names = [
        json.loads(line)["path"].removeprefix("file://")
        for log in sorted((directory / "out" / "rows" / "_spark_metadata").iterdir())
        if log.name.isdigit()
        for line in log.read_text().splitlines()[1:]
    ]
    rows = ds.dataset(names, format="parquet").to_table().to_pylist()
    assert len(rows) == DOCUMENTS
    assert {row["key"] for row in rows} == {f"k{n}" for n in range(DOCUMENTS)}


@pytest.fixture
def filled(bucket: Bucket) -> Bucket:
    bucket.set_many("k", DOCUMENTS, "x" * 100)
    return bucket


def test_on_a_cluster_with_py_files_a_copy_of_a_slow_task_adds_no_row(filled: Bucket, tmp_path: Path) -> None:
    python = bare_python(tmp_path)
    code_archive(tmp_path)
    with standalone_cluster(tmp_path, python) as master:
        arguments = ["--py-files", "dcpstream.zip", "--conf", "spark.executorEnv.PYTHONPATH=dcpstream.zip"]
        out = submit(filled, tmp_path, python, master, "slow", *arguments, PYTHONPATH="dcpstream.zip")
    assert f"batch {DOCUMENTS}" in out
    assert_exact(tmp_path)
    logs = "".join(log.read_text() for log in tmp_path.glob("eventlog*/events*"))
    assert '"Speculative":true' in logs


def test_on_a_cluster_with_an_archive_a_lost_executor_adds_no_row(filled: Bucket, tmp_path: Path) -> None:
    python, mark, notes = bare_python(tmp_path), tmp_path / "killed", tmp_path / "notes"
    add_package(python, code_archive(tmp_path))
    note_starts(python, notes)
    with tarfile.open(tmp_path / "python.tar.gz", "w:gz") as archive:
        archive.add(python.parents[1], arcname=".")
    with standalone_cluster(tmp_path, python) as master:
        arguments = ["--archives", "python.tar.gz#python"]
        sent = {"PYSPARK_PYTHON": "./python/bin/python"}
        out = submit(filled, tmp_path, python, master, str(mark), *arguments, **sent)
    assert mark.exists()
    assert f"batch {DOCUMENTS}" in out
    assert_exact(tmp_path)
    # The executors, which run in directories of the cluster's workers, used what was sent to them.
    on_executors = {line.split()[0] for line in notes.read_text().splitlines() if "'pyspark.worker'" in line}
    assert on_executors
    assert all("/work" in prefix for prefix in on_executors)


CONNECT = """
import sys
from pyspark.sql import SparkSession

connection_string, out = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.driver.memory", "1g").getOrCreate()
access = {"connectionString": connection_string, "username": "Administrator", "password": "password"}
options = {**access, "bucket": "default"}
print(type(spark).__module__, "batch", spark.read.format("dcp").options(**options).load().count())
query = (
    spark.readStream.format("dcp").options(**options, startingOffsets="earliest", columns="key").load()
    .writeStream.format("parquet").option("path", f"{out}/rows").option("checkpointLocation", f"{out}/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print("stream", spark.read.parquet(f"{out}/rows").distinct().count())
try:
    spark.read.format("dcp").options(**{**options, "password": "wrong"}).load().count()
except Exception as error:
    print("error", "check username and password" in str(error), "Traceback" in str(error))
spark.stop()
"""


def require_connect() -> None:
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("pandas") is None:
        pytest.skip("Spark Connect needs the packages of pyspark[connect]; make test-spark-matrix has them")


@pytest.mark.every_spark
def test_over_spark_connect(filled: Bucket, tmp_path: Path) -> None:
    require_connect()
    (tmp_path / "job.py").write_text(CONNECT)
    environ = environment(Path(sys.executable), PYTHONPATH=":".join(sys.path))
    with connect_port():
        command = [sys.executable, "job.py", filled.node.connection_string, str(tmp_path / "out")]
        out = run_job(command, environ, tmp_path)
    assert f"pyspark.sql.connect.session batch {DOCUMENTS}" in out.stdout
    assert f"stream {DOCUMENTS}" in out.stdout
    assert "error True False" in out.stdout


TABLES = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
options = {options!r}

@dp.table
def changes():
    return spark.readStream.format("dcp").options(**options, startingOffsets="earliest").load()

@dp.materialized_view
def documents():
    # Not `distinct()`: to find its columns, Spark 4.2 looks for the table at once, which is not there yet.
    return spark.read.table("changes").where("op = 'mutation'").groupBy("key").count()
"""
SPEC = """
name: buckets
storage: {storage}
libraries:
  - glob:
      include: tables.py
"""


@pytest.mark.every_spark
def test_in_a_declarative_pipeline(filled: Bucket, tmp_path: Path) -> None:
    if not (SPARK_HOME / "bin" / "spark-pipelines").exists():
        pytest.skip("Spark has declarative pipelines since 4.1")
    require_connect()
    (tmp_path / "tables.py").write_text(TABLES.format(options=filled.options))
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    environ = environment(Path(sys.executable), PYTHONPATH=":".join(sys.path))
    command = [str(SPARK_HOME / "bin" / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
    command += ["--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}", "--conf", "spark.driver.memory=1g"]
    with connect_port():
        run_job(command, environ, tmp_path)
    files = list((tmp_path / "warehouse").rglob("documents/**/*.parquet"))
    assert ds.dataset(files, format="parquet").count_rows() == DOCUMENTS


PLAIN = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m")
if sys.argv[2] == "with settings":
    from dcpstream_spark import session_settings

    builder = builder.config(map=session_settings(tables=None))
spark = builder.getOrCreate()
access = {"connectionString": sys.argv[1], "username": "Administrator", "password": "password", "bucket": "default"}
try:
    print("batch", spark.read.format("dcp").options(**access).load().count())
except Exception as error:
    print("error", str(error).partition("Traceback")[0])
spark.stop()
"""


@pytest.mark.parametrize(
    ("how", "printed"), [("with settings", f"batch {DOCUMENTS}"), ("plain", "[DATA_SOURCE_NOT_FOUND]")]
)
def test_in_an_environment_that_is_not_activated(filled: Bucket, tmp_path: Path, how: str, printed: str) -> None:
    """Spark starts the `python3` of PATH for its workers, here one without packages, unless it is told another."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (tmp_path / "job.py").write_text(PLAIN)
    known = environment(Path(sys.executable))
    environ = {name: value for name, value in known.items() if not name.startswith("PYSPARK_")}
    environ["PATH"] = f"{bare / 'bin'}:{environ['PATH']}"
    out = run_job([str(with_code(tmp_path)), "job.py", filled.node.connection_string, how], environ, tmp_path)
    assert printed in out.stdout


def with_code(directory: Path) -> Path:
    """An interpreter with all packages and dcpstream, in an environment that is not on PATH."""
    python = bare_python(directory)
    add_package(python, code_archive(directory))
    return python
