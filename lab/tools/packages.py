"""Build the wheel and the sdist, and install them as users do: `make packages`.

The wheel is built a second time from the sdist, and both must hold the same files. Then each extra is installed into an
environment of its own, outside of the repository, and used. A table says what each installation takes on the disk.

    python -m lab.tools.packages [EXTRA...]     `core` is the package without an extra; all by default
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 1800
NOT_OURS = ("pip", "setuptools", "wheel", "distutils", "_distutils", "pkg_resources")
"""What an empty environment has."""

NODE = """
import dcpstream
import dcpstream_node
from dcpstream.client import KvClient
with dcpstream_node.Node(vbuckets=4) as node:
    login = {"username": node.username, "password": node.password, "bucket": "default"}
    with KvClient(node.connection_string, **login) as kv:
        kv.set("k", "{}")
        assert kv.get("k").value == b"{}"
    with dcpstream.Client(node.connection_string, **login) as c:
        assert [change.key for change in c.changes(end="latest")] == [b"k"]
"""
CHECKS = {
    "core": NODE,
    "arrow": NODE
    + """
    with dcpstream.Client(node.connection_string, **login) as c:
        assert [batch.record_batch.num_rows for batch in c.stream(end="latest")] == [1]
""",
    "tls": """
import dcpstream_node
with dcpstream_node.Node(vbuckets=1, tls=True) as node:
    assert node.ca_certificate.startswith("-----BEGIN CERTIFICATE")
""",
    "testing": """
import dcpstream_node.testing.strategies
import pathlib, pytest
pathlib.Path("test_it.py").write_text("def test_it(couchbase_bucket): assert couchbase_bucket.node.is_running")
raise SystemExit(pytest.main(["-q", "test_it.py"]))
""",
    "otel": """
import opentelemetry.trace
from dcpstream.runtime.tracing import is_tracing, span
assert is_tracing()
with span("work", {}):
    pass
""",
    "java": """
from dcpstream_spark.java import ensure_java, java_program
ensure_java({"PATH": ""})
""",
    "spark": """
import importlib.util
import dcpstream_spark, pyspark
assert importlib.util.find_spec("pyspark_dcpstream")
assert dcpstream_spark.DcpDataSource.name() == "dcp"
""",
    "tables": """
import dcpstream_spark.tables, deltalake, pyspark
assert pyspark.__version__.startswith("4.2")
""",
    "demo": """
import dcpstream_demo.picture, matplotlib
from dcpstream.cli.app import run
raise SystemExit(run(["demo", "--help"]))
""",
}
"""Extra → a program that uses what it brings."""


def run(*command: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program that knows nothing of this repository. Returns its standard output.

    Args:
        env: all variables of the program; by default those of this process without PYTHONPATH and PYTEST_ADDOPTS.

    Raises:
        SystemExit: it failed; with its output.
    """
    if env is None:
        env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTEST_ADDOPTS"}}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, built with the locked tools of this environment; no network is needed."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wheel_options = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder / "sdist", cwd=ROOT)
    (sdist,) = (folder / "sdist").iterdir()
    run(*pip, *wheel_options, folder / "wheel", ROOT)
    (wheel,) = (folder / "wheel").iterdir()
    run(*pip, *wheel_options, folder / "again", sdist)
    (again,) = (folder / "again").iterdir()
    ours, theirs = (sorted(zipfile.ZipFile(one).namelist()) for one in (wheel, again))
    if ours != theirs:
        raise SystemExit(f"the wheel of the sdist has other files: {sorted(set(ours) ^ set(theirs))}")
    return wheel, sdist


def size_mb(site: Path) -> float:
    """What the installed packages take, in MB, without compiled files and what an empty environment has."""
    files = (path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    ours = (path for path in files if not path.relative_to(site).parts[0].startswith(NOT_OURS))
    return sum(path.stat().st_size for path in ours) / 1e6


def install(extra: str, wheel: Path, folder: Path) -> float:
    """Install one extra into a new environment, and use it. Returns its size in MB."""
    place = folder / extra
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    wanted = f"dcpstream @ {wheel.as_uri()}" if extra == "core" else f"dcpstream[{extra}] @ {wheel.as_uri()}"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", wanted)
    (site,) = (place / "lib").glob("python*/site-packages")
    size = size_mb(site)
    program = folder / f"{extra}.py"
    program.write_text(CHECKS[extra], encoding="utf-8")
    run(python, "-W", "error::DeprecationWarning:dcpstream", program, cwd=place)
    run(place / "bin" / "dcpstream", "--version")
    return size


def main() -> int:
    """Build, install, print. Returns the exit status."""
    extras = sys.argv[1:] or list(CHECKS)
    with tempfile.TemporaryDirectory(prefix="dcpstream-packages-") as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        print(f"{wheel.name}  {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        print(f"{sdist.name}  {sdist.stat().st_size / 1e6:.1f} MB", flush=True)
        for extra in extras:
            size = install(extra, wheel, folder)
            shown = "dcpstream" if extra == "core" else f"dcpstream[{extra}]"
            print(f"pip install '{shown}'  {size:,.0f} MB, installed and used", flush=True)
    print("packages: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
