"""Random walks of both machines over the wire: every transition that a table declares is reached, and no other happens.

The walks are drawn from fixed seeds, so that a transition which no walk reaches any more fails each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import Enum
from random import Random
from typing import Any

import pytest

from dcpstream.dcp.consumer import controls as consumer_controls
from dcpstream.dcp.consumer import stream as consumer_stream
from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer import stream as producer_stream
from dcpstream.dcp.producer.connection import ProducerConnection, ProducerHost, ProducerLimits
from dcpstream.dcp.producer.states import STREAM
from dcpstream.dcp.transitions import Transitions
from dcpstream.model import MAX_SEQNO, VbucketState
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, StreamFlag, decode_frame, encode_response
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.release import RELEASES
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.replication import LOG
from tests.kit.lists import ListSource, ListVBucket, MachineProducer, frame_of, frames_in, replica

WALKS = 400
STEPS = 40
Seen = dict[Transitions[Any, Any], set[tuple[Enum, Enum, Enum]]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The transitions that happened, by table."""
    found: Seen = defaultdict(set)
    after = Transitions.after

    def recording(table: Transitions[Any, Any], state: Enum, event: Enum, subject: object = "") -> Enum:
        result: Enum = after(table, state, event, subject)
        found[table].add((state, event, result))
        return result

    monkeypatch.setattr(Transitions, "after", recording)
    monkeypatch.setattr(producer_stream, "_ROWS", defaultdict(dict))  # its short way to the table
    return found


