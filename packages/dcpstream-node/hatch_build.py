"""Puts a copy of the rules' tests into the wheel, for `dcpstream judge --rules`.

In a checkout the tests are in tests/ of the whole project; in an sdist the copy is in shipped/.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TESTS = "tests/conformance"
TABLES = ("tests/conformance/kv_rules.tsv", "tests/data/recorded/rules.tsv")
PLACE = "dcpstream_node/rulebook/shipped"


def files(root: Path) -> list[Path]:
    """The tests of the rules, their tables, and the modules of the test kit that they import."""
    found = {root / table for table in TABLES} | {root / "tests/kit/__init__.py"}
    todo = sorted((root / TESTS).glob("*.py"))
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [root / "tests" / "kit" / f"{name}.py" for name in _kit_in(path)]
    return sorted(found)


def _kit_in(path: Path) -> Iterator[str]:
    """The modules of the test kit that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "tests.kit":
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests.kit."):
            yield node.module.removeprefix("tests.kit.")


class BookHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files to sdist and wheel; an editable installation finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files. Raises: FileNotFoundError: there is neither a checkout nor an sdist."""
        if version == "editable":
            return
        here = Path(self.root)
        sources = [place for place in (here / "shipped", here.parents[1]) if (place / TESTS).is_dir()]
        if not sources:
            raise FileNotFoundError(f"{here}: neither shipped/ nor a checkout around it has {TESTS}")
        place = "shipped" if self.target_name == "sdist" else PLACE
        for path in files(sources[0]):
            build_data["force_include"][str(path)] = f"{place}/{path.relative_to(sources[0])}"
