from __future__ import annotations

from typing import Any

import pytest

from dcpstream.client.machine.resume import BranchState
from dcpstream.errors import ConfigError, ConnectionLost
from dcpstream.model import FailoverLog, StreamOffset
from dcpstream_spark.options import OffsetSpec
from dcpstream_spark.source.starting import end_seqnos, require_all, start_positions
from tests.kit.cases import each_case

OBSERVED = {vbid: BranchState(7, high, FailoverLog.of((7, 0))) for vbid, high in enumerate((5, 0, 9))}


def test_earliest_asks_for_nothing() -> None:
    assert start_positions(OffsetSpec("earliest"), 3, {}) == dict.fromkeys(range(3), StreamOffset.ZERO)


def test_latest_is_the_end_of_what_is_there() -> None:
    expected = {0: StreamOffset(7, 5, 5, 5), 1: StreamOffset.ZERO, 2: StreamOffset(7, 9, 9, 9)}
    assert start_positions(OffsetSpec("latest"), 3, OBSERVED) == expected
    with pytest.raises(ConnectionLost, match=r"1 of 4 vbuckets \(3\)"):
        start_positions(OffsetSpec("latest"), 4, OBSERVED)


def test_positions_and_the_beginning_for_the_rest() -> None:
    positions = start_positions(OffsetSpec("positions", {2: "4"}), 3, OBSERVED)
    assert positions == {0: StreamOffset.ZERO, 1: StreamOffset.ZERO, 2: StreamOffset(7, 4, 4, 4)}


@each_case("data", ["x", None, {"seqno": "-1"}, ["1", "2"]])
def test_a_wrong_position_names_the_option(data: Any) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        start_positions(OffsetSpec("positions", {0: data}), 3, OBSERVED)


def test_an_unknown_branch_is_not_guessed() -> None:
    with pytest.raises(ConnectionLost, match="vbucket 0"):
        start_positions(OffsetSpec("positions", {0: "1"}), 3, {})


def test_ends() -> None:
    start = {0: StreamOffset(1, 2, 2, 2), 1: StreamOffset.ZERO}
    assert end_seqnos(OffsetSpec("latest"), {0: 5, 1: 0}, start) == {0: 5, 1: 0}
    assert end_seqnos(OffsetSpec("positions", {0: "3"}), {0: 5, 1: 2}, start) == {0: 3, 1: 2}
    assert end_seqnos(OffsetSpec("positions", {0: -1, 1: "-1"}), {0: 5, 1: 2}, start) == {0: 5, 1: 2}
    assert end_seqnos(OffsetSpec("positions", {0: "2"}), {0: 5}, start) == {0: 2}, "nothing to read"
    with pytest.raises(ConfigError, match="high seqno, 5"):
        end_seqnos(OffsetSpec("positions", {0: "6"}), {0: 5}, start)
    with pytest.raises(ConfigError, match="vbuckets below 1"):
        end_seqnos(OffsetSpec("positions", {4: "1"}), {0: 5}, start)
    with pytest.raises(ConfigError, match="at least the start of the read, seqno 2"):
        end_seqnos(OffsetSpec("positions", {0: "1"}), {0: 5}, start)
    with pytest.raises(ConfigError, match="-1 for the latest"):
        end_seqnos(OffsetSpec("positions", {0: "-2"}), {0: 5}, start)


def test_single_vbuckets_start_at_their_ends() -> None:
    spec = OffsetSpec("positions", {0: -1, 1: "-2"})
    positions = start_positions(spec, 3, OBSERVED)
    high = OBSERVED[0].high_seqno
    assert positions[0] == StreamOffset(OBSERVED[0].vbuuid, high, high, high)
    assert positions[1] == positions[2] == StreamOffset.ZERO


def test_missing_vbuckets_are_counted() -> None:
    require_all({0: 1, 1: 1}, 2)
    with pytest.raises(ConnectionLost, match=r"8 of 10 vbuckets \(2, 3, 4, 5, 6, …\)"):
        require_all({0: 1, 1: 1}, 10)
