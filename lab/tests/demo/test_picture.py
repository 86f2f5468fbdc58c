"""Tests of the places of events' names in the picture."""

from __future__ import annotations

import pytest

from dcpstream_demo.picture import LABEL_WIDTH, label_times


def test_names_stand_at_their_events_or_further_right_but_never_on_each_other() -> None:
    events = [(10.0, "a"), (58.0, "b"), (58.5, "c"), (59.0, "d"), (90.0, "e")]
    width = LABEL_WIDTH * 100.0
    assert label_times(events, 100.0) == pytest.approx([10.0, 58.0, 58.0 + width, 58.0 + 2 * width, 90.0])
    assert label_times([], 100.0) == []
