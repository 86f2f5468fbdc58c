"""The sans-IO packages open no file: `open` is a builtin, so the import contract does not see it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from lab.layout import source_of
from tests.kit.cases import each_case

ROOT = Path(__file__).parents[1]


def sans_io_packages() -> list[str]:
    """The packages that the import contract names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (found,) = (contract for contract in contracts if contract["name"].startswith("The sans-IO packages"))
    return found["source_modules"]


@each_case("package", sans_io_packages())
def test_no_file_is_opened(package: str) -> None:
    folder = source_of(package.replace(".", "/"))
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "__import__"}
    ]
    assert list(folder.rglob("*.py")), "the package has moved"
    assert calls == []
