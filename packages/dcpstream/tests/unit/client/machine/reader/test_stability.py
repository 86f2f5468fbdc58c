"""Rows that are held back until every copy has them on disk."""

from __future__ import annotations

import struct

from dcpstream.client.machine.reader.stability import POLL_S
from dcpstream.client.machine.rollback_policy import RollbackPolicy
from dcpstream.client.machine.values import RollbackEvent, VbucketRange
from dcpstream.model import MAX_SEQNO, FailoverLog, StreamOffset
from dcpstream.wire import Frame, Opcode, Status, encode_response
from tests.kit.client_machines import World, at, history
from tests.kit.fake_node import config
from tests.kit.messages import LOG, accepted, marker, mutation, rollback
from tests.kit.rules import rule

REPLICATED = config(4, ports=(11210, 11211)).replace(b"[0]", b"[0, 1]")
PORTS = (11210, 11211)
OLD = LOG.newest.vbuuid
NEW_LOG = FailoverLog.of((0xB, 3), (0xA, 0))


class Copies:
    """The seqnos that each node reports as on disk, by port; and which branch it is on."""

    def __init__(self, active: int, replica: int) -> None:
        self.persisted = {11210: active, 11211: replica}
        self.vbuuids = dict.fromkeys(PORTS, OLD)
        self.asked: list[tuple[int, int]] = []
        self.statuses: dict[int, int] = {}

    def __call__(self, frame: Frame, port: int) -> bytes:
        (vbuuid,) = struct.unpack(">Q", frame.value)
        self.asked.append((port, vbuuid))
        status = self.statuses.get(port, 0)
        if status:
            return encode_response(frame.opcode, status=status, opaque=frame.opaque)
        newest, persisted = self.vbuuids[port], self.persisted[port]
        value = struct.pack(">BHQQQ", 0, frame.vbid, newest, persisted, persisted)
        if newest != vbuuid:
            value = struct.pack(">BHQQQQQ", 1, frame.vbid, newest, persisted, persisted, vbuuid, 3)
        return encode_response(frame.opcode, opaque=frame.opaque, value=value)


def world_of(copies: Copies, ranges: list[VbucketRange], answer: object, **options: object) -> World:
    options = {"ports": PORTS, "cluster_map": REPLICATED, **options}
    return World(ranges, answer, observe=copies, **options)  # type: ignore[arg-type]


def until(world: World, seconds: float) -> None:
    end = world.now + seconds
    world.run(lambda: world.now >= end)


@rule("CLI-26")
def test_rows_wait_for_every_copy() -> None:
    copies = Copies(active=5, replica=3)
    world = world_of(copies, [VbucketRange(0, StreamOffset.ZERO, 5)], lambda frame, _: history(frame, 5))
    until(world, 1.0)
    assert world.out == []
    assert not world.reader.is_done
    assert {port for port, _ in copies.asked} == set(PORTS)
    copies.persisted = {11210: 4, 11211: 5}
    until(world, 1.0)
    assert world.out == []
    copies.persisted = {11210: 5, 11211: 5}
    world.run()
    assert world.out == [1, 2, 3, 4, 5]
    assert world.offsets == {0: at(5, 0, 5)}


@rule("CLI-26")
def test_a_copy_on_another_branch_has_nothing() -> None:
    copies = Copies(active=5, replica=9)
    copies.vbuuids[11211] = 0xC
    world = world_of(copies, [VbucketRange(0, StreamOffset.ZERO, 5)], lambda frame, _: history(frame, 5))
    until(world, 1.0)
    copies.vbuuids[11211] = OLD
    copies.statuses[11211] = Status.KEY_ENOENT
    until(world, 1.0)
    assert world.out == []
    copies.statuses.clear()
    world.run()
    assert world.out == [1, 2, 3, 4, 5]


