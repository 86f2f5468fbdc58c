"""The jars of the table formats: which, where from, and what is said if they cannot be had."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark import jars
from dcpstream_spark.jars import CONNECTORS, Jar, JarsUnavailable, connector, resolve
from tests.kit.cases import each_case

SETTINGS = """<ivysettings>
  <settings defaultResolver="local"/>
  <resolvers>
    <filesystem name="local" m2compatible="true">
      <artifact pattern="{repository}/[module]-[revision].[ext]"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""


def jar_of(content: bytes) -> Jar:
    return Jar("org.example", "table_4.2_2.13", "1.0", hashlib.sha256(content).hexdigest())


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, Path]:
    """A directory that serves as repository, and the settings for it."""
    directory = tmp_path / "repository"
    directory.mkdir()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(repository=directory))
    return directory, settings


@each_case("version", ["4.0.5", "4.1.4", "4.2.1"])
def test_delta_has_a_connector_of_its_own_for_each_spark(version: str) -> None:
    names = [jar.module for jar in connector("delta", version)]
    assert names == [f"delta-spark_{version[:3]}_2.13", "delta-storage"]


@each_case(("table_format", "version"), [("delta", "4.3.0"), ("iceberg", "4.2.1")])
def test_a_spark_without_connector_is_refused_with_those_that_have_one(
    table_format: jars.TableFormat, version: str
) -> None:
    newest = {"delta": "4.2", "iceberg": "4.1"}[table_format]
    with pytest.raises(ConfigError, match=rf"Spark {version[:3]}, only for Spark .*{newest}.*pyspark=={newest}"):
        connector(table_format, version)


def test_a_jar_that_is_there_needs_no_java_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_fetch", None)
    wanted = CONNECTORS["delta", "4.2"]
    for jar in wanted:
        (tmp_path / jar.file_name).touch()
    assert resolve(wanted, tmp_path) == [tmp_path / jar.file_name for jar in wanted]


def test_a_jar_is_fetched_once(tmp_path: Path, repository: tuple[Path, Path]) -> None:
    directory, settings = repository
    jar = jar_of(b"the jar")
    (directory / jar.file_name).write_bytes(b"the jar")
    target = tmp_path / "jars"
    assert resolve([jar], target, ivy_settings=settings) == [target / jar.file_name]
    (directory / jar.file_name).unlink()
    assert [file.read_bytes() for file in resolve([jar], target, ivy_settings=settings)] == [b"the jar"]
    assert [file.name for file in target.iterdir()] == [jar.file_name]


def test_another_jar_of_that_name_is_refused(tmp_path: Path, repository: tuple[Path, Path]) -> None:
    directory, settings = repository
    jar = jar_of(b"the jar")
    (directory / jar.file_name).write_bytes(b"another")
    with pytest.raises(JarsUnavailable, match="has the SHA-256"):
        resolve([jar], tmp_path / "jars", ivy_settings=settings)
    assert list((tmp_path / "jars").iterdir()) == []


def test_a_jar_that_cannot_be_had_is_named_with_its_directory(tmp_path: Path, repository: tuple[Path, Path]) -> None:
    jar = jar_of(b"the jar")
    with pytest.raises(JarsUnavailable, match=f"not found.*with a network, or copy {jar.file_name} into {tmp_path}"):
        resolve([jar], tmp_path / "jars", ivy_settings=repository[1])


def test_the_directory_is_in_the_cache_or_the_one_of_the_environment(tmp_path: Path) -> None:
    assert jars.jars_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "dcpstream" / "jars"
    assert jars.jars_directory({"DCPSTREAM_JARS": "/opt/jars", "XDG_CACHE_HOME": str(tmp_path)}) == Path("/opt/jars")
