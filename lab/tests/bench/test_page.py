"""The page of figures has those of the last whole run."""

from __future__ import annotations

import json

import pytest

from lab.bench.page import FIRST, LAST, PAGE, figures, with_figures
from lab.bench.run import RESULTS


def test_the_page_has_the_figures_of_the_last_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_figures(text, json.loads(RESULTS.read_text(encoding="utf-8"))) == text


def test_a_goal_that_was_missed_says_so() -> None:
    results = {
        "when": "2026-11-28T10:00:00+00:00",
        "machine": {"cpu": "CPU", "cores": 2, "load_at_start": [0.25, 0, 0]},
        "versions": {"python": "3.11.7", "pyarrow": "26"},
        "ratios": {"decode.256.of_memcpy": 0.5, "node_start_s": 0.02},
        "under_load": {"programs": 2, "ratios": {"node_start_s": 0.04}},
    }
    lines = figures(results).splitlines()
    assert "| decode, 256 B values, of memcpy | 0.5 | - | ≥ 0.6, not reached |" in lines
    assert "| node start, 1,024 vbuckets | 0.02 | 0.04 | ≤ 0.5 s |" in lines


def test_a_page_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no lines"):
        with_figures(f"{LAST} {FIRST}", {"when": "", "machine": {}, "versions": {}, "ratios": {}})
