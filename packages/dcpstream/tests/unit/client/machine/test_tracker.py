"""The position of a reader while messages arrive."""

from __future__ import annotations

import pickle
import sys

import pytest

from dcpstream.client.machine.tracker import Moves, Offsets, PositionTracker, Run
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import FailoverLog, StreamOffset
from tests.kit.cases import each_case
from tests.kit.client_machines import at

LOG = FailoverLog.of((0xA, 0))


def opened(offset: StreamOffset = StreamOffset.ZERO, log: FailoverLog = LOG) -> PositionTracker:
    tracker = PositionTracker(offset)
    tracker.opened(log)
    return tracker


def test_the_first_snapshot_from_disk_gives_the_purge_limit() -> None:
    tracker = opened()
    tracker.marker(0, 10, is_unique=True)
    assert tracker.offset.purge_limit is None, "nothing was received"
    tracker.items(4, 7)
    assert tracker.offset.purge_limit == 10
    run = tracker.run(0, 0, 2)
    assert [run.offset(seqno).purge_limit for seqno in (4, 7)] == [10, 10]
    tracker.item(10)
    assert tracker.offset.purge_limit is None, "the snapshot is whole"
    assert run._replace(seqno=10).offset(10).purge_limit is None
    tracker.marker(11, 20, is_unique=True)
    tracker.item(15)
    assert tracker.offset.purge_limit is None, "rows from before it may be deleted in it"


def test_a_snapshot_with_several_versions_gives_no_purge_limit() -> None:
    tracker = opened()
    tracker.marker(0, 10)
    tracker.item(4)
    assert tracker.offset.purge_limit is None


def test_a_snapshot_that_is_resumed_keeps_its_purge_limit() -> None:
    tracker = opened(StreamOffset(0xA, 4, 0, 10, purge_limit=10), FailoverLog.of((0xB, 10), (0xA, 0)))
    assert tracker.offset.purge_limit == 10
    tracker.marker(0, 30, is_unique=True)
    tracker.item(6)
    assert (tracker.offset, tracker.offset.purge_limit) == (at(6, 0, 30, vbuuid=0xB), 10)
    tracker.item(12)
    assert tracker.offset.purge_limit is None


@each_case(("end", "is_unique"), [(9, True), (30, False)])
def test_rows_that_may_be_deleted_up_to_the_limit_end_it(end: int, is_unique: bool) -> None:
    tracker = opened(StreamOffset(0xA, 4, 0, 10, purge_limit=10))
    tracker.marker(0, end, is_unique=is_unique)
    tracker.item(6)
    assert tracker.offset.purge_limit is None


def test_an_out_of_order_snapshot_has_no_purge_limit() -> None:
    tracker = opened(StreamOffset(0xA, 4, 0, 10, purge_limit=10))
    tracker.oso(True)
    tracker.oso(False)
    assert tracker.offset.purge_limit is None


def test_a_promised_snapshot_end_is_kept_until_it_is_passed() -> None:
    tracker = opened(at(5, 2, 20))
    tracker.marker(2, 8)  # a producer that breaks its promise
    tracker.item(8)
    assert tracker.offset == at(8, 2, 20)
    tracker.marker(9, 30)
    tracker.item(20)
    assert tracker.offset == at(20, 2, 30)
    tracker.marker(31, 31)
    tracker.item(31)
    assert tracker.offset == at(31, 31, 31)


def test_out_of_order_snapshots_move_the_position_only_at_their_end() -> None:
    tracker = opened()
    tracker.oso(True)
    for seqno in (9, 3, 5):
        tracker.item(seqno)
    assert tracker.offset == StreamOffset(0xA, 0, 0, 0)
    assert not tracker.snapshots.is_complete
    tracker.oso(False)
    assert tracker.offset == at(9)


def test_a_marker_after_an_out_of_order_snapshot_may_begin_at_0() -> None:
    """The server has not noticed yet that it sent a first snapshot. What it announces begins at the position."""
    tracker = opened()
    tracker.oso(True)
    tracker.item(9)
    tracker.oso(False)
    with pytest.raises(RemoteProtocolError):
        tracker.marker(0, 8)
    tracker.marker(0, 12)
    assert tracker.offset == at(9)
    with pytest.raises(RemoteProtocolError):
        tracker.item(9)
    tracker.item(10)
    assert tracker.offset == at(10, 9, 12), "a rollback costs no more than that snapshot"
    tracker.item(12)
    with pytest.raises(RemoteProtocolError):
        tracker.marker(0, 20)


def test_reached_keeps_the_position_if_the_next_snapshot_begins_above() -> None:
    tracker = opened()
    tracker.marker(0, 4)
    tracker.item(4)
    tracker.marker(9, 12)
    assert not tracker.snapshots.finish_at(6)
    assert tracker.offset == at(4, 0, 4)


def test_positions_after_runs_are_those_of_the_last_run_of_each_vbucket() -> None:
    held, runs = at(5), [Run(1, 0, 2, 9, 20, 10, 30, 4), Run(2, 2, 2, 9, 7, 7, 7, 0), Run(1, 2, 3, 9, 25, 10, 30, 4)]
    offsets = Offsets([*runs, Run.standing(3, held)])
    expected = {1: StreamOffset(9, 25, 10, 30, 4), 2: StreamOffset(9, 7, 7, 7), 3: held}
    assert offsets == expected
    assert expected == pickle.loads(pickle.dumps(offsets))
    assert {**offsets} == expected
    assert repr(offsets) == repr(expected)
    assert 4 not in offsets


def test_positions_do_not_keep_what_belongs_to_rows() -> None:
    """Recorded positions are kept for long, and a receive may have many thousand rows."""
    owners, seqnos = bytes(4 * 1000), bytearray(8 * 1000)
    count = sys.getrefcount(owners)
    moves = Moves((), b"", owners, [], has_unordered=False, native=sys, seqnos=memoryview(seqnos))
    offsets = Offsets((), moves)
    del moves
    assert sys.getrefcount(owners) == count
    seqnos.append(0)  # it cannot grow while a view of it exists
    assert not offsets
