from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset
from dcpstream_spark.options import OffsetSpec
from dcpstream_spark.source.lag import Lag
from dcpstream_spark.source.offsets import SourceOffset, start_marker
from dcpstream_spark.tables.progress import Pace, VbucketProgress, lag_of, vbuckets_of
from tests.kit.cases import each_case

LAG = Lag(9, {2: 6, 1: 3}, 2, 4, 91)


@each_case("shape", [lambda data: data, json.dumps])
def test_the_report_of_the_source_is_in_the_progress(shape: Any) -> None:
    assert lag_of({"sources": [{"endOffset": None, "latestOffset": shape(LAG.to_json())}]}) == LAG


@each_case("source", [{}, {"endOffset": None, "latestOffset": None}, {"latestOffset": "null"}])
def test_without_an_answer_lag_is_not_known(source: dict[str, Any]) -> None:
    assert lag_of({"sources": [source]}) is None
    assert lag_of({}) is None


@each_case("report", [{"topic": {"0": 5}}, "7", {**LAG.to_json(), "worst": [1]}])
def test_another_source_is_refused(report: Any) -> None:
    with pytest.raises(OffsetError, match="another source"):
        lag_of({"sources": [{"latestOffset": report}]})


def test_before_spark_4_2_there_is_no_report() -> None:
    """Spark shows the planned end in its place."""
    end = SourceOffset.starting_at("b", None, {0: StreamOffset(7, 5, 5, 5)}).to_json()
    for latest in (end, json.dumps(end)):
        assert lag_of({"sources": [{"endOffset": end, "latestOffset": latest}]}) is None


def progress_of(end: Any, lag: Lag | None) -> dict[str, Any]:
    return {"sources": [{"endOffset": end, "latestOffset": None if lag is None else lag.to_json()}]}


END = SourceOffset.starting_at(
    "b", None, {0: StreamOffset(7, 5, 5, 5), 1: StreamOffset(7, 10, 8, 12), 2: StreamOffset(7, 3, 3, None)}
).to_json()


@each_case("shape", [lambda data: data, json.dumps])
def test_a_lag_that_is_named_whole_is_known_of_all_vbuckets(shape: Any) -> None:
    found = vbuckets_of(progress_of(shape(END), Lag(6, {1: 4, 2: 2}, 2, 3, 18)), None)
    assert found == [
        VbucketProgress(0, 5, 5, 0, 0),
        VbucketProgress(1, 10, 12, 4, 4),
        VbucketProgress(2, 3, None, 2, 2),
    ]
    assert [one.high_seqno for one in found] == [5, 14, 5]
    assert [one.is_inside_snapshot for one in found] == [False, True, True]


def test_those_that_are_not_named_are_behind_at_most_as_far_as_the_last_one() -> None:
    found = vbuckets_of(progress_of(END, Lag(7, {1: 4}, 2, 3, 18)), None)
    assert [(one.lag, one.lag_max) for one in found] == [(None, 4), (4, 4), (None, 4)]
    assert [one.high_seqno for one in found] == [None, 14, None]
    assert [one.is_inside_snapshot for one in found] == [False, True, None]


@each_case(("lag", "own"), [(None, None), (Lag(4, {1: 4}, 2, 2, 15), 4)])
def test_without_the_newest_seqno_of_each_vbucket_nothing_is_said_of_the_others(
    lag: Lag | None, own: int | None
) -> None:
    found = vbuckets_of(progress_of(END, lag), None)
    assert [(one.lag, one.lag_max) for one in found] == [(None, None), (own, own), (None, None)]


def test_only_the_vbuckets_that_are_read_are_reported() -> None:
    assert [one.vbucket for one in vbuckets_of(progress_of(END, Lag(0, {}, 0, 2, 8)), {0, 2})] == [0, 2]


@each_case("end", [None, "null", start_marker(OffsetSpec("earliest"))])
def test_before_the_first_batch_there_are_no_vbuckets(end: Any) -> None:
    assert vbuckets_of(progress_of(end, None), None) == []
    assert vbuckets_of({}, None) == []


def pace_of(*sums: tuple[int, int, int]) -> Pace:
    """The pace after reports of (second, seqnos read, lag)."""
    pace = Pace()
    for second, read, lag in sums:
        pace.add(f"2026-11-24T17:00:{second:02}.000Z", Lag(lag, {}, 0, 1, read))
    return pace


def test_without_a_report_no_pace_is_known() -> None:
    assert (Pace().share_read, Pace().seconds_left, Pace().lag_s) == (None, None, None)


def test_a_first_load_has_a_share_and_a_time_left() -> None:
    assert pace_of((0, 100, 900)).seconds_left is None, "one report has no speed"
    pace = pace_of((0, 100, 900), (4, 200, 800), (10, 300, 700), (10, 999, 1))
    assert pace.share_read == 0.3
    assert pace.seconds_left == 700 / (200 / 10)
    assert pace.lag_s is None, "what is read was written before the first report"


def test_what_is_read_whole_has_no_time_left() -> None:
    pace = pace_of((0, 100, 900), (5, 1000, 0))
    assert (pace.share_read, pace.seconds_left, pace.lag_s) == (1.0, 0.0, 0.0)
    assert pace_of((0, 0, 0)).share_read == 1.0


def test_a_lag_in_seconds_is_the_age_of_what_was_read() -> None:
    pace = pace_of((0, 100, 0), (10, 150, 50), (20, 150, 150))
    assert pace.lag_s == 15.0, "150 seqnos were there 5 s after the first report"
    assert pace_of((0, 100, 0), (10, 200, 0), (20, 200, 50)).lag_s == 10.0
