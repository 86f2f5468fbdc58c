"""When a producer asks whether the peer is there, and when it gives up."""

from dcpstream.dcp.liveness import (
    NoopTimer,
)

FIRST, SECOND = 0x81969800, 0x82969800


def enabled(interval_s=1.0, idle_timeout_s=360.0):
    timer = NoopTimer(100.0, idle_timeout_s)
    timer.is_enabled, timer.interval_s = True, interval_s
    return timer


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
