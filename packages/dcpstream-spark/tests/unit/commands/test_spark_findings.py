"""Spark's part of `dcpstream doctor`, on machines that lack something."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the checks are about the Spark that is installed")

from dcpstream.cli.findings import Finding
from dcpstream_spark.commands import spark_findings as findings


def test_the_interpreter_of_the_workers(tmp_path: Path) -> None:
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    assert findings.workers(environ) == Finding("Workers", "ok", f"{sys.executable}, from PYSPARK_PYTHON")
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3.9 True\n", encoding="utf-8")
    other.chmod(0o755)
    found = findings.workers({"PATH": str(tmp_path)})
    assert (found.verdict, found.fix) == ("note", f"export PYSPARK_PYTHON={sys.executable}")
    assert "is Python 3.9" in found.text
    other.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert "has no dcpstream with the Spark source" in findings.workers({"PATH": str(tmp_path)}).text
    wrong = findings.workers({"PYSPARK_PYTHON": "/no/python"})
    assert "cannot be started" in wrong.text
    assert wrong.verdict == "problem", "every session takes PYSPARK_PYTHON"


def test_java_that_is_missing(tmp_path: Path) -> None:
    found = findings._java({"JAVA_HOME": str(tmp_path)})
    assert (found.verdict, found.fix) == ("problem", "pip install 'dcpstream-spark[java]'")


def test_a_spark_without_a_connector_is_reported_with_the_ones_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "4.9.0")
    finding = findings._tables()
    assert finding.verdict == "note"
    assert "no connector of delta is published for Spark 4.9, only for Spark 4.0" in finding.text
