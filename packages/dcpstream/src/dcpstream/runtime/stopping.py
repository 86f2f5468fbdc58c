"""Programs that run until a signal: a request to stop that a signal handler may make.

The handlers of such programs come from here, because one that sets a `threading.Event` can wait for ever.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Protocol


class StopSign(Protocol):
    """A request that a loop shall end: a `StopRequest`, or an event of `threading` that no signal handler sets."""

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, for so many seconds at most; whether it was asked for."""
        ...


class StopRequest:
    """An event that a signal handler may set, unlike that of `threading`.

    A handler runs in the main thread, between any two steps of it. If that thread is just taking or leaving the lock of
    a `threading.Event`, the handler's `set` waits for it for ever. A `SimpleQueue` may be put into at any moment.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask for the stop."""
        self._is_set = True
        self._woken.put(None)

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, for so many seconds at most; whether it was asked for."""
        if not self._is_set:
            try:
                self._woken.get(timeout=timeout)
                self._woken.put(None)  # for others that wait
            except Empty:
                pass
        return self._is_set


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """A request that SIGTERM and Ctrl-C set, instead of ending the process; afterwards they do what they did before."""
    stopping = StopRequest()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
