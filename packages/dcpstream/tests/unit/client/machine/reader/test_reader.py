"""The reader over several nodes: refusals, ends, moves and cuts, without sockets, on a clock turned by hand."""

from __future__ import annotations

import random

import pytest

from dcpstream.client.machine.nodes.retry import MAX_PAUSE_S, PROTOCOL_ERRORS_MAX, Backoff
from dcpstream.client.machine.reader.reader import MOVED_GRACE_S
from dcpstream.client.machine.reader.recorded import RECORDED_MAX
from dcpstream.client.machine.reader.vbucket import State
from dcpstream.client.machine.rollback_policy import RollbackPolicy
from dcpstream.client.machine.values import RollbackEvent, VbucketRange
from dcpstream.errors import (
    AuthenticationFailed,
    ConnectTimeout,
    OutOfRange,
    RemoteProtocolError,
    RollbackRequired,
    StreamEnded,
)
from dcpstream.model import MAX_SEQNO, FailoverLog, NodeAddress, StreamOffset
from dcpstream.wire import Frame, Opcode, Status, encode_request
from tests.kit.cases import each_case
from tests.kit.client_machines import World, at, history, observed, refused
from tests.kit.fake_node import config
from tests.kit.messages import accepted, marker, mutation, rollback, stream_end
from tests.kit.rules import rule


def test_nothing_to_do_is_done_at_once() -> None:
    world = World([VbucketRange(0, at(5), 5)], lambda *_: b"")
    assert world.reader.is_done


@rule("CLI-24")
def test_several_vbuckets() -> None:
    world = World([VbucketRange(vbid, StreamOffset.ZERO, 4) for vbid in range(4)], lambda frame, _: history(frame, 4))
    world.run()
    assert sorted(world.seqnos()) == sorted([1, 2, 3, 4] * 4)
    assert len(world.links) == 1


def test_two_ranges_of_one_vbucket_are_refused() -> None:
    with pytest.raises(ValueError, match="two ranges"):
        World([VbucketRange(0, StreamOffset.ZERO, 4)] * 2, lambda *_: b"")


@rule("CLI-12", "CLI-13", "CLI-14")
@each_case("reason", [1, 2, 3, 4, 5, 6, 99])
def test_any_other_end_is_resumed_where_it_stopped(reason: int) -> None:
    def answer(frame: Frame, attempt: int) -> bytes:
        if attempt == 0:
            return history(frame, 3) + stream_end(frame.opaque, reason)
        return history(frame, 6)

    world = World([VbucketRange(0, StreamOffset.ZERO, 6)], answer)
    world.run()
    assert world.out == [1, 2, 3, 4, 5, 6]
    assert world.requests[1][1] == (3, 6, 0xA, 0, 3)


@each_case("collections", [None, ["_default.flights"]])
def test_a_stream_that_ends_inside_a_snapshot_for_ever_is_an_error(collections: list[str] | None) -> None:
    def answer(frame: Frame, attempt: int) -> bytes:
        rows = mutation(frame.opaque, 2) if attempt == 0 else b""
        return accepted(frame.opaque) + marker(frame.opaque, 0, 4) + rows + stream_end(frame.opaque, 0)

    world = World([VbucketRange(0, StreamOffset.ZERO, 5)], answer, collections=collections)
    with pytest.raises(
        RemoteProtocolError, match=r"on 5 streams of vbucket 0.*ends with OK at seqno 2, in the middle of a snapshot"
    ):
        world.run()
    assert world.seqnos() == [2]


def test_an_end_below_the_wanted_one_is_taken_as_true_if_it_is_said_twice() -> None:
    """The user may not see the rest: documents of system collections."""

    def answer(frame: Frame, attempt: int) -> bytes:
        return history(frame, 3) + stream_end(frame.opaque, 0)

    world = World([VbucketRange(0, StreamOffset.ZERO, 5)], answer)
    world.run()
    assert world.seqnos() == [1, 2, 3]
    assert [fields for _, fields in world.requests] == [(0, 5, 0, 0, 0), (3, 5, 0xA, 0, 3)]
    assert world.offsets == {0: at(3, 0, 3)}


