"""The part of a comparison that needs no Spark: the tally of a task, and the report."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.pipelines.comparison import DIFFERENCES, ComparisonReport, Difference, _report, tally_batches

_KINDS = ["equal", *DIFFERENCES]
_SCHEMA = pa.schema([(name, pa.string()) for name in ("kind", "scope", "collection", "key", "detail")])


def batch(kinds: list[str], first: int = 0) -> pa.RecordBatch:
    rows = [
        {"kind": kind, "scope": "s", "collection": "c", "key": str(number), "detail": "d"}
        for number, kind in enumerate(kinds, first)
    ]
    return pa.RecordBatch.from_pylist(rows, _SCHEMA)


def tally(parts: list[list[str]], examples: int) -> list[dict[str, Any]]:
    batches = [batch(kinds, 1000 * number) for number, kinds in enumerate(parts)]
    return [row for found in tally_batches(iter(batches), examples=examples) for row in found.to_pylist()]


@given(st.lists(st.lists(st.sampled_from(_KINDS), max_size=12), max_size=4), st.integers(0, 3))
def test_a_task_counts_everything_and_keeps_a_bounded_number_of_examples(parts: list[list[str]], examples: int) -> None:
    counts = Counter(kind for part in parts for kind in part)
    # Two tasks with the same rows.
    report = _report(tally(parts, examples) * 2, examples)
    assert {kind: getattr(report, kind) for kind in _KINDS} == {kind: 2 * counts[kind] for kind in _KINDS}
    shown = Counter(one.kind for one in report.examples)
    assert shown == {kind: min(2 * min(counts[kind], examples), examples) for kind in DIFFERENCES if shown[kind]}
    assert report.is_equal == (not (set(counts) - {"equal"}))


def test_a_task_sends_few_rows() -> None:
    assert len(tally([["missing"] * 5000, ["extra"] * 5000], 3)) == 2 + 2 * 3


def test_a_report_as_json() -> None:
    report = ComparisonReport(equal=1, extra=1, examples=(Difference("extra", "s", "c", "k", "deleted at seqno 5"),))
    assert json.loads(report.to_json()) == {
        "is_equal": False,
        "equal": 1,
        "different": 0,
        "missing": 0,
        "extra": 1,
        "duplicate": 0,
        "examples": [
            {"kind": "extra", "scope": "s", "collection": "c", "key": "k", "detail": "deleted at seqno 5"},
        ],
    }


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_any_difference_makes_a_report_unequal(kind: str) -> None:
    counts: dict[str, int] = {kind: 1}
    assert not ComparisonReport(**counts).is_equal  # type: ignore[arg-type]
    assert ComparisonReport(equal=5).is_equal
