"""Build the documentation and run every block of every page: `make docs-test`.

Warnings of the build and failures of blocks end it. The last line counts the pages, the blocks that ran, and the
warnings.

    python -m lab.tools.docs_test [ARGUMENT OF PYTEST...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.kit.pages import ROOT, Block, all_blocks, pages

TESTS = (
    "lab/tests/docs/test_pages.py",
    "packages/dcpstream-spark/tests/spark/test_pages.py",
    "lab/tests/docs/test_notebook.py",
)
WARNING = re.compile(r"^WARNING", re.MULTILINE)


def build() -> tuple[int, str]:
    """Build the pages into `site/`. Returns the number of warnings, and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    warnings = len(WARNING.findall(output))
    if done.returncode and not warnings:
        raise SystemExit(output)
    return warnings, output


def run_blocks(arguments: list[str]) -> tuple[int, int]:
    """Run the blocks. Returns pytest's exit status, and how many blocks ran and passed."""
    elsewhere = [block for block in all_blocks() if block.kind == "run by"]
    tests = [*TESTS, *sorted({block.argument for block in elsewhere})]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # The other format of reports has no properties of tests, and these count the blocks.
        written = ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", "-m", "", "--strict-skips", *written]
        status = subprocess.run([*command, *arguments, *tests], cwd=ROOT, check=False).returncode
        return status, passed_blocks(report.read_text(encoding="utf-8"), elsewhere)


def passed_blocks(report: str, elsewhere: list[Block]) -> int:
    """The blocks of the tests that passed.

    Args:
        report: pytest's, as JUnit's XML; tests have the property `blocks`.
        elsewhere: blocks that a test runs which has no such property.
    """
    count = 0
    passed_files: set[str] = set()
    failed_files: set[str] = set()
    for case in ET.fromstring(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped")):
            failed_files.add(file)
            continue
        passed_files.add(file)
        count += sum(int(item.get("value", "0")) for item in case.iter("property") if item.get("name") == "blocks")
    return count + sum(block.argument in passed_files - failed_files for block in elsewhere)


def main() -> int:
    """Build, run, count. Returns the exit status."""
    warnings, output = build()
    if warnings:
        print(output)
    status, count = run_blocks(sys.argv[1:])
    left_out = sum(block.kind == "not run" for block in all_blocks())
    print(f"{left_out} blocks are not run; each says why")
    print(f"docs: {len(pages())} pages, {count} blocks run, {warnings} warnings")
    return 1 if status or warnings else 0


if __name__ == "__main__":
    sys.exit(main())