def test_rows_that_are_held_back_outlast_an_end_that_comes_early() -> None:
    """Otherwise each stream would bring them again, and none could say that there is no more."""
    persisted = {0: 0}

    def observe(frame: Frame, _: int) -> bytes:
        return observed(frame, persisted)

    world = World(
        [VbucketRange(0, StreamOffset.ZERO, 5)],
        lambda frame, _: history(frame, 3) + stream_end(frame.opaque, 0),
        observe=observe,
    )
    world.run(lambda: world.now > 1.0)
    assert world.seqnos() == []
    persisted[0] = 3
    world.run()
    assert world.seqnos() == [1, 2, 3]
    assert len(world.requests) == 2


def test_an_endless_stream_that_the_node_ends_is_opened_again() -> None:
    def answer(frame: Frame, attempt: int) -> bytes:
        return history(frame, 2 * (attempt + 1)) + stream_end(frame.opaque, 0)

    world = World([VbucketRange(0, StreamOffset.ZERO, MAX_SEQNO)], answer)
    world.run(lambda: len(world.out) >= 6)
    assert world.seqnos()[:6] == [1, 2, 3, 4, 5, 6]


@rule("CLI-15")
def test_lost_rights_are_an_error() -> None:
    world = World(
        [VbucketRange(0, StreamOffset.ZERO, 5)], lambda frame, _: accepted(frame.opaque) + stream_end(frame.opaque, 8)
    )
    with pytest.raises(StreamEnded, match="right"):
        world.run()


@rule("CLI-15")
def test_an_empty_filter_is_an_end() -> None:
    world = World(
        [VbucketRange(0, StreamOffset.ZERO, 5)],
        lambda frame, _: accepted(frame.opaque) + stream_end(frame.opaque, 7),
        collections=["_default.flights"],
    )
    world.run()
    assert world.out == []


@rule("CLI-12")
def test_a_cut_connection_is_made_again_and_goes_on() -> None:
    world = World(
        [VbucketRange(0, StreamOffset.ZERO, 6)],
        lambda frame, attempt: history(frame, 3 if attempt == 0 else 6),
    )
    world.run(lambda: len(world.out) == 3)
    world.cut(next(iter(world.links)))
    world.run()
    assert world.out == [1, 2, 3, 4, 5, 6]
    assert world.requests[1][1] == (3, 6, 0xA, 0, 3)


CUT_SHORT = b"123"


def broken_after(frame: Frame, first: int, last: int, end: int) -> bytes:
    """Some rows of a snapshot, and a message that is cut short."""
    rows = b"".join(mutation(frame.opaque, seqno) for seqno in range(first, last + 1))
    return (
        accepted(frame.opaque)
        + marker(frame.opaque, first - 1, end)
        + rows
        + encode_request(Opcode.DCP_SEQNO_ADVANCED, opaque=frame.opaque, extras=CUT_SHORT)
    )


@each_case(("rows", "is_whole", "is_read"), [(10, True, True), (1000, False, True), (10, False, False)])
def test_progress_forgives_a_vbucket(rows: int, is_whole: bool, is_read: bool) -> None:
    """The end of a snapshot is progress, and so are a thousand rows; a few rows are not."""
    end = 20 * rows

    def answer(frame: Frame, attempt: int) -> bytes:
        first = 1 + attempt * rows
        if attempt == 19:
            return history(frame, end)
        return broken_after(frame, first, first + rows - 1, first + rows - 1 if is_whole else end)

    world = World([VbucketRange(0, StreamOffset.ZERO, end)], answer)
    if is_read:
        world.run()
        assert world.seqnos() == list(range(1, end + 1))
    else:
        with pytest.raises(RemoteProtocolError, match="on 5 streams of vbucket 0"):
            world.run()
        assert world.seqnos() == list(range(1, PROTOCOL_ERRORS_MAX * rows + 1))


