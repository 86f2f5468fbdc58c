"""Measure the branch coverage of the fast tests: a table by package, and pages in .cache/coverage/html.

    python lab/tools/branch_coverage.py [PYTEST ARGUMENT...]

The processes of pytest-xdist and those that tests start are measured too (`patch` in pyproject.toml). A process that a
test kills with SIGKILL takes its figures with it. The last line is the total; the exit status is that of the tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".cache" / "coverage"


def package_of(path: str) -> str:
    """The package that a file counts for: without the module, and no deeper than dcpstream.x.y or dcpstream_node.x."""
    inside = Path(path.partition("/src/")[2] or path)
    levels = 3 if inside.parts[0] == "dcpstream" else 2
    return ".".join(inside.with_suffix("").parts[:-1][:levels]) or inside.stem


def table(files: dict[str, Any]) -> list[str]:
    """Rows by package: lines and branches, and how many of them ran; the last row is the total.

    Args:
        files: by path, the part "files" of coverage's JSON report.
    """
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path, report in files.items():
        summary = report["summary"]
        found = [summary[name] for name in ("num_statements", "covered_lines", "num_branches", "covered_branches")]
        for name in (package_of(path), "total"):
            sums[name] = [one + other for one, other in zip(sums[name], found, strict=True)]
    lines = [f"{'package':30} {'lines':>7} {'run':>7} {'branches':>9} {'taken':>7} {'covered':>8}"]
    for name in [*sorted(sums.keys() - {"total"}), "total"]:
        statements, run, branches, taken = sums[name]
        share = (run + taken) / ((statements + branches) or 1)
        lines.append(f"{name:30} {statements:7} {run:7} {branches:9} {taken:7} {share:8.1%}")
    return lines


def main() -> int:
    """Run the tests, combine what the processes measured, and print the table."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", *sys.argv[1:]]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    import coverage  # needed only here, so that the table can be tested without it

    measured = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    measured.combine()
    measured.save()
    measured.html_report(directory=str(PLACE / "html"))
    measured.json_report(outfile=str(PLACE / "report.json"))
    *rows, total = table(json.loads((PLACE / "report.json").read_text(encoding="utf-8"))["files"])
    print("", *rows, f"pages: {(PLACE / 'html' / 'index.html').relative_to(ROOT)}", total, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
