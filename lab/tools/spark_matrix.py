"""Run the tests marked `every_spark` on each supported version of Spark, and write docs/reference/spark-versions.md.

    python lab/tools/spark_matrix.py [--strict] [--page] [VERSION...]

Each version gets an environment of its own under .cache, made from its lock file. It has Spark Connect, too, for which
.venv lacks packages.
The page is written only by a run over all versions, or with `--page` from the last run of each version. With
`--strict`, a version whose environment cannot be made is an error; otherwise it is named at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab.layout import python_path  # noqa: E402
from lab.tools.wrap_markdown import wrapped  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "spark-versions.md"
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
INTRODUCTION = """# Versions of Spark

<!-- Written by lab/tools/spark_matrix.py (make test-spark-matrix); do not edit. -->

Results of the source's tests on each version of Spark, against a node of the same machine, as of the last run. A dash
stands for a feature that this version of Spark lacks; reasons are below the table. [Decision
18](../decisions/0018-the-spark-that-is-locked.md) says which of them the project itself uses, and why.

"""


@dataclass
class Outcome:
    """The results of one version: test → "yes", "**no**" or "-", the reasons of the last two, and the day."""

    version: str
    results: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    day: str = ""

    @property
    def failed(self) -> bool:
        """Whether a test failed, or none ran."""
        return "**no**" in self.results.values() or not self.results


def main() -> int:
    """Test the versions on the command line, or all; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--page", action="store_true", help="write the page from the last runs, and run nothing")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(VERSIONS))
    given = parser.parse_args()
    versions = given.versions or list(VERSIONS)
    if unknown := set(versions) - set(VERSIONS):
        parser.error(f"no such version: {', '.join(sorted(unknown))}; there are {', '.join(VERSIONS)}")
    outcomes, missing = [], []
    for series in versions:
        python = environment(series)
        if python is None:
            missing.append(series)
            continue
        if not given.page:
            run_tests(series, python)
        outcomes.append(outcome_of(version_of(python), report_of(series)))
    table = table_of(outcomes)
    print(table)
    if outcomes and not missing and tuple(versions) == VERSIONS:
        PAGE.write_text(wrapped(INTRODUCTION + table), encoding="utf-8")
    if missing:
        print(f"no environment: {', '.join(missing)}")
    failed = [outcome.version for outcome in outcomes if outcome.failed]
    print(f"versions: {len(outcomes)} tested, {len(failed)} failed, {len(missing)} without environment")
    return 1 if failed or (given.strict and missing) else 0


def environment(series: str) -> Path | None:
    """The interpreter with that version of Spark; its environment is made unless it is there with the same lock."""
    lock = ROOT / "requirements" / f"spark-{series}.lock"
    directory = ROOT / ".cache" / f"spark-{series}"
    python, stamp = directory / "bin" / "python", directory / ".installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
        return python
    say(f"environment of Spark {series} in {directory.relative_to(ROOT)} (about 900 MB)")
    steps = [[sys.executable, "-m", "venv", "--clear", str(directory)]]
    steps += [
        ["sh", "lab/tools/install-locked.sh", str(python), f"requirements/{name}.lock"]
        for name in ("build", f"spark-{series}")
    ]
    if any(subprocess.run(step, cwd=ROOT, check=False).returncode for step in steps):
        return None
    stamp.write_text(digest, encoding="ascii")
    return python


def report_of(series: str) -> Path:
    """The file that pytest has written about the last run of a version."""
    return ROOT / ".cache" / f"spark-{series}.xml"


def version_of(python: Path) -> str:
    """The version of Spark of an environment."""
    command = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_tests(series: str, python: Path) -> None:
    """Run the tests of one version with its interpreter."""
    say(f"Spark {series}")
    report = report_of(series)
    report.unlink(missing_ok=True)
    paths = python_path(ROOT, ROOT, ROOT / "examples" / "demo")
    # The session starts Spark's workers with this Python. Spark gives them ten seconds to start, which is too short for
    # one that compiles all packages again.
    others = ("PYSPARK_", "PYTHONDONTWRITEBYTECODE")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0"]
    command += ["-m", "every_spark", f"--junitxml={report}", *test_files()]
    subprocess.run(command, cwd=ROOT, env={**environ, "PYTHONPATH": paths}, check=False)


def test_files() -> list[str]:
    """The files with such tests; others need packages that these environments lack."""
    files = sorted((ROOT / "packages" / "dcpstream-spark" / "tests" / "spark").glob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "every_spark" in file.read_text(encoding="utf-8")]


def outcome_of(version: str, report: Path) -> Outcome:
    """Read what pytest has written about its tests."""
    outcome = Outcome(version)
    if not report.exists():
        return outcome
    root = ET.parse(report).getroot()
    outcome.day = next((suite.get("timestamp", "")[:10] for suite in root.iter("testsuite")), "")
    for case in root.iter("testcase"):
        name = (case.get("name") or "").removeprefix("test_").replace("_", " ")
        skipped = case.find("skipped")
        if skipped is not None:
            outcome.results[name] = "-"
            outcome.reasons.append(f"{name}: {skipped.get('message')}")
        else:
            failures = [found for kind in ("failure", "error") for found in case.findall(kind)]
            outcome.results[name] = "**no**" if failures else "yes"
            outcome.reasons += [f"{name}, failed on {version}: {_first_line(found)}" for found in failures]
    return outcome


def _first_line(failure: ET.Element) -> str:
    return (failure.get("message") or "").partition("\n")[0]


def table_of(outcomes: list[Outcome]) -> str:
    """A table in Markdown: a test a row, a version a column; then the reasons of failures and dashes."""
    lines = [f"| test | {' | '.join(outcome.version for outcome in outcomes)} |", "| --- " * (len(outcomes) + 1) + "|"]
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.results))
    lines += [f"| {name} | {' | '.join(one.results.get(name, '') for one in outcomes)} |" for name in names]
    lines.append(f"| day of the run | {' | '.join(outcome.day for outcome in outcomes)} |")
    reasons = list(dict.fromkeys(reason for outcome in outcomes for reason in outcome.reasons))
    return "\n".join([*lines, "", *(f"- {reason}" for reason in reasons)]).rstrip() + "\n"


def say(text: str) -> None:
    """Print a heading."""
    print(f"\033[1m== {text}\033[0m", flush=True)


if __name__ == "__main__":
    sys.exit(main())
