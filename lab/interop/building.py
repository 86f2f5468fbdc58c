"""The programs in other languages, built once into `.cache/interop`.

`Missing` means that the machine lacks something (a compiler, a network), with the reason; an error in our own programs
is a `BuildError`. Two processes build the same sources only once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.tools.patience import patient

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "interop"
FETCH_TIMEOUT_S = patient(180)
"""Time limit of downloads: 32 MB of Java archives, 54 MB of Kafka, 3 MB of Go sources."""
BUILD_TIMEOUT_S = patient(300)
"""Time limit of a build; a first build of gocbcore takes a minute on two cores."""
GO_AT_LEAST = (1, 24)
JAVA_AT_LEAST = 17
CONNECTOR = "kafka-connect-couchbase"
"""Directory in the cache for the archives of an unpacked release of Couchbase's connector for Kafka."""
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

Say = Callable[[str], None]


class Missing(Exception):
    """This machine cannot run a client; the text has the reason."""


class BuildError(Exception):
    """A program of ours does not compile."""


def python_sdk(_: Say) -> list[str]:
    """The interpreter, if it has the official SDK.

    Raises:
        Missing: it has not.
    """
    if importlib.util.find_spec("couchbase") is None:
        raise Missing("the Python package couchbase is not installed")
    return [sys.executable]


def python_sdk_version() -> str:
    """The version of the installed SDK; empty without one."""
    try:
        return importlib.metadata.version("couchbase")
    except importlib.metadata.PackageNotFoundError:
        return ""


def connector_version() -> str:
    """The version of the connector for Kafka that was unpacked into the cache; empty without one."""
    found = sorted((CACHE / CONNECTOR).rglob(f"{CONNECTOR}-*.jar"))
    return found[0].stem.removeprefix(f"{CONNECTOR}-") if found else ""