@rule("CLI-12")
def test_a_vbucket_that_moved_is_followed_by_the_map_in_the_answer() -> None:
    moved = config(4, rev=2, ports=(11210, 11211), owner=1)

    def answer(frame: Frame, attempt: int) -> bytes:
        return refused(frame, Status.NOT_MY_VBUCKET, moved) if attempt == 0 else history(frame, 3)

    world = World([VbucketRange(0, StreamOffset.ZERO, 3)], answer)
    world.run()
    assert [port for port, _ in world.requests] == [11210, 11211]
    assert world.out == [1, 2, 3]


@rule("CLI-16")
@each_case("status", [Status.TMPFAIL, Status.ENOMEM, Status.BUSY, Status.KEY_EEXISTS])
def test_what_can_be_tried_again_is(status: int) -> None:
    world = World(
        [VbucketRange(0, at(2), 4)],
        lambda frame, attempt: refused(frame, status) if attempt < 2 else history(frame, 4),
    )
    world.run()
    assert world.out == [3, 4]
    assert [fields[0] for _, fields in world.requests] == [2, 2, 2]


@rule("CLI-16")
def test_what_cannot_is_an_error() -> None:
    world = World([VbucketRange(0, at(2), 4)], lambda frame, _: refused(frame, Status.ERANGE))
    with pytest.raises(OutOfRange, match="vbucket 0"):
        world.run()


@rule("CLI-08", "CLI-09", "CLI-11")
def test_a_refused_start_goes_back_along_the_recorded_positions() -> None:
    """Not R, R, R: each position with its own branch and bounds, and refused again it goes further back."""
    newer, older = at(40, 35, 60), at(20, 15, 22)
    log = FailoverLog.of((0xB, 38), (0xA, 0))
    script = {0: lambda frame: rollback(frame.opaque, 45), 1: lambda frame: rollback(frame.opaque, 35)}

    def answer(frame: Frame, attempt: int) -> bytes:
        return script[attempt](frame) if attempt in script else history(frame, 60, log)

    world = World([VbucketRange(0, at(50, 30, 70), 60, (newer, older), 0xB)], answer)
    world.run()
    assert [fields for _, fields in world.requests] == [
        (50, 60, 0xA, 30, 70),
        (40, 60, 0xA, 35, 60),
        (20, 60, 0xA, 15, 22),
    ]
    event = world.out[0]
    assert event == RollbackEvent(0, 50, 20, 0xA, 0xB, at(20, 15, 22, vbuuid=0xB))
    assert world.seqnos() == list(range(21, 61))


@rule("CLI-10")
def test_without_recorded_positions_it_starts_over() -> None:
    world = World(
        [VbucketRange(0, at(5), 6, (), 0xB)],
        lambda frame, attempt: (
            rollback(frame.opaque, 3) if attempt == 0 else history(frame, 6, FailoverLog.of((0xB, 3), (0xA, 0)))
        ),
    )
    world.run()
    assert world.requests[1][1] == (0, 6, 0, 0, 0)
    assert world.seqnos() == [1, 2, 3, 4, 5, 6]


@each_case("is_split", [False, True])
def test_a_range_that_keeps_its_start_reads_nothing_of_another_branch(is_split: bool) -> None:
    """Also if the rows from the beginning come in the same piece of data as the answer that names the branch."""
    log = FailoverLog.of((0xB, 3), (0xA, 0))

    def answer(frame: Frame, attempt: int) -> bytes:
        if attempt == 0:
            return rollback(frame.opaque, 3)
        return accepted(frame.opaque, log) if is_split else history(frame, 6, log)

    world = World([VbucketRange(0, at(5), 6, (), 0xA, 0, keeps_start=True)], answer)
    world.run()
    assert world.out == [RollbackEvent(0, 5, 5, 0xA, 0xB, at(5))]
    assert world.reader._vbuckets[0].state is State.VOID
    assert world.reader.is_done


def test_a_range_that_keeps_its_start_starts_over_on_its_own_branch() -> None:
    """The node has purged deletions: the rows of the planned branch are read from the beginning."""
    world = World(
        [VbucketRange(0, at(5), 6, (), 0xA, 0, keeps_start=True)],
        lambda frame, attempt: rollback(frame.opaque, 0) if attempt == 0 else history(frame, 6),
    )
    world.run()
    assert world.seqnos() == [1, 2, 3, 4, 5, 6]


