"""The findings of `dcpstream doctor` about Spark: a Java runtime, its Python workers, the jars of Delta."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping

from dcpstream.cli.findings import Finding, Verdict
from dcpstream.errors import ConfigError
from dcpstream_spark import jars
from dcpstream_spark.java import ensure_java, java_program, java_version

WORKER_TIMEOUT_S = 60.0
"""Limit for a Python process that imports what Spark's workers need; on a busy machine it takes seconds."""


def spark_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about this machine, for the Spark that is installed."""
    yield _spark()
    yield _java(environ)
    yield workers(environ)
    yield _tables()


def _spark() -> Finding:
    version = importlib.metadata.version("pyspark")
    if int(version.partition(".")[0]) < 4:
        text = f"pyspark {version} is too old: the source needs Spark 4.0 or newer"
        return Finding("Spark", "problem", text, "pip install --upgrade dcpstream-spark")
    return Finding("Spark", "ok", f"pyspark {version}")


def _java(environ: Mapping[str, str]) -> Finding:
    own = dict(environ)
    try:
        source = ensure_java(own)
    except ConfigError as error:
        return Finding(
            "Java", "problem", f"Spark finds no Java that it can use: {error}", "pip install 'dcpstream-spark[java]'"
        )
    program = java_program(own)
    return Finding("Java", "ok", f"{java_version(program)} at {program}, from {source.value}")


def workers(environ: Mapping[str, str]) -> Finding:
    """The interpreter that Spark starts for its Python workers, and whether it has what they need.

    `session_settings` and `build_session` choose this interpreter if PYSPARK_PYTHON is not set. A session of the user's
    own takes the python3 of PATH then, so another python3 there is a problem for some users only.
    """
    bad: Verdict = "problem" if environ.get("PYSPARK_PYTHON") else "note"
    given = environ.get("PYSPARK_PYTHON", "")
    program = given or shutil.which("python3", path=environ.get("PATH")) or "python3"
    why = "from PYSPARK_PYTHON" if given else "the python3 of PATH, because PYSPARK_PYTHON is not set"
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    code = "import sys, pyspark_dcpstream as p; print('%d.%d' % sys.version_info[:2], hasattr(p, 'DefaultSource'))"
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that Spark would start
            [program, "-c", code],
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT_S,
            check=False,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Workers", bad, f"{program} ({why}) cannot be started: {error}", fix)
    version, _, has_source = done.stdout.strip().partition(" ")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if done.returncode or has_source != "True":
        return Finding("Workers", bad, f"{program} ({why}) has no dcpstream with the Spark source", fix)
    if version != own:
        text = f"{program} ({why}) is Python {version}, and this one is {own}: Spark wants the same in both"
        return Finding("Workers", bad, text, fix)
    return Finding("Workers", "ok", f"{program}, {why}")


def _tables() -> Finding:
    version = importlib.metadata.version("pyspark")
    try:
        names = [jar.file_name for jar in jars.connector("delta", version)]
    except ConfigError as error:
        return Finding("Tables", "note", str(error))
    directory = jars.jars_directory()
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        text = f"Delta's connector is not fetched yet: {directory} lacks {', '.join(missing)}"
        return Finding("Tables", "note", text, "dcpstream jars delta")
    return Finding("Tables", "ok", f"Delta's connector for Spark {version} is in {directory}")
