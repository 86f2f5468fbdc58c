"""When bytes are acknowledged."""

from dcpstream.protocol.consumer.flow import ACK_INTERVAL_S, ConsumerWindow


def test_a_fifth_of_the_buffer_at_once():
    window = ConsumerWindow(0.0, 1000)
    window.freed(199)
    assert window.take(1.0) == 0
    window.freed(1)
    assert window.take(1.0) == 200
    assert (window.freed_bytes, window.acked_bytes) == (0, 200)


def test_less_after_a_while():
    window = ConsumerWindow(10.0, 1000)
    assert window.next_timeout is None
    window.freed(1)
    assert window.next_timeout == 10.0 + ACK_INTERVAL_S
    assert window.take(window.next_timeout - 0.1) == 0
    assert window.take(window.next_timeout) == 1
    window.freed(1)
    assert window.next_timeout == 10.0 + 2 * ACK_INTERVAL_S


def test_nothing_is_not_acknowledged():
    assert ConsumerWindow(0.0).take(1000.0) == 0
