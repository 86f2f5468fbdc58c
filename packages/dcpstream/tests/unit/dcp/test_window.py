"""The windows of both ends, and their pauses: plain numbers."""

from dcpstream.dcp.window import (
    ACK_INTERVAL_S,
    BUFFER_FULL,
    INITIALIZING,
    NOTHING_TO_SAY,
    ConsumerWindow,
    Pause,
    ProducerWindow,
)
from dcpstream.wire import MAX_FRAME_BYTES


def test_without_a_buffer_nothing_is_full_and_nothing_is_acknowledged():
    window = ProducerWindow()
    window.sent(10**12)
    window.acknowledged(5, 0.0)
    assert (window.is_enabled, window.is_full, window.credit_bytes) == (False, False, None)
    assert (window.outstanding_bytes, window.acked_bytes) == (10**12, 0)


def test_what_was_sent_before_the_buffer_was_set_is_outstanding():
    window = ProducerWindow()
    window.sent(300)
    window.set_buffer(200)
    assert window.is_full
    window.acknowledged(150, 0.0)
    assert window.credit_bytes == 50


def test_a_message_may_start_below_the_limit_and_overshoot_it():
    window = ProducerWindow()
    window.set_buffer(100)
    window.sent(99)
    assert (window.is_full, window.credit_bytes) == (False, 1)
    window.sent(50)
    assert (window.is_full, window.credit_bytes) == (True, 0)
    window.acknowledged(49, 0.0)
    assert window.is_full
    window.acknowledged(1, 0.0)
    assert (window.is_full, window.credit_bytes) == (False, 1)


def test_too_much_acknowledged_frees_all_and_is_counted_as_it_was_said():
    window = ProducerWindow()
    window.set_buffer(100)
    window.sent(150)
    window.acknowledged(1_000_000, 0.0)
    assert (window.outstanding_bytes, window.acked_bytes) == (0, 1_000_000)
    window.acknowledged(7, 0.0)
    assert (window.outstanding_bytes, window.acked_bytes) == (0, 1_000_007)


def test_zero_switches_it_off_and_forgets():
    window = ProducerWindow()
    window.set_buffer(100)
    window.sent(500)
    window.set_buffer(0)
    assert (window.is_full, window.credit_bytes, window.outstanding_bytes) == (False, None, 0)
    assert window.acked_bytes == 0


def test_a_smaller_buffer_takes_effect_at_once():
    window = ProducerWindow()
    window.set_buffer(1000)
    window.sent(500)
    window.set_buffer(200)
    assert window.is_full


def test_more_than_a_fifth_of_the_buffer_at_once():
    window = ConsumerWindow(0.0, 1000)
    window.freed(200)
    assert window.take(1.0) == 0
    window.freed(1)
    assert window.take(1.0) == 201
    assert (window.freed_bytes, window.acked_bytes) == (0, 201)


def test_another_buffer_has_another_fifth():
    window = ConsumerWindow(0.0, 1000)
    window.freed(150)
    window.buffer_bytes = 700
    assert window.take(1.0) == 150


def test_less_after_a_while():
    window = ConsumerWindow(10.0, 1000)
    assert window.next_timeout is None
    window.freed(1)
    assert window.next_timeout == 10.0 + ACK_INTERVAL_S
    assert window.take(window.next_timeout - 0.1) == 0
    assert window.take(window.next_timeout) == 1
    window.freed(1)
    assert window.next_timeout == 10.0 + 2 * ACK_INTERVAL_S


def test_more_than_the_buffer_and_a_frame_is_too_much():
    window = ConsumerWindow(0.0, 1000)
    window.received(1000 + MAX_FRAME_BYTES)
    assert not window.is_overrun
    window.handled(1)
    assert window.is_overrun


def test_each_pause_counts_for_the_reason_that_it_had():
    pause = Pause(10.0, INITIALIZING)
    pause.passed(11.0, is_over=False, reason=INITIALIZING)
    assert (pause.counts[INITIALIZING], pause.current_s, pause.reason) == (0, 1.0, INITIALIZING)
    pause.passed(12.0, is_over=False, reason=BUFFER_FULL)
    assert (pause.counts[INITIALIZING], pause.durations_s[INITIALIZING], pause.current_s) == (1, 2.0, 0.0)
    assert pause.reason == BUFFER_FULL
    pause.passed(15.0, is_over=True)
    assert (pause.counts[BUFFER_FULL], pause.durations_s[BUFFER_FULL]) == (1, 3.0)
    pause.passed(16.0, is_over=True)
    pause.passed(18.0, is_over=True)
    assert (pause.counts[NOTHING_TO_SAY], pause.durations_s[NOTHING_TO_SAY]) == (2, 3.0)
