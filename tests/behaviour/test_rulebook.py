"""The book-keeping of the conformance tests: ids exist, limits hold, the page says what the tests say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.tools.patience import patient
from tests.kit import recorded, rule_coverage
from tests.kit import rules as rulebook

ROOT = Path(__file__).parents[2]


def test_key_value_rules_have_ids_of_their_own_and_a_source() -> None:
    ids = [item.rule_id for item in rulebook.kv_rules()]
    assert len(set(ids)) == len(ids)
    assert all(rule_id.startswith(rulebook.KV_PREFIX) for rule_id in ids)
    assert not any(item.rule_id.startswith(rulebook.KV_PREFIX) for item in recorded.rules())
    assert all(item.area and item.text and item.source for item in rulebook.kv_rules())


def test_every_rule_is_tested_or_explained() -> None:
    every = {item.rule_id for item in (*recorded.rules(), *rulebook.kv_rules())}
    assert every - set(rule_coverage.tests_by_rule()) - set(rule_coverage.explained()) == set()


def test_few_rules_are_explained_and_none_of_them_is_tested() -> None:
    explained = rule_coverage.explained()
    assert len(explained) <= rule_coverage.EXPLAINED_MAX
    assert not set(explained) & set(rule_coverage.tests_by_rule())


def test_a_corrected_rule_is_tested_as_corrected() -> None:
    corrections = rule_coverage.corrections()
    assert not set(corrections) & set(rule_coverage.explained())
    assert set(corrections) <= set(rule_coverage.tests_by_rule())


def test_corrections_cite_a_recording_or_servers_that_the_test_has_asked() -> None:
    for rule_id, note in rule_coverage.corrections().items():
        if note.evidence == "8.0.1 and 7.2.9 asked, with this test":
            continue
        file, _, line = note.evidence.split()[0].rstrip(",;").partition(":")
        assert file.removesuffix(".jsonl") in recorded.scenario_names(), f"{rule_id}: {note.evidence}"
        assert line.partition("-")[0].isdigit(), f"{rule_id}: {note.evidence}"


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "lab" / "tools" / "conformance.py"), "--check"],
        capture_output=True, text=True, timeout=patient(60), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_marker_refuses_what_is_no_rule() -> None:
    with pytest.raises(ValueError, match="no such rule: HDR-99"):
        rulebook.rule("HDR-99")
    with pytest.raises(ValueError, match="1 to 5 rules"):
        rulebook.rule()
    with pytest.raises(ValueError, match="1 to 5 rules"):
        rulebook.rule(*(f"HDR-0{number}" for number in range(1, 7)))
