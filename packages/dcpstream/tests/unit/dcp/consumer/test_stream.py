"""A consumer's stream: every state and event, the handshake's rollbacks, bounds of snapshots."""

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpstream.dcp.bucket import Change
from dcpstream.dcp.consumer.messages import Marker
from dcpstream.dcp.consumer.stream import TRANSITIONS, ConsumerState, ConsumerStream, StreamEvent
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import FailoverLog, VbucketState
from dcpstream.wire import MarkerFlag, Opcode, Status, decode_message
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.replication import LOG
from tests.kit.lists import ListReplicas, MachineProducer, frame_of, replica
from tests.kit.rules import rule


def new_stream(**fields):
    vbucket = replica(**fields)
    return ConsumerStream(vbucket, ListReplicas(vbucket), 1, 0x01000000, 0x51, 0)


@pytest.mark.parametrize("event", StreamEvent)
@pytest.mark.parametrize("state", ConsumerState)
def test_every_event_in_every_state_is_a_legal_next_state_or_an_error(state, event):
    stream = new_stream()
    stream.state = state
    if TRANSITIONS.is_legal(state, event):
        stream.go(event)
        assert stream.state is TRANSITIONS.rows[state][event]
    else:
        with pytest.raises(RemoteProtocolError) as caught:
            stream.go(event)
        assert (caught.value.state, caught.value.event) == (state.value, event.value)
        assert stream.state is state


def test_transitions_are_those_of_the_table_and_death_is_for_good():
    after = {state: set(row.values()) - {state} for state, row in TRANSITIONS.rows.items()}
    assert after[ConsumerState.PENDING] == {ConsumerState.READING, ConsumerState.DEAD}
    assert after[ConsumerState.READING] == {ConsumerState.DEAD}
    assert after[ConsumerState.DEAD] == set()
    assert TRANSITIONS.final == {ConsumerState.DEAD}


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
@pytest.mark.parametrize("event", StreamEvent)
@pytest.mark.parametrize("state", ConsumerState)
def test_over_the_wire_the_same(state, event):
    source = in_state(state)
    stream = source.machine.streams[1]
    act(source, event)
    if source.closed:
        assert not TRANSITIONS.is_legal(state, event) or stream.state is ConsumerState.DEAD
        assert source.take() == []
    else:
        assert stream.state is TRANSITIONS.rows[state][event]


