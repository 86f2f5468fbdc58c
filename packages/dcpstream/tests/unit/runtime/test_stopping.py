"""A request to stop that a signal handler makes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from dcpstream.runtime.stopping import StopRequest
from tests.kit.cases import each_case


@each_case("step", [1, 2, 3, 4])
def test_a_signal_at_any_step_into_the_wait_ends_it(step: int) -> None:
    """A handler runs between two steps of the thread that waits."""
    stopping, steps = StopRequest(), 0

    def trace(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == step:
            stopping.set()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        is_over = stopping.wait(60.0)
    finally:
        sys.settrace(before)
    assert is_over
    assert steps >= step
