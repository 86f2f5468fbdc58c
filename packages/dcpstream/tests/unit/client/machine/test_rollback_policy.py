"""Deletions that were purged before they were read: distinguished from a rollback, and never silent."""

from __future__ import annotations

import logging

import pytest

from dcpstream.client.machine.rollback_policy import PurgeGap, RollbackPolicy
from dcpstream.client.machine.values import RollbackEvent, VbucketRange
from dcpstream.errors import HistoryPurged, RollbackRequired
from dcpstream.model import MAX_SEQNO, FailoverLog
from dcpstream.wire import Frame, StreamFlag
from tests.kit.client_machines import World, at, history
from tests.kit.messages import rollback

IGNORE = StreamFlag.IGNORE_PURGED_TOMBSTONES
RANGE = VbucketRange(0, at(5), 9)


def purged(frame: Frame, _: int) -> bytes:
    """A node that has purged deletions after 5: from there only a reader that ignores that may read on."""
    start = int.from_bytes(frame.extras[8:16], "big")
    if start and not frame.extras[3] & IGNORE:
        return rollback(frame.opaque, 0)
    return history(frame, 9)


def unknown_branch(frame: Frame, attempt: int) -> bytes:
    """A node that does not know the branch asks for a rollback to 0 too."""
    start = int.from_bytes(frame.extras[8:16], "big")
    return rollback(frame.opaque, 0) if start else history(frame, 9)


def test_fail() -> None:
    world = World([RANGE], purged, policy=RollbackPolicy.REWIND, purge_gap=PurgeGap.FAIL)
    with pytest.raises(HistoryPurged, match="vbucket 0: deletions after seqno 5 were purged"):
        world.run()
    assert world.out == []


def test_ignore_reads_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = World([RANGE], purged, policy=RollbackPolicy.FAIL, purge_gap=PurgeGap.IGNORE)
    with caplog.at_level(logging.WARNING, logger="dcpstream"):
        world.run()
    assert world.out == [6, 7, 8, 9]
    assert "deletions after seqno 5 were purged" in caplog.text
    assert [bool(flags & IGNORE) for flags in world.flags] == [False, True]


def test_reconcile_starts_over_with_an_event() -> None:
    world = World([RANGE], purged, policy=RollbackPolicy.REWIND, purge_gap=PurgeGap.RECONCILE)
    world.run()
    assert isinstance(world.out[0], RollbackEvent)
    assert (world.out[0].from_seqno, world.out[0].to_seqno) == (5, 0)
    assert world.seqnos() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert not any(flags & IGNORE for flags in world.flags)


@pytest.mark.parametrize("purge_gap", list(PurgeGap))
def test_an_unknown_branch_is_no_purge_gap(purge_gap: PurgeGap) -> None:
    world = World([RANGE], unknown_branch, policy=RollbackPolicy.FAIL, purge_gap=purge_gap)
    with pytest.raises(RollbackRequired):
        world.run()
    world = World([RANGE], unknown_branch, policy=RollbackPolicy.REWIND, purge_gap=purge_gap)
    world.run()
    assert isinstance(world.out[0], RollbackEvent)
    assert world.seqnos() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


NEWER = FailoverLog.of((0xB, 5), (0xA, 0))


def test_a_failover_between_the_two_requests_is_no_purge_gap() -> None:
    def answers(frame: Frame, attempt: int) -> bytes:
        return rollback(frame.opaque, 0) if attempt == 0 else history(frame, 9, NEWER)

    gone_on = VbucketRange(0, at(5), MAX_SEQNO)  # rows above 5 may have been given out before
    world = World([gone_on], answers, policy=RollbackPolicy.FAIL, purge_gap=PurgeGap.FAIL)
    with pytest.raises(RollbackRequired, match="another branch"):
        world.run()
    assert [bool(flags & IGNORE) for flags in world.flags] == [False, True, False]
    assert world.out == []


def test_deletions_that_another_branch_has_purged() -> None:
    def answers(frame: Frame, _: int) -> bytes:
        start = int.from_bytes(frame.extras[8:16], "big")
        is_refused = start and not frame.extras[3] & IGNORE
        return rollback(frame.opaque, 0) if is_refused else history(frame, 9, NEWER)

    world = World([RANGE], answers, policy=RollbackPolicy.REWIND, purge_gap=PurgeGap.FAIL)
    with pytest.raises(HistoryPurged, match="vbucket 0: deletions after seqno 5 were purged"):
        world.run()
    assert [bool(flags & IGNORE) for flags in world.flags] == [False, True, False, True]


def test_a_reader_from_the_beginning_has_no_gap() -> None:
    world = World([VbucketRange(0, at(0), 9)], purged, purge_gap=PurgeGap.FAIL)
    world.run()
    assert world.seqnos() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
