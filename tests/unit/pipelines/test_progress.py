from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset
from dcpstream.pipelines.progress import lag_of
from dcpstream.spark.lag import Lag
from dcpstream.spark.offsets import SourceOffset

LAG = Lag(9, {2: 6, 1: 3}, 2, 4)


@pytest.mark.parametrize("shape", [lambda data: data, json.dumps])
def test_the_report_of_the_source_is_in_the_progress(shape: Any) -> None:
    assert lag_of({"sources": [{"endOffset": None, "latestOffset": shape(LAG.to_json())}]}) == LAG


@pytest.mark.parametrize("source", [{}, {"endOffset": None, "latestOffset": None}, {"latestOffset": "null"}])
def test_without_an_answer_lag_is_not_known(source: dict[str, Any]) -> None:
    assert lag_of({"sources": [source]}) is None
    assert lag_of({}) is None


@pytest.mark.parametrize("report", [{"topic": {"0": 5}}, "7", {**LAG.to_json(), "worst": [1]}])
def test_another_source_is_refused(report: Any) -> None:
    with pytest.raises(OffsetError, match="another source"):
        lag_of({"sources": [{"latestOffset": report}]})


def test_before_spark_4_2_there_is_no_report() -> None:
    """Spark shows the planned end in its place."""
    end = SourceOffset.starting_at("b", None, {0: StreamOffset(7, 5, 5, 5)}).to_json()
    for latest in (end, json.dumps(end)):
        assert lag_of({"sources": [{"endOffset": end, "latestOffset": latest}]}) is None
