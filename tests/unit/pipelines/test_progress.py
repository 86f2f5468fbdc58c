from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset
from dcpstream.pipelines.progress import PipelineProgress, lag_of
from dcpstream.spark.offsets import SourceOffset


def offset(*positions: StreamOffset) -> dict[str, Any]:
    return SourceOffset.starting_at("b", None, dict(enumerate(positions))).to_json()


END = offset(
    StreamOffset(1, 5, 0, None), StreamOffset(1, 7, 0, None), StreamOffset(1, 3, 0, 9), StreamOffset(1, 4, 4, 4)
)
LATEST = offset(*(StreamOffset(0, high, high, high) for high in (5, 10, 9, 3)))


@pytest.mark.parametrize("shape", [lambda data: data, json.dumps])
def test_lag_is_latest_minus_end_and_never_negative(shape: Any) -> None:
    lag, inside = lag_of({"sources": [{"endOffset": shape(END), "latestOffset": shape(LATEST)}]})
    assert lag == {0: 0, 1: 3, 2: 6, 3: 0}
    assert inside == 2, "vbucket 1 is behind what was there, vbucket 2 within a snapshot that is known"
    assert PipelineProgress(lag=lag).total_lag == 9


@pytest.mark.parametrize("source", [{}, {"endOffset": None, "latestOffset": None}, {"endOffset": "null"}])
def test_before_the_first_batch_there_is_no_lag(source: dict[str, Any]) -> None:
    assert lag_of({"sources": [source]}) == ({}, 0)
    assert lag_of({}) == ({}, 0)


def test_without_an_answer_lag_is_not_known() -> None:
    lag, inside = lag_of({"sources": [{"endOffset": END, "latestOffset": None}]})
    assert lag == {}
    assert inside == 3, "a position without its snapshot's end may be inside one"


def test_another_source_is_refused() -> None:
    with pytest.raises(OffsetError, match="another source"):
        lag_of({"sources": [{"endOffset": {"vbuckets": {"0": 5}}}]})
