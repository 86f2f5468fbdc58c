"""For how long a connection sent nothing, and why."""

from dcpstream.dcp.stats import BUFFER_FULL, INITIALIZING, NOTHING_TO_SAY, Pause, milliseconds


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


def test_durations_are_written_in_milliseconds():
    assert milliseconds(1.2345) == "1234 ms"
