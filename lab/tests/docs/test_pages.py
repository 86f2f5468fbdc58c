"""The code in the README and in the pages of the documentation runs, and prints what they say it prints.

`tests/kit/pages.py` says how a block is run. Blocks that need Spark's session are run by
`packages/dcpstream-spark/tests/spark/test_pages.py`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from tests.kit.pages import ROOT, Block, Walk, all_blocks, blocks, mistake, parse, run_program, run_test_module

BLOCKS = all_blocks()
SPARK = ("spark", "dcpstream_spark.tables")


def distinct(chosen: Callable[[Block], bool]) -> list[object]:
    """The blocks of a kind, and how many pages have the same one: the home page repeats the README."""
    found: dict[tuple[str, str | None], list[Block]] = {}
    for block in filter(chosen, BLOCKS):
        found.setdefault((block.code, block.output), []).append(block)
    return [pytest.param(same[0], len(same), id=same[0].name) for same in found.values()]


def walks() -> list[object]:
    """Pages whose blocks are run in order as programs and commands."""
    found: dict[tuple[str, ...], list[list[Block]]] = {}
    for _, group in groupby(BLOCKS, lambda block: block.page):
        if steps := [block for block in group if block.kind == "in order"]:
            found.setdefault(tuple(step.code for step in steps), []).append(steps)
    return [
        pytest.param(
            same[0],
            len(same) * len(same[0]),
            id=same[0][0].page,
            marks=[pytest.mark.spark] if any(word in code for word in SPARK for code in codes) else [],
        )
        for codes, same in found.items()
    ]


@pytest.mark.parametrize(("block", "count"), distinct(lambda block: block.is_program))
def test_the_block_runs_and_prints_what_is_written(block: Block, count: int, tmp_path: Path, record_property) -> None:
    """Twice if it leaves files behind: a reader runs it again in the same folder, and then the next one."""
    record_property("blocks", count)
    script = tmp_path / "block.py"
    script.write_text(block.code, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    run_program([sys.executable, str(script)], folder, block.output)
    if any(folder.iterdir()):
        run_program([sys.executable, str(script)], folder, block.output)


@pytest.mark.slow
@pytest.mark.parametrize(("block", "count"), distinct(lambda block: block.kind == "pytest"))
def test_the_test_module_passes(block: Block, count: int, tmp_path: Path, record_property) -> None:
    record_property("blocks", count)
    run_test_module(block, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("steps", "count"), walks())
def test_the_blocks_of_the_page_run_in_order(steps: list[Block], count: int, tmp_path: Path, record_property) -> None:
    for program in ("go", "java", "node", "rustc"):
        if shutil.which(program) is None and any(step.code.startswith(f"{program} ") for step in steps):
            pytest.skip(f"{program} is not installed")
    record_property("blocks", count)
    walk = Walk(tmp_path)
    try:
        for step in steps:
            walk.run(step)
    finally:
        walk.close()


def test_every_block_is_run_or_says_why_not() -> None:
    assert [f"{block.name}: {wrong}" for block in BLOCKS if (wrong := mistake(block)) is not None] == []


def test_a_block_is_read_with_its_comment_and_its_output() -> None:
    text = "<!-- in order: file a.py -->\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```sh\nls\n```\ntext\n"
    program, output, command = parse(text, "page.md")
    assert (program.kind, program.argument, program.code, program.output) == (
        "in order",
        "file a.py",
        "print(1)\n",
        "1\n",
    )
    assert (output.language, command.line, command.output) == ("text", 10, None)
    assert mistake(command) == "say in a comment how it is run, or why it is not"
    (bare,) = parse("<!-- not run -->\n```python\n```\n", "page.md")
    assert mistake(bare) == "say why: <!-- not run: REASON -->"
    (lost,) = parse("<!-- run by: tests/none.py -->\n```python\n```\n", "page.md")
    assert mistake(lost) == "there is no test tests/none.py"


def test_the_readme_has_code_to_run() -> None:
    first = next(block for block in blocks(ROOT / "README.md") if block.is_program)
    assert 10 <= first.code.count("\n") <= 30
    assert first.output, "with what it prints"
