"""Deletions that were purged before they were read: distinguished from a rollback, and never silent."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest

from dcpstream.client.machine.reader.vbucket import GUARDED_STREAMS_MAX
from dcpstream.client.machine.rollback_policy import PurgeGap, RollbackPolicy
from dcpstream.client.machine.values import RollbackEvent, VbucketRange
from dcpstream.errors import HistoryPurged, RollbackRequired
from dcpstream.model import MAX_SEQNO, FailoverLog, StreamOffset
from dcpstream.wire import Frame, Status, StreamFlag
from tests.kit.cases import each_case
from tests.kit.client_machines import World, at, history, refused
from tests.kit.messages import DISK, LOG, accepted, marker, marker_v22, mutation, purge_statistics, rollback

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


@each_case("purge_gap", list(PurgeGap))
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


# ------------------------------------------------------------------------------------------- positions with a limit

LIMITED = VbucketRange(0, StreamOffset(0xA, 5, 0, 9, purge_limit=8), 12)


def purged_up_to(purge_seqno: int, *, has_v22: bool = False, log: FailoverLog = LOG) -> Callable[[Frame, int], bytes]:
    """A node that has purged deletions up to a seqno, and has rows up to 12: to 9 on disk, then in memory."""

    def answer(frame: Frame, _: int) -> bytes:
        start, end = struct.unpack_from(">QQ", frame.extras, 8)
        opaque, flags = frame.opaque, struct.unpack_from(">I", frame.extras)[0]
        if start == end:
            return refused(frame, Status.KEY_EEXISTS)
        if 0 < start < purge_seqno and not flags & IGNORE:
            return rollback(opaque, 0)
        frames = accepted(opaque, log)
        if start < 9:
            frames += marker_v22(opaque, 0, 9, purge_seqno) if has_v22 else marker(opaque, 0, 9, flags=DISK)
            frames += b"".join(mutation(opaque, seqno) for seqno in range(start + 1, 10))
        frames += marker(opaque, 10, 12)
        return frames + b"".join(mutation(opaque, seqno) for seqno in range(max(start + 1, 10), 13))

    return answer


def world_of(
    purge_seqno: int,
    has_v22: bool,
    *,
    log: FailoverLog = LOG,
    policy: RollbackPolicy = RollbackPolicy.REWIND,
    **options: Any,
) -> World:
    return World(
        [LIMITED],
        purged_up_to(purge_seqno, has_v22=has_v22, log=log),
        policy=policy,
        statistics=lambda frame, _: purge_statistics(frame, purge_seqno),
        **options,
    )


BOTH = pytest.mark.parametrize("has_v22", [False, True], ids=["STAT", "marker"])


@BOTH
@pytest.mark.parametrize("policy", [RollbackPolicy.REWIND, RollbackPolicy.FAIL])
def test_nothing_above_the_limit_was_purged(has_v22: bool, policy: RollbackPolicy) -> None:
    world = world_of(7, has_v22, policy=policy)
    world.run()
    assert world.out == [6, 7, 8, 9, 10, 11, 12]
    assert world.offsets[0] == at(12, 10, 12)
    asked = [fields[0] for _, fields in world.requests]
    assert asked == ([5, 5, 9] if has_v22 else [5, 5, 5, 9]), "and from the second snapshot on as usual"
    assert [bool(flags & IGNORE) for flags in world.flags].count(True) == 1


@BOTH
def test_something_above_the_limit_was_purged(has_v22: bool) -> None:
    world = world_of(9, has_v22)
    world.run()
    assert isinstance(world.out[0], RollbackEvent)
    assert (world.out[0].from_seqno, world.out[0].to_seqno) == (5, 0)
    assert world.seqnos() == list(range(1, 13))


@BOTH
def test_something_above_the_limit_was_purged_and_the_policy_is_to_fail(has_v22: bool) -> None:
    world = world_of(9, has_v22, purge_gap=PurgeGap.FAIL)
    with pytest.raises(HistoryPurged, match="vbucket 0: deletions after seqno 5 were purged"):
        world.run()
    assert world.out == []


@BOTH
def test_something_above_the_limit_was_purged_and_the_policy_is_to_ignore_it(
    has_v22: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_of(9, has_v22, purge_gap=PurgeGap.IGNORE)
    with caplog.at_level(logging.WARNING, logger="dcpstream"):
        world.run()
    assert world.out == [6, 7, 8, 9, 10, 11, 12]
    assert "deletions after seqno 5 were purged" in caplog.text


@BOTH
def test_another_branch_that_has_the_whole_first_snapshot(has_v22: bool) -> None:
    """The node accepts the position there; rows above it may be void, and the reader says so once it reads on."""
    world = world_of(7, has_v22, log=FailoverLog.of((0xB, 9), (0xA, 0)))
    world.run()
    assert isinstance(world.out[0], RollbackEvent)
    assert (world.out[0].from_seqno, world.out[0].to_seqno) == (5, 5)
    assert world.seqnos() == [6, 7, 8, 9, 10, 11, 12]


def test_a_connection_that_is_lost_while_rows_are_held_loses_none() -> None:
    asked: list[Frame] = []
    node = purged_up_to(7)

    def is_silent() -> bool:
        return len(asked) <= 2

    def statistics(frame: Frame, _: int) -> bytes:
        asked.append(frame)
        return b"" if is_silent() else purge_statistics(frame, 7)

    def answer(frame: Frame, attempt: int) -> bytes:
        start, end = struct.unpack_from(">QQ", frame.extras, 8)
        return b"" if start == end and is_silent() else node(frame, attempt)

    world = World([LIMITED], answer, policy=RollbackPolicy.REWIND, statistics=statistics, idle_timeout_s=None)
    for count in (1, 2):
        world.run(until=lambda count=count: len(asked) == count)  # type: ignore[misc]
        world.turn()
        world.cut(next(iter(world.links)))
    world.run()
    assert world.out == [6, 7, 8, 9, 10, 11, 12]


def test_a_node_that_never_tells_is_given_up() -> None:
    """After some guarded streams without a row, the position counts as one without a limit."""
    world = World(
        [LIMITED],
        purged_up_to(7),
        policy=RollbackPolicy.REWIND,
        statistics=lambda frame, _: purge_statistics(frame, 7) if len(cuts) > 5 else b"",
        idle_timeout_s=None,
    )
    cuts: list[int] = []
    while not world.out:
        world.turn()
        if world.flags and world.flags[-1] & IGNORE and len(world.flags) not in cuts:
            cuts.append(len(world.flags))
            for connection in list(world.links):
                world.cut(connection)
    assert len(cuts) == GUARDED_STREAMS_MAX
    world.run()
    assert isinstance(world.out[0], RollbackEvent)
    assert world.seqnos() == list(range(1, 13))
