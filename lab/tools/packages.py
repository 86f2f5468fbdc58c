"""Build the wheels and the sdists, and install them as users do: `make packages`.

Each wheel is built a second time from its sdist, and both must hold the same files: those of the package alone. Then
each package, and each of its extras, is installed into an environment of its own, outside of the repository, and used.
A table says what each installation takes on the disk.

    python -m lab.tools.packages [--keep FOLDER] [INSTALL...]

INSTALL is a requirement such as dcpstream or dcpstream-node[tls]; all by default. With --keep, the wheels and sdists
stay in FOLDER, with a bill of materials (CycloneDX, JSON) for each package that was installed without an extra.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

from lab.layout import PACKAGES, ROOT

TIMEOUT_S = 1800
SBOM_TOOL = "cyclonedx-bom>=7,<8"
"""Lists the distributions of an environment. Only `--keep` installs it, into an environment of its own."""
NOT_OURS = ("pip", "setuptools", "wheel", "distutils", "_distutils", "pkg_resources")
"""The distributions of an empty environment."""

CLIENT = """
import socket, sys
import dcpstream
with socket.create_server(("127.0.0.1", 0)) as nobody:
    string = f"couchbase://127.0.0.1:{nobody.getsockname()[1]}"
options = dcpstream.ClientOptions(connect_timeout_s=0.5)
with dcpstream.Client(string, username="u", password="p", bucket="b", options=options) as client:
    try:
        next(client.changes())
    except dcpstream.errors.ConnectTimeout:
        pass
assert not {"aiohttp", "numpy", "pyarrow"} & set(sys.modules)
"""
NODE = """
import dcpstream, dcpstream_node
from dcpstream import KvClient
with dcpstream_node.Node(vbuckets=4, system_scope=False) as node:
    login = {"username": node.username, "password": node.password, "bucket": "default"}
    with KvClient(node.connection_string, **login) as kv:
        kv.set("k", "{}")
        assert kv.get("k").value == b"{}"
    with dcpstream.Client(node.connection_string, **login) as c:
        assert [change.key for change in c.changes(dcpstream.StreamOptions(end="latest"))] == [b"k"]
"""
CHECKS = {
    "dcpstream": CLIENT,
    "dcpstream[arrow]": """
import pyarrow
from dcpstream.arrow import ChangeContext, chunk_of, to_changes
assert to_changes(chunk_of([], True), context=ChangeContext()).num_rows == 0
""",
    "dcpstream[otel]": """
import opentelemetry.trace
from dcpstream.runtime.tracing import is_tracing, span
assert is_tracing()
with span("work", {}):
    pass
""",
    "dcpstream-node": NODE,
    "dcpstream-node[testing]": """
import pathlib, pytest
pathlib.Path("test_it.py").write_text("def test_it(couchbase_bucket): assert couchbase_bucket.node.is_running")
assert pytest.main(["-q", "test_it.py"]) == 0
import subprocess, sys
from dcpstream_node import Node
with Node(vbuckets=4, username="@admin", password="secret", system_scope=False) as node:
    login = ("--user", "@admin", "--password", "secret", "--bucket", "default")
    server = f"couchbase://127.0.0.1:{node.port}"
    subprocess.run([sys.executable, "-m", "dcpstream", "judge", server, "--rules", "REQ-24", *login], check=True)
""",
    "dcpstream-node[tls]": """
import dcpstream_node
with dcpstream_node.Node(vbuckets=1, tls=True) as node:
    assert node.ca_certificate.startswith("-----BEGIN CERTIFICATE")
""",
    "dcpstream-node[jwt]": """
from dcpstream_node.engine.access.tokens import Issuers
issuer = {"name": "i", "signingAlgorithm": "HS256", "sharedSecret": "s" * 32}
claims = {"audClaim": "aud", "audienceHandling": "any", "audiences": ["a"], "subClaim": "sub"}
assert Issuers({"issuers": [issuer | claims]})
""",
    "dcpstream-spark": """
import importlib.util
import dcpstream_spark, pyspark
assert importlib.util.find_spec("pyspark_dcpstream")
assert importlib.util.find_spec("aiohttp") is None
assert dcpstream_spark.DcpDataSource.name() == "dcp"
""",
    "dcpstream-spark[connect]": """
import dcpstream_spark, grpc, pyspark.sql.connect.session, yaml
""",
    "dcpstream-spark[iceberg]": """
import dcpstream_spark, pyspark
assert pyspark.__version__.startswith("4.1")
""",
    "dcpstream-spark[java]": """
from dcpstream_spark.java import ensure_java, java_program
ensure_java({"PATH": ""})
""",
    "dcpstream-spark[tables]": """
