from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark.jars import CONNECTORS, JarsUnavailable
from dcpstream_spark.masters import local_master
from dcpstream_spark.session import (
    LOG_CONFIGURATION,
    SHORT_RUN,
    build_session,
    cluster_partitions,
    recommended_settings,
    session_settings,
    warehouse_settings,
)
from lab.tools.patience import patient
from tests.kit.cases import each_case

JVM = "spark.driver.defaultJavaOptions"


def test_settings_for_one_machine() -> None:
    settings = recommended_settings(3)
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.scheduler.mode"] == "FAIR", "the tasks of a batch would wait for those of a fold"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.sql.streaming.checkpointFileManagerClass"].endswith(
        ".checkpointing.FileSystemBasedCheckpointFileManager"
    )


def test_a_failed_task_is_run_again_on_one_machine_too() -> None:
    assert local_master(3) == "local[3,4]"


def test_the_local_checkpoint_manager_is_not_for_a_cluster() -> None:
    assert "spark.sql.streaming.checkpointFileManagerClass" not in recommended_settings(8, is_local=False)


def test_the_format_is_found_by_name() -> None:
    import pyspark_dcpstream

    assert pyspark_dcpstream.DefaultSource.name() == "dcp"


def test_what_spark_registers_makes_the_source() -> None:
    import pyspark_dcpstream
    from dcpstream_spark.data_source import DcpDataSource

    assert type(pyspark_dcpstream.DefaultSource({"bucket": "travel"})) is DcpDataSource


