"""The notebook runs from top to bottom, and prints what is saved in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.pages import ROOT, TIMEOUT_S, environment

NOTEBOOK = ROOT / "examples" / "notebook" / "changes.ipynb"
KERNEL = """
import ast, asyncio, contextlib, io, json, sys

async def run(cells):
    # As a kernel does: an event loop runs in this thread, and the value of the last expression is shown.
    names, outputs = {}, []
    for number, code in enumerate(cells):
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, f"cell {number}", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
                if value is not None:
                    print(repr(value))
        outputs.append(printed.getvalue())
    return outputs

print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
"""


def code_cells() -> list[dict[str, Any]]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def saved_output(cell: dict[str, Any]) -> str:
    """The output of the cell, and the value of its last line."""
    parts = [output.get("text") or output["data"]["text/plain"] + ["\n"] for output in cell["outputs"]]
    return "".join(line for part in parts for line in part)


@pytest.mark.slow
def test_the_notebook_prints_what_is_saved_in_it(tmp_path: Path, record_property) -> None:
    cells = code_cells()
    record_property("blocks", len(cells))
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        input=json.dumps(["".join(cell["source"]) for cell in cells]),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [saved_output(cell) for cell in cells]
