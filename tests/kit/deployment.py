"""Spark as it is deployed: a standalone cluster of processes, and a Python that has only what was sent to it."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from dcpstream_spark.java import ensure_java
from dcpstream_spark.session import SHORT_RUN, TABLE_SETTINGS
from lab.layout import modules
from lab.tools.patience import patient
from tests.kit.waiting import wait_until

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent


def code_archive(directory: Path) -> Path:
    """The packages of the source as a zip for `--py-files`, with the module that lets Spark find the format."""
    archive = directory / "dcpstream.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for source, path in modules():
            if source.parent.name != "dcpstream-node":
                file.write(path, path.relative_to(source))
    return archive


def add_package(python: Path, archive: Path) -> None:
    """Add the package to an interpreter of `bare_python`."""
    packages = next((python.parents[1] / "lib").glob("*/site-packages"))
    with zipfile.ZipFile(archive) as file:
        file.extractall(packages)


def bare_python(directory: Path) -> Path:
    """An interpreter with the packages of this one, but without dcpstream, as on a worker of a cluster.

    The site-packages are on its path by a file in its own: their links, such as the one of an editable dcpstream, do
    not count.
    """
    home = directory / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (home / "lib" / version / "site-packages" / "packages.pth").write_text(sysconfig.get_path("purelib"))
    return home / "bin" / "python"


def note_starts(python: Path, notes: Path) -> None:
    """From now on, each process of this Python adds a line to `notes`: its environment's directory and its command."""
    packages = next((python.parents[1] / "lib").glob("*/site-packages"))
    line = f"import sys; open({str(notes)!r}, 'a').write(f'{{sys.prefix}} {{sys.orig_argv}}\\n')\n"
    (packages / "note_starts.pth").write_text(line)


def environment(python: Path, **more: str) -> dict[str, str]:
    """The environment of a process of Spark that runs this Python and knows nothing of this project."""
    ensure_java()
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_DRIVER_PYTHON"}}
    return {**kept, "PYSPARK_PYTHON": str(python), "JDK_JAVA_OPTIONS": " ".join(SHORT_RUN.values()), **more}


@contextmanager
def standalone_cluster(directory: Path, python: Path, workers: int = 2) -> Iterator[str]:
    """A master and workers of one core each; gives the master's address.

    Each worker has an address of its own: Spark starts a speculative copy on another host than the original's.
    """
    environ = environment(python, SPARK_LOCAL_IP="127.0.0.1", SPARK_DAEMON_MEMORY="256m", SPARK_NO_DAEMONIZE="1")
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
        with log.open("wb") as out:
            processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environ, cwd=directory))
        return log

    def awaited(log: Path, pattern: str) -> str:
        wait_until(lambda: re.search(pattern, log.read_text(errors="replace")) is not None, f"{log.name}: no {pattern}")
        match = re.search(pattern, log.read_text(errors="replace"))
        assert match is not None
        return match[1]

    try:
        place = "org.apache.spark.deploy"
        web = ["--webui-port", "0"]
        log = start("master", f"{place}.master.Master", "--host", "127.0.0.1", "--port", "0", *web)
        master = awaited(log, r"Starting Spark master at (spark://\S+)")
        logs = []
        for n in range(workers):
            own = ["--cores", "1", "--memory", "1g", "--host", f"127.0.0.{n + 1}", "--work-dir", f"{directory}/work{n}"]
            logs.append(start(f"worker{n}", f"{place}.worker.Worker", *own, *web, master))
        for log in logs:
            awaited(log, "(Successfully registered)")
        yield master
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(patient(30))


@contextmanager
def connect_server(directory: Path, jars: str) -> Iterator[str]:
    """A server of Spark Connect that writes Delta, with this Python and its path; gives its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        **TABLE_SETTINGS["delta"],
        "spark.jars": jars,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2,4]", "--driver-memory", "1g"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    log = directory / "server.log"
    environ = environment(Path(sys.executable), PYTHONPATH=os.pathsep.join(sys.path), SPARK_LOCAL_IP="127.0.0.1")
    with log.open("wb") as out:
        server = subprocess.Popen([*command, "spark-internal"], stdout=out, stderr=out, env=environ, cwd=directory)
    try:
        wait_until(lambda: server.poll() is not None or not _is_free(port), "the server does not listen")
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(patient(30))


BUILT_IN = """
import org.apache.spark.sql.*;

public class BuiltIn implements SparkSessionExtensionsProvider {
    public scala.runtime.BoxedUnit apply(SparkSessionExtensions extensions) {
        new io.delta.sql.DeltaSparkSessionExtension().apply(extensions);
        return scala.runtime.BoxedUnit.UNIT;
    }
}
"""


def jar_of_built_in_delta(directory: Path, jars: str) -> Path:
    """A jar that puts Delta's extension into every session by itself, as platforms do."""
    home = directory / "built-in"
    (home / "META-INF" / "services").mkdir(parents=True)
    (home / "BuiltIn.java").write_text(BUILT_IN)
    (home / "META-INF" / "services" / "org.apache.spark.sql.SparkSessionExtensionsProvider").write_text("BuiltIn\n")
    classes = f"{SPARK_HOME / 'jars' / '*'}:{jars.replace(',', ':')}"
    subprocess.run(["javac", "-cp", classes, "BuiltIn.java"], cwd=home, check=True)
    jar = directory / "built-in.jar"
    subprocess.run(["jar", "--create", f"--file={jar}", "BuiltIn.class", "META-INF"], cwd=home, check=True)
    return jar


CONNECT_PORT = 15002
"""The port of the server of Spark Connect that Spark starts for a session on this machine. It cannot be chosen:
clients of such a session know only this one."""


@contextmanager
def connect_port() -> Iterator[None]:
    """Spark Connect's port for this test alone: other runs of these tests on this machine wait."""
    with (Path(tempfile.gettempdir()) / f"dcpstream-tests-{CONNECT_PORT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_until(_is_free, f"a process that is none of these tests listens on port {CONNECT_PORT}")
        yield


def _is_free(port: int = CONNECT_PORT) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def run_job(command: list[str], environ: dict[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of Spark to its end; its output is in the failure if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=directory, timeout=patient(300), check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{_told(done.stderr)[-4000:]}"
    return done


def _told(log: str) -> str:
    """Lines that are neither notes of Spark nor frames of the JVM."""
    lines = [line for line in log.splitlines() if " INFO " not in line and not line.startswith("\tat ")]
    return "\n".join(lines)
