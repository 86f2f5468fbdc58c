"""The marker that ties a test to the rules it proves, and the explanations of rules that no test can prove.

There are two rule tables with the same columns (id, area, rule, source): tests/data/recorded/rules.tsv holds the rules
of the protocol, tests/conformance/kv_rules.tsv those of the key-value and vbucket commands; their ids begin with KV-.
A rule of either table is covered by the tests marked with its id:

    @rule("ADD-07", "ADD-08")
    def test_…

or explained in explained.toml (it cannot apply here). corrections.toml lists the rules that a recording contradicts; a
test proves them as corrected. What is in these two files, and which test names which rule, is read from the source
without running anything, so that the page docs/reference/conformance.md can be compared with it at once.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from lab.layout import ROOT, folders_of_tests
from tests.kit import recorded

RULES_PER_TEST_MAX = 5
"""A test that names more rules shows little of each."""

EXPLAINED_MAX = 30
"""Rules that may be explained instead of tested."""

KV_PREFIX = "KV-"
"""The prefix of the ids of key-value rules; no other id has it."""

HERE = ROOT / "tests" / "conformance"


@dataclass(frozen=True, slots=True)
class Note:
    """The explanation or correction of a rule.

    Attributes:
        reason: why it cannot apply, or what is right.
        evidence: where it shows: a recording's file and line, a page, a module.
    """

    reason: str
    evidence: str


@cache
def kv_rules() -> list[recorded.Rule]:
    """The rules of the key-value and vbucket commands, in the order of kv_rules.tsv."""
    text = (HERE / "kv_rules.tsv").read_text(encoding="utf-8")
    return [recorded.Rule(*row.split("\t")) for row in text.splitlines() if row]


@cache
def known_ids() -> frozenset[str]:
    """The ids of all rules of both tables."""
    return frozenset(item.rule_id for item in (*recorded.rules(), *kv_rules()))


def rule(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as the proof of these rules.

    Raises:
        ValueError: no id, too many, or one that no rule has.
    """
    unknown = [item for item in ids if item not in known_ids()]
    if unknown:
        raise ValueError(f"no such rule: {', '.join(unknown)}; rules.tsv and kv_rules.tsv have the ids")
    if not 0 < len(ids) <= RULES_PER_TEST_MAX:
        raise ValueError(f"a test names 1 to {RULES_PER_TEST_MAX} rules, this one {len(ids)}")
    return pytest.mark.rule(*ids)


def of_release(*names: str) -> pytest.MarkDecorator:
    """Run a test of tests/conformance with nodes of each of these releases, in the place of the default one.

    A rule that a recording of another release contradicts names the release whose rule it is.
    """
    return pytest.mark.parametrize("release", names)


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
