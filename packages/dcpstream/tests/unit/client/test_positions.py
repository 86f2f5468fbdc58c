"""The position that goes with each piece of a receive and with each change, and what of it is recorded when."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import RowsReceived, Stream
from dcpstream.client.machine.reader.changes import Change, ChangeConverter, rollback_change
from dcpstream.client.machine.rollback_policy import RollbackPolicy
from dcpstream.client.machine.values import UNKNOWN_BRANCH, RollbackEvent, VbucketRange
from dcpstream.client.offsets import SavedOffset
from dcpstream.client.positions import Positions, save_after
from dcpstream.client.stream_options import StreamOptions
from dcpstream.model import MAX_SEQNO, FailoverLog, StreamOffset
from dcpstream.wire import Opcode, Status, StreamEndReason
from tests.kit.cases import each_case
from tests.kit.client_machines import World, at, history, ready_connection
from tests.kit.messages import accepted, marker, mutation, oso, rollback, stream_end

NEW = FailoverLog.of((0xB, 5), (0xA, 0))


@pytest.fixture
def connection() -> NodeConnection:
    return ready_connection(buffer_bytes=1_000_000)[0]


def opened(connection: NodeConnection, offset: StreamOffset = StreamOffset.ZERO, vbid: int = 0) -> Stream:
    assert connection.session is not None
    stream = connection.session.open_stream(vbid, offset, MAX_SEQNO, 0.0)
    connection.receive_data(accepted(stream.opaque), 0.0)
    list(connection.events())
    return stream


def received(connection: NodeConnection, data: bytes) -> RowsReceived:
    connection.receive_data(data, 0.0)
    (event,) = (event for event in connection.events() if isinstance(event, RowsReceived))
    return event


def changes(event: RowsReceived) -> tuple[Change, ...]:
    (output,) = ChangeConverter().convert(event, True, {}, {0: 0xA, 1: 0xA})
    return output.rows


def test_a_carried_end_stays_until_it_is_passed(connection: NodeConnection) -> None:
    stream = opened(connection, at(5, 2, 8))
    event = received(
        connection,
        marker(stream.opaque, 2, 10) + b"".join(mutation(stream.opaque, seqno) for seqno in (6, 8, 9)),
    )
    assert [offsets[0] for _, _, offsets in event.pieces(1)] == [at(6, 2, 10), at(8, 2, 10), at(9, 2, 10)]


def test_inside_an_out_of_order_snapshot_the_position_stands_still(connection: NodeConnection) -> None:
    stream = opened(connection)
    assert connection.session is not None
    connection.session._allows_oso = True
    event = received(
        connection, oso(stream.opaque, 1) + b"".join(mutation(stream.opaque, seqno) for seqno in (7, 9, 2))
    )
    assert [offsets[0] for _, _, offsets in event.pieces(1)] == [at(0)] * 3
    assert [change.offset for change in changes(event)] == [at(0)] * 3
    event = received(connection, mutation(stream.opaque, 4) + oso(stream.opaque, 2))
    assert event.offsets == {0: at(9)}, "the highest of them, whatever came last"


def test_a_change_made_by_hand_has_bounds_that_always_hold() -> None:
    change = Change("mutation", b"k", b"v", "", "", 0, 0xA, 7, 1, 1, 0, 0, 0)
    assert change.offset == StreamOffset(0xA, 7, 0, None)


def told(seqno: int, refused_at: int, vbid: int = 0) -> RollbackEvent:
    return RollbackEvent(vbid, refused_at, seqno, 0xA, 0xB, at(seqno, vbuuid=0xB))


def test_a_rollback_has_the_position_gone_back_to() -> None:
    assert rollback_change(told(3, 9)).offset == at(3, vbuuid=0xB)


@each_case(
    ("record", "change_at", "expected"),
    [
        (SavedOffset(at(3), (at(1),)), at(5), SavedOffset(at(5), (at(3), at(1)))),
        (SavedOffset(at(7), (at(1),)), at(5), SavedOffset(at(7), (at(1),))),
        (SavedOffset(at(5), (at(1),)), at(5, vbuuid=0xB), SavedOffset(at(5, vbuuid=0xB), (at(1),))),
        (SavedOffset(at(5), (), is_rolling_back=True), at(5), SavedOffset(at(5))),
    ],
    ids=["ahead", "behind", "on another branch", "a rollback"],
)
def test_the_last_change_can_be_dealt_with_too(
    record: SavedOffset, change_at: StreamOffset, expected: SavedOffset
) -> None:
    store = Store({0: record})
    save_after(store, rollback_change(RollbackEvent(0, 9, change_at.seqno, 1, change_at.vbuuid, change_at)))
    assert store.records == {0: expected}


class Store:
    def __init__(self, records: Mapping[int, SavedOffset] | None = None) -> None:
        self.records = dict(records or {})

    def load(self) -> dict[int, SavedOffset]:
        return dict(self.records)

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        self.records.update(offsets)


def ranges(*vbids: int) -> list[VbucketRange]:
    return [VbucketRange(vbid, StreamOffset.ZERO, MAX_SEQNO) for vbid in vbids]


def test_where_a_vbucket_begins_is_recorded_before_its_first_rows() -> None:
    store = Store()
    positions = Positions(ranges(0, 1), store, {})
    positions.write(positions.due({0: at(4)}, None))
    assert store.records == {0: SavedOffset(at(0))}
    assert positions.due({0: at(5)}, None) == {}
    positions.acknowledge(positions.give({0: at(5)}))
    assert positions.due({0: at(6), 1: at(1)}, None) == {1: SavedOffset(at(0))}
    assert Positions(ranges(0), None, {}).due({0: at(4)}, None) == {}


def test_what_is_known_of_other_vbuckets_is_recorded_with_it() -> None:
    positions = Positions(ranges(0, 1, 2), Store(), {})
    positions.branches = lambda: {0: 0xA, 1: 0xB}
    assert positions.due({0: at(4)}, None) == {0: SavedOffset(at(0)), 1: SavedOffset(at(0, vbuuid=0xB))}
    assert positions.due({1: at(1)}, None) == {}
    assert positions.due({2: at(1)}, None) == {2: SavedOffset(at(0))}


def test_a_rollback_below_the_record_is_recorded_before_it_is_reported() -> None:
    saved = {0: SavedOffset(at(9), (at(6), at(2)))}
    store = Store(saved)
    positions = Positions([VbucketRange(0, at(9), MAX_SEQNO, (at(6), at(2)))], store, saved)
    before = positions.give({0: at(12), 1: at(3)})
    positions.write(positions.due({0: at(4, vbuuid=0xB)}, told(4, 12)))
    assert store.records[0] == SavedOffset(at(4, vbuuid=0xB), (at(2),), is_rolling_back=True)
    number = positions.give({0: at(4, vbuuid=0xB)})
    positions.acknowledge(before)
    assert store.records[0].is_rolling_back, "what was read before the rollback is void"
    assert store.records[1] == SavedOffset(at(3))
    positions.acknowledge(number)
    assert store.records[0] == SavedOffset(at(4, vbuuid=0xB), (at(2),))


@each_case("saved", [at(3), at(4)])
def test_a_record_at_or_below_the_rollback_says_enough(saved: StreamOffset) -> None:
    positions = Positions([VbucketRange(0, saved, MAX_SEQNO)], Store(), {0: SavedOffset(saved)})
    assert positions.due({0: at(4, vbuuid=0xB)}, told(4, 12)) == {}


def test_a_record_of_a_rollback_is_reported_whatever_branch_is_read() -> None:
    (part,) = StreamOptions(on_rollback="rewind").ranges(1, {0: SavedOffset(at(4), (), is_rolling_back=True)}, {})
    assert part.given_vbuuid == UNKNOWN_BRANCH
    world = World([part], lambda frame, _: history(frame, 6), policy=RollbackPolicy.REWIND)
    world.run(until=lambda: len(world.out) == 3)
    assert world.out == [RollbackEvent(0, 4, 4, 0xA, 0xA, at(4)), 5, 6]


def test_a_start_at_zero_is_a_rollback_only_if_rows_were_given_before() -> None:
    fresh = World([VbucketRange(0, StreamOffset.ZERO, 2)], lambda frame, _: history(frame, 2, NEW))
    fresh.run()
    assert fresh.out == [1, 2]
    begun = World([VbucketRange(0, at(0), 2, (), 0xB)], lambda frame, _: history(frame, 2, NEW))
    begun.run()
    assert begun.out == [RollbackEvent(0, 0, 0, 0xA, 0xB, at(0, vbuuid=0xB)), 1, 2]
    empty = World(
        [VbucketRange(0, at(0), 0, (), 0xB)],
        lambda frame, _: accepted(frame.opaque, NEW) + stream_end(frame.opaque, StreamEndReason.OK),
        policy=RollbackPolicy.REWIND,
    )
    empty.run()
    assert empty.out == [RollbackEvent(0, 0, 0, 0xA, 0xB, at(0, vbuuid=0xB))], "also if there is nothing to read"


def test_to_zero_recorded_positions_are_not_used() -> None:
    def answer(frame: object, count: int) -> bytes:
        return rollback(frame.opaque, 5) if not count else history(frame, 6, NEW)  # type: ignore[attr-defined, arg-type]

    part = VbucketRange(0, at(9), 6, (at(4),), 0xB)
    world = World([part], answer, policy=RollbackPolicy.REWIND, to_zero=True)
    world.run()
    assert world.seqnos() == [1, 2, 3, 4, 5, 6]


def test_a_refused_question_about_a_branch_is_no_error() -> None:
    world = World(
        [VbucketRange(0, at(3), MAX_SEQNO)],
        lambda frame, _: history(frame, 4),
        policy=RollbackPolicy.FAIL,
        statuses={Opcode.OBSERVE_SEQNO: Status.EACCESS},
    )
    world.run(until=lambda: world.out == [4])
    (node,) = world.links.values()
    world.run(until=lambda: bool(node.asked(Opcode.OBSERVE_SEQNO)))
    world.turn()
    assert not world.reader.is_done


class Counted(dict[int, StreamOffset]):
    """Positions that are made when they are looked up."""

    lookups = 0

    def __getitem__(self, vbid: int) -> StreamOffset:
        Counted.lookups += 1
        return super().__getitem__(vbid)


def test_a_late_acknowledgement_makes_the_newest_positions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "lookups", 0)
    store = Store()
    positions = Positions(ranges(0, 1, 2), store)
    numbers = [positions.give(Counted({batch % 2: at(batch)})) for batch in range(1, 101)]
    numbers.append(positions.give(Counted({2: at(7)})))
    positions.acknowledge(numbers[-2])
    assert {vbid: record.offset for vbid, record in store.records.items()} == {0: at(100), 1: at(99)}
    assert Counted.lookups == 2