@given(st.lists(st.sampled_from(StreamEvent), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_events_ends_in_a_state_or_a_closed_connection(events):
    source = in_state(ConsumerState.PENDING)
    for event in events:
        act(source, event)
        if source.closed:
            assert source.take() == []
            assert source.machine.streams == {}
            return
    assert all(stream.state in ConsumerState for stream in source.machine.streams.values())


# ---------------------------------------------------------------------------------------------------- the handshake


def requested(frame):
    message: Any = decode_message(frame)
    return message.start_seqno, message.snapshot_start, message.snapshot_end, message.vbuuid


def with_history(*keys, log=LOG):
    vbucket = replica(failover_log=log)
    for key in keys:
        vbucket.set(key)
    return vbucket


def test_a_rollback_to_zero_tries_the_branches_before_first():
    log = FailoverLog.of((0x33, 2), (0x22, 2), (0x11, 0))
    source = MachineProducer(with_history(b"a", b"b", log=log))
    request = source.request()
    seen = [requested(request)]
    for _ in range(2):
        (request,) = source.send_answer(request, status=Status.ROLLBACK, value=bytes(8))
        seen.append(requested(request))
    assert seen == [(2, 2, 2, 0x33), (2, 2, 2, 0x22), (2, 2, 2, 0x11)]
    assert source.replicas.vbuckets[1].high_seqno == 2
    (request,) = source.send_answer(request, status=Status.ROLLBACK, value=bytes(8))
    assert requested(request) == (0, 0, 0, 0)
    assert source.replicas.vbuckets[1].high_seqno == 0


def test_a_rollback_cuts_the_history_and_the_log():
    source = MachineProducer(with_history(b"a", b"b", b"c", log=FailoverLog.of((0x22, 2), (0x11, 0))))
    request = source.request()
    (again,) = source.send_answer(request, status=Status.ROLLBACK, value=(1).to_bytes(8, "big"))
    assert requested(again) == (1, 1, 1, 0x11)
    assert again.opaque == request.opaque
    (answer,) = source.send_answer(again, value=encode_failover_log(FailoverLog.of((0x44, 1), (0x11, 0))))
    assert (answer.opcode, answer.status) == (Opcode.DCP_ADD_STREAM, 0)
    assert source.replicas.vbuckets[1].failover_log == FailoverLog.of((0x44, 1), (0x11, 0))


def test_a_rollback_beyond_what_there_is_changes_nothing():
    source = MachineProducer(with_history(b"a", b"b"))
    (again,) = source.send_answer(source.request(), status=Status.ROLLBACK, value=(9).to_bytes(8, "big"))
    assert requested(again)[0] == 2


# -------------------------------------------------------------------------------------------------------- snapshots


def change(seqno):
    return Change(b"frame", b"\0key", seqno)


def reading(**fields):
    stream = new_stream(**fields)
    stream.accepted(LOG)
    return stream


def marked(stream, start, end, flags=MarkerFlag.MEMORY, **more):
    return stream.marker(Marker(start, end, int(flags), **more), is_sync_replication=False)


def test_a_replica_of_80_refuses_a_marker_inside_a_snapshot_from_memory():
    for may_be_inside in (True, False):
        stream = reading()
        marked(stream, 1, 9)
        stream.change(change(1))
        outcome = pytest.raises(RemoteProtocolError, match="inside") if not may_be_inside else nullcontext()
        with outcome:
            stream.marker(Marker(2, 9, 1), is_sync_replication=False, may_be_inside=may_be_inside)
        stream = reading()
        marked(stream, 1, 9)
        stream.marker(Marker(2, 10, 1), is_sync_replication=False, may_be_inside=may_be_inside)


def test_each_snapshot_says_where_the_copy_was_sound_before():
    stream = reading()
    for start, end in ((0, 3), (4, 6), (7, 7)):
        assert marked(stream, start, end, MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT) is Status.SUCCESS
        assert stream.change(change(end)) is Status.SUCCESS
    assert stream._replicas.marks == [(0, 3, 0), (4, 6, 3), (7, 7, 6)]


def test_a_snapshot_that_was_not_finished_stays_unsound_at_its_old_start():
    stream = reading()
    marked(stream, 0, 3)
    stream.change(change(3))
    marked(stream, 4, 9)
    stream.change(change(5))
    marked(stream, 4, 12, MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT)
    assert stream._replicas.marks[-1] == (4, 12, 3)


@pytest.mark.parametrize("end", [1, 2])
def test_markers_that_are_wholly_old(end):
    stream = reading()
    marked(stream, 0, 2)
    stream.change(change(2))
    assert marked(stream, 1, end) is Status.ERANGE
    assert marked(stream, 1, 3) is Status.SUCCESS


def test_rows_must_be_inside_and_rising():
    stream = reading()
    assert stream.fits(change(1)) is Status.ERANGE
    marked(stream, 3, 5)
    assert [stream.fits(change(seqno)) for seqno in (2, 3, 5, 6)] == [
        Status.ERANGE,
        Status.SUCCESS,
        Status.SUCCESS,
        Status.ERANGE,
    ]
    stream.change(change(4))
    assert [stream.fits(change(seqno)) for seqno in (4, 5)] == [Status.ERANGE, Status.SUCCESS]


@pytest.mark.parametrize("state", VbucketState)
def test_only_copies_take_rows(state):
    stream = reading()
    marked(stream, 1, 5)
    stream.view.state = state
    taken = state in (VbucketState.REPLICA, VbucketState.PENDING)
    assert stream.change(change(1)) is (Status.SUCCESS if taken else Status.NOT_MY_VBUCKET)


def test_an_ack_is_due_once_at_the_end():
    stream = reading()
    marked(stream, 1, 2, MarkerFlag.MEMORY | MarkerFlag.ACK)
    stream.change(change(1))
    assert not stream.snapshot_done()
    stream.change(change(2))
    assert stream.snapshot_done()
    assert not stream.snapshot_done()
