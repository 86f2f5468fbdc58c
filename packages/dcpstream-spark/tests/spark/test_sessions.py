"""The tables in every kind of session: over Spark Connect, and where Delta is built in; see `session_stories`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from dcpstream_spark import jars
from dcpstream_spark.jars import CONNECTORS
from lab.tools.patience import patient
from tests.kit.deployment import connect_server, jar_of_built_in_delta
from tests.spark.test_deployments import require_connect

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

SERIES = pyspark.__version__.rpartition(".")[0]


def require_delta() -> str:
    """The jars of Delta, with commas."""
    if ("delta", SERIES) not in CONNECTORS:
        pytest.skip(f"no connector of delta is published for Spark {SERIES}")
    return ",".join(str(file) for file in jars.resolve(jars.connector("delta", pyspark.__version__)))


def play(kind: str, path: Path, place: str, *stories: str) -> None:
    command = [sys.executable, "-m", "tests.spark.session_stories", kind, str(path), place, *stories]
    # The path of this process has the folder whose `tests` this module is in.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(300), check=False)
    assert done.stdout.count("exact") == len(stories), f"{done.stdout}\n{done.stderr[-6000:]}"


def play_over_connect(tmp_path: Path, *stories: str) -> None:
    require_connect()
    if SERIES == "4.0":
        pytest.skip("Spark Connect makes sessions of one's own since Spark 4.1")
    with connect_server(tmp_path, require_delta()) as url:
        play("connect", tmp_path, url, *stories)


@pytest.mark.every_spark
def test_a_pipeline_over_spark_connect(tmp_path: Path) -> None:
    play_over_connect(tmp_path, "files", "pipeline", "client")


def test_the_engine_is_exact_over_spark_connect(tmp_path: Path) -> None:
    play_over_connect(tmp_path, "engine", "history", "tables", "views", "folds", "killed")


@pytest.mark.parametrize("story", ["all", "typed"])
def test_every_story_over_spark_connect(tmp_path: Path, story: str) -> None:
    play_over_connect(tmp_path, story)


@pytest.mark.every_spark
def test_a_pipeline_where_delta_is_built_in(tmp_path: Path) -> None:
    """The list of extensions is empty, and yet the session knows Delta's statements."""
    delta = require_delta()
    if shutil.which("javac") is None or shutil.which("jar") is None:
        pytest.skip("the extension of this test is compiled with javac")
    play(
        "built-in",
        tmp_path,
        f"{delta},{jar_of_built_in_delta(tmp_path, delta)}",
        "pipeline",
        "engine",
        "history",
        "files",
        "views",
    )
