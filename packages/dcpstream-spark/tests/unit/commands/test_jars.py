from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcpstream.errors import ConfigError
from dcpstream_spark.commands.jars import jars_command
from dcpstream_spark.jars import CONNECTORS


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with empty jars for every Spark."""
    monkeypatch.setenv("DCPSTREAM_JARS", str(tmp_path))
    for jar in {jar for connector in CONNECTORS.values() for jar in connector}:
        (tmp_path / jar.file_name).touch()
    return tmp_path


def printed(*arguments: str) -> str:
    return CliRunner().invoke(jars_command, list(arguments), catch_exceptions=False).output


def test_the_paths_are_printed_one_a_line(directory: Path) -> None:
    paths = [directory / jar.file_name for jar in CONNECTORS["delta", "4.1"]]
    assert printed("delta", "--for-spark", "4.1") == "".join(f"{path}\n" for path in paths)


def test_the_settings_are_arguments_of_spark_submit(directory: Path) -> None:
    out = printed("delta", "--for-spark", "4.2.1", "--show", "conf")
    assert out.startswith(f"--conf spark.jars={directory}/delta-spark_4.2_2.13-4.4.0.jar,{directory}/delta-storage")
    assert "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in out


def test_both_in_json(directory: Path) -> None:
    found = json.loads(printed("delta", "--for-spark", "4.2.1", "--json"))
    assert found["settings"]["spark.jars"] == ",".join(found["jars"])
    assert "spark.sql.extensions" in found["settings"]


def test_a_spark_without_connector_is_an_error(directory: Path) -> None:
    with pytest.raises(ConfigError, match="only for Spark"):
        printed("iceberg", "--for-spark", "4.3")
