"""Which tests prove which rule, and the explanations of rules that no test can prove.

A rule is covered by the tests marked with its id, or explained in explained.toml (it cannot apply here).
corrections.toml lists the rules that a recording contradicts; a test proves them as corrected. What is in these two
files, and which test names which rule, is read from the source without running anything, so that the page
docs/reference/conformance.md can be compared with it at once.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from lab.layout import ROOT, folders_of_tests
from tests.kit.rules import HERE, known_ids

EXPLAINED_MAX = 30
"""Rules that may be explained instead of tested."""


@dataclass(frozen=True, slots=True)
class Note:
    """The explanation or correction of a rule.

    Attributes:
        reason: why it cannot apply, or what is right.
        evidence: where it shows: a recording's file and line, a page, a module.
    """

    reason: str
    evidence: str


def explained() -> dict[str, Note]:
    """Rules that cannot apply: id → why."""
    return _notes("explained.toml")


def corrections() -> dict[str, Note]:
    """Rules that a recording contradicts: id → what is right."""
    return _notes("corrections.toml")


def _notes(name: str) -> dict[str, Note]:
    data = tomllib.loads((HERE / name).read_text(encoding="utf-8"))
    notes = {}
    for rule_id, entry in data.items():
        if rule_id not in known_ids():
            raise ValueError(f"{name}: no such rule: {rule_id}")
        if set(entry) != {"reason", "evidence"} or not all(isinstance(text, str) and text for text in entry.values()):
            raise ValueError(f"{name}: {rule_id} needs reason and evidence, both texts")
        notes[rule_id] = Note(entry["reason"], entry["evidence"])
    return notes


@cache
def tests_by_rule() -> Mapping[str, list[str]]:
    """Rule id → the tests that name it, as `tests/conformance/test_header.py::test_name`, sorted."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for folder in folders_of_tests() for path in folder.glob("*/**/test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "rule(" not in text:
            continue
        for name, ids in _marked_tests(ast.parse(text)):
            for rule_id in ids:
                found.setdefault(rule_id, []).append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    return {rule_id: sorted(names) for rule_id, names in found.items()}


def _marked_tests(module: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Tests with a rule marker, and the ids they name."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ids: list[str] = []
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and _is_marker(decorator.func):
                    ids += [str(item.value) for item in decorator.args if isinstance(item, ast.Constant)]
            if ids:
                yield node.name, tuple(ids)


def _is_marker(function: ast.expr) -> bool:
    return (isinstance(function, ast.Name) and function.id == "rule") or (
        isinstance(function, ast.Attribute) and function.attr == "rule"
    )
