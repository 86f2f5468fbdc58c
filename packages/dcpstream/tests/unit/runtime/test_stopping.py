"""A request to stop that a signal handler makes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from dcpstream.runtime.stopping import StopRequest
from lab.layout import sources
from tests.kit.cases import each_case

ROOT = Path(__file__).parents[5]

HANDLERS = {
    "examples/demo/dcpstream_demo/command.py": "raises KeyboardInterrupt",
    "examples/demo/dcpstream_demo/processes.py": "ignores Ctrl-C while it kills its children",
    "packages/dcpstream-node/src/dcpstream_node/fork_server.py": "reaps children",
    "packages/dcpstream/src/dcpstream/runtime/stopping.py": "asks for a stop",
    "packages/dcpstream-spark/src/dcpstream_spark/worker.py": "ends the process",
}
"""Modules with signal handlers, and what those do: none of it takes a lock."""


def test_no_other_module_has_a_handler() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in (*sources(), ROOT / "examples")
        for path in folder.rglob("*.py")
        if "signal.signal(" in path.read_text(encoding="utf-8")
    }
    assert found == set(HANDLERS)


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


def test_all_that_wait_are_released() -> None:
    stopping = StopRequest()
    assert not stopping.wait(0.001)
    stopping.set()
    assert stopping.is_set()
    assert stopping.wait()
    assert stopping.wait()