@rule("CLI-26")
def test_a_failover_before_the_rows_are_stable_costs_no_rollback() -> None:
    """Rows 4 and 5 are lost with the active copy; nobody has seen them, so nobody has to take them back."""
    copies = Copies(active=3, replica=3)

    def answer(frame: Frame, attempt: int) -> bytes:
        start, _, vbuuid = struct.unpack(">QQQ", frame.extras[8:32])
        if attempt == 0:
            return history(frame, 3) + b"".join(
                (marker(frame.opaque, 3, 5), mutation(frame.opaque, 4), mutation(frame.opaque, 5))
            )
        assert (start, vbuuid) == (0, 0)
        rows = b"".join(mutation(frame.opaque, seqno) for seqno in range(1, 7))
        return accepted(frame.opaque, NEW_LOG) + marker(frame.opaque, 0, 6) + rows

    world = world_of(copies, [VbucketRange(0, StreamOffset.ZERO, MAX_SEQNO)], answer, policy=RollbackPolicy.FAIL)
    until(world, 0.5)
    assert world.out == []
    copies.vbuuids = dict.fromkeys(PORTS, 0xB)
    copies.persisted = dict.fromkeys(PORTS, 6)
    until(world, 2.0)
    assert world.out == [1, 2, 3, 4, 5, 6]
    assert world.offsets[0].vbuuid == 0xB


def test_a_rollback_of_what_was_given_out_is_reported() -> None:
    copies = Copies(active=5, replica=5)

    def answer(frame: Frame, attempt: int) -> bytes:
        return rollback(frame.opaque, 3) if attempt == 0 else history(frame, 5, NEW_LOG)

    world = world_of(copies, [VbucketRange(0, at(5), 6)], answer, policy=RollbackPolicy.REWIND)
    copies.vbuuids = dict.fromkeys(PORTS, 0xB)
    until(world, 1.0)
    assert isinstance(world.out[0], RollbackEvent)
    assert world.seqnos() == [1, 2, 3, 4, 5]


def test_copies_are_asked_at_an_interval_and_only_while_something_is_held() -> None:
    copies = Copies(active=0, replica=0)
    world = world_of(copies, [VbucketRange(0, StreamOffset.ZERO, MAX_SEQNO)], lambda frame, _: history(frame, 5))
    until(world, 2.0)
    assert len(copies.asked) <= 2 * (2.0 / POLL_S + 2)
    copies.persisted = dict.fromkeys(PORTS, 5)
    until(world, 1.0)
    asked = len(copies.asked)
    until(world, 5.0)
    assert len(copies.asked) == asked


def test_a_replica_that_is_away_holds_rows_back_until_it_is_there() -> None:
    copies = Copies(active=5, replica=5)
    world = world_of(copies, [VbucketRange(0, StreamOffset.ZERO, 5)], lambda frame, _: history(frame, 5))
    world.down = {11211}
    until(world, 3.0)
    assert world.out == []
    world.down = set()
    world.run()
    assert world.out == [1, 2, 3, 4, 5]
    assert Opcode.OBSERVE_SEQNO in {frame.opcode for link in world.links.values() for frame in link.requests}


def test_rows_that_come_with_the_news_of_another_branch_are_not_given_out_twice() -> None:
    """The answer of the active copy and more rows of the old stream, in one piece of data."""
    copies = Copies(active=3, replica=3)
    pending: list[Frame] = []
    is_silent = True

    def observe(frame: Frame, port: int) -> bytes:
        if is_silent and port == 11210:
            pending.append(frame)
            return b""
        return copies(frame, port)

    def answer(frame: Frame, attempt: int) -> bytes:
        return history(frame, 5) if attempt == 0 else history(frame, 7, NEW_LOG)

    world = World(
        [VbucketRange(0, StreamOffset.ZERO, 7)],
        answer,
        policy=RollbackPolicy.FAIL,
        ports=PORTS,
        cluster_map=REPLICATED,
        observe=observe,
    )
    until(world, 0.5)
    assert len(pending) == 1, "one question to a copy at a time"
    (connection,) = [link for link in world.links if link.address.kv_port == 11210]
    assert connection.session is not None
    (stream,) = connection.session.streams
    copies.vbuuids = dict.fromkeys(PORTS, 0xB)
    copies.persisted = dict.fromkeys(PORTS, 7)
    news = copies(pending[0], 11210)
    data = news + marker(stream.opaque, 5, 6) + mutation(stream.opaque, 6)
    connection.get_buffer()[: len(data)] = data
    connection.buffer_updated(len(data))
    is_silent = False
    world.reader.received(connection, world.now)
    world.run()
    assert world.out == [1, 2, 3, 4, 5, 6, 7]
    assert world.offsets[0].vbuuid == 0xB
