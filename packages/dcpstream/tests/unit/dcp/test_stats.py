"""The text of values in the `dcp` stats group."""

from dcpstream.dcp.stats import milliseconds


def test_durations_are_written_in_milliseconds():
    assert milliseconds(1.2345) == "1234 ms"