class ProducerWalk:
    """A producer with one vbucket, its client, and the bucket that takeovers change."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.vbucket = ListVBucket()
        self.machine = ProducerConnection(
            Opening("c", OpenFlag.PRODUCER, frozenset((Feature.XERROR, Feature.COLLECTIONS))),
            ListSource(self.vbucket),
            0.0,
            ProducerLimits(turn_bytes=100),
            host=ProducerHost(takeovers=self),
        )
        self.machine.handle(frame_of(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true"), 0.0)
        self.now = 0.0
        self.ends = self.requests = 0

    def hand_over(self, vbid: int) -> None:
        self.vbucket.state = VbucketState.DEAD

    def put_off_writes(self, vbid: int, *, is_on: bool) -> None:
        pass

    def write(self) -> None:
        self.vbucket.set(self.random.choice((b"a", b"b", b"c")), b"v" * 60)
        self.machine.vbucket_changed(0, self.now)

    def checkpoint(self) -> None:
        self.vbucket.new_checkpoint()

    def evict(self) -> None:
        self.vbucket.evicted_seqno = self.vbucket.high_seqno

    def request(self) -> None:
        self.vbucket.state = VbucketState.ACTIVE
        takeover, disk_only = StreamFlag.TAKEOVER, StreamFlag.DISK_ONLY
        flags = self.random.choice((0, 0, takeover, takeover, disk_only, takeover | disk_only))
        end = self.random.choice((MAX_SEQNO, self.vbucket.high_seqno, self.vbucket.high_seqno + 2))
        message = StreamRequest(
            opaque=7, flags=flags, start_seqno=0, end_seqno=end, vbuuid=0, snapshot_start=0, snapshot_end=0
        )
        self.machine.handle(decode_frame(message.encode()), self.now)

    def close(self) -> None:
        self.machine.handle(frame_of(Opcode.DCP_CLOSE_STREAM), self.now)

    def answer(self) -> None:
        opcode = self.random.choice((Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE))
        self.machine.handle(decode_frame(encode_response(opcode, opaque=7)), self.now)

    def lose(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            change = self.random.choice((self.machine.vbucket_state_changed, self.machine.vbucket_rolled_back))
            change(0, self.now)

    def send(self) -> None:
        for frame in frames_in(self.machine.data_to_send(self.random.choice((1, 50, 500)), self.now)):
            self.ends += frame.opcode == Opcode.DCP_STREAM_END
            self.requests += frame.opcode == Opcode.DCP_STREAM_REQ and frame.status == 0

    def steps(self) -> Iterator[Callable[[], None]]:
        actions = (self.write, self.checkpoint, self.evict, self.request, self.close, self.answer, self.lose, self.send)
        yield from self.random.choices(actions, weights=(4, 1, 1, 2, 1, 5, 2, 6), k=STEPS)


def test_walks_of_a_producer_reach_every_transition_of_a_stream(seen: Seen) -> None:
    for seed in range(WALKS):
        walk = ProducerWalk(Random(seed))
        for step in walk.steps():
            step()
            assert walk.machine.close_reason is None, f"seed {seed}: {walk.machine.close_reason}"
            assert walk.ends <= walk.requests
    assert set(STREAM) - seen[STREAM] == set(), "declared, and reached by no walk"
    assert seen[STREAM] <= set(STREAM)


class ConsumerWalk:
    """A consumer with one replica, and a peer that answers or not, in place or out of it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        # A 7.2 asks for its buffer before the error map, later releases ask for it after all other controls.
        self.source = MachineProducer(replica(), release=RELEASES[random.choice(("7.2", "8.0"))])
        self.asked: list[Frame] = []
        self.controls: list[Frame] = []
        self.in_order = random.choice((0.0, 0.6, 1.0))

    def keep(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.is_request and frame.opcode == Opcode.DCP_STREAM_REQ:
                self.source.opaque = frame.opaque
                self.asked.append(frame)
            elif frame.is_request and frame.opcode in (Opcode.DCP_CONTROL, Opcode.GET_ERROR_MAP):
                self.controls.append(frame)

    def add(self) -> None:
        self.source.replicas.vbuckets[1].state = VbucketState.REPLICA
        self.keep(self.source.add())

    def control(self) -> None:
        for _ in range(self.random.choice((1, 20))):
            if self.controls:
                self.keep(self.source.send_answer(self.controls.pop(0 if self.random.random() < self.in_order else -1)))

    def answer(self) -> None:
        if self.asked:
            status, value = self.random.choice(((0, encode_failover_log(LOG)), (0x23, bytes(8)), (0x22, b"")))
            self.keep(self.source.send_answer(self.asked.pop(), status=status, value=value))

    def marker(self) -> None:
        self.keep(self.source.marker(1, 5))

    def close(self) -> None:
        self.keep(self.source.send_request(Opcode.DCP_CLOSE_STREAM, vbid=1))

    def end(self) -> None:
        self.keep(self.source.send(Opcode.DCP_STREAM_END, extras=bytes(4)))

    def lose(self) -> None:
        self.source.replicas.vbuckets[1].state = VbucketState.ACTIVE
        self.source.machine.vbucket_state_changed(1, 0.0)

    def resize(self) -> None:
        """Another consumer of the bucket has come or gone."""
        self.source.replicas.buffer_bytes = self.random.randrange(1 << 20, 1 << 24)
        self.source.machine.buffer_changed()
        self.keep(self.source.take())

    def drop(self) -> None:
        if self.random.random() < 0.3:
            self.source.machine.close("dropped")

    def steps(self) -> Iterator[Callable[[], None]]:
        actions = (
            self.add,
            self.control,
            self.answer,
            self.marker,
            self.close,
            self.end,
            self.lose,
            self.drop,
            self.resize,
        )
        yield from self.random.choices(actions, weights=(3, 8, 4, 2, 1, 1, 1, 1, 1), k=STEPS)


def test_walks_of_a_consumer_reach_every_transition_of_a_stream_and_of_its_controls(seen: Seen) -> None:
    for seed in range(WALKS):
        walk = ConsumerWalk(Random(seed))
        for step in walk.steps():
            step()
            if walk.source.closed:
                assert walk.source.machine.streams == {}
                break
    tables: tuple[Transitions[Any, Any], ...] = (consumer_stream.TRANSITIONS, consumer_controls.TRANSITIONS)
    for table in tables:
        assert set(table) - seen[table] == set(), "declared, and reached by no walk"
        assert seen[table] <= set(table)