def test_a_rollback_after_rows_raises() -> None:
    def answer(frame: Frame, attempt: int) -> bytes:
        return history(frame, 3) + stream_end(frame.opaque, 6) if attempt == 0 else rollback(frame.opaque, 1)

    world = World([VbucketRange(0, StreamOffset.ZERO, 6)], answer)
    with pytest.raises(RollbackRequired) as caught:
        world.run()
    assert (caught.value.vbid, caught.value.seqno) == (0, 1)
    assert world.out == [1, 2, 3]


def test_the_policy_to_rewind_goes_back_after_rows_to_what_was_recorded() -> None:
    log = FailoverLog.of((0xB, 2), (0xA, 0))

    def answer(frame: Frame, attempt: int) -> bytes:
        if attempt == 0:
            first = accepted(frame.opaque) + marker(frame.opaque, 0, 2) + mutation(frame.opaque, 2)
            return first + marker(frame.opaque, 3, 5) + mutation(frame.opaque, 4)
        return rollback(frame.opaque, 2) if attempt == 1 else history(frame, 6, log)

    world = World([VbucketRange(0, StreamOffset.ZERO, 6)], answer, policy=RollbackPolicy.REWIND)
    world.run(lambda: len(world.out) == 2)
    world.reader.record({0: at(2, 0, 2)})
    world.cut(next(iter(world.links)))
    world.run()
    assert world.out == [2, 4, RollbackEvent(0, 4, 2, 0xA, 0xB, at(2, 0, 2, vbuuid=0xB)), 3, 4, 5, 6]


def test_recorded_positions_are_few_and_of_the_history_that_is_read() -> None:
    world = World([VbucketRange(0, StreamOffset.ZERO, MAX_SEQNO)], lambda frame, attempt: accepted(frame.opaque))
    recorded = world.reader._vbuckets[0]
    for seqno in range(1, 1001):
        world.reader.record({0: at(seqno, seqno, seqno)})
        assert len(recorded.earlier) <= RECORDED_MAX
    world.reader.record({0: at(500, 500, 500, vbuuid=0xB)})
    assert max(old.seqno for old in recorded.earlier[1:]) < 500
    world.reader.record({0: at(500, 500, 500, vbuuid=0xB)})
    assert [old.seqno for old in recorded.earlier].count(500) == 1


def test_wrong_password_is_not_tried_again() -> None:
    world = World([VbucketRange(0, StreamOffset.ZERO, 1)], lambda *_: b"", password="other")
    with pytest.raises(AuthenticationFailed):
        world.run(limit_s=1.0)


def test_a_node_that_stays_away_is_an_error_that_names_it() -> None:
    world = World([VbucketRange(0, StreamOffset.ZERO, 1)], lambda *_: b"")
    world.down.add(11210)
    with pytest.raises(ConnectTimeout, match=r"127\.0\.0\.1:11210: nobody at 11210"):
        world.run()
    assert world.now < 10.0


def test_pauses_double_up_to_a_bound() -> None:
    backoff = Backoff(random.Random(1))
    pauses = []
    for _ in range(20):
        backoff.failed(0.0)
        pauses.append(backoff.retry_at)
    assert all(0 < pause <= MAX_PAUSE_S for pause in pauses)
    assert pauses[0] < 0.05 < MAX_PAUSE_S / 2 <= pauses[-1]


def test_a_stream_at_a_node_that_is_cut_off_is_left_when_the_map_moves_its_vbucket() -> None:
    """The node neither ends the stream nor closes the connection: failed over, but not dead."""
    world = World(
        [VbucketRange(0, StreamOffset.ZERO, 5)],
        lambda frame, attempt: history(frame, 3) if attempt == 0 else history(frame, 5),
        ports=(11210, 11211),
    )
    world.run(lambda: world.seqnos() == [1, 2, 3])
    world.nodes.update_map(config(4, rev=2, ports=(11210, 11211), owner=1), NodeAddress("127.0.0.1", 11211))
    world.run(limit_s=world.now + 2 * MOVED_GRACE_S)
    assert world.seqnos() == [1, 2, 3, 4, 5]
    assert [port for port, _ in world.requests] == [11210, 11211]