import dcpstream_spark.tables, deltalake, pyspark
assert pyspark.__version__.startswith("4.2")
""",
}
"""The requirement that pip installs → a program that uses what the requirement brings."""


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


def build(folder: Path, keep: Path | None = None) -> dict[str, Path]:
    """The wheel of each package, built with the locked tools of this environment; no network is needed.

    Args:
        folder: where they are built.
        keep: where wheels and sdists are copied to.

    Raises:
        SystemExit: a wheel holds something else than its package, or the wheel of its sdist something else than it.
    """
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wheel_options = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    wheels = {}
    for project, package in PACKAGES.items():
        place = folder / project
        run(
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            "sdist",
            "-d",
            place / "sdist",
            cwd=ROOT / "packages" / project,
        )
        (sdist,) = (place / "sdist").iterdir()
        run(*pip, *wheel_options, place / "wheel", ROOT / "packages" / project)
        (wheel,) = (place / "wheel").iterdir()
        run(*pip, *wheel_options, place / "again", sdist)
        (again,) = (place / "again").iterdir()
        ours, theirs = (sorted(zipfile.ZipFile(one).namelist()) for one in (wheel, again))
        if ours != theirs:
            raise SystemExit(f"the wheel of {sdist.name} has other files: {sorted(set(ours) ^ set(theirs))}")
        foreign = {name.partition("/")[0].partition("-")[0] for name in ours} - {package, "pyspark_dcpstream.py"}
        if foreign:
            raise SystemExit(f"{wheel.name} also holds {sorted(foreign)}")
        for one in (wheel, sdist):
            print(f"{one.name}  {one.stat().st_size / 1e6:.1f} MB", flush=True)
            if keep:
                shutil.copy(one, keep)
        wheels[project] = wheel
    return wheels


def requirements(install: str, wheels: Mapping[str, Path]) -> list[str]:
    """The requirements for `install`, with wheels in the place of our packages: also of those that it needs itself."""
    name, bracket, extras = install.partition("[")
    if name not in wheels:
        return [install]
    found = [f"{name}{bracket}{extras} @ {wheels[name].as_uri()}"]
    return found if name == "dcpstream" else [*found, f"dcpstream @ {wheels['dcpstream'].as_uri()}"]


def size_mb(site: Path) -> float:
    """The size of the installed packages, in MB, without compiled files and what an empty environment has."""
    files = (path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    ours = (path for path in files if not path.relative_to(site).parts[0].startswith(NOT_OURS))
    return sum(path.stat().st_size for path in ours) / 1e6


def install(wanted: str, wheels: Mapping[str, Path], folder: Path) -> float:
    """Install a package into a new environment, and use it. Returns the size of what was installed, in MB."""
    place = folder / "environments" / wanted.translate({ord("["): "-", ord("]"): None})  # pytest takes no brackets
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
    run(*pip, *requirements(wanted, wheels))
    (site,) = (place / "lib").glob("python*/site-packages")
    size = size_mb(site)
    program = place / "program.py"
    program.write_text(CHECKS[wanted], encoding="utf-8")
    run(python, "-W", "error::DeprecationWarning:dcpstream", program, cwd=place)
    run(place / "bin" / "dcpstream", "--version")
    return size


def write_bill(environment: Path, project: str, tool: Path, output: Path) -> None:
    """Write the bill of materials of an environment, which loses its pip.

    Args:
        environment: the project was installed there, and it is used no more.
        project: the package that the bill is about.
        tool: an environment that has `SBOM_TOOL`, or gets it.
        output: the file, CycloneDX as JSON.
    """
    program = tool / "bin" / "cyclonedx-py"
    if not program.exists():
        venv.create(tool, with_pip=True)
        run(tool / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", SBOM_TOOL)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "--disable-pip-version-check", "uninstall", "--quiet", "--yes", "setuptools", "pip")
    metadata = ROOT / "packages" / project / "pyproject.toml"
    options = ("--pyproject", metadata, "--mc-type", "library", "--output-reproducible", "--of", "JSON")
    run(program, "environment", *options, "--output-file", output, python)


def main() -> int:
    """Build, install, print. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("installs", nargs="*", metavar="INSTALL", choices=[[], *CHECKS])
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dcpstream-packages-") as name:
        folder = Path(name)
        wheels = build(folder, options.keep)
        for wanted in options.installs or CHECKS:
            print(f"pip install '{wanted}'  {install(wanted, wheels, folder):,.0f} MB, installed and used", flush=True)
            if options.keep and wanted in wheels:
                bill = (options.keep / f"{wanted}.cdx.json").resolve()
                write_bill(folder / "environments" / wanted, wanted, folder / "sbom-tool", bill)
    print("packages: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
