"""The questions of a consumer before its first stream."""

import pytest

from dcpstream.dcp.consumer.controls import TRANSITIONS, Negotiation, NegotiationEvent, NegotiationState
from dcpstream.dcp.controls import ReplicaWishes, asked_by_replica
from dcpstream.errors import LocalProtocolError, RemoteProtocolError
from dcpstream.wire import Opcode, Status, decode_frame, encode_response
from dcpstream.wire.release import RELEASES


def answered(negotiation, opcode, opaque, status=0):
    data = encode_response(opcode, status=status, opaque=opaque)
    return [decode_frame(question) for question in negotiation.answered(decode_frame(data))]


def refused(negotiation, opcode, opaque):
    """Nothing waits for this answer, and it changes nothing."""
    before = negotiation.state
    with pytest.raises(RemoteProtocolError, match="nothing waits for"):
        answered(negotiation, opcode, opaque)
    return negotiation.state is before


def new_negotiation(name="", release="8.0"):
    opaques = iter(range(1, 100))
    return Negotiation(name, lambda: next(opaques), RELEASES[release])


def begun(negotiation):
    """The question for the error map; a replica of 7.2 asks for its buffer before."""
    return decode_frame(list(negotiation.begin())[-1])


def test_until_the_error_map_is_there_a_72_asks_for_its_buffer_and_nothing_else():
    negotiation = new_negotiation(release="7.2")
    buffer, error_map = (decode_frame(data) for data in negotiation.begin())
    assert (buffer.key, error_map.opcode, error_map.value) == (b"connection_buffer_size", Opcode.GET_ERROR_MAP, b"\0\0")
    assert answered(negotiation, Opcode.DCP_CONTROL, buffer.opaque) == []
    assert refused(negotiation, Opcode.DCP_CONTROL, buffer.opaque)
    (control,) = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)
    assert control.key == b"enable_noop"
    assert not negotiation.is_done


@pytest.mark.parametrize("release", ["7.2", "8.0"])
def test_what_was_accepted_is_known(release):
    negotiation = new_negotiation("node", release)
    error_map = begun(negotiation)
    asked = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)
    count = 0
    while asked:
        status = Status.EINVAL if asked[0].key == b"change_streams" else 0
        asked = answered(negotiation, Opcode.DCP_CONTROL, asked[0].opaque, status)
        count += 1
    assert negotiation.is_done
    names = [name for name, _, _ in asked_by_replica(ReplicaWishes(1, "1", "node", RELEASES[release]))]
    if names[0] == "connection_buffer_size":
        names = names[1:]  # asked for with the error map
    assert count == len(names)
    assert negotiation.accepted == set(names) - {"change_streams"}


@pytest.mark.parametrize("release", ["7.2", "8.0"])
def test_a_control_is_answered_once(release):
    negotiation = new_negotiation(release=release)
    error_map = begun(negotiation)
    (control,) = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)
    assert refused(negotiation, Opcode.DCP_CONTROL, control.opaque + 50)
    assert answered(negotiation, Opcode.DCP_CONTROL, control.opaque)
    assert refused(negotiation, Opcode.DCP_CONTROL, control.opaque)
    assert refused(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)


@pytest.mark.parametrize("event", NegotiationEvent)
@pytest.mark.parametrize("state", NegotiationState)
def test_every_event_in_every_state_leads_to_the_state_of_the_table_or_is_refused(state, event):
    negotiation = new_negotiation()
    negotiation.state = state
    if TRANSITIONS.is_legal(state, event):
        negotiation._go(event)
        assert negotiation.state is TRANSITIONS.rows[state][event]
    else:
        with pytest.raises(LocalProtocolError if event is NegotiationEvent.BEGUN else RemoteProtocolError):
            negotiation._go(event)
        assert negotiation.state is state


def test_the_answer_to_the_buffer_size_of_a_72_may_come_at_any_time():
    negotiation = new_negotiation(release="7.2")
    buffer, error_map = (decode_frame(data) for data in negotiation.begin())
    asked = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)
    while not negotiation.is_done:
        asked = answered(negotiation, Opcode.DCP_CONTROL, asked[0].opaque)
    assert answered(negotiation, Opcode.DCP_CONTROL, buffer.opaque) == []
    assert negotiation.is_done


def new_negotiation_of_80():
    opaques = iter(range(1, 100))
    negotiation = Negotiation("", lambda: next(opaques), RELEASES["8.0"], 4096)
    (error_map,) = (decode_frame(data) for data in negotiation.begin())
    return negotiation, error_map


def test_an_80_asks_for_its_buffer_last_and_for_a_short_noop_interval():
    negotiation, question = new_negotiation_of_80()
    asked = []
    while question is not None:
        is_short = question.value == b"0.100000"
        found = answered(negotiation, question.opcode, question.opaque, Status.EINVAL if is_short else 0)
        asked += [(frame.key, frame.value) for frame in found]
        question = found[0] if found else None
    assert asked[1] == (b"set_noop_interval", b"0.100000")
    assert asked[-3:-1] == [(b"max_marker_version", b"2.2"), (b"connection_buffer_size", b"4096")]
    assert asked[-1] == (b"set_noop_interval", b"1")
    assert negotiation.is_done


def test_an_80_ends_the_connection_if_both_intervals_are_refused():
    negotiation, question = new_negotiation_of_80()
    while question.value != b"1":
        status = Status.EINVAL if question.key == b"set_noop_interval" else 0
        (question,) = answered(negotiation, question.opcode, question.opaque, status)
    with pytest.raises(RemoteProtocolError, match="refused set_noop_interval"):
        answered(negotiation, question.opcode, question.opaque, Status.EINVAL)


def test_an_80_ends_the_connection_if_there_is_no_error_map():
    negotiation, question = new_negotiation_of_80()
    with pytest.raises(RemoteProtocolError, match="GET_ERROR_MAP"):
        answered(negotiation, question.opcode, question.opaque, Status.UNKNOWN_COMMAND)
