"""When a producer asks whether the peer is there, and when it gives up."""

from dcpstream.dcp.liveness import (
    ANSWER_TIMEOUT_S,
    DEFAULT_INTERVAL_S,
    NoopTimer,
    PendingRequests,
    Silence,
    earliest,
    silence_limit_s,
)

FIRST, SECOND = 0x81969800, 0x82969800


def enabled(interval_s=1.0, idle_timeout_s=360.0):
    timer = NoopTimer(100.0, idle_timeout_s)
    timer.is_enabled, timer.interval_s = True, interval_s
    return timer


def test_off_until_asked_for():
    timer = NoopTimer(100.0)
    assert timer.next_timeout is None
    assert timer.poll(1e9) is None
    assert not timer.is_dead(1e9)
    assert timer.interval_s == DEFAULT_INTERVAL_S


def test_one_an_interval_and_the_opaques_count_up_in_the_servers_byte_order():
    timer = enabled()
    assert timer.next_timeout == 101.0
    assert timer.poll(100.9) is None
    assert timer.poll(101.0) == FIRST
    assert timer.answered(FIRST)
    assert timer.next_timeout == 102.0
    assert timer.poll(102.5) == SECOND


def test_none_while_one_is_unanswered_and_that_alone_kills_nobody():
    timer = enabled(idle_timeout_s=50.0)
    assert timer.poll(101.0) == FIRST
    timer.silence.received(140.0)
    assert timer.poll(120.0) is None
    assert timer.next_timeout == 190.0
    assert not timer.is_dead(189.9)
    assert timer.is_dead(190.0)


def test_wrong_or_unasked_answers_are_not_taken():
    timer = enabled()
    assert not timer.answered(FIRST)
    timer.poll(101.0)
    assert not timer.answered(SECOND)
    assert timer.answered(FIRST)
    assert timer.answered(FIRST), "also twice"
    assert timer.pending_opaque is None
    assert timer.poll(102.0) == SECOND
    assert not timer.answered(FIRST)
    assert timer.pending_opaque == SECOND


def test_an_interval_of_zero_is_once_a_second():
    timer = enabled(interval_s=0.0)
    assert timer.poll(100.5) is None
    assert timer.poll(101.0) == FIRST


def test_silence_counts_from_the_last_message():
    silence = Silence(100.0, silence_limit_s(20.0))
    silence.received(130.0)
    assert silence.deadline == 180.0
    assert not silence.is_over(179.9)
    assert silence.is_over(180.0)


def test_the_oldest_request_is_overdue_first():
    requests = PendingRequests()
    assert (requests.deadline, requests.overdue(1e9)) == (None, None)
    requests.sent(1, 0x53, 0.0)
    requests.sent(2, 0x54, 5.0)
    assert requests.overdue(ANSWER_TIMEOUT_S) == 0x53
    assert requests.answered(1) == 0x53
    assert requests.answered(1) is None
    assert requests.deadline == 5.0 + ANSWER_TIMEOUT_S
    assert earliest(None, 3.0, 2.0) == 2.0
