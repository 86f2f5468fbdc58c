"""The marker that ties a test to the rules it proves.

There are two rule tables with the same columns (id, area, rule, source): tests/data/recorded/rules.tsv holds the rules
of the protocol, tests/conformance/kv_rules.tsv those of the key-value and vbucket commands; their ids begin with KV-.
A rule of either table is covered by the tests marked with its id:

    @rule("ADD-07", "ADD-08")
    def test_…

or explained (`tests.kit.rule_coverage`). This module is part of the copy of the tests in the wheel of dcpstream-node.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.kit import recorded

RULES_PER_TEST_MAX = 5
"""A test that names more rules shows little of each."""

KV_PREFIX = "KV-"
"""The prefix of the ids of key-value rules; no other id has it."""

HERE = recorded.ROOT / "tests" / "conformance"


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
