"""A consumer's stream: every state and event over the wire, and markers inside a snapshot from memory."""

from contextlib import nullcontext

import pytest

from dcpstream.dcp.bucket import Change
from dcpstream.dcp.consumer.messages import Marker
from dcpstream.dcp.consumer.stream import TRANSITIONS, ConsumerState, ConsumerStream, StreamEvent
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import VbucketState
from dcpstream.wire import MarkerFlag, Opcode, Status
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.replication import LOG
from tests.kit.cases import each_case
from tests.kit.lists import ListReplicas, MachineProducer, frame_of, replica
from tests.kit.rules import rule


def new_stream(**fields):
    vbucket = replica(**fields)
    return ConsumerStream(vbucket, ListReplicas(vbucket), 1, 0x01000000, 0x51, 0)


def act(source, event):
    """Act as a peer so that the event happens; whether it must end the connection is for the caller to say."""
    request = frame_of(Opcode.DCP_STREAM_REQ, opaque=source.opaque)  # also where no answer is due
    if event is StreamEvent.ACCEPTED:
        return source.send_answer(request, value=encode_failover_log(LOG))
    if event is StreamEvent.ROLLBACK:
        return source.send_answer(request, status=Status.ROLLBACK, value=bytes(8))
    if event is StreamEvent.REFUSED:
        return source.send_answer(request, status=Status.ERANGE)
    if event is StreamEvent.MESSAGE:
        return source.marker(1, 5)
    if event is StreamEvent.CLOSED:
        return source.send_request(Opcode.DCP_CLOSE_STREAM, vbid=1)
    if event is StreamEvent.ENDED:
        return source.send(Opcode.DCP_STREAM_END, extras=bytes(4))
    source.replicas.vbuckets[1].state = VbucketState.ACTIVE
    source.machine.vbucket_state_changed(1, 0.0)
    return []


def in_state(state):
    source = MachineProducer()
    request = source.request()
    source.opaque = request.opaque
    if state is ConsumerState.READING:
        source.send_answer(request, value=encode_failover_log(LOG))
    elif state is ConsumerState.DEAD:
        source.send_request(Opcode.DCP_CLOSE_STREAM, vbid=1)
    assert source.machine.streams[1].state is state
    return source


@rule("CON-09", "CON-10")
@each_case("event", StreamEvent)
@each_case("state", ConsumerState)
def test_over_the_wire_the_same(state, event):
    source = in_state(state)
    stream = source.machine.streams[1]
    act(source, event)
    if source.closed:
        assert not TRANSITIONS.is_legal(state, event) or stream.state is ConsumerState.DEAD
        assert source.take() == []
    else:
        assert stream.state is TRANSITIONS.rows[state][event]


def change(seqno):
    return Change(b"frame", b"\0key", seqno)


def reading(**fields):
    stream = new_stream(**fields)
    stream.accepted(LOG)
    return stream


def marked(stream, start, end, flags=MarkerFlag.MEMORY, **more):
    return stream.marker(Marker(start, end, int(flags), **more), is_sync_replication=False)


@rule("KV-COPY-18")
@each_case(
    ("flags", "end", "is_refused"),
    [
        *((MarkerFlag.MEMORY, end, end < 10) for end in (8, 9, 10)),
        *((MarkerFlag.DISK, end, end < 10) for end in (8, 9, 10)),
        *((MarkerFlag.DISK | MarkerFlag.HISTORY, end, end < 9) for end in (8, 9, 10)),
        (MarkerFlag.MEMORY | MarkerFlag.HISTORY, 9, True),
    ],
)
def test_a_replica_of_80_refuses_a_marker_inside_a_snapshot(flags, end, is_refused):
    for first in (MarkerFlag.MEMORY, MarkerFlag.DISK):
        for may_be_inside in (True, False):
            stream = reading()
            marked(stream, 1, 9, first)
            stream.change(change(1))
            refuses = is_refused and not may_be_inside
            with pytest.raises(RemoteProtocolError, match="inside") if refuses else nullcontext():
                stream.marker(Marker(2, end, int(flags)), is_sync_replication=False, may_be_inside=may_be_inside)
