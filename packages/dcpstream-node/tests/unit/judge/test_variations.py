"""Variations: data with reasons, each for what it says and nothing else."""

from __future__ import annotations

from dcpstream_node.judge.scenarios import SCENARIOS
from dcpstream_node.judge.variations import VARIATIONS
from lab.layout import ROOT


def test_every_variation_has_a_reason_and_a_scenario_that_is_there() -> None:
    for each in VARIATIONS:
        assert each.reason
        assert any(name.startswith(each.scenario) for name in SCENARIOS), each


def test_the_page_has_every_reason() -> None:
    page = (ROOT / "docs" / "reference" / "judge.md").read_text("utf-8")
    assert [each.reason for each in VARIATIONS if each.reason not in page] == []
