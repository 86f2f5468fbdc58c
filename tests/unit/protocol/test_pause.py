"""How long a connection was silent."""

from dcpstream.protocol.pause import Pause, milliseconds


def test_the_first_pause_and_those_that_follow():
    pause = Pause(10.0)
    pause.passed(11.0, is_over=False)
    assert (pause.count, pause.first_s, pause.current_s) == (0, None, 1.0)
    pause.passed(12.0, is_over=True)
    assert (pause.count, pause.first_s, pause.previous_s, pause.current_s) == (1, 2.0, 2.0, 0.0)
    pause.passed(15.0, is_over=True)
    assert (pause.count, pause.first_s, pause.previous_s) == (2, 2.0, 5.0)


def test_durations_are_written_in_milliseconds():
    assert milliseconds(1.2345) == "1234 ms"
