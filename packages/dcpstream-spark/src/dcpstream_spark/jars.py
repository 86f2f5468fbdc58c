"""The jars of the table formats Delta and Iceberg, for the Spark that is installed.

PySpark has no connector for either. This module knows the public jar that fits each version of Spark, fetches it once
with the Ivy that every PySpark brings along, checks its SHA-256 and keeps it in a directory. Afterwards no network is
needed. Only the few jars of the table are fetched: without Spark's own libraries and Hadoop, which the connectors'
descriptions ask for too (87 MB), because Spark has them already.

`DCPSTREAM_JARS` names another directory. Jars that somebody has put there under the same names are used as they are.
`DCPSTREAM_IVY_SETTINGS` names a settings file of Ivy, for a repository of one's own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream_spark.java import ensure_java, java_program, user_cache_dir

TableFormat = Literal["delta", "iceberg"]

FETCH_TIMEOUT_S = 600.0
"""Time limit of one fetch. The largest connector has 48 MB; a slow line of 1 Mbit/s takes 6 minutes for it."""

_logger = logging.getLogger(__name__)

_IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="dcpstream" module="jars"/>
  <configurations defaultconf="default"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


class JarsUnavailable(DcpstreamError):
    """The jars of a table format could not be fetched; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar in a public repository.

    Attributes:
        organisation, module, revision: its coordinates.
        sha256: of the file, in hex; a fetched file with another sum is refused.
    """

    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name in the directory of jars."""
        return f"{self.module}-{self.revision}.jar"

    @property
    def coordinates(self) -> str:
        """As Spark's option `spark.jars.packages` writes them."""
        return f"{self.organisation}:{self.module}:{self.revision}"


_DELTA_STORAGE = Jar(
    "io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
)


def _delta(spark: str, sha256: str) -> tuple[Jar, ...]:
    return Jar("io.delta", f"delta-spark_{spark}_2.13", "4.4.0", sha256), _DELTA_STORAGE


CONNECTORS: Mapping[tuple[TableFormat, str], tuple[Jar, ...]] = {
    ("delta", "4.0"): _delta("4.0", "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104"),
    ("delta", "4.1"): _delta("4.1", "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10"),
    ("delta", "4.2"): _delta("4.2", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    ("iceberg", "4.1"): (
        Jar(
            "org.apache.iceberg",
            "iceberg-spark-runtime-4.1_2.13",
            "1.12.0",
            "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
        ),
    ),
}
"""Table format and version of Spark → its jars. A version that is missing has no public connector."""


def connector(table_format: TableFormat, spark_version: str) -> tuple[Jar, ...]:
    """The jars of a table format for a version of Spark, for example "4.2.1".

    Raises:
        ConfigError: no public connector fits this Spark; the message names the versions that have one.
    """
    series = ".".join(spark_version.split(".")[:2])
    found = CONNECTORS.get((table_format, series))
    if found is None:
        has_one = sorted(spark for known, spark in CONNECTORS if known == table_format)
        message = (
            f"no connector of {table_format} is published for Spark {series}, only for Spark {', '.join(has_one)}. "
            f"Install another Spark, for example pip install 'pyspark=={has_one[-1]}.*', or work without these tables"
        )
        allowed = f"a format with a connector for Spark {series}"
        raise ConfigError("tables", table_format, allowed, message=message)
    return found


def jars_directory(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of the jars: `DCPSTREAM_JARS`, else a directory in the user's cache."""
    environ = os.environ if environ is None else environ
    if given := environ.get("DCPSTREAM_JARS"):
        return Path(given)
    return user_cache_dir(environ) / "jars"


def resolve(jars: Iterable[Jar], directory: Path | None = None, *, ivy_settings: Path | None = None) -> list[Path]:
    """The files of the jars; those that are missing are fetched.

    Several processes may do this at the same time: a file appears whole, under its name.

    Args:
        jars: see `connector`.
        directory: default `jars_directory()`.
        ivy_settings: a settings file of Ivy, default `DCPSTREAM_IVY_SETTINGS`; without both, Ivy's public repository.

    Raises:
        JarsUnavailable: a jar could not be fetched, or is not the one that is known by its sum.
        ConfigError: there is no Java.
    """
    directory = jars_directory() if directory is None else directory
    wanted = list(jars)
    missing = [jar for jar in wanted if not (directory / jar.file_name).is_file()]
    if missing:
        _logger.info("fetching %s into %s", ", ".join(jar.coordinates for jar in missing), directory)
        if ivy_settings is None and (given := os.environ.get("DCPSTREAM_IVY_SETTINGS")):
            ivy_settings = Path(given)
        _fetch(missing, directory, ivy_settings)
    return [directory / jar.file_name for jar in wanted]


def _fetch(jars: list[Jar], directory: Path, ivy_settings: Path | None) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        work = tempfile.mkdtemp(prefix="fetch-", dir=directory)
    except OSError as error:
        why = f"{directory} cannot be written ({error.strerror}); name another directory by DCPSTREAM_JARS"
        raise _unavailable(jars, directory, why) from error
    try:
        _run_ivy(jars, directory, Path(work), ivy_settings)
        for jar in jars:
            file = Path(work) / "out" / jar.file_name
            found = hashlib.sha256(file.read_bytes()).hexdigest()
            if found != jar.sha256:
                why = f"{jar.coordinates} has the SHA-256 {found}, but {jar.sha256} is the known one"
                raise _unavailable(jars, directory, why)
        for jar in jars:
            (Path(work) / "out" / jar.file_name).replace(directory / jar.file_name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(jars: list[Jar], directory: Path, work: Path, ivy_settings: Path | None) -> None:
    """Retrieve the jars into `work`/out."""
    ensure_java()
    dependencies = (
        f"    <dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} rev={quoteattr(jar.revision)}"
        ' transitive="false" conf="default->master(default)"/>'
        for jar in jars
    )
    module = work / "ivy.xml"
    module.write_text(_IVY_MODULE.format(dependencies="\n".join(dependencies)), encoding="utf-8")
    command = [java_program(), "-jar", str(_ivy_jar()), "-warn", "-ivy", str(module), "-cache", str(work / "cache")]
    command += ["-confs", "default", "-retrieve", f"{work}/out/[artifact]-[revision].[ext]"]
    if ivy_settings is not None:
        command += ["-settings", str(ivy_settings)]
    try:
        done = subprocess.run(  # noqa: S603 - the java that Spark is about to run
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(jars, directory, f"the repository did not answer for {FETCH_TIMEOUT_S:.0f} s") from error
    if done.returncode or not all((work / "out" / jar.file_name).is_file() for jar in jars):
        raise _unavailable(jars, directory, _reason(done.stdout + done.stderr))


def _unavailable(jars: list[Jar], directory: Path, why: str) -> JarsUnavailable:
    names = ", ".join(jar.file_name for jar in jars)
    return JarsUnavailable(
        f"The jars that Spark needs for these tables could not be fetched: {why}. Run once with a network, or copy "
        f"{names} into {directory} (DCPSTREAM_JARS names another directory)."
    )


def _reason(output: str) -> str:
    """The first problem that Ivy lists, under a heading such as ":::: WARNINGS"."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    problems = [line for line in lines if not line.startswith("::")]
    return problems[0].rstrip(".") if problems else "Ivy gave no reason"


def _ivy_jar() -> Path:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    found = sorted(jars.glob("ivy-*.jar"))
    if not found:
        raise JarsUnavailable(f"There is no Ivy in {jars}: set DCPSTREAM_JARS to a directory with the tables' jars.")
    return found[-1]
