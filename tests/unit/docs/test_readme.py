"""The Python in the README and in the documents runs, and prints what they say it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.patience import patient

ROOT = Path(__file__).parents[3]
# A block of Python, and the block of text that may follow as its output. `<!-- needs spark -->` before it marks what
# takes a Spark session; `<!-- not run -->` what needs something that a test does not have. An indented block is a part
# of a recipe and is not run.
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[a-z ]+) -->\n)?^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
TIMEOUT_S = patient(150)


class Block(NamedTuple):
    """A block of Python in a document."""

    code: str
    output: str | None


def find_blocks() -> list[object]:
    found: list[object] = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, match in enumerate(BLOCK.finditer(path.read_text(encoding="utf-8")), 1):
            mark = match["mark"]
            if mark == "not run":
                continue
            marks = [pytest.mark.spark] if mark == "needs spark" else []
            name = f"{path.relative_to(ROOT)}-{number}"
            found.append(pytest.param(Block(match["code"], match["output"]), id=name, marks=marks))
    return found


@pytest.mark.parametrize("block", find_blocks())
def test_the_block_runs_and_prints_what_is_written(block: Block, tmp_path: Path) -> None:
    """Twice if it leaves files behind: a reader runs it again in the same folder, and then the next one."""
    script = tmp_path / "block.py"
    script.write_text(block.code, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    run_block(script, folder, block.output)
    if any(folder.iterdir()):
        run_block(script, folder, block.output)


def run_block(script: Path, folder: Path, output: str | None) -> None:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if output is not None:
        assert done.stdout == output


def test_the_readme_has_code_to_run() -> None:
    matches = list(BLOCK.finditer((ROOT / "README.md").read_text(encoding="utf-8")))
    assert matches
    assert 15 <= matches[0]["code"].count("\n") <= 30, "about twenty lines"
    assert matches[0]["output"], "with what they print"
