"""The questions of a consumer before its first stream."""

import pytest

from dcpstream.dcp.consumer.controls import TRANSITIONS, Negotiation, NegotiationEvent, NegotiationState
from dcpstream.errors import LocalProtocolError, RemoteProtocolError
from dcpstream.wire import Opcode, Status, decode_frame, encode_response
from dcpstream.wire.release import RELEASES
from tests.kit.cases import each_case
from tests.kit.rules import rule


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
    assert answered(negotiation, Opcode.DCP_CONTROL, buffer.opaque) == [], "what nothing waits for means nothing"
    controls = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)
    assert controls[0].key == b"enable_noop"
    assert not negotiation.is_done


@rule("CON-01", "CON-05")
def test_a_72_waits_for_the_answers_to_some_controls():
    negotiation = new_negotiation("replica", release="7.2")
    _, error_map = (decode_frame(data) for data in negotiation.begin())
    asked, rounds = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque), []
    while asked:
        rounds.append([frame.key for frame in asked])
        *others, last = asked
        for frame in others:
            assert answered(negotiation, Opcode.DCP_CONTROL, frame.opaque) == []
            assert answered(negotiation, Opcode.DCP_CONTROL, 0x1234) == []
        assert not negotiation.is_done
        asked = answered(negotiation, Opcode.DCP_CONTROL, last.opaque)
    assert negotiation.is_done
    assert [len(names) for names in rounds] == [8, 1, 1, 1, 1, 1]
    assert rounds[0][-1] == b"enable_sync_writes"
    assert negotiation.accepted == {name.decode() for names in rounds for name in names}


@rule("CON-05")
def test_an_80_takes_any_answer_to_the_error_map_and_none_to_another_control():
    negotiation = new_negotiation()
    negotiation.begin()
    assert answered(negotiation, Opcode.DCP_CONTROL, 0x1234) == []
    (control,) = answered(negotiation, Opcode.GET_ERROR_MAP, 0x1234)
    assert answered(negotiation, Opcode.GET_ERROR_MAP, 0x1234) == []
    assert refused(negotiation, Opcode.DCP_CONTROL, 0x1234)
    assert answered(negotiation, Opcode.DCP_CONTROL, control.opaque)


@each_case("event", NegotiationEvent)
@each_case("state", NegotiationState)
def test_every_event_in_every_state_leads_to_the_state_of_the_table_or_is_refused(state, event):
    negotiation = new_negotiation()
    negotiation.state = state
    if TRANSITIONS.is_legal(state, event):
        negotiation._go(event)
        assert negotiation.state is TRANSITIONS.rows[state][event]
    else:
        is_own = event in (NegotiationEvent.BEGUN, NegotiationEvent.RESIZED)
        with pytest.raises(LocalProtocolError if is_own else RemoteProtocolError):
            negotiation._go(event)
        assert negotiation.state is state


def test_the_answer_to_the_buffer_size_of_a_72_may_come_at_any_time():
    negotiation = new_negotiation(release="7.2")
    buffer, error_map = (decode_frame(data) for data in negotiation.begin())
    asked = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)
    while not negotiation.is_done:
        asked = [more for one in asked for more in answered(negotiation, Opcode.DCP_CONTROL, one.opaque)]
    assert answered(negotiation, Opcode.DCP_CONTROL, buffer.opaque) == []
    assert negotiation.is_done


def new_negotiation_of(release):
    opaques = iter(range(1, 100))
    negotiation = Negotiation("", lambda: next(opaques), RELEASES[release], 4096)
    return negotiation, [decode_frame(data) for data in negotiation.begin()]


def new_negotiation_of_80():
    negotiation, (error_map,) = new_negotiation_of("8.0")
    return negotiation, error_map


def asked_until_the_end(negotiation, question, refuse=lambda frame: False):
    """(key, value) of all that is asked after a question."""
    asked = []
    while question is not None:
        found = answered(negotiation, question.opcode, question.opaque, Status.EINVAL if refuse(question) else 0)
        asked += [(frame.key, frame.value) for frame in found]
        question = found[0] if found else None
    return asked


def is_short(frame):
    return frame.value == b"0.100000"


