"""The part of a comparison that needs no Spark: the report."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dcpstream_spark.tables.comparison import (
    DIFFERENCES,
    ComparisonReport,
    Difference,
    _without_empty_chunks,
    report_of,
)
from tests.kit.cases import each_case

_KINDS = ["equal", *DIFFERENCES]
_ROWS = st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(1, 1000)))


@given(_ROWS, st.integers(0, 3))
def test_slots_are_added_up_and_some_are_shown(rows: list[tuple[Any, int]], examples: int) -> None:
    tallied = [
        {"kind": kind, "count": count, "example": None if kind == "equal" else ("s", "c", str(number), "d")}
        for number, (kind, count) in enumerate(rows)
    ]
    report = report_of(tallied, examples)
    for kind in _KINDS:
        assert getattr(report, kind) == sum(count for found, count in rows if found == kind)
    shown = Counter(one.kind for one in report.examples)
    slots = Counter(kind for kind, _ in rows)
    assert all(shown[kind] == min(slots[kind], examples) for kind in DIFFERENCES)
    assert report.is_equal == all(kind == "equal" for kind, _ in rows)


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


@each_case("kind", DIFFERENCES)
def test_any_difference_makes_a_report_unequal(kind: str) -> None:
    counts: dict[str, int] = {kind: 1}
    assert not ComparisonReport(**counts).is_equal  # type: ignore[arg-type]
    assert ComparisonReport(equal=5).is_equal


def test_spark_gets_no_empty_chunk_because_it_drops_what_follows() -> None:
    some = pa.table({"key": ["a", "b"]})
    table = _without_empty_chunks(pa.concat_tables([some.slice(0, 0), some, some.slice(0, 0), some]))
    assert [len(chunk) for chunk in table.column("key").chunks] == [2, 2]
    assert _without_empty_chunks(some.slice(0, 0)).schema == some.schema
