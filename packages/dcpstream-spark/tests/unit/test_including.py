from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dcpstream.arrow import Comparison
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream_spark.including import DEFAULT, KINDS, comparisons, parse_include, parse_timestamp


def test_kinds_in_any_case() -> None:
    assert parse_include("include", "DELETES, systemevents") == {"deletes", "systemEvents"}
    assert parse_include("include", "none") == frozenset()
    assert parse_include("include", ",".join(KINDS)) == set(KINDS)
    with pytest.raises(ConfigError, match="snapshotMarks"):
        parse_include("include", "deletes,everything")


def test_what_is_left_out_is_a_comparison() -> None:
    assert comparisons(DEFAULT, None) == ()
    (one,) = comparisons(DEFAULT - {"deletes"}, None)
    assert one == Comparison("op", "not in", ("deletion",))
    (none,) = comparisons((), None)
    assert set(none.value) == {op.value for op in Op} - {"mutation", "rollback", "snapshot", "history_gap"}


def test_times() -> None:
    expected = datetime(2026, 11, 22, 15, tzinfo=UTC)
    for text in ("2026-11-22T15:00:00Z", "2026-11-22T16:00:00+01:00", "1795359600000"):
        assert parse_timestamp("startingTimestamp", text) == expected
    assert comparisons(DEFAULT, expected) == (Comparison("_commit_timestamp", ">=", expected),)
    for text in ("2026-11-22T15:00:00", "yesterday", "-1", "9" * 30):
        with pytest.raises(ConfigError, match="2026-11-22T15:00:00Z"):
            parse_timestamp("startingTimestamp", text)