@rule("CON-01", "CON-03")
def test_an_80_asks_for_its_buffer_last_and_for_a_short_noop_interval():
    negotiation, question = new_negotiation_of_80()
    asked = asked_until_the_end(negotiation, question, is_short)
    assert asked[1] == (b"set_noop_interval", b"0.100000")
    assert asked[-3:-1] == [(b"max_marker_version", b"2.2"), (b"connection_buffer_size", b"4096")]
    assert asked[-1] == (b"set_noop_interval", b"1")
    assert negotiation.is_done


@rule("CON-03")
def test_an_80_ends_the_connection_if_both_intervals_are_refused():
    negotiation, question = new_negotiation_of_80()
    while question.value != b"1":
        status = Status.EINVAL if question.key == b"set_noop_interval" else 0
        (question,) = answered(negotiation, question.opcode, question.opaque, status)
    with pytest.raises(RemoteProtocolError, match="refused set_noop_interval"):
        answered(negotiation, question.opcode, question.opaque, Status.EINVAL)


@rule("KV-COPY-17")
def test_an_80_ends_the_connection_if_there_is_no_error_map():
    negotiation, question = new_negotiation_of_80()
    with pytest.raises(RemoteProtocolError, match="GET_ERROR_MAP"):
        answered(negotiation, question.opcode, question.opaque, Status.UNKNOWN_COMMAND)


def test_a_76_asks_for_its_buffer_first_and_for_another_interval_at_once():
    negotiation, (buffer, error_map) = new_negotiation_of("7.6")
    assert (buffer.key, buffer.value) == (b"connection_buffer_size", b"4096")
    asked = asked_until_the_end(negotiation, error_map, is_short)
    assert asked[1:4] == [(b"set_noop_interval", b"0.100000"), (b"set_noop_interval", b"1"), (b"set_priority", b"high")]
    assert (asked[-1], negotiation.is_done) == ((b"change_streams", b"true"), True)


def resized(negotiation, size):
    return [(frame.key, frame.value) for frame in map(decode_frame, negotiation.resize(size))]


def test_a_buffer_that_changes_before_it_was_asked_for_is_asked_for_once():
    opaques = iter(range(1, 100))
    negotiation = Negotiation("", lambda: next(opaques), RELEASES["8.0"], 4096)
    assert resized(negotiation, 1000) == []
    (error_map,) = (decode_frame(data) for data in negotiation.begin())
    assert resized(negotiation, 2000) == []
    (noop,) = answered(negotiation, Opcode.GET_ERROR_MAP, error_map.opaque)
    assert resized(negotiation, 3000) == []
    asked = asked_until_the_end(negotiation, noop)
    assert [value for key, value in asked if key == b"connection_buffer_size"] == [b"3000"]


def test_a_buffer_that_changes_later_is_asked_for_again_and_the_streams_wait():
    negotiation, question = new_negotiation_of_80()
    asked_until_the_end(negotiation, question)
    (again,) = map(decode_frame, negotiation.resize(1000))
    assert (again.key, again.value, negotiation.is_done) == (b"connection_buffer_size", b"1000", False)
    assert resized(negotiation, 500) == []
    (last,) = answered(negotiation, Opcode.DCP_CONTROL, again.opaque, Status.EINVAL)
    assert (last.value, negotiation.is_done) == (b"500", False)
    assert answered(negotiation, Opcode.DCP_CONTROL, last.opaque) == []
    assert negotiation.is_done


def test_a_76_asks_for_another_buffer_at_any_time():
    opaques = iter(range(1, 100))
    negotiation = Negotiation("", lambda: next(opaques), RELEASES["7.6"], 4096)
    assert resized(negotiation, 1000) == []
    buffer, error_map = (decode_frame(data) for data in negotiation.begin())
    assert buffer.value == b"1000"
    assert resized(negotiation, 2000) == [(b"connection_buffer_size", b"2000")]
    asked_until_the_end(negotiation, error_map)
    (again,) = map(decode_frame, negotiation.resize(3000))
    assert (again.value, negotiation.is_done) == (b"3000", True)
    assert answered(negotiation, Opcode.DCP_CONTROL, again.opaque) == []