def test_what_comes_on_a_connection_that_was_given_up_is_not_given_out_twice() -> None:
    world = World([VbucketRange(0, StreamOffset.ZERO, 5)], lambda frame, n: history(frame, 3 if n == 0 else 5))
    world.run(lambda: world.seqnos() == [1, 2, 3])
    ((connection, _),) = world.links.items()
    assert connection.session is not None
    (stream,) = connection.session.streams
    world.cut(connection)
    connection.get_buffer()
    rows = marker(stream.opaque, 3, 5) + mutation(stream.opaque, 4) + mutation(stream.opaque, 5)
    connection.get_buffer()[: len(rows)] = rows
    connection.buffer_updated(len(rows))
    world.reader.received(connection, world.now)
    world.run()
    assert world.seqnos() == [1, 2, 3, 4, 5]


ENDLESS = [VbucketRange(0, StreamOffset.ZERO, MAX_SEQNO)]
TROUBLES = {
    "refused for ever": lambda frame: refused(frame, Status.NOT_MY_VBUCKET),
    "put off for ever": lambda frame: refused(frame, Status.TMPFAIL),
    "ended at once": lambda frame: accepted(frame.opaque) + stream_end(frame.opaque, 2),
    "ended for an unknown reason": lambda frame: accepted(frame.opaque) + stream_end(frame.opaque, 99),
}


@each_case("name", TROUBLES)
def test_a_vbucket_that_cannot_be_read_is_given_up(name: str) -> None:
    """A node that is there, but never lets the stream live, is waited for no longer than one that is away."""
    world = World(ENDLESS, lambda frame, _: TROUBLES[name](frame), idle_timeout_s=None)
    with pytest.raises(ConnectTimeout, match=r"vbucket 0 could not be read for 30 s: .* times in a row"):
        world.run()
    assert 29.0 < world.now < 40.0
    assert len(world.requests) < 200, "with pauses between the attempts"


def test_a_node_that_does_not_list_its_collections_is_given_up() -> None:
    world = World(
        ENDLESS,
        lambda frame, _: history(frame, 1),
        idle_timeout_s=None,
        statuses={Opcode.GET_COLLECTIONS_MANIFEST: Status.TMPFAIL},
    )
    with pytest.raises(ConnectTimeout, match="the node does not send its collections"):
        world.run()
    assert sum(len(node.asked(Opcode.GET_COLLECTIONS_MANIFEST)) for node in world.links.values()) < 400


def test_a_stream_that_is_opened_again_and_again_is_no_progress() -> None:
    """It is cut each time after it was opened: without rows, the idle time-out goes on."""
    world = World(
        [VbucketRange(0, StreamOffset.ZERO, MAX_SEQNO)],
        lambda frame, _: accepted(frame.opaque) + stream_end(frame.opaque, 2),
        idle_timeout_s=6.0,
    )
    with pytest.raises(ConnectTimeout, match="no progress for 6 s"):
        world.run()
    assert world.now < 10.0


def test_the_begin_of_a_snapshot_is_no_progress() -> None:
    world = World(ENDLESS, lambda frame, _: accepted(frame.opaque) + marker(frame.opaque, 0, 9) + b"?" * 24)
    with pytest.raises(RemoteProtocolError, match=r"broke the protocol on 5 connections .* not a magic"):
        world.run()
    assert world.now < 10.0


def test_a_long_absence_of_the_user_is_not_held_against_the_node() -> None:
    world = World(ENDLESS, lambda frame, _: refused(frame, Status.TMPFAIL), idle_timeout_s=None)
    world.run(lambda: world.now > 10.0)
    world.now += 1000.0
    world.reader.resumed(world.now)
    world.run(lambda: world.now > 1015.0, limit_s=2000.0)
    with pytest.raises(ConnectTimeout, match="could not be read"):
        world.run(limit_s=2000.0)