def test_the_look_up_of_a_format_loads_little() -> None:
    """Spark looks formats up in a process of its own, for every query."""
    code = (
        "import sys, pyspark_dcpstream\n"
        "heavy = {'numpy', 'pyarrow', 'asyncio', 'aiohttp', 'dcpstream.client', 'dcpstream_spark.data_source'}\n"
        "print(pyspark_dcpstream.DefaultSource.name(), sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(60), check=True)
    assert done.stdout.strip() == "dcp []"


def test_a_reader_loads_no_node_and_no_asyncio_client() -> None:
    code = (
        "import sys, dcpstream_spark.data_source, dcpstream_spark.source.reading\n"
        "heavy = ('asyncio', 'aiohttp', 'dcpstream_node', 'dcpstream.client.aio', 'dcpstream.client.kv')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(60), check=True)
    assert done.stdout.strip() == "[]"


def test_without_its_libraries_the_format_is_not_there_and_nothing_fails() -> None:
    hide = (
        "import sys; sys.modules['pyarrow'] = None; import pyspark_dcpstream as p; print(hasattr(p, 'DefaultSource'))"
    )
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=patient(60), check=True)
    assert done.stdout.strip() == "False"


def test_the_package_itself_does_not_load_spark() -> None:
    code = "import dcpstream_spark, sys; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(60), check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without settings for Spark, and a directory with empty jars."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # so that it is restored, also if it was not set
        monkeypatch.delenv(name)
    monkeypatch.setenv("DCPSTREAM_JARS", str(tmp_path))
    for jar in {jar for connector in CONNECTORS.values() for jar in connector}:
        (tmp_path / jar.file_name).touch()
    return tmp_path


def with_spark(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)


def test_a_session_writes_delta_tables_by_default(environ: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_spark("4.2.1", monkeypatch)
    settings = session_settings()
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    names = [Path(file).name for file in settings["spark.jars"].split(",")]
    assert names == ["delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"]


def test_workers_run_this_python_unless_the_environment_names_one(
    environ: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/opt/python")
    session_settings(tables=None)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "/opt/python"


def test_a_python_of_the_user_is_also_the_one_of_data_sources(environ: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    session_settings(tables=None)
    # Spark's executors would run a data source with this one instead.
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ


def test_without_a_connector_the_default_is_no_tables_and_delta_is_refused(
    environ: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_spark("4.3.0", monkeypatch)
    assert "spark.jars" not in session_settings()
    with pytest.raises(ConfigError, match=r"Spark 4\.3"):
        session_settings(tables="delta")


def test_without_jars_the_default_is_a_warning_and_delta_an_error(
    environ: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable(*_: object) -> None:
        raise JarsUnavailable("no network")

    monkeypatch.setattr("dcpstream_spark.jars.resolve", unavailable)
    assert "spark.jars" not in session_settings()
    assert "cannot write Delta tables: no network" in caplog.text
    with pytest.raises(JarsUnavailable):
        session_settings(tables="delta")


def test_iceberg_is_a_catalog_in_the_warehouse(environ: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_spark("4.1.4", monkeypatch)
    settings = session_settings(tables="iceberg", warehouse=tmp_path / "warehouse")
    assert settings["spark.sql.catalog.iceberg.warehouse"] == f"{tmp_path}/warehouse/iceberg"
    assert Path(settings["spark.jars"]).name == "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"


def test_a_session_may_write_several_formats(environ: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_spark("4.1.4", monkeypatch)
    settings = session_settings(tables=("delta", "iceberg"))
    assert len(settings["spark.jars"].split(",")) == 3
    assert [name.split(".")[1] for name in settings["spark.sql.extensions"].split(",")] == ["delta", "apache"]
    assert {"spark.sql.catalog.spark_catalog", "spark.sql.catalog.iceberg"} <= settings.keys()


@pytest.mark.parametrize(
    ("master", "host"),
    [
        (None, "127.0.0.1"),
        ("local[2]", "127.0.0.1"),
        ("local-cluster[2,1,512]", "127.0.0.1"),
        ("spark://head:7077", None),
        ("yarn", None),
        ("k8s://https://head:6443", None),
    ],
)
def test_executors_of_other_machines_reach_the_driver(
    environ: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str | None, host: str | None
) -> None:
    given: dict[str, str] = {}

    class Builder:
        def config(self, key: str, value: str) -> Builder:
            given[key] = value
            return self

        def appName(self, _: str) -> Builder:  # noqa: N802 - Spark's name
            return self

        def master(self, name: str) -> Builder:
            given["master"] = name
            return self

        def getOrCreate(self) -> Any:  # noqa: N802 - Spark's name
            return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None))

    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
    build_session(master=master, tables=None)
    assert given["master"] in {master, "local[2,4]", local_master(os.cpu_count() or 1)}
    assert master != "local[2]" or given["master"] == "local[2,4]", "failed tasks are run again"
    assert given.get("spark.driver.host") == given.get("spark.driver.bindAddress") == host
    quiet = f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()} -Ddcpstream.logLevel="
    assert given[JVM] == f"{quiet}ERROR", "long loads need the slow compiler"
    build_session(master=master, tables=None, warehouse=tmp_path, settings=SHORT_RUN, log_level="INFO")
    assert given[JVM] == f"-Dderby.stream.error.file={tmp_path}/derby.log {quiet}INFO"
    assert SHORT_RUN.items() <= given.items()
    # The user's own configuration of the log counts.
    (tmp_path / "log4j2.xml").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    build_session(master=master, tables=None)
    assert given[JVM] == ""


def test_nothing_lies_in_the_working_directory(tmp_path: Path) -> None:
    lasting = warehouse_settings(tmp_path)
    assert lasting["spark.sql.catalogImplementation"] == "hive"
    assert f"databaseName={tmp_path}/metastore;" in lasting["spark.hadoop.javax.jdo.option.ConnectionURL"]
    temporary = Path(warehouse_settings(None)["spark.sql.warehouse.dir"])
    assert temporary.is_dir()
    assert Path.cwd() not in temporary.parents


@each_case(("cores", "tasks"), [(1, 1), (12, 12), (5_000, 1024), (None, None)])
def test_tasks_follow_the_cores_of_the_cluster(cores: int | None, tasks: int | None) -> None:
    plan = "Scan" if cores is None else f"== Physical Plan ==\n*(1) Range (0, 1, step=1, splits={cores})\n"
    session: Any = SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: [(plan,)]))
    assert cluster_partitions(session) == tasks


@pytest.mark.parametrize(
    ("checkpoint", "is_set"), [(None, True), ("/data", True), ("file:/data", True), ("s3a://bucket/data", False)]
)
def test_the_manager_of_checkpoints_follows_their_place(checkpoint: str | None, is_set: bool) -> None:
    settings = session_settings(tables=None, checkpoint=checkpoint)
    assert ("spark.sql.streaming.checkpointFileManagerClass" in settings) == is_set
