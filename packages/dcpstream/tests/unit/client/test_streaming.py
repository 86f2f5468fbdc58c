"""Options of a stream: where vbuckets begin and end, and the saved positions."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from dcpstream.client.machine.reader.changes import rollback_change
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.values import UNKNOWN_BRANCH, RollbackEvent, VbucketRange
from dcpstream.client.offsets import SavedOffset
from dcpstream.client.positions import Positions
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import ConfigError
from dcpstream.model import FailoverLog, StreamOffset
from tests.kit.rules import rule

LOG = FailoverLog.of((0xA, 0))
OBSERVED = {vbid: BranchState(0xA, 10 * vbid, LOG) for vbid in range(4)}


class Store:
    """An offset store in memory."""

    def __init__(self) -> None:
        self.records: dict[int, SavedOffset] = {}

    def load(self) -> dict[int, SavedOffset]:
        return dict(self.records)

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        self.records.update(offsets)


def at(seqno: int) -> StreamOffset:
    return StreamOffset(0xA, seqno, seqno, seqno)


def test_a_start_above_now_is_kept_for_the_node_to_judge() -> None:
    (part,) = StreamOptions(start={1: at(50)}, end="latest", members=(1, 4)).ranges(4, {}, OBSERVED)
    assert (part.start.seqno, part.end_seqno) == (50, 10)


def test_a_start_at_or_above_a_named_end_is_kept_for_the_node_to_judge() -> None:
    starts = {0: at(5), 1: at(5), 2: at(5), 3: at(0)}
    parts = StreamOptions(start=starts, end={0: 5, 1: 4, 3: 0}).ranges(4, {}, {})
    assert parts == [VbucketRange(0, at(5), 5), VbucketRange(1, at(5), 4)]
    rolling_back = {3: SavedOffset(at(0), (), is_rolling_back=True)}
    assert StreamOptions(end={3: 0}).ranges(4, rolling_back, {}) == [
        VbucketRange(3, at(0), 0, given_vbuuid=UNKNOWN_BRANCH)
    ]


def test_a_vbucket_without_an_observation() -> None:
    with pytest.raises(ConfigError, match="vbucket 5"):
        StreamOptions(end="latest").ranges(6, {}, {**OBSERVED, 4: OBSERVED[0]})


@rule("CLI-25")
def test_an_acknowledgement_covers_what_was_given_before_and_nothing_later() -> None:
    store = Store()
    positions = Positions([], store)
    first, second, third = (positions.give(offsets) for offsets in ({0: at(5)}, {1: at(7), 0: at(6)}, {2: at(1)}))
    positions.acknowledge(second)
    assert {vbid: record.offset for vbid, record in store.records.items()} == {0: at(6), 1: at(7)}
    positions.acknowledge(first)
    assert store.records[0].offset == at(6), "an older acknowledgement that comes late changes nothing"
    positions.acknowledge(third)
    assert store.records[2].offset == at(1)


def test_batches_that_are_never_acknowledged_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcpstream.client.positions.MAX_UNACKNOWLEDGED", 3)
    store = Store()
    positions = Positions([], store)
    numbers = [positions.give({vbid: at(vbid + 1)}) for vbid in range(6)]
    assert len(positions._given) == 3
    positions.acknowledge(numbers[0])
    assert store.records == {}, "joined to a later one"
    positions.acknowledge(numbers[-1])
    assert sorted(store.records) == list(range(6))


def test_a_rollback_as_a_change() -> None:
    change = rollback_change(RollbackEvent(3, 9, 2**63, 1, 2**64 - 1, at(2)))
    assert (change.op, change.vbid, change.seqno, change.vbuuid) == ("rollback", 3, 2**63, 2**64 - 1)
    assert change.value is not None
    assert json.loads(change.value) == {
        "from_seqno": "9",
        "to_seqno": str(2**63),
        "old_vbuuid": "1",
        "new_vbuuid": str(2**64 - 1),
    }