def tool(name: str) -> str:
    """The path of a program.

    Raises:
        Missing: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def own(_: Say) -> list[str]:
    """The interpreter, for the clients of this project."""
    return [sys.executable]


def tshark(_: Say) -> list[str]:
    """The decoder's command.

    Raises:
        Missing: it is not installed.
    """
    found = shutil.which("tshark")
    if found is None:
        raise Missing("tshark is not installed (Debian: apt install tshark)")
    return [found]


def go(say: Say) -> list[str]:
    """The program around gocbcore.

    Raises:
        Missing: no Go, an old one, or its modules cannot be had. BuildError: the program does not compile.
    """
    compiler = shutil.which("go")
    if compiler is None:
        raise Missing("Go is not installed (1.24 or newer)")
    # Without downloads of toolchains, and without the user's settings.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    version = _output([compiler, "version"], environment)
    found = re.search(r"go(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < GO_AT_LEAST:
        raise Missing(f"Go 1.24 or newer is needed, there is: {version}")
    sources = sorted((HERE / "go").glob("*"))
    program = CACHE / f"gocbcore-{_fingerprint(sources, version)}"
    with _alone("go"):
        if not program.exists():
            say("building the program around gocbcore (about a minute the first time)")
            _fetch([compiler, "mod", "download"], HERE / "go", environment, "the modules of gocbcore cannot be had")
            _discard_others(program)
            _compile([compiler, "build", "-o", str(program), "."], HERE / "go", environment)
    return [str(program)]


def java(say: Say) -> list[str]:
    """A Java command with the programs around java-dcp-client and the Java SDK on its class path.

    Raises:
        Missing: no JDK, no Maven, an old one, or the archives cannot be had. BuildError: a program does not compile.
    """
    tools = {name: shutil.which(name) for name in ("java", "javac", "mvn")}
    lacking = [name for name, path in tools.items() if path is None]
    if lacking:
        raise Missing(f"not installed: {', '.join(lacking)} (a JDK of version {JAVA_AT_LEAST} or newer, and Maven)")
    compiler, maven = str(tools["javac"]), str(tools["mvn"])
    version = _output([compiler, "-version"])
    found = re.search(r"javac (\d+)", version)
    if found is None or int(found[1]) < JAVA_AT_LEAST:
        raise Missing(f"a JDK of version {JAVA_AT_LEAST} or newer is needed, there is: {version}")
    pom, sources = HERE / "java" / "pom.xml", sorted((HERE / "java").glob("*.java"))
    archives = CACHE / f"java-lib-{_fingerprint([pom], '')}"
    classes = CACHE / f"java-{_fingerprint([pom, *sources], version)}"
    with _alone("java"):
        if not archives.exists():
            say("fetching the Java clients (32 MB)")
            _fetch_archives(maven, pom, archives, "the Java clients cannot be had")
        if not classes.exists():
            say("compiling the Java programs")
            partial = classes.with_name(classes.name + ".part")
            shutil.rmtree(partial, ignore_errors=True)
            command = [
                compiler,
                "-Xlint:all,-processing,-serial,-classfile",
                "-Werror",
                "-proc:none",
                "-d",
                str(partial),
            ]
            _compile([*command, "-cp", f"{archives}/*", *map(str, sources)], HERE / "java", None)
            _discard_others(classes, but=archives)
            partial.rename(classes)
    # Small heaps and no optimising compiler, because the programs run for a second or two.
    return [
        str(tools["java"]),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-cp",
        f"{classes}:{archives}/*",
    ]


def kafka(say: Say) -> list[str]:
    """The program that runs Kafka Connect, with where Java, the archives of Kafka and the connector are.

    Raises:
        Missing: no Java, no Maven, no connector, or the archives of Kafka cannot be had.
    """
    tools = {name: shutil.which(name) for name in ("java", "mvn")}
    lacking = [name for name, path in tools.items() if path is None]
    if lacking:
        raise Missing(f"not installed: {', '.join(lacking)} (Java {JAVA_AT_LEAST} or newer, and Maven)")
    if not any((CACHE / CONNECTOR).rglob(f"{CONNECTOR}-*.jar")):
        raise Missing(f"no connector: unpack a release of {CONNECTOR} into .cache/interop/{CONNECTOR}")
    pom = HERE / "kafka" / "pom.xml"
    archives = CACHE / f"kafka-lib-{_fingerprint([pom], '')}"
    with _alone("kafka"):
        if not archives.exists():
            say("fetching Kafka (54 MB)")
            _fetch_archives(str(tools["mvn"]), pom, archives, "Kafka cannot be had")
    places = {"java": tools["java"], "archives": archives, "plugins": CACHE / CONNECTOR}
    return [sys.executable, "kafka_connect.py", *(str(word) for name in places for word in (f"-{name}", places[name]))]


# ------------------------------------------------------------------------------------------------------------- helpers


def _fetch_archives(maven: str, pom: Path, archives: Path, otherwise: str) -> None:
    """Fetch what a pom names into a directory, whole or not at all."""
    partial = archives.with_name(archives.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-q", "-B", "-f", str(pom), MAVEN_PLUGIN, f"-DoutputDirectory={partial}"]
    _fetch(command, pom.parent, None, otherwise)
    _discard_others(archives)
    partial.rename(archives)


def _fingerprint(paths: Sequence[Path], extra: str) -> str:
    """The hash of files' names and contents."""
    digest = hashlib.sha256(extra.encode())
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _discard_others(kept: Path, but: Path | None = None) -> None:
    """Earlier builds of the same program."""
    stem = kept.name.rpartition("-")[0]
    for path in CACHE.glob(f"{stem}-*"):
        if path.name.rpartition("-")[0] != stem or path in (kept, but) or path.suffix == ".part":
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Let one process build at a time; the others use its result."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False, env=environment)
    return (done.stdout + done.stderr).strip()


def _fetch(command: list[str], directory: Path, environment: dict[str, str] | None, otherwise: str) -> None:
    """Download the dependencies; raise Missing without a network."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{otherwise}: no end within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no reason given"]
        raise Missing(f"{otherwise}: {lines[0][:300]}")


def _compile(command: list[str], directory: Path, environment: dict[str, str] | None) -> None:
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise BuildError((done.stdout + done.stderr).strip())
