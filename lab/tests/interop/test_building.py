"""Tests of building: a message names what a machine lacks, and a build is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.interop import building
from lab.interop.building import Missing


def silent(_: str) -> None:
    """Nobody listens."""


def executable(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of programs, and an empty cache."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("sh", "mkdir", "touch"):
        (directory / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    return directory


def test_what_is_not_installed_is_missing(tools: Path) -> None:
    for prepare, lacks in ((building.go, "Go"), (building.java, "java, javac, mvn"), (building.tshark, "tshark")):
        with pytest.raises(Missing, match=lacks):
            prepare(silent)


def test_an_old_compiler_is_missing(tools: Path) -> None:
    executable(tools / "go", "echo go version go1.19.8 linux/amd64")
    with pytest.raises(Missing, match=r"1\.24 or newer is needed, there is: go version go1\.19\.8"):
        building.go(silent)
    executable(tools / "javac", "echo javac 11.0.2")
    executable(tools / "java", "")
    executable(tools / "mvn", "")
    with pytest.raises(Missing, match=r"version 17 or newer is needed"):
        building.java(silent)


def test_the_connector_for_kafka_is_looked_for_in_the_cache(tools: Path) -> None:
    with pytest.raises(Missing, match="not installed: java, mvn"):
        building.kafka(silent)
    executable(tools / "java", "")
    executable(tools / "mvn", "echo no such host >&2; exit 1")
    with pytest.raises(Missing, match="unpack a release of kafka-connect-couchbase into"):
        building.kafka(silent)
    assert building.connector_version() == ""
    directory = building.CACHE / building.CONNECTOR / "couchbase" / "lib"
    directory.mkdir(parents=True)
    (directory / "kafka-connect-couchbase-4.3.1.jar").touch()
    assert building.connector_version() == "4.3.1"
    with pytest.raises(Missing, match="Kafka cannot be had: no such host"):
        building.kafka(silent)
    executable(tools / "mvn", 'for word; do case "$word" in -DoutputDirectory=*) mkdir "${word#*=}";; esac; done')
    command = building.kafka(silent)
    assert command[command.index("-plugins") + 1] == str(building.CACHE / building.CONNECTOR)
    assert Path(command[command.index("-archives") + 1]).is_dir()


def test_no_network_is_missing_and_names_the_reason(tools: Path) -> None:
    executable(
        tools / "go", 'case "$1" in version) echo go version go1.26.1 x;; *) echo no such host >&2; exit 1;; esac'
    )
    with pytest.raises(Missing, match="the modules of gocbcore cannot be had: no such host"):
        building.go(silent)


def test_a_program_is_built_once_and_its_errors_are_ours(tools: Path) -> None:
    said: list[str] = []
    build = 'case "$1" in version) echo go version go1.26.1 x;; build) touch "$3";; esac'
    executable(tools / "go", build)
    (first,) = building.go(said.append)
    assert [building.go(said.append), len(said)] == [[first], 1]
    assert Path(first).exists()
    executable(tools / "go", build.replace("go1.26.1", "go1.26.2"))
    (second,) = building.go(said.append)
    assert second != first
    assert not Path(first).exists()
    executable(tools / "go", 'case "$1" in version) echo go version go1.27.0 x;; build) echo wrong type; exit 1;; esac')
    with pytest.raises(building.BuildError, match="wrong type"):
        building.go(silent)
